"""Pooling against PyTorch's own functions and derivatives; what its kernels allocate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from sublet.runtime.backends.reference import ReferenceBackend
from tests.nn.against import agrees, refused
from tests.nn.examples import EXAMPLES, Example, case_of
from tests.nn.test_allocations import allocated
from tests.nn.test_registry import computed

F = torch.nn.functional

USES: list[tuple[str, dict[str, Any]]] = [
    ("f64[3,4,16,15]", {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ("f64[3,4,16,15]", {"kernel": (3, 2), "strides": (2, 3), "pads": (1, 0, 1, 0), "ceil": 1}),
    ("f64[3,4,15,15]", {"kernel": (2, 2)}),
    ("f64[3,4,31]", {"kernel": (4,), "strides": (3,), "pads": (2, 2), "ceil": 1}),
    ("f64[2,3,7,6,9]", {"kernel": (3, 2, 3), "strides": (1, 2, 2), "pads": (1, 0, 1, 1, 0, 1)}),
]


def pooling(kind: str, attrs: dict[str, Any], last: bool) -> Any:
    """PyTorch's, with the attributes as it takes them."""

    def function(x: Any) -> Any:
        axes = x.ndim - 2
        x = x.movedim(-1, 1) if last else x
        pads = attrs.get("pads", (0,) * axes)[:axes]
        own = {"dilation": attrs.get("dilations", (1,) * axes)} if kind == "max" else {}
        if kind == "avg":
            own = {"count_include_pad": bool(attrs.get("count_include_pad", 0))}
        pool = getattr(F, f"{kind}_pool{axes}d")
        y = pool(x, attrs["kernel"], attrs.get("strides"), pads, ceil_mode=bool(attrs.get("ceil", 0)), **own)
        return y.movedim(1, -1) if last else y

    return function


def in_layout(text: str, layout: str) -> str:
    samples, channels, *spatial = text.removeprefix("f64[").removesuffix("]").split(",")
    return text if layout == "nchw" else f"f64[{','.join([samples, *spatial, channels])}]"


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("x", "attrs"), [*USES, ("f64[2,3,9,9]", {"kernel": (3, 3), "dilations": (2, 3)})])
def test_max_pool_is_pytorchs(x: str, attrs: dict[str, Any], layout: str) -> None:
    agrees("max_pool", (in_layout(x, layout),), {**attrs, "layout": layout}, pooling("max", attrs, layout == "nhwc"))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize(("x", "attrs"), USES)
def test_avg_pool_is_pytorchs(x: str, attrs: dict[str, Any], count_include_pad: int, layout: str) -> None:
    attrs = {**attrs, "count_include_pad": count_include_pad}
    function, fast = pooling("avg", attrs, layout == "nhwc"), layout == "nchw"
    agrees("avg_pool", (in_layout(x, layout),), {**attrs, "layout": layout}, function, fast=fast)


@pytest.mark.parametrize("backend", [TorchBackend(), ReferenceBackend()], ids=lambda backend: backend.name)
def test_equal_maxima_give_their_gradient_to_the_first(backend: Any) -> None:
    attrs = {"kernel": (2, 2), "strides": (1, 1)}
    case = case_of(COMMANDS["max_pool_gradient"], Example(("f32[1,1,2,2]", "f32[1,1,3,3]"), attrs))
    arrays = {"x0": np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2), "x1": np.zeros((1, 1, 3, 3), np.float32)}
    found = computed(case.graph, arrays, backend)[case.graph.outputs[0].name]
    assert found[0, 0].tolist() == [[1, 2, 0], [3, 4, 0], [0, 0, 0]]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", ["max_pool", "max_pool_gradient", "max_pool_gather", "avg_pool", "avg_pool_gradient"])
def test_kernels_allocate_nothing_and_take_scratch_for_a_slice(name: str, layout: str) -> None:
    x, y = ("f32[5,32,96,96]", "f32[5,32,48,48]") if layout == "nchw" else ("f32[5,96,96,32]", "f32[5,48,48,32]")
    attrs: dict[str, Any] = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "layout": layout}
    inputs = {"max_pool_gradient": (y, x), "max_pool_gather": (x, x), "avg_pool_gradient": (y,)}.get(name, (x,))
    if name == "avg_pool_gradient":
        attrs["shape"] = tuple(int(extent) for extent in x[4:-1].split(","))
    case = case_of(COMMANDS[name], Example(inputs, attrs))
    assert not [size for size in allocated(case) if size > 4096]
    kernel = TorchBackend().kernel(case.graph.nodes[0], {})
    assert kernel is not None
    most = 0 if name.startswith("avg") else 4 * 32 * 48 * 48 * (8 if name == "max_pool" else 12)
    if (name, layout) == ("max_pool", "nchw"):
        most = (1 << 20) // (96 * 96 * 4) * 96 * 48 * 4  # of a megabyte of images, the maxima along one axis
    assert kernel.scratch == most
    found, expected = (computed(case.graph, case.arrays, backend) for backend in (TorchBackend(), ReferenceBackend()))
    (output,) = case.graph.outputs
    np.testing.assert_allclose(found[output.name], expected[output.name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["max_pool", "max_pool_gradient", "max_pool_gather", "avg_pool", "avg_pool_gradient"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_halves(name: str, dtype: str) -> None:
    for example in EXAMPLES[name]:
        case = case_of(COMMANDS[name], Example(tuple(dtype + text[3:] for text in example.inputs), example.attrs))
        (output,) = case.graph.outputs
        both = [
            computed(case.graph, case.arrays, backend)[output.name] for backend in (TorchBackend(), ReferenceBackend())
        ]
        np.testing.assert_allclose(*(found.astype(np.float64) for found in both), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("max_pool", ["f32[2,3,8,8]"], {}, "needs the attribute 'kernel'"),
        ("max_pool", ["f32[2,3,8,8]"], {"kernel": 3}, "must be a list"),
        ("max_pool", ["f32[2,3,8,8]"], {"kernel": (3,)}, r"x is f32\[2,3,8,8\] with 2 spatial axes"),
        ("max_pool", ["f32[2,3,8,8]"], {"kernel": (0, 2)}, "must be at least 1"),
        ("max_pool", ["f32[2,3,8,8]"], {"kernel": (2, 2), "pads": (2, 0, 0, 0)}, "must be less than the window"),
        ("max_pool", ["f32[2,3,2,8]"], {"kernel": (3, 3)}, "window is 3 wide along spatial axis 0"),
        ("max_pool", ["i64[2,3,8,8]"], {"kernel": (3, 3)}, "expected one of the types"),
        ("max_pool_gradient", ["f32[2,3,4,4]", "f32[2,3,9,8]"], {"kernel": (3, 2)}, "but must be equal"),
        ("max_pool_gather", ["f32[2,3,8,8]", "f32[2,3,8,9]"], {"kernel": (3, 2)}, "ddx and x"),
        ("avg_pool", ["f32[2,3]"], {"kernel": ()}, "1 to 3 spatial axes"),
        ("avg_pool_gradient", ["f32[2,3,4,4]"], {"kernel": (2, 2), "shape": (2, 3, 8, 6)}, "but must be equal"),
    ],
)
def test_refusals(name: str, shapes: list[str], attrs: dict[str, Any], message: str) -> None:
    refused(name, shapes, attrs, message)
