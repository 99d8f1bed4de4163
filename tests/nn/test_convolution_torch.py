"""Convolutions against PyTorch's own functions and derivatives; what their kernels allocate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from sublet.integrations.torch.kernels import convolution as kernels
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from tests.nn.against import agrees, refused
from tests.nn.examples import Example, case_of
from tests.nn.test_allocations import allocated
from tests.nn.test_registry import computed

F = torch.nn.functional

CONVOLUTIONS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("f64[3,4,14,14]", "f64[8,4,3,3]", "f64[8]"), {"pads": (1, 1, 1, 1)}),
    (("f64[3,6,15,13]", "f64[8,3,3,3]"), {"strides": (2, 2), "pads": (1, 1, 1, 1), "groups": 2}),
    (("f64[3,6,15,13]", "f64[6,1,3,3]"), {"dilations": (2, 1), "groups": 6}),
    (("f64[3,6,7,7]", "f64[9,6,1,1]", "f64[9]"), {}),
    (("f64[3,6,7,7]", "f64[9,6,1,1]"), {"strides": (2, 2)}),
    (("f64[2,6,30]", "f64[9,6,5]", "f64[9]"), {"strides": (3,), "pads": (2, 2)}),
    (("f64[2,3,31]", "f64[9,3,4]", "f64[9]"), {"strides": (2,)}),
    (("f64[2,9,31]", "f64[4,9,3]", "f64[4]"), {"strides": (5,)}),
    (("f64[2,3,6,7,5]", "f64[4,3,2,3,3]"), {"pads": (0, 1, 1, 0, 1, 1)}),
    (("f64[2,3,8,9]", "f64[4,3,3,4]"), {"pads": (0, 2, 1, 1), "strides": (2, 1)}),
    (("f64[2,3,8,8]", "f64[4,3,2,2]"), {"strides": (3, 3)}),
]


def convolution(transposed: bool, attrs: dict[str, Any], last: bool) -> Any:
    """PyTorch's, with the attributes as it takes them."""

    def function(x: Any, w: Any, b: Any = None) -> Any:
        axes = w.ndim - 2
        x = x.movedim(-1, 1) if last else x
        pads = attrs.get("pads", (0,) * 2 * axes)
        begins, ends = pads[:axes], pads[axes:]
        if begins != ends:
            x = F.pad(x, [pad for axis in reversed(range(axes)) for pad in (begins[axis], ends[axis])])
            begins = (0,) * axes
        ones, extra = (1,) * axes, attrs.get("output_pads", (0,) * axes)
        strided = (attrs.get("strides", ones), begins, attrs.get("dilations", ones))
        y = torch.convolution(x, w, b, *strided, transposed, extra, attrs.get("groups", 1))
        return y.movedim(1, -1) if last else y

    return function


def channels_last(text: str) -> str:
    samples, channels, *spatial = text.removeprefix("f64[").removesuffix("]").split(",")
    return f"f64[{','.join([samples, *spatial, channels])}]"


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("inputs", "attrs"), CONVOLUTIONS)
def test_is_pytorchs(inputs: tuple[str, ...], attrs: dict[str, Any], layout: str) -> None:
    last = layout == "nhwc"
    given = (channels_last(inputs[0]) if last else inputs[0], *inputs[1:])
    agrees("conv", given, {**attrs, "layout": layout}, convolution(False, attrs, last))


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("inputs", "attrs"),
    [
        (("f64[3,8,7,7]", "f64[8,4,3,3]", "f64[4]"), {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_pads": (1, 1)}),
        (("f64[3,8,7,6]", "f64[8,2,2,3]"), {"strides": (1, 3), "groups": 4, "dilations": (2, 1)}),
        (("f64[3,8,7,6]", "f64[8,5,1,1]", "f64[5]"), {}),
        (("f64[3,8,20]", "f64[8,5,4]", "f64[5]"), {"strides": (2,), "pads": (1, 1)}),
        (("f64[3,8,20]", "f64[8,5,4]", "f64[5]"), {"strides": (3,), "output_pads": (2,)}),
    ],
)
def test_transposed_is_pytorchs(inputs: tuple[str, ...], attrs: dict[str, Any], layout: str) -> None:
    last = layout == "nhwc"
    given = (channels_last(inputs[0]) if last else inputs[0], *inputs[1:])
    agrees("conv_transpose", given, {**attrs, "layout": layout}, convolution(True, attrs, last))


SLICED = [
    (("f32[3,64,40,40]", "f32[256,64,3,3]", "f32[256]"), {"pads": (1, 1, 1, 1)}),
    (("f32[2,512,5,5]", "f32[512,512,3,3]", "f32[512]"), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    (("f32[2,3,30,29]", "f32[3,1,5,3]", "f32[3]"), {"groups": 3, "pads": (2, 1, 2, 1)}),
    (("f32[6,64,64,64]", "f32[64,1,3,3]", "f32[64]"), {"groups": 64, "pads": (1, 0, 0, 1)}),
    (("f32[4,64,24,24]", "f32[96,64,1,1]", "f32[96]"), {}),
]


@pytest.fixture
def two_threads() -> Iterator[None]:
    """oneDNN multiplies only where PyTorch has several; workers of the suite give it one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("inputs", "attrs"), SLICED)
def test_slices_are_the_whole(inputs: tuple[str, ...], attrs: dict[str, Any], layout: str) -> None:
    """Large enough to be computed in slices of the batch and of the weights, and with oneDNN's products."""
    _compare_with_derivatives(inputs, attrs, layout)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("inputs", "attrs"),
    [
        (("f32[4,1,801]", "f32[64,1,10]", "f32[64]"), {"strides": (5,)}),
        (("f32[3,32,102]", "f32[48,32,3]", "f32[48]"), {"strides": (2,)}),
        (("f32[3,16,601]", "f32[24,16,3]", "f32[24]"), {"strides": (2,)}),
        (("f32[2,12,64]", "f32[8,12,2]", "f32[8]"), {"strides": (4,)}),
    ],
)
def test_column_matrices(inputs: tuple[str, ...], attrs: dict[str, Any], threads: int, two_threads: None) -> None:
    torch.set_num_threads(threads)
    _compare_with_derivatives(inputs, attrs, "nchw")


ROWS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("f32[2,3,40,30]", "f32[24,3,7,7]", "f32[24]"), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),
    (("f32[2,1,33,20]", "f32[16,1,3,2]", "f32[16]"), {"strides": (3, 1), "pads": (2, 0, 2, 0)}),
    (("f32[2,2,31,17]", "f32[16,2,5,3]", "f32[16]"), {"dilations": (2, 1), "pads": (4, 1, 4, 1)}),
    (("f32[2,3,24,12]", "f32[16,3,4,4]", "f32[16]"), {"pads": (1, 1, 2, 2)}),  # another padding at the end
    (
        ("f32[2,2,20,22]", "f32[16,2,1,1]", "f32[16]"),
        {"strides": (2, 1), "pads": (3, 0, 3, 0)},
    ),  # rows of padding
    (("f32[2,2,200]", "f32[16,2,5]", "f32[16]"), {"pads": (2, 2)}),
    (("f32[2,1,9,8,7]", "f32[8,1,3,3,3]", "f32[8]"), {"strides": (1, 1, 1), "pads": (1, 1, 1, 1, 1, 1)}),
]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("inputs", "attrs"), ROWS)
def test_rows_are_the_whole(
    inputs: tuple[str, ...], attrs: dict[str, Any], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large results are computed in rows: so are small results if slices are small enough."""
    counts: list[int] = []
    row_slices = kernels._ConvolutionTensors._row_slices
    monkeypatch.setattr(kernels, "MIN_SAMPLE_BYTES", 1 << 12)
    monkeypatch.setattr(
        kernels._ConvolutionTensors, "_row_slices", lambda self, parts: counts.append(parts) or row_slices(self, parts)
    )
    _compare_with_derivatives(inputs, attrs, layout)
    assert counts[0] >= 2


def _compare_with_derivatives(inputs: tuple[str, ...], attrs: dict[str, Any], layout: str) -> None:
    """Compare convolution and gradients with PyTorch's."""
    last = layout == "nhwc"
    x, w, b = (torch.rand(*map(int, text[4:-1].split(","))) - 0.5 for text in inputs)
    x, w = (x.movedim(1, -1).contiguous() if last else x).requires_grad_(True), w.requires_grad_(True)
    y = convolution(False, attrs, last)(x, w, b)
    dy = torch.rand_like(y).contiguous()
    y.backward(dy)
    shared = {**attrs, "layout": layout}
    for name, operands, more, expected in (
        ("conv", (x, w, b), {}, y),
        ("conv_input_gradient", (dy, w), {"shape": tuple(x.shape)}, x.grad),
        ("conv_weight_gradient", (dy, x), {"shape": tuple(w.shape)}, w.grad),
    ):
        texts = tuple(f"f32[{','.join(map(str, t.shape))}]" for t in operands)
        case = case_of(COMMANDS[name], Example(texts, {**shared, **more}))
        arrays = {f"x{i}": t.detach().numpy() for i, t in enumerate(operands)}
        found = computed(case.graph, arrays, TorchBackend())[case.graph.outputs[0].name]
        scale = float(expected.detach().abs().max())
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=0, atol=2e-5 * scale)


def test_what_pytorch_allocates_is_a_part_of_the_tensors() -> None:
    """A plain call takes at least the output, 6 MB; in the layout NCHW once more what both tensors take."""
    for layout, x in (("nchw", "f32[8,64,56,56]"), ("nhwc", "f32[8,56,56,64]")):
        example = Example((x, "f32[64,64,3,3]"), {"pads": (1, 1, 1, 1), "layout": layout})
        case = case_of(COMMANDS["conv"], example)
        (output,) = case.graph.outputs
        sizes = allocated(case)
        assert sizes
        assert max(sizes) <= output.nbytes / 2, layout


def test_columns_lie_in_planned_memory() -> None:
    for name, operands, shape in (
        ("conv", ("f32[4,1,9000]", "f32[64,1,10]"), None),
        ("conv_weight_gradient", ("f32[4,64,1799]", "f32[4,1,9000]"), (64, 1, 10)),
        ("conv_input_gradient", ("f32[4,64,1799]", "f32[64,1,10]"), (4, 1, 9000)),
    ):
        attrs = {"strides": (5,), **({} if shape is None else {"shape": shape})}
        assert not allocated(case_of(COMMANDS[name], Example(operands, attrs))), name


def test_weight_gradient_of_no_samples_is_zero() -> None:
    lines = Example(("f32[0,4,9]", "f32[0,3,20]"), {"shape": (4, 3, 4), "strides": (2,)})
    case = case_of(COMMANDS["conv_weight_gradient"], lines)
    assert not np.any(computed(case.graph, case.arrays, TorchBackend())[case.graph.outputs[0].name])
    for kernel, counts in ((1, 5), (3, 3)):
        shape = (4, 3, kernel, kernel)
        case = case_of(
            COMMANDS["conv_weight_gradient"], Example((f"f32[0,4,{counts},{counts}]", "f32[0,3,5,5]"), {"shape": shape})
        )
        assert not np.any(computed(case.graph, case.arrays, TorchBackend())[case.graph.outputs[0].name])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_halves(dtype: str, layout: str) -> None:
    inputs = (f"{dtype}[2,6,6,6]", f"{dtype}[4,6,3,3]")
    attrs = {"pads": (1, 1, 1, 1), "layout": layout}
    for name, given, more in (
        ("conv", inputs, {}),
        (
            "conv_input_gradient",
            (f"{dtype}[2,{'4,6,6' if layout == 'nchw' else '6,6,4'}]", inputs[1]),
            {"shape": (2, 6, 6, 6)},
        ),
    ):
        case = case_of(COMMANDS[name], Example(given, {**attrs, **more}))
        (output,) = case.graph.outputs
        kinds = ((TorchBackend(),), ())
        places = [computed(case.graph, case.arrays, *kind)[output.name].astype(np.float64) for kind in kinds]
        np.testing.assert_allclose(*places, rtol=0.05, atol=0.3)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        (
            "conv",
            ["f32[2,3,8,8]", "f32[4,2,3,3]"],
            {},
            r"f32\[2,3,8,8\] with 3 channels in 1 groups, w is f32\[4,2,3,3\]",
        ),
        ("conv", ["f32[2,3,8]", "f32[4,3,3,3]"], {}, "both must have 3 axes"),
        ("conv", ["f32[2,3]", "f32[4,3]"], {}, r"f32\[2,3\].* 1 to 3 spatial axes"),
        ("conv", ["f32[2,4,8,8]", "f32[3,2,3,3]"], {"groups": 2}, "3 output channels do not divide into 2 groups"),
        ("conv", ["f32[2,3,2,8]", "f32[4,3,3,3]"], {}, "window is 3 wide along spatial axis 0, but there are only 2"),
        ("conv", ["f32[2,3,8,8]", "f32[4,3,3,3]"], {"strides": (2,)}, r"strides = \[2\] must be 2 integers"),
        ("conv", ["f32[2,3,8,8]", "f32[4,3,3,3]"], {"pads": (1, 1)}, r"pads = \[1, 1\] must be 4 integers"),
        ("conv", ["f32[2,3,8,8]", "f32[4,3,3,3]"], {"pads": (-1, 0, 0, 0)}, "each at least 0"),
        ("conv", ["f32[2,3,8,8]", "f32[4,3,3,3]"], {"layout": "chwn"}, "must be one of nchw, nhwc"),
        ("conv", ["f32[2,3,8,8]", "f32[4,3,3,3]"], {"groups": 0}, "groups = 0 must be at least 1"),
        ("conv", ["f32[2,3,8,8]", "f32[4,3,3,3]", "f32[3]"], {}, r"b is f32\[3\], expected the shape \[4\]"),
        (
            "conv_input_gradient",
            ["f32[2,4,6,6]", "f32[4,3,3,3]"],
            {"shape": (2, 3, 9, 8)},
            r"dy is f32\[2,4,6,6\], but .* shape = \[2, 3, 9, 8\] is \[2, 4, 7, 6\]",
        ),
        ("conv_weight_gradient", ["f32[2,4,6,6]", "f32[2,3,8,8]"], {"shape": (4, 3, 2, 3)}, r"is \[2, 4, 7, 6\]"),
        ("conv_transpose", ["f32[2,4,6,6]", "f32[3,4,2,2]"], {}, r"w must be \[channels, outputs / groups"),
        ("conv_transpose", ["f32[2,4,6,6]", "f32[4,3,2,2]"], {"output_pads": (1, 0)}, "less than the stride"),
        ("conv_transpose", ["f32[2,4,1,1]", "f32[4,3,2,2]"], {"pads": (1, 1, 1, 1)}, "the output is empty"),
    ],
)
def test_refusals(name: str, shapes: list[str], attrs: dict[str, Any], message: str) -> None:
    refused(name, shapes, attrs, message)
