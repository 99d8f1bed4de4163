"""Pairs of a state found by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import sublet
from sublet.api.ranges import compile_ranges
from sublet.api.state_names import pairs_by_name
from sublet.base.errors import ModelError, RunError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Value
from tests.runtime.test_ranged import DECODER_DIMS, DECODER_STATE, decoder

PAIR = TensorSpec(DType.F32, (1, 2))


def values(names: str, spec: TensorSpec = PAIR) -> dict[str, Value]:
    """Tensors of one type, by name."""
    return {name: Value(name, spec) for name in names.split()}


@pytest.mark.parametrize(
    ("inputs", "outputs", "pairs"),
    [
        (
            "ids past_key_values.0.key past_key_values.0.value past_key_values.1.key",
            "logits present.0.key present.0.value present.1.key",
            "past_key_values.0.key=present.0.key past_key_values.0.value=present.0.value "
            "past_key_values.1.key=present.1.key",
        ),
        (
            "x past_key_0 past_key_1 past_key_10",
            "y present_key_0 present_key_1 present_key_10",
            "past_key_0=present_key_0 past_key_1=present_key_1 past_key_10=present_key_10",
        ),
        ("past", "present", "past=present"),
        ("input state sr", "output stateN", "state=stateN"),
        ("x h c", "y hn cn", "h=hn c=cn"),
        ("x h0 c0", "y hn cn", "h0=hn c0=cn"),
        ("x layer0_h layer1_h", "y layer0_hn layer1_hn", "layer0_h=layer0_hn layer1_h=layer1_hn"),
        ("x prev_h", "y h", "prev_h=h"),
        ("x state_in", "y state_out", "state_in=state_out"),
        ("x cached_len_0 cached_len_1", "y new_cached_len_0 new_cached_len_1",
         "cached_len_0=new_cached_len_0 cached_len_1=new_cached_len_1"),
        ("x cache_last_time", "y cache_last_time_next", "cache_last_time=cache_last_time_next"),
        # Not a state: other names, images, several partners.
        ("input_image", "output_image", ""),
        ("input", "output", ""),
        ("x.1 x.2", "y.1 y.2", ""),
        ("past old", "present new", ""),
    ],
)  # fmt: skip
def test_names_of_a_state_are_paired(inputs: str, outputs: str, pairs: str) -> None:
    assert pairs_by_name(values(inputs), values(outputs)) == dict(pair.split("=") for pair in pairs.split())


def test_tensors_of_another_type_are_no_pair() -> None:
    longer, whole = TensorSpec(DType.F32, (1, 3)), TensorSpec(DType.I32, (1, 2))
    assert pairs_by_name(values("h"), values("hn", longer)) == {}
    assert pairs_by_name(values("h"), values("hn", longer), may_grow=True) == {"h": "hn"}
    assert pairs_by_name(values("h"), values("hn", whole), may_grow=True) == {}


def cell(path: Path) -> Path:
    """A model file with a state h, hn."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> cell (float[2] x, float[2] h) => (float[2] hn, float[2] y) '
        "{ hn = Add(x, h) y = Relu(hn) }"
    )
    onnx.save(model, path)
    return path


def test_auto_declares_the_pairs_of_one_shape(tmp_path: Path) -> None:
    path = cell(tmp_path / "cell.onnx")
    run = sublet.compile(path, state="auto")
    for total in (1, 2, 3):
        assert np.all(run(x=np.ones(2, np.float32))["y"] == total)
    with pytest.raises(ModelError, match="no output is the next content of an input by name and type"):
        sublet.compile(path, state="auto", const={"h": [0, 0]})
    with pytest.raises(ModelError, match="expected pairs of an input and an output, or 'auto'"):
        sublet.compile(path, state="all")


def test_auto_declares_the_pairs_over_ranges() -> None:
    one, other = (compile_ranges(decoder(), DECODER_DIMS, state=state) for state in ("auto", {"past": "present"}))
    assert one.state_pairs == DECODER_STATE
    assert other.state_pairs == {"past": "present"}
    again = compile_ranges(decoder(), plan=one.plan, state="auto")
    assert again.state_pairs == DECODER_STATE
    session = again.session()
    session(x=np.ones((1, 2, 4), np.float32))
    assert session.state("past").shape == (1, 2, 4)
    with pytest.raises(RunError, match="the outputs are 'y', 'present', 'hn'"):
        compile_ranges(decoder(), DECODER_DIMS, state={"past": "none"})
