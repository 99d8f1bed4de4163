"""Upsampling against PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.pooling import nearest_sources
from tests.nn.against import agrees, refused
from tests.nn.examples import Example, case_of
from tests.nn.test_registry import computed

torch = pytest.importorskip("torch")
F = torch.nn.functional


@pytest.mark.parametrize("size", [(16, 14), (11, 20), (3, 5), (8, 7), (150, 1)])
@pytest.mark.parametrize(("mode", "align"), [("nearest", 0), ("bilinear", 0), ("bilinear", 1)])
def test_is_pytorchs(size: tuple[int, int], mode: str, align: int) -> None:
    options = {} if mode == "nearest" else {"align_corners": bool(align)}
    agrees(
        "upsample",
        ("f64[2,5,8,7]",),
        {"size": size, "mode": mode, "align_corners": align},
        lambda x: F.interpolate(x, size, mode=mode, **options),
    )


def test_nearest_is_exact_where_floating_point_is_not() -> None:
    """41 * (2 / 82) is below 1 in f32: ATen is not asked, so that no result depends on the backend."""
    x = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
    assert F.interpolate(x, (82, 1))[0, 0, 41, 0] == 0
    assert nearest_sources(2, 82)[41] == 1
    case = case_of(COMMANDS["upsample"], Example(("f32[1,1,2,3]",), {"size": (82, 3)}))
    assert TorchBackend().kernel(case.graph.nodes[0], {}) is None
    (y,) = case.graph.outputs
    found = computed(case.graph, case.arrays, TorchBackend())[y.name]
    np.testing.assert_array_equal(found, case.arrays["x0"].repeat(41, 2))
    even = case_of(COMMANDS["upsample"], Example(("f32[1,1,2,3]",), {"size": (4, 6)}))
    assert TorchBackend().kernel(even.graph.nodes[0], {}) is not None


@pytest.mark.parametrize(
    ("inputs", "attrs", "message"),
    [
        ("f32[2,3,4]", {"size": (4, 4)}, r"\[N, C, H, W\]"),
        ("f32[1,2,3,4]", {"size": (4,)}, "height, width"),
        ("f32[1,2,3,4]", {"size": (0, 4)}, "at least 1"),
        ("f32[1,2,0,4]", {"size": (2, 4)}, "must be at least 1"),
        ("f32[1,2,3,4]", {"size": (2, 4), "mode": "cubic"}, "one of nearest, bilinear"),
    ],
)
def test_what_makes_no_sense_is_refused(inputs: str, attrs: dict[str, Any], message: str) -> None:
    refused("upsample", [inputs], attrs, message)
