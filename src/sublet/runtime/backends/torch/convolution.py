"""Convolutions and their gradients, which are convolutions too.

PyTorch's convolutions allocate the result, and copies of all operands in layouts preferred by oneDNN. The kernels
therefore process a few samples and channels at a time: allocations are bounded by a small slice, at little or no cost
in time, because small allocations reuse warm memory. Convolutions with kernels of one element are matrix products.
oneDNN accumulates matrix products into the output. Without oneDNN, for little work, or with one thread, the kernels
call `mm` and `bmm`, which allocate no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.gradients import operand, result
from sublet.ops.nn.windows import Windows, image, nhwc, windows
from sublet.runtime.backends.torch.kernel import Calls, Fast, Operands, Tensor, bytes_as, torch
from sublet.runtime.backends.torch.linear import matrix_product, one_matrix
from sublet.runtime.kernel import Call

SAMPLE_BYTES = 1 << 20
"""Minimum bytes of a slice of the batch per thread, to keep all threads busy."""

WEIGHT_BYTES = 4 << 20
"""Maximum bytes of a slice of the weights, where the weights can be sliced."""

ROWS = 256
"""Minimum rows of a product in oneDNN; with fewer rows, preparing the weights costs more than oneDNN saves."""

WINDOW, IMAGE = 9, 28 * 28
"""Elements of a window and of an image. For larger windows on images of this size or more, the speed of oneDNN depends
on the position of the channel axis.
"""

WORK = 1 << 22
"""Minimum multiplications of a product in oneDNN; below, overhead dominates the time."""


def _over(node: Node, w: TensorSpec) -> Windows:
    return windows(node.attrs, w.shape[2:])


def _first(node: Node, x: Tensor) -> Tensor:
    """Return the tensor as [N, C, *spatial]."""
    return x.movedim(-1, 1) if nhwc(node.attrs) else x


def _is_product(node: Node, w: TensorSpec) -> bool:
    """True if the convolution is a matrix product: windows of one element, stride 1, no padding, one group."""
    over = _over(node, w)
    numbers = {*over.kernel, *over.strides}
    return numbers == {1} and not any((*over.begins, *over.ends)) and node.attrs["groups"] == 1


def _padded_bytes(node: Node, x: TensorSpec, w: TensorSpec) -> int:
    """Return the bytes of a padded copy of x; 0 if the padding is symmetric, as ATen needs no copy then."""
    over = _over(node, w)
    if over.symmetric:
        return 0
    samples, channels, spatial = image(x, node.attrs, "x")
    return TensorSpec(x.dtype, (samples, channels, *over.reach(spatial, over.counts(spatial)))).nbytes


class _Convolution:
    """The tensors of a convolution [N, C, *spatial] * [O, C / groups, *kernel] -> [N, O, *counts], for slicing.

    With asymmetric padding, `x` is a padded copy in scratch memory. `unpadded_x` is the part of `x` without padding.
    """

    def __init__(self, node: Node, x: Tensor, w: Tensor, y: Tensor, scratch: Tensor) -> None:
        over = windows(node.attrs, w.shape[2:])
        self.x, self.w, self.y = _first(node, x), w, _first(node, y)
        self.last = nhwc(node.attrs)
        self.inside, self.groups = self.x, pick(node.attrs, "groups")
        self.strides, self.dilations, self.pads = list(over.strides), list(over.dilations), list(over.begins)
        if not over.symmetric:
            reach = over.reach(self.x.shape[2:], self.y.shape[2:])
            samples, channels = self.x.shape[:2]
            shape = (samples, *reach, channels) if self.last else (samples, channels, *reach)
            self.x = _first(node, bytes_as(scratch, x.dtype, shape))
            self.inside, self.pads = self.x[over.inside(self.inside.shape[2:])], [0] * len(reach)

    def channels(self, axis: int, most: int = WEIGHT_BYTES) -> list[slice]:
        """Return slices of an axis of the weights, of at most `most` bytes each. Grouped weights are not sliced."""
        parts = 1
        while self.groups == 1 and self.w.nbytes > parts * most and self.w.shape[axis] > 2 * parts:
            parts *= 2
        return _slices(self.w.shape[axis], -(-self.w.shape[axis] // parts))

    def samples(self, weight_slices: int) -> list[slice]:
        """Return slices of the batch."""
        return _samples(self.x, self.w.nbytes // weight_slices, self.y)

    def backward(self, dy: Tensor, x: Tensor, w: Tensor, which: int) -> Callable[[], Any]:
        """Return a function computing the gradient with respect to x (`which` = 0) or w (`which` = 1).

        Of the tensor x or w to differentiate, ATen reads only the shape.
        """
        mask = [which == 0, which == 1, False]
        zeros = [0] * len(self.strides)
        strided = (self.strides, self.pads, self.dilations, False, zeros, self.groups)
        function = torch().ops.aten.convolution_backward
        if which == 1 and self._faster_last():
            return partial(_channels_last, function, dy, x, w, None, *strided, mask)
        return partial(function, dy, x, w, None, *strided, mask)

    def _faster_last(self) -> bool:
        """True if oneDNN computes the gradient with respect to w in half the time with channels last, copies included.

        Measured for depthwise convolutions with large windows on large images.
        """
        alone = self.groups > 1 and self.w.shape[1] == 1 and self.w.dim() == 4 and not self.last
        return bool(alone and prod(self.w.shape[2:]) > WINDOW and prod(self.y.shape[2:]) >= IMAGE)


def _channels_last(function: Callable[..., Any], dy: Tensor, x: Tensor, *rest: Any) -> Any:
    form = torch().channels_last
    return function(dy.contiguous(memory_format=form), x.contiguous(memory_format=form), *rest)


def _slices(count: int, step: int) -> list[slice]:
    return [slice(begin, min(count, begin + step)) for begin in range(0, count, step)]


def _samples(x: Tensor, weights: int, y: Tensor) -> list[slice]:
    """Return slices of the batch, large enough to make the preparation of `weights` bytes per slice negligible."""
    each = (x.nbytes + y.nbytes) // len(x)
    least = max(4 * weights, SAMPLE_BYTES * torch().get_num_threads())
    return _slices(len(x), -(-least // each))


def _put(place: Tensor, function: Callable[[], Any]) -> None:
    place.copy_(function())


def _put_item(place: Tensor, function: Callable[[], Any], item: int) -> None:
    place.copy_(function()[item])


def _add_item(place: Tensor, function: Callable[[], Any], item: int) -> None:
    place.add_(function()[item])


def _third(inputs: Operands) -> Tensor:
    return inputs[2] if len(inputs) > 2 else None


def _conv(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    w, b = inputs[1], _third(inputs)
    if _is_product(node, spec_of(operand(node, 1))):
        return _product(node, inputs[0], w[(..., *(0,) * (w.ndim - 2))], b, outputs[0])
    conv = _Convolution(node, inputs[0], w, outputs[0], scratch)
    calls: list[Call] = (
        [] if conv.inside is conv.x else [conv.x.zero_, partial(conv.inside.copy_, _first(node, inputs[0]))]
    )
    zeros = [0] * len(conv.strides)
    channels = conv.channels(0)
    for n in conv.samples(len(channels)):
        for o in channels:
            given = (conv.x[n], w[o], None if b is None else b[o])
            strided = (conv.strides, conv.pads, conv.dilations, False, zeros, conv.groups)
            calls.append(partial(_put, conv.y[n, o], partial(torch().convolution, *given, *strided)))
    return calls


def _input_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, w, dx, b = inputs[0], inputs[1], outputs[0], _third(inputs)
    calls: list[Call] = []
    if _is_product(node, spec_of(operand(node, 1))):
        matrix = w[(..., *(0,) * (w.ndim - 2))].t()
        if _in_onednn(dy, matrix):
            dense = bytes_as(scratch, w.dtype, matrix.shape)
            calls, matrix = [partial(dense.copy_, matrix)], dense
        calls += _product(node, dy, matrix, None, dx)
    else:
        conv = _Convolution(node, dx, w, dy, scratch)
        channels = conv.channels(1)
        for n in conv.samples(len(channels)):
            for c in channels:
                part = conv.x[n, c] if conv.groups == 1 else conv.x[n]
                calls.append(partial(_put_item, part, conv.backward(conv.y[n], part, w[:, c], 0), 0))
        if conv.inside is not conv.x:
            calls.append(partial(_first(node, dx).copy_, conv.inside))
    if b is not None:
        image = _first(node, dx)
        calls.append(partial(image.add_, b.view(-1, *(1,) * (image.ndim - 2))))
    return calls


def _weight_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, x, dw = inputs[0], inputs[1], outputs[0]
    is_product = _is_product(node, spec_of(result(node)))
    if is_product and not (nhwc(node.attrs) and _in_onednn(x, dw)):
        return _weight_product(node, _first(node, dy), _first(node, x), dw)
    conv = _Convolution(node, x, dw, dy, scratch)
    calls: list[Call] = [] if conv.inside is conv.x else [conv.x.zero_, partial(conv.inside.copy_, _first(node, x))]
    channels = conv.channels(0, WEIGHT_BYTES // 2)  # twice as many copies: the gradient has the size of the weights
    # oneDNN copies only the weights, not channels-last operands: no slices of the batch are needed.
    samples = [slice(0, len(x))] if conv.last else conv.samples(len(channels))
    for o in channels:
        for i, n in enumerate(samples):
            gradient = conv.backward(conv.y[n, o], conv.x[n], dw[o], 1)
            calls.append(partial(_add_item if i else _put_item, dw[o], gradient, 1))
    return calls


def _product(node: Node, x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> list[Call]:
    """Return calls for y = w x + b over the channels at each point; `w` is a matrix."""
    if not nhwc(node.attrs):
        return _batch_product(w, x.flatten(2), b, y.flatten(2))
    x, y = one_matrix(x), one_matrix(y)
    if not _in_onednn(x, w) or len(x) < ROWS:
        return [matrix_product(x, w.t(), b, y)]
    return [y.zero_, _added(y, x, w, b)]


def _in_onednn(x: Tensor, w: Tensor) -> bool:
    """True if oneDNN computes the matrix product.

    With several threads and enough work, oneDNN is up to twice as fast as the library behind `mm`. With one thread
    oneDNN is slower, and PyTorch avoids oneDNN too.
    """
    if torch().get_num_threads() == 1:
        return False
    there = torch().backends.mkldnn.is_available() and hasattr(torch().ops.mkldnn, "_convolution_pointwise_")
    return bool(there and x.dtype == torch().float32 and x.numel() * w.shape[0] >= WORK)


def _added(y: Tensor, x: Tensor, w: Tensor, b: Tensor = None) -> Call:
    """Return the call y += x w^T + b in oneDNN, for matrices.

    oneDNN receives rows as points of an image, and copies w or parts of w.
    """
    points = [t.view(1, t.shape[0], 1, t.shape[1]).permute(0, 3, 1, 2) for t in (y, x)]
    single: tuple[Any, ...] = ([0, 0], [1, 1], [1, 1], 1, "add", 1.0, None, [], None)
    add = torch().ops.mkldnn._convolution_pointwise_.binary
    return partial(add, *points, w[:, :, None, None], b, *single)


def _batch_product(w: Tensor, x: Tensor, b: Tensor, y: Tensor) -> list[Call]:
    """Return calls for y[n] = w x[n] + b."""
    if _in_onednn(x, w):
        convolution, single = torch().mkldnn_convolution, ([0, 0], [1, 1], [1, 1], 1)
        x, y = x.unsqueeze(2), y.unsqueeze(2)
        samples = _samples(x, w.nbytes, y)
        weights = w[:, :, None, None]
        return [partial(_put, y[n], partial(convolution, x[n], weights, b, *single)) for n in samples]
    weights = w.expand(len(x), *w.shape)
    if b is None:
        return [partial(torch().bmm, weights, x, out=y)]
    return [partial(torch().baddbmm, b[None, :, None].expand(y.shape), weights, x, out=y)]


def _weight_product(node: Node, dy: Tensor, x: Tensor, dw: Tensor) -> Calls:
    """Return calls for dw = the sum of dy x^T over samples; dy and x are [N, C, *spatial]."""
    dw = dw.view(dw.shape[:2])
    if nhwc(node.attrs):
        dy, x = (one_matrix(t.movedim(1, -1)) for t in (dy, x))
        return partial(torch().mm, dy.t(), x, out=dw)
    dy, x = dy.flatten(2), x.flatten(2)
    if _in_onednn(x, dw):
        calls: list[Call] = [dw.zero_]
        calls += [_added(dw, *sample) for sample in zip(dy, x, strict=True)]
        return calls
    return partial(torch().addbmm, dw, dy, x.transpose(1, 2), beta=0, out=dw)


def _conv_scratch(node: Node) -> int:
    return _padded_bytes(node, spec_of(operand(node, 0)), spec_of(operand(node, 1)))


def _input_scratch(node: Node) -> int:
    w = spec_of(operand(node, 1))
    if _is_product(node, w):
        return w.nbytes
    return _padded_bytes(node, spec_of(result(node)), w)


def _weight_scratch(node: Node) -> int:
    return _padded_bytes(node, spec_of(operand(node, 1)), spec_of(result(node)))


KERNELS: Mapping[str, Fast] = {
    "conv": Fast(_conv, _conv_scratch, allocates=True),
    "conv_input_gradient": Fast(_input_gradient, _input_scratch, allocates=True),
    "conv_weight_gradient": Fast(_weight_gradient, _weight_scratch, allocates=True),
    "conv_transpose": Fast(_input_gradient, _input_scratch, allocates=True),
}
