"""Operators that are commands of the nn dialect too: written as these, kernels, passes and facts made for them apply.

A twin is taken only where operands lie as the command needs them; elsewhere the operator stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.frontends.torch.conversion import Level
from sublet.frontends.torch.tensors import Tensor
from sublet.ir.graph import Attr
from sublet.ops.aten import Strided
from sublet.ops.nn.shapes import FLOATS
from sublet.tensor import TensorSpec

Twin = Callable[[Level, Sequence[Any]], Any]
"""What an operator with these arguments by position gives, None for an operator that has to stay."""


def twin(level: Level, name: str, hint: str, args: Sequence[Any], kwargs: Mapping[str, Any], source: str) -> Any:
    """What the twin of an operator gives; None when it has none for these arguments."""
    write = TWINS.get(name)
    if write is None or kwargs:
        return None
    level.emitter.source = source
    return write(level, args)


def _image(tensor: Any) -> str | None:
    """How a tensor [N, C, *spatial] lies: "nchw", "nhwc", or None for another way."""
    if not isinstance(tensor, Tensor) or tensor.layout.offset or tensor.spec.dtype not in FLOATS:
        return None
    if tensor.is_whole:
        return "nchw"
    rank = len(tensor.layout.size)
    last = (0, *range(2, rank), 1)
    shape = tuple(tensor.layout.size[axis] for axis in last)
    moved = Strided(shape, tuple(tensor.layout.stride[axis] for axis in last))
    return "nhwc" if moved.is_contiguous and tensor.spec.size == tensor.layout.elements else None


def _as_image(level: Level, tensor: Tensor, layout: str) -> Any:
    """The value of an image in the shape that commands of this layout take."""
    size = tensor.layout.size
    if layout == "nchw":
        return tensor.value
    shape = (size[0], *size[2:], size[1])
    return tensor.value if tensor.spec.shape == shape else level.emitter("nn.reshape", tensor.value, shape=shape)


def _of_image(value: Any, layout: str) -> Tensor:
    """An image that a command gives, as PyTorch sees it."""
    shape = value.spec.shape
    if layout == "nchw":
        return Tensor(value, Strided.contiguous(shape))
    rank, stride = len(shape), Strided.contiguous(shape).stride
    order = (0, rank - 1, *range(1, rank - 1))
    return Tensor(value, Strided(tuple(shape[axis] for axis in order), tuple(stride[axis] for axis in order)))


def _spread(numbers: Any, count: int) -> tuple[int, ...]:
    found = tuple(numbers) if isinstance(numbers, list | tuple) else (numbers,)
    return found * count if len(found) == 1 else found


def _conv(level: Level, args: Sequence[Any]) -> Any:
    """`convNd(x, w, b, stride, padding, dilation, groups)`."""
    usual: list[Any] = [None, 1, 0, 1, 1]
    x, w, b, stride, pad, dilation, groups = [*args, *usual[len(args) - 2 :]]
    layout = _image(x)
    if layout is None or not isinstance(w, Tensor) or isinstance(pad, str) or w.spec.dtype is not x.spec.dtype:
        return None
    n = len(w.layout.size) - 2
    pads = _spread(pad, n)
    attrs = {
        "strides": _spread(stride, n), "pads": (*pads, *pads), "dilations": _spread(dilation, n), "groups": groups,
        "layout": layout,
    }  # fmt: skip
    given = [_as_image(level, x, layout), level.whole(w).value]
    given += [] if b is None else [level.whole(b).value]
    return _of_image(level.emitter("nn.conv", *given, **attrs), layout)


def _convolution(level: Level, args: Sequence[Any]) -> Any:
    """`convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)`."""
    transposed = args[6]
    return None if transposed else _conv(level, (*args[:6], args[8]))


def _batch_norm(level: Level, args: Sequence[Any]) -> Any:
    """`_native_batch_norm_legit_no_training(x, scale, bias, mean, variance, momentum, epsilon)`, of which y is used."""
    x, scale, bias, mean, variance, _, epsilon = args
    layout = _image(x)
    given = (scale, bias, mean, variance)
    if layout is None or any(not isinstance(each, Tensor) or each.spec.dtype is not x.spec.dtype for each in given):
        return None
    axis = 1 if layout == "nchw" else len(x.layout.size) - 1
    values = (level.whole(each).value for each in given)
    y = level.emitter("nn.batch_norm_inference", _as_image(level, x, layout), *values, epsilon=epsilon, axis=axis)
    return [_of_image(y, layout), None, None]


def _max_pool(level: Level, args: Sequence[Any]) -> Any:
    """`max_poolNd(x, kernel, stride, padding, dilation, ceil)`."""
    usual: list[Any] = [[], 0, 1, False]
    x, kernel, stride, pad, dilation, ceil = [*args, *usual[len(args) - 2 :]]
    layout = _image(x)
    n = len(x.layout.size) - 2
    if layout is None or n < 1:
        return None
    kernel = _spread(kernel, n)
    pads = _spread(pad, n)
    attrs: dict[str, Attr] = {
        "kernel": kernel, "strides": _spread(stride, n) if stride else kernel, "pads": (*pads, *pads),
        "dilations": _spread(dilation, n), "ceil": int(ceil), "layout": layout,
    }  # fmt: skip
    y, *_ = level.emitter.several("nn.max_pool", _as_image(level, x, layout), **attrs)
    return _of_image(y, layout)


def _elementwise(op: str) -> Twin:
    """Of tensors of one float type that lie alike, or are broadcast whole."""

    def write(level: Level, args: Sequence[Any]) -> Any:
        first = args[0]
        if not all(isinstance(each, Tensor) and each.spec.dtype is first.spec.dtype for each in args):
            return None
        if first.spec.dtype not in FLOATS:
            return None
        if all(each.is_whole for each in args):
            made = level.emitter(op, *(each.value for each in args))
            return Tensor(made, Strided.contiguous(_shape(made)))
        alike = all(each.layout.normal == first.layout.normal and each.spec == first.spec for each in args)
        if not alike or not first.layout.is_dense or first.layout.offset or first.spec.size != first.layout.elements:
            return None
        return Tensor(level.emitter(op, *(each.value for each in args)), first.layout)

    return write


def _shape(value: Any) -> tuple[int, ...]:
    spec: TensorSpec = value.spec
    return spec.shape


TWINS: Mapping[str, Twin] = {
    "aten.conv1d.default": _conv,
    "aten.conv2d.default": _conv,
    "aten.conv3d.default": _conv,
    "aten.convolution.default": _convolution,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten.max_pool1d.default": _max_pool,
    "aten.max_pool2d.default": _max_pool,
    "aten.max_pool3d.default": _max_pool,
    "aten.relu.default": _elementwise("nn.relu"),
    "aten.sigmoid.default": _elementwise("nn.sigmoid"),
    "aten.tanh.default": _elementwise("nn.tanh"),
    "aten.add.Tensor": _elementwise("nn.add"),
    "aten.sub.Tensor": _elementwise("nn.sub"),
    "aten.mul.Tensor": _elementwise("nn.mul"),
    "aten.div.Tensor": _elementwise("nn.div"),
}
"""By the operator's name."""
