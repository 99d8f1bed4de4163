"""Lowering of ATen operators to commands of the nn dialect, so the kernels, passes and facts of the nn commands apply.

An operator is lowered only if the layouts of the operands fit the command; otherwise the ATen operator stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.dialect import StridedLayout
from sublet.integrations.torch.reader.conversion import ConversionLevel
from sublet.integrations.torch.reader.traced_tensor import TracedTensor
from sublet.ir.graph import Attr
from sublet.ops.nn.rules import FLOATS

NnLowering = Callable[[ConversionLevel, Sequence[Any]], Any]
"""(level, arguments by position) -> the results of the nn commands; None to keep the ATen operator."""


def lower_to_nn(
    level: ConversionLevel, name: str, hint: str, args: Sequence[Any], kwargs: Mapping[str, Any], source: str
) -> Any:
    """Lower an operator to nn commands, and return the results; None if no lowering applies, and on devices."""
    write = NN_LOWERINGS.get(name)
    if write is None or kwargs or level.conversion.device:
        return None
    level.emitter.source = source
    return write(level, args)


def _image_layout(tensor: Any) -> str | None:
    """Return the order of the axes of a tensor [N, C, *spatial] in memory: "nchw", "nhwc", or None for another order.

    An image of one channel is in both orders; the result is "nchw", as PyTorch's convolutions choose for dense strides.
    """
    if not isinstance(tensor, TracedTensor) or tensor.layout.offset or tensor.spec.dtype not in FLOATS:
        return None
    if tensor.layout.is_contiguous and tensor.spec.size == tensor.layout.elements:
        return "nchw"
    rank = len(tensor.layout.size)
    last = (0, *range(2, rank), 1)
    shape = tuple(tensor.layout.size[axis] for axis in last)
    moved = StridedLayout(shape, tuple(tensor.layout.stride[axis] for axis in last))
    return "nhwc" if moved.is_contiguous and tensor.spec.size == tensor.layout.elements else None


def _reshaped_value(level: ConversionLevel, tensor: TracedTensor, shape: Sequence[int]) -> Any:
    """Return the value of a tensor reshaped to `shape`."""
    whole = level.as_row_major(tensor)
    return (
        whole.value
        if whole.spec.shape == tuple(shape)
        else level.emitter("nn.reshape", whole.value, shape=tuple(shape))
    )


def _row_major_tensor(value: Any, size: Sequence[int]) -> TracedTensor:
    """Return a value as a row-major tensor of the given size."""
    return TracedTensor(value, StridedLayout.contiguous(size))


def _image_value(level: ConversionLevel, tensor: TracedTensor, layout: str) -> Any:
    """Return the value of an image in the shape of commands with this layout."""
    size = tensor.layout.size
    shape = size if layout == "nchw" else (size[0], *size[2:], size[1])
    return tensor.value if tensor.spec.shape == shape else level.emitter("nn.reshape", tensor.value, shape=shape)


def _image_tensor(value: Any, layout: str) -> TracedTensor:
    """Return the image computed by a command as a tensor [N, C, *spatial]."""
    shape = value.spec.shape
    if layout == "nchw":
        return TracedTensor(value, StridedLayout.contiguous(shape))
    rank, stride = len(shape), StridedLayout.contiguous(shape).stride
    order = (0, rank - 1, *range(1, rank - 1))
    return TracedTensor(
        value, StridedLayout(tuple(shape[axis] for axis in order), tuple(stride[axis] for axis in order))
    )


def _match_weight_layout(level: ConversionLevel, image: Any, weights: Any) -> Any:
    """Return an image with channels last if the weights have channels last, as PyTorch's convolution does."""
    if _image_layout(weights) != "nhwc" or _image_layout(image) != "nchw" or image.spec.dtype is not weights.spec.dtype:
        return image
    rank, size = len(image.layout.size), image.layout.size
    inner = StridedLayout.contiguous((size[0], *size[2:], size[1])).stride
    return level.with_layout(image, StridedLayout(size, (inner[0], 1, *inner[1 : rank - 1])).canonical)


def _per_axis(numbers: Any, count: int) -> tuple[int, ...]:
    """Return one number for each of `count` axes; a single number is repeated."""
    given = tuple(numbers) if isinstance(numbers, list | tuple) else (numbers,)
    return given * count if len(given) == 1 else given


def _convolution_attributes(
    w: TracedTensor, stride: Any, pad: Any, dilation: Any, groups: int, layout: str
) -> dict[str, Attr]:
    """Return the attributes of a convolution with the given weights, and of its gradients."""
    n = len(w.layout.size) - 2
    pads = _per_axis(pad, n)
    return {
        "strides": _per_axis(stride, n), "pads": (*pads, *pads), "dilations": _per_axis(dilation, n), "groups": groups,
        "layout": layout,
    }  # fmt: skip


def _lower_conv(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `convNd(x, w, b, stride, padding, dilation, groups)`."""
    usual: list[Any] = [None, 1, 0, 1, 1]
    x, w, b, stride, pad, dilation, groups = [*args, *usual[len(args) - 2 :]]
    if isinstance(pad, str):
        return None
    return _emit_convolution(level, "nn.conv", (x, w, b), stride, pad, dilation, groups)


def _lower_convolution(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)`."""
    *given, stride, pad, dilation, transposed, extra, groups = args
    if not transposed:
        return _emit_convolution(level, "nn.conv", given, stride, pad, dilation, groups)
    pads = _output_pads(given[1], stride, extra)
    if pads is None:
        return None
    return _emit_convolution(level, "nn.conv_transpose", given, stride, pad, dilation, groups, output_pads=pads)


def _emit_convolution(
    level: ConversionLevel,
    command: str,
    args: Sequence[Any],
    stride: Any,
    pad: Any,
    dilation: Any,
    groups: int,
    **besides: Attr,
) -> TracedTensor | None:
    """Emit a convolution of x with w and an optional b, and return the result; None if the layouts do not fit."""
    x, w, b = args
    x = _match_weight_layout(level, x, w)
    layout = _image_layout(x)
    if layout is None or not isinstance(w, TracedTensor) or w.spec.dtype is not x.spec.dtype:
        return None
    attrs = {**_convolution_attributes(w, stride, pad, dilation, groups, layout), **besides}
    given = [_image_value(level, x, layout), level.as_row_major(w).value]
    given += [] if b is None else [level.as_row_major(b).value]
    return _image_tensor(level.emitter(command, *given, **attrs), layout)


def _output_pads(w: Any, stride: Any, extra: Any) -> tuple[int, ...] | None:
    """Return the padding at the ends of a transposed convolution's result; None for a padding of a stride or more."""
    n = len(w.layout.size) - 2 if isinstance(w, TracedTensor) else 0
    pads = _per_axis(extra, n)
    return pads if n and all(e < s for e, s in zip(pads, _per_axis(stride, n), strict=True)) else None


def _lower_batch_norm(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `_native_batch_norm_legit_no_training(x, scale, bias, mean, variance, momentum, epsilon)` to y alone."""
    x, scale, bias, mean, variance, _, epsilon = args
    layout = _image_layout(x)
    given = (scale, bias, mean, variance)
    if layout is None or any(
        not isinstance(each, TracedTensor) or each.spec.dtype is not x.spec.dtype for each in given
    ):
        return None
    axis = 1 if layout == "nchw" else len(x.layout.size) - 1
    values = (level.as_row_major(each).value for each in given)
    y = level.emitter("nn.batch_norm_inference", _image_value(level, x, layout), *values, epsilon=epsilon, axis=axis)
    return [_image_tensor(y, layout), None, None]


def _lower_batch_norm_training(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `_native_batch_norm_legit_functional(x, scale, bias, mean, variance, training, momentum, epsilon)`.

    The results are y, the mean of the batch, 1 / the deviation of the batch, the new running mean and variance.
    """
    x, scale, bias, mean, variance, training, momentum, epsilon = args
    layout, given = _image_layout(x), (scale, bias, mean, variance)
    if layout is None or not training or not _has_one_type(x, *given) or not _is_not_empty(x):
        return None
    axis = 1 if layout == "nchw" else len(x.layout.size) - 1
    values = [level.as_row_major(each).value for each in given]
    y, running_mean, running_variance, own_mean, rstd = level.emitter.all_outputs(
        "nn.batch_norm", _image_value(level, x, layout), *values, epsilon=epsilon, momentum=momentum, axis=axis
    )
    stats = (_row_major_tensor(value, scale.layout.size) for value in (own_mean, rstd, running_mean, running_variance))
    return [_image_tensor(y, layout), *stats]


def _lower_batch_norm_gradient(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `native_batch_norm_backward(dy, x, scale, mean, variance, own mean, rstd, train, epsilon, wanted)`."""
    dy, x, scale, _, _, mean, rstd, train, _, wanted = args
    layout = _image_layout(x)
    if (
        layout is None
        or _image_layout(dy) != layout
        or not train
        or not all(wanted)
        or not _has_one_type(x, dy, scale, mean, rstd)
    ):
        return None
    axis = 1 if layout == "nchw" else len(x.layout.size) - 1
    images = (_image_value(level, dy, layout), _image_value(level, x, layout))
    stats = (level.as_row_major(each).value for each in (scale, mean, rstd))
    dx, dscale, dbias = level.emitter.all_outputs("nn.batch_norm_gradient", *images, *stats, axis=axis)
    return [
        _image_tensor(dx, layout),
        _row_major_tensor(dscale, scale.layout.size),
        _row_major_tensor(dbias, scale.layout.size),
    ]


def _lower_layer_norm(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `native_layer_norm(x, shape, scale, bias, epsilon)` -> (y, mean, 1 / deviation)."""
    x, shape, scale, bias, epsilon = args
    if not _has_one_type(x, scale, bias) or not _is_not_empty(x) or x.spec.dtype not in (DType.F32, DType.F64):
        return None
    values = [level.as_row_major(each).value for each in (x, scale, bias)]
    y, mean, rstd = level.emitter.all_outputs("nn.layer_norm", *values, axes=len(shape), epsilon=epsilon)
    kept = (*x.layout.size[: len(x.layout.size) - len(shape)], *(1 for _ in shape))
    return [_row_major_tensor(y, x.layout.size), _row_major_tensor(mean, kept), _row_major_tensor(rstd, kept)]


def _lower_layer_norm_gradient(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `native_layer_norm_backward(dy, x, shape, mean, rstd, scale, bias, wanted)`."""
    dy, x, shape, mean, rstd, scale, bias, wanted = args
    if (
        not all(wanted)
        or not _has_one_type(x, dy, mean, rstd, scale, bias)
        or x.spec.dtype not in (DType.F32, DType.F64)
    ):
        return None
    kept = x.layout.size[: len(x.layout.size) - len(shape)]
    values = [level.as_row_major(each).value for each in (dy, x, scale)]
    stats = [_reshaped_value(level, each, kept) for each in (mean, rstd)]
    dx, dscale, dbias = level.emitter.all_outputs("nn.layer_norm_gradient", *values, *stats, axes=len(shape))
    return [
        _row_major_tensor(dx, x.layout.size),
        _row_major_tensor(dscale, scale.layout.size),
        _row_major_tensor(dbias, scale.layout.size),
    ]


def _lower_convolution_gradient(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `convolution_backward` to the gradients by x, w and b; None for a gradient not wanted.

    The arguments are (dy, x, w, bias sizes, stride, padding, dilation, transposed, output padding, groups, wanted). For
    a transposed convolution, dy is the input of the matching convolution, and x the result.
    """
    dy, x, w, sizes, stride, pad, dilation, transposed, extra, groups, wanted = args
    dy, x = (_match_weight_layout(level, each, w) for each in (dy, x))
    layout = _image_layout(x)
    if layout is None or _image_layout(dy) != layout or not _has_one_type(x, dy, w):
        return None
    if transposed and _output_pads(w, stride, extra) is None:
        return None
    attrs = _convolution_attributes(w, stride, pad, dilation, groups, layout)
    results: list[TracedTensor | None] = [None, None, None]
    from_above, weights = _image_value(level, dy, layout), level.as_row_major(w).value
    if wanted[0] and transposed:
        results[0] = _image_tensor(level.emitter("nn.conv", from_above, weights, **attrs), layout)
    elif wanted[0]:
        image = _image_value(level, x, layout)
        dx = level.emitter("nn.conv_input_gradient", from_above, weights, shape=_shape_of(image), **attrs)
        results[0] = _image_tensor(dx, layout)
    if wanted[1]:
        image = _image_value(level, x, layout)
        pair = (image, from_above) if transposed else (from_above, image)
        dw = level.emitter("nn.conv_weight_gradient", *pair, shape=_shape_of(weights), **attrs)
        results[1] = _row_major_tensor(dw, w.layout.size)
    if wanted[2]:
        rank = len(w.layout.size)
        axes = (0, *range(2, rank)) if layout == "nchw" else tuple(range(rank - 1))
        results[2] = _row_major_tensor(level.emitter("nn.sum", from_above, axes=axes, keepdims=False), sizes)
    return results


def _has_one_type(first: Any, *others: Any) -> bool:
    """True if all arguments are tensors of one element type."""
    return all(isinstance(each, TracedTensor) and each.spec.dtype is first.spec.dtype for each in (first, *others))


def _is_not_empty(x: TracedTensor) -> bool:
    """True if the tensor has elements: a mean of no elements is undefined."""
    return x.layout.elements > 0


def _lower_max_pool(level: ConversionLevel, args: Sequence[Any]) -> Any:
    """Lower `max_poolNd(x, kernel, stride, padding, dilation, ceil)`."""
    usual: list[Any] = [[], 0, 1, False]
    x, kernel, stride, pad, dilation, ceil = [*args, *usual[len(args) - 2 :]]
    layout = _image_layout(x)
    n = len(x.layout.size) - 2
    if layout is None or n < 1:
        return None
    kernel = _per_axis(kernel, n)
    pads = _per_axis(pad, n)
    attrs: dict[str, Attr] = {
        "kernel": kernel, "strides": _per_axis(stride, n) if stride else kernel, "pads": (*pads, *pads),
        "dilations": _per_axis(dilation, n), "ceil": int(ceil), "layout": layout,
    }  # fmt: skip
    y, *_ = level.emitter.all_outputs("nn.max_pool", _image_value(level, x, layout), **attrs)
    return _image_tensor(y, layout)


def _elementwise_lowering(op: str) -> NnLowering:
    """Return the lowering of an element-wise operator.

    The operands must be floats of one type, and have one layout or be whole values.
    """

    def write(level: ConversionLevel, args: Sequence[Any]) -> Any:
        first = args[0]
        if not all(isinstance(each, TracedTensor) and each.spec.dtype is first.spec.dtype for each in args):
            return None
        if first.spec.dtype not in FLOATS:
            return None
        if all(each.is_whole for each in args):
            value = level.emitter(op, *(each.value for each in args))
            return TracedTensor(value, StridedLayout.contiguous(_shape_of(value)))
        same_layout = all(each.layout.canonical == first.layout.canonical and each.spec == first.spec for each in args)
        if (
            not same_layout
            or not first.layout.is_dense
            or first.layout.offset
            or first.spec.size != first.layout.elements
        ):
            return None
        return TracedTensor(level.emitter(op, *(each.value for each in args)), first.layout)

    return write


def _shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a value."""
    spec: TensorSpec = value.spec
    return spec.shape


NN_LOWERINGS: Mapping[str, NnLowering] = {
    "aten.conv1d.default": _lower_conv,
    "aten.conv2d.default": _lower_conv,
    "aten.conv3d.default": _lower_conv,
    "aten.convolution.default": _lower_convolution,
    "aten.convolution_backward.default": _lower_convolution_gradient,
    "aten._native_batch_norm_legit_no_training.default": _lower_batch_norm,
    "aten._native_batch_norm_legit_functional.default": _lower_batch_norm_training,
    "aten.native_batch_norm_backward.default": _lower_batch_norm_gradient,
    "aten.native_layer_norm.default": _lower_layer_norm,
    "aten.native_layer_norm_backward.default": _lower_layer_norm_gradient,
    "aten.max_pool1d.default": _lower_max_pool,
    "aten.max_pool2d.default": _lower_max_pool,
    "aten.max_pool3d.default": _lower_max_pool,
    "aten.relu.default": _elementwise_lowering("nn.relu"),
    "aten.sigmoid.default": _elementwise_lowering("nn.sigmoid"),
    "aten.tanh.default": _elementwise_lowering("nn.tanh"),
    "aten.add.Tensor": _elementwise_lowering("nn.add"),
    "aten.sub.Tensor": _elementwise_lowering("nn.sub"),
    "aten.mul.Tensor": _elementwise_lowering("nn.mul"),
    "aten.div.Tensor": _elementwise_lowering("nn.div"),
}
"""Lowerings by operator name."""
