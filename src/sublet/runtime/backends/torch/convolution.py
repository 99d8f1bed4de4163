"""Convolutions and their gradients, which are convolutions too.

PyTorch's convolutions allocate: their result, and copies of all operands in layouts that oneDNN prefers. So they are
run a few samples and channels at a time, which bounds what they allocate by a small slice and costs little time or
none: small allocations come from memory that is warm. Kernels of one element are matrix products, which oneDNN adds to
what lies in the output; where there is no oneDNN, little work, or one thread, they are `mm` and `bmm` and allocate
nothing.
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
"""Of a slice of the batch, for each thread, so that all have something to do."""

WEIGHT_BYTES = 4 << 20
"""Of a slice of the weights, at most, where they can be sliced."""

ROWS = 256
"""With fewer rows, preparing the weights for oneDNN's product costs more than it saves."""

WINDOW, IMAGE = 9, 28 * 28
"""Elements of windows and images: what oneDNN does with larger ones depends on where channels lie."""

WORK = 1 << 22
"""With fewer multiplications the time goes elsewhere."""


def _over(node: Node, w: TensorSpec) -> Windows:
    return windows(node.attrs, w.shape[2:])


def _first(node: Node, x: Tensor) -> Tensor:
    """The tensor seen as [N, C, *spatial]."""
    return x.movedim(-1, 1) if nhwc(node.attrs) else x


def _is_product(node: Node, w: TensorSpec) -> bool:
    """Whether windows are single elements, all of them and in their order."""
    over = _over(node, w)
    numbers = {*over.kernel, *over.strides}
    return numbers == {1} and not any((*over.begins, *over.ends)) and node.attrs["groups"] == 1


def _padded_bytes(node: Node, x: TensorSpec, w: TensorSpec) -> int:
    """Of a copy of x with its padding, which ATen needs where the sides differ."""
    over = _over(node, w)
    if over.symmetric:
        return 0
    samples, channels, spatial = image(x, node.attrs, "x")
    return TensorSpec(x.dtype, (samples, channels, *over.reach(spatial, over.counts(spatial)))).nbytes


class _Convolution:
    """The tensors of a convolution [N, C, *spatial] * [O, C / groups, *kernel] -> [N, O, *counts] as slices.

    `x` is a padded copy in scratch memory where the padding of the two sides differs; `inside` is its part without.
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
        """Slices of an axis of the weights, of so many bytes at most."""
        parts = 1
        while self.groups == 1 and self.w.nbytes > parts * most and self.w.shape[axis] > 2 * parts:
            parts *= 2
        return _slices(self.w.shape[axis], -(-self.w.shape[axis] // parts))

    def samples(self, weight_slices: int) -> list[slice]:
        """Slices of the batch."""
        return _samples(self.x, self.w.nbytes // weight_slices, self.y)

    def backward(self, dy: Tensor, x: Tensor, w: Tensor, which: int) -> Callable[[], Any]:
        """The gradient by x (0) or by w (1); of the one asked for, only the shape is used."""
        mask = [which == 0, which == 1, False]
        zeros = [0] * len(self.strides)
        strided = (self.strides, self.pads, self.dilations, False, zeros, self.groups)
        function = torch().ops.aten.convolution_backward
        if which == 1 and self._faster_last():
            return partial(_channels_last, function, dy, x, w, None, *strided, mask)
        return partial(function, dy, x, w, None, *strided, mask)

    def _faster_last(self) -> bool:
        """Whether oneDNN takes half the time for the gradient by w, copies included, where channels lie last: a large
        window on each channel of a large image."""
        alone = self.groups > 1 and self.w.shape[1] == 1 and self.w.dim() == 4 and not self.last
        return bool(alone and prod(self.w.shape[2:]) > WINDOW and prod(self.y.shape[2:]) >= IMAGE)


def _channels_last(function: Callable[..., Any], dy: Tensor, x: Tensor, *rest: Any) -> Any:
    form = torch().channels_last
    return function(dy.contiguous(memory_format=form), x.contiguous(memory_format=form), *rest)


def _slices(count: int, step: int) -> list[slice]:
    return [slice(begin, min(count, begin + step)) for begin in range(0, count, step)]


def _samples(x: Tensor, weights: int, y: Tensor) -> list[slice]:
    """Slices of the batch, not so small that preparing so many bytes of weights for each would cost time."""
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
    its = _Convolution(node, inputs[0], w, outputs[0], scratch)
    calls: list[Call] = [] if its.inside is its.x else [its.x.zero_, partial(its.inside.copy_, _first(node, inputs[0]))]
    zeros = [0] * len(its.strides)
    channels = its.channels(0)
    for n in its.samples(len(channels)):
        for o in channels:
            given = (its.x[n], w[o], None if b is None else b[o])
            strided = (its.strides, its.pads, its.dilations, False, zeros, its.groups)
            calls.append(partial(_put, its.y[n, o], partial(torch().convolution, *given, *strided)))
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
        its = _Convolution(node, dx, w, dy, scratch)
        channels = its.channels(1)
        for n in its.samples(len(channels)):
            for c in channels:
                part = its.x[n, c] if its.groups == 1 else its.x[n]
                calls.append(partial(_put_item, part, its.backward(its.y[n], part, w[:, c], 0), 0))
        if its.inside is not its.x:
            calls.append(partial(_first(node, dx).copy_, its.inside))
    if b is not None:
        whole = _first(node, dx)
        calls.append(partial(whole.add_, b.view(-1, *(1,) * (whole.ndim - 2))))
    return calls


def _weight_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, x, dw = inputs[0], inputs[1], outputs[0]
    is_product = _is_product(node, spec_of(result(node)))
    if is_product and not (nhwc(node.attrs) and _in_onednn(x, dw)):
        return _weight_product(node, _first(node, dy), _first(node, x), dw)
    its = _Convolution(node, x, dw, dy, scratch)
    calls: list[Call] = [] if its.inside is its.x else [its.x.zero_, partial(its.inside.copy_, _first(node, x))]
    channels = its.channels(0, WEIGHT_BYTES // 2)  # there are more copies of them: the gradient is like them
    # Channels-last operands are taken as they are: then only the weights are copied.
    samples = [slice(0, len(x))] if its.last else its.samples(len(channels))
    for o in channels:
        for i, n in enumerate(samples):
            gradient = its.backward(its.y[n, o], its.x[n], dw[o], 1)
            calls.append(partial(_add_item if i else _put_item, dw[o], gradient, 1))
    return calls


def _product(node: Node, x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> list[Call]:
    """y = w x + b for the channels at each point; `w` is a matrix."""
    if not nhwc(node.attrs):
        return _batch_product(w, x.flatten(2), b, y.flatten(2))
    x, y = one_matrix(x), one_matrix(y)
    if not _in_onednn(x, w) or len(x) < ROWS:
        return [matrix_product(x, w.t(), b, y)]
    return [y.zero_, _added(y, x, w, b)]


def _in_onednn(x: Tensor, w: Tensor) -> bool:
    """Whether oneDNN multiplies: with several threads it is up to twice as fast as the library behind `mm`, where there
    is work enough; with one it is slower, and PyTorch does not take it either."""
    if torch().get_num_threads() == 1:
        return False
    there = torch().backends.mkldnn.is_available() and hasattr(torch().ops.mkldnn, "_convolution_pointwise_")
    return bool(there and x.dtype == torch().float32 and x.numel() * w.shape[0] >= WORK)


def _added(y: Tensor, x: Tensor, w: Tensor, b: Tensor = None) -> Call:
    """y += x w^T + b in oneDNN, for matrices: it sees rows as points of an image and copies w, or parts of it."""
    points = [t.view(1, t.shape[0], 1, t.shape[1]).permute(0, 3, 1, 2) for t in (y, x)]
    single: tuple[Any, ...] = ([0, 0], [1, 1], [1, 1], 1, "add", 1.0, None, [], None)
    add = torch().ops.mkldnn._convolution_pointwise_.binary
    return partial(add, *points, w[:, :, None, None], b, *single)


def _batch_product(w: Tensor, x: Tensor, b: Tensor, y: Tensor) -> list[Call]:
    """y[n] = w x[n] + b."""
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
    """dw = the sum of dy x^T over samples; both are [N, C, *spatial]."""
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
