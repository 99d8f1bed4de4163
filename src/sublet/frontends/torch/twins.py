"""Lowering of ATen operators to commands of the nn dialect, so the kernels, passes and facts of the nn commands apply.

An operator is lowered only if the layouts of the operands fit the command; otherwise the ATen operator stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.base.tensor import DType, TensorSpec
from sublet.frontends.torch.conversion import Level
from sublet.frontends.torch.tensors import Tensor
from sublet.ir.graph import Attr
from sublet.ops.aten import Strided
from sublet.ops.nn.shapes import FLOATS

Twin = Callable[[Level, Sequence[Any]], Any]
"""(level, arguments by position) -> the results of the nn commands; None to keep the ATen operator."""


def twin(level: Level, name: str, hint: str, args: Sequence[Any], kwargs: Mapping[str, Any], source: str) -> Any:
    """Lower an operator to nn commands, and return the results; None if no lowering applies, and on devices."""
    write = TWINS.get(name)
    if write is None or kwargs or level.conversion.device:
        return None
    level.emitter.source = source
    return write(level, args)


def _image(tensor: Any) -> str | None:
    """Return the order of the axes of a tensor [N, C, *spatial] in memory: "nchw", "nhwc", or None for another order.

    An image of one channel is in both orders; the result is "nchw", as PyTorch's convolutions choose for dense strides.
    """
    if not isinstance(tensor, Tensor) or tensor.layout.offset or tensor.spec.dtype not in FLOATS:
        return None
    if tensor.layout.is_contiguous and tensor.spec.size == tensor.layout.elements:
        return "nchw"
    rank = len(tensor.layout.size)
    last = (0, *range(2, rank), 1)
    shape = tuple(tensor.layout.size[axis] for axis in last)
    moved = Strided(shape, tuple(tensor.layout.stride[axis] for axis in last))
    return "nhwc" if moved.is_contiguous and tensor.spec.size == tensor.layout.elements else None


def _shaped(level: Level, tensor: Tensor, shape: Sequence[int]) -> Any:
    """Return the value of a tensor reshaped to `shape`."""
    whole = level.whole(tensor)
    return (
        whole.value
        if whole.spec.shape == tuple(shape)
        else level.emitter("nn.reshape", whole.value, shape=tuple(shape))
    )


def _sized(value: Any, size: Sequence[int]) -> Tensor:
    """Return a value as a row-major tensor of the given size."""
    return Tensor(value, Strided.contiguous(size))


def _as_image(level: Level, tensor: Tensor, layout: str) -> Any:
    """Return the value of an image in the shape of commands with this layout."""
    size = tensor.layout.size
    shape = size if layout == "nchw" else (size[0], *size[2:], size[1])
    return tensor.value if tensor.spec.shape == shape else level.emitter("nn.reshape", tensor.value, shape=shape)


def _of_image(value: Any, layout: str) -> Tensor:
    """Return the image computed by a command as a tensor [N, C, *spatial]."""
    shape = value.spec.shape
    if layout == "nchw":
        return Tensor(value, Strided.contiguous(shape))
    rank, stride = len(shape), Strided.contiguous(shape).stride
    order = (0, rank - 1, *range(1, rank - 1))
    return Tensor(value, Strided(tuple(shape[axis] for axis in order), tuple(stride[axis] for axis in order)))


def _as_weights_lie(level: Level, image: Any, weights: Any) -> Any:
    """Return an image with channels last if the weights have channels last, as PyTorch's convolution does."""
    if _image(weights) != "nhwc" or _image(image) != "nchw" or image.spec.dtype is not weights.spec.dtype:
        return image
    rank, size = len(image.layout.size), image.layout.size
    inner = Strided.contiguous((size[0], *size[2:], size[1])).stride
    return level.laid_out(image, Strided(size, (inner[0], 1, *inner[1 : rank - 1])).normal)


def _spread(numbers: Any, count: int) -> tuple[int, ...]:
    """Return one number for each of `count` axes; a single number is repeated."""
    given = tuple(numbers) if isinstance(numbers, list | tuple) else (numbers,)
    return given * count if len(given) == 1 else given


def _windows(w: Tensor, stride: Any, pad: Any, dilation: Any, groups: int, layout: str) -> dict[str, Attr]:
    """Return the attributes of a convolution with the given weights, and of its gradients."""
    n = len(w.layout.size) - 2
    pads = _spread(pad, n)
    return {
        "strides": _spread(stride, n), "pads": (*pads, *pads), "dilations": _spread(dilation, n), "groups": groups,
        "layout": layout,
    }  # fmt: skip


def _conv(level: Level, args: Sequence[Any]) -> Any:
    """Lower `convNd(x, w, b, stride, padding, dilation, groups)`."""
    usual: list[Any] = [None, 1, 0, 1, 1]
    x, w, b, stride, pad, dilation, groups = [*args, *usual[len(args) - 2 :]]
    if isinstance(pad, str):
        return None
    return _convolved(level, "nn.conv", (x, w, b), stride, pad, dilation, groups)


def _convolution(level: Level, args: Sequence[Any]) -> Any:
    """Lower `convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)`."""
    *given, stride, pad, dilation, transposed, extra, groups = args
    if not transposed:
        return _convolved(level, "nn.conv", given, stride, pad, dilation, groups)
    pads = _output_pads(given[1], stride, extra)
    if pads is None:
        return None
    return _convolved(level, "nn.conv_transpose", given, stride, pad, dilation, groups, output_pads=pads)


def _convolved(
    level: Level,
    command: str,
    args: Sequence[Any],
    stride: Any,
    pad: Any,
    dilation: Any,
    groups: int,
    **besides: Attr,
) -> Tensor | None:
    """Emit a convolution of x with w and an optional b, and return the result; None if the layouts do not fit."""
    x, w, b = args
    x = _as_weights_lie(level, x, w)
    layout = _image(x)
    if layout is None or not isinstance(w, Tensor) or w.spec.dtype is not x.spec.dtype:
        return None
    attrs = {**_windows(w, stride, pad, dilation, groups, layout), **besides}
    given = [_as_image(level, x, layout), level.whole(w).value]
    given += [] if b is None else [level.whole(b).value]
    return _of_image(level.emitter(command, *given, **attrs), layout)


def _output_pads(w: Any, stride: Any, extra: Any) -> tuple[int, ...] | None:
    """Return the padding at the ends of a transposed convolution's result; None for a padding of a stride or more."""
    n = len(w.layout.size) - 2 if isinstance(w, Tensor) else 0
    pads = _spread(extra, n)
    return pads if n and all(e < s for e, s in zip(pads, _spread(stride, n), strict=True)) else None


def _batch_norm(level: Level, args: Sequence[Any]) -> Any:
    """Lower `_native_batch_norm_legit_no_training(x, scale, bias, mean, variance, momentum, epsilon)` to y alone."""
    x, scale, bias, mean, variance, _, epsilon = args
    layout = _image(x)
    given = (scale, bias, mean, variance)
    if layout is None or any(not isinstance(each, Tensor) or each.spec.dtype is not x.spec.dtype for each in given):
        return None
    axis = 1 if layout == "nchw" else len(x.layout.size) - 1
    values = (level.whole(each).value for each in given)
    y = level.emitter("nn.batch_norm_inference", _as_image(level, x, layout), *values, epsilon=epsilon, axis=axis)
    return [_of_image(y, layout), None, None]


def _batch_norm_training(level: Level, args: Sequence[Any]) -> Any:
    """Lower `_native_batch_norm_legit_functional(x, scale, bias, mean, variance, training, momentum, epsilon)`.

    The results are y, the mean of the batch, 1 / the deviation of the batch, the new running mean and variance.
    """
    x, scale, bias, mean, variance, training, momentum, epsilon = args
    layout, given = _image(x), (scale, bias, mean, variance)
    if layout is None or not training or not _alike(x, *given) or not _several(x):
        return None
    axis = 1 if layout == "nchw" else len(x.layout.size) - 1
    values = [level.whole(each).value for each in given]
    y, running_mean, running_variance, own_mean, rstd = level.emitter.several(
        "nn.batch_norm", _as_image(level, x, layout), *values, epsilon=epsilon, momentum=momentum, axis=axis
    )
    stats = (_sized(value, scale.layout.size) for value in (own_mean, rstd, running_mean, running_variance))
    return [_of_image(y, layout), *stats]


def _batch_norm_gradient(level: Level, args: Sequence[Any]) -> Any:
    """Lower `native_batch_norm_backward(dy, x, scale, mean, variance, own mean, rstd, train, epsilon, wanted)`."""
    dy, x, scale, _, _, mean, rstd, train, _, wanted = args
    layout = _image(x)
    if layout is None or _image(dy) != layout or not train or not all(wanted) or not _alike(x, dy, scale, mean, rstd):
        return None
    axis = 1 if layout == "nchw" else len(x.layout.size) - 1
    images = (_as_image(level, dy, layout), _as_image(level, x, layout))
    stats = (level.whole(each).value for each in (scale, mean, rstd))
    dx, dscale, dbias = level.emitter.several("nn.batch_norm_gradient", *images, *stats, axis=axis)
    return [_of_image(dx, layout), _sized(dscale, scale.layout.size), _sized(dbias, scale.layout.size)]


def _layer_norm(level: Level, args: Sequence[Any]) -> Any:
    """Lower `native_layer_norm(x, shape, scale, bias, epsilon)` -> (y, mean, 1 / deviation)."""
    x, shape, scale, bias, epsilon = args
    if not _alike(x, scale, bias) or not _several(x) or x.spec.dtype not in (DType.F32, DType.F64):
        return None
    values = [level.whole(each).value for each in (x, scale, bias)]
    y, mean, rstd = level.emitter.several("nn.layer_norm", *values, axes=len(shape), epsilon=epsilon)
    kept = (*x.layout.size[: len(x.layout.size) - len(shape)], *(1 for _ in shape))
    return [_sized(y, x.layout.size), _sized(mean, kept), _sized(rstd, kept)]


def _layer_norm_gradient(level: Level, args: Sequence[Any]) -> Any:
    """Lower `native_layer_norm_backward(dy, x, shape, mean, rstd, scale, bias, wanted)`."""
    dy, x, shape, mean, rstd, scale, bias, wanted = args
    if not all(wanted) or not _alike(x, dy, mean, rstd, scale, bias) or x.spec.dtype not in (DType.F32, DType.F64):
        return None
    kept = x.layout.size[: len(x.layout.size) - len(shape)]
    values = [level.whole(each).value for each in (dy, x, scale)]
    stats = [_shaped(level, each, kept) for each in (mean, rstd)]
    dx, dscale, dbias = level.emitter.several("nn.layer_norm_gradient", *values, *stats, axes=len(shape))
    return [_sized(dx, x.layout.size), _sized(dscale, scale.layout.size), _sized(dbias, scale.layout.size)]


def _convolution_gradient(level: Level, args: Sequence[Any]) -> Any:
    """Lower `convolution_backward` to the gradients by x, w and b; None for a gradient not wanted.

    The arguments are (dy, x, w, bias sizes, stride, padding, dilation, transposed, output padding, groups, wanted). For
    a transposed convolution, dy is the input of the matching convolution, and x the result.
    """
    dy, x, w, sizes, stride, pad, dilation, transposed, extra, groups, wanted = args
    dy, x = (_as_weights_lie(level, each, w) for each in (dy, x))
    layout = _image(x)
    if layout is None or _image(dy) != layout or not _alike(x, dy, w):
        return None
    if transposed and _output_pads(w, stride, extra) is None:
        return None
    attrs = _windows(w, stride, pad, dilation, groups, layout)
    results: list[Tensor | None] = [None, None, None]
    from_above, weights = _as_image(level, dy, layout), level.whole(w).value
    if wanted[0] and transposed:
        results[0] = _of_image(level.emitter("nn.conv", from_above, weights, **attrs), layout)
    elif wanted[0]:
        image = _as_image(level, x, layout)
        dx = level.emitter("nn.conv_input_gradient", from_above, weights, shape=_shape(image), **attrs)
        results[0] = _of_image(dx, layout)
    if wanted[1]:
        image = _as_image(level, x, layout)
        pair = (image, from_above) if transposed else (from_above, image)
        dw = level.emitter("nn.conv_weight_gradient", *pair, shape=_shape(weights), **attrs)
        results[1] = _sized(dw, w.layout.size)
    if wanted[2]:
        rank = len(w.layout.size)
        axes = (0, *range(2, rank)) if layout == "nchw" else tuple(range(rank - 1))
        results[2] = _sized(level.emitter("nn.sum", from_above, axes=axes, keepdims=False), sizes)
    return results


def _alike(first: Any, *others: Any) -> bool:
    """True if all arguments are tensors of one element type."""
    return all(isinstance(each, Tensor) and each.spec.dtype is first.spec.dtype for each in (first, *others))


def _several(x: Tensor) -> bool:
    """True if the tensor has elements: a mean of no elements is undefined."""
    return x.layout.elements > 0


def _max_pool(level: Level, args: Sequence[Any]) -> Any:
    """Lower `max_poolNd(x, kernel, stride, padding, dilation, ceil)`."""
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
    """Return the lowering of an element-wise operator.

    The operands must be floats of one type, and have one layout or be whole values.
    """

    def write(level: Level, args: Sequence[Any]) -> Any:
        first = args[0]
        if not all(isinstance(each, Tensor) and each.spec.dtype is first.spec.dtype for each in args):
            return None
        if first.spec.dtype not in FLOATS:
            return None
        if all(each.is_whole for each in args):
            value = level.emitter(op, *(each.value for each in args))
            return Tensor(value, Strided.contiguous(_shape(value)))
        same_layout = all(each.layout.normal == first.layout.normal and each.spec == first.spec for each in args)
        if (
            not same_layout
            or not first.layout.is_dense
            or first.layout.offset
            or first.spec.size != first.layout.elements
        ):
            return None
        return Tensor(level.emitter(op, *(each.value for each in args)), first.layout)

    return write


def _shape(value: Any) -> tuple[int, ...]:
    """Return the shape of a value."""
    spec: TensorSpec = value.spec
    return spec.shape


TWINS: Mapping[str, Twin] = {
    "aten.conv1d.default": _conv,
    "aten.conv2d.default": _conv,
    "aten.conv3d.default": _conv,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_gradient,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten._native_batch_norm_legit_functional.default": _batch_norm_training,
    "aten.native_batch_norm_backward.default": _batch_norm_gradient,
    "aten.native_layer_norm.default": _layer_norm,
    "aten.native_layer_norm_backward.default": _layer_norm_gradient,
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
"""Lowerings by operator name."""
