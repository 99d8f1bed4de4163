"""Convolutions and their gradients, which are convolutions too.

PyTorch's convolutions allocate the result, and copies of all operands in layouts preferred by oneDNN. The kernels
therefore process a few samples and channels at a time: allocations are bounded by a small slice, at little or no cost
in time, because small allocations reuse warm memory. Convolutions with kernels of one element are matrix products.
`mm` and `bmm` compute the products and allocate no memory; where oneDNN is faster, oneDNN adds the products up in the
output. Strided convolutions along one axis are products with the column matrix of each sample, in scratch memory.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.kernels.kernel import Calls, Operands, Tensor, TorchKernel, scratch_tensor, torch
from sublet.integrations.torch.kernels.linear import as_matrix, matrix_product
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.rules import operand, result
from sublet.ops.nn.windows import Windows, image_dims, is_channels_last, windows_from_attrs
from sublet.runtime.kernel import Call

MIN_SAMPLE_BYTES = 1 << 20
"""Minimum bytes of a slice of the batch per thread, to keep all threads busy."""

MIN_HALF_BYTES = 3 << 18
"""Minimum bytes of half a batch as a slice."""

MAX_WEIGHT_BYTES = 4 << 20
"""Maximum bytes of a slice of the weights, where the weights can be sliced."""

VECTOR_CHANNELS = 8
"""Channels in the smallest block of oneDNN's layouts. Slices of output channels are multiples of a block."""

MIN_ONEDNN_ROWS = 256
"""Minimum rows of a product in oneDNN; with fewer rows, preparing the weights costs more than oneDNN saves."""

LARGE_WINDOW, LARGE_IMAGE = 9, 28 * 28
"""Elements of a window and of an image. For larger windows on images of this size or more, the speed of oneDNN depends
on the position of the channel axis.
"""

MIN_ONEDNN_WORK = 1 << 22
"""Minimum multiplications of a product in oneDNN; below, overhead dominates the time."""


MAX_COLUMN_RATIO = 2
"""Maximum ratio of window to stride, and so of the bytes of a column matrix to the bytes of the sample."""

MAX_ADDED_TAPS, MIN_ADDED_WINDOWS = 3, 256
"""Maximum taps of a window, and minimum windows of a sample, of the column matrices added up on two threads."""


def _windows_of(node: Node, w: TensorSpec) -> Windows:
    return windows_from_attrs(node.attrs, w.shape[2:])


def _channels_first(node: Node, x: Tensor) -> Tensor:
    """Return the tensor as [N, C, *spatial]."""
    return x.movedim(-1, 1) if is_channels_last(node.attrs) else x


def _is_matrix_product(node: Node, w: TensorSpec) -> bool:
    """True if the convolution is a matrix product: windows of one element, stride 1, no padding, one group."""
    over = _windows_of(node, w)
    numbers = {*over.kernel, *over.strides}
    return numbers == {1} and not any((*over.begins, *over.ends)) and node.attrs["groups"] == 1


def _padded_bytes(node: Node, x: TensorSpec, w: TensorSpec) -> int:
    """Return the bytes of a padded copy of x; 0 if the padding is symmetric, as ATen needs no copy then."""
    over = _windows_of(node, w)
    if over.is_symmetric:
        return 0
    samples, channels, spatial = image_dims(x, node.attrs, "x")
    return TensorSpec(x.dtype, (samples, channels, *over.padded_extents(spatial, over.count_windows(spatial)))).nbytes


class _RowSlice(NamedTuple):
    """Rows of a convolution computed by one call.

    taken    the rows of the output
    read     the rows of the input
    dropped  the rows computed before the first row taken
    """

    taken: slice
    read: slice
    dropped: int


class _ConvolutionTensors:
    """The tensors of a convolution [N, C, *spatial] * [O, C / groups, *kernel] -> [N, O, *counts], for slicing.

    With asymmetric padding, `x` is a padded copy in scratch memory. `unpadded_x` is the part of `x` without padding.
    """

    def __init__(self, node: Node, x: Tensor, w: Tensor, y: Tensor, scratch: Tensor) -> None:
        over = windows_from_attrs(node.attrs, w.shape[2:])
        self.x, self.w, self.y = _channels_first(node, x), w, _channels_first(node, y)
        self.is_channels_last = is_channels_last(node.attrs)
        self.unpadded_x, self.groups = self.x, pick(node.attrs, "groups")
        self.strides, self.dilations, self.pads = list(over.strides), list(over.dilations), list(over.begins)
        if not over.is_symmetric:
            reach = over.padded_extents(self.x.shape[2:], self.y.shape[2:])
            samples, channels = self.x.shape[:2]
            shape = (samples, *reach, channels) if self.is_channels_last else (samples, channels, *reach)
            self.x = _channels_first(node, scratch_tensor(scratch, x.dtype, shape))
            self.unpadded_x, self.pads = self.x[over.input_region(self.unpadded_x.shape[2:])], [0] * len(reach)

    def channel_slices(self, axis: int, most: int = MAX_WEIGHT_BYTES) -> list[slice]:
        """Return slices of an axis of the weights, of at most `most` bytes each. Grouped weights are not sliced."""
        parts = 1
        while self.groups == 1 and self.w.nbytes > parts * most and self.w.shape[axis] > 2 * parts:
            parts *= 2
        return _slices(self.w.shape[axis], -(-self.w.shape[axis] // parts))

    def output_slices(self) -> list[tuple[slice, _RowSlice]]:
        """Return slices of the output channels with rows of the output, to bound copies of weights and of the output.

        oneDNN reads the input once per slice of channels: only inputs of at most a quarter of the weights are worth
        smaller slices. Outputs at least twice as large as the input, as of images, are computed in rows.
        """
        whole = _RowSlice(slice(None), slice(None), 0)
        slices = self.channel_slices(0, MAX_WEIGHT_BYTES // (2 if 4 * self.x.nbytes <= self.w.nbytes else 1))
        nbytes = self.y.nbytes // len(self.y)
        parts = nbytes // (MIN_SAMPLE_BYTES // 4 * max(2, torch().get_num_threads()))
        if len(slices) > 1 or self.groups > 1 or 2 * self.x.nbytes > self.y.nbytes or parts < 2:
            return [(channels, whole) for channels in slices]
        return [(slice(None), rows) for rows in self._row_slices(parts)]

    def _row_slices(self, parts: int) -> list[_RowSlice]:
        """Return slices of the rows of the output. Rows of a slice that depend on inner padding are dropped."""
        stride, pad, reach = self.strides[0], self.pads[0], self.dilations[0] * (self.w.shape[2] - 1) + 1
        rows, border, height = self.y.shape[2], -(-pad // stride), self.x.shape[2]
        slices: list[_RowSlice] = []
        for taken in _slices(rows, -(-rows // parts)):
            first = max(0, min(taken.start - border, (height - 1) // stride))
            begin, end = first * stride, (taken.stop - 1) * stride - pad + reach
            read = slice(begin, min(height, max(begin + 1, end)))  # rows of padding alone still read a row
            slices.append(_RowSlice(taken, read, taken.start - first))
        return slices

    def sample_slices(self, weight_slices: int) -> list[slice]:
        """Return slices of the batch."""
        return _sample_slices(self.x, self.w.nbytes // weight_slices, self.y)

    def gradient_call(self, dy: Tensor, x: Tensor, w: Tensor, which: int) -> Callable[[], Any]:
        """Return a function computing the gradient with respect to x (`which` = 0) or w (`which` = 1).

        Of the tensor x or w to differentiate, ATen reads only the shape.
        """
        mask = [which == 0, which == 1, False]
        zeros = [0] * len(self.strides)
        strided = (self.strides, self.pads, self.dilations, False, zeros, self.groups)
        function = torch().ops.aten.convolution_backward
        if which == 1 and self._is_faster_channels_last():
            return partial(_call_channels_last, function, dy, x, w, None, *strided, mask)
        return partial(function, dy, x, w, None, *strided, mask)

    def _is_faster_channels_last(self) -> bool:
        """True if oneDNN computes the gradient with respect to w in half the time with channels last, copies included.

        Measured for depthwise convolutions with large windows on large images.
        """
        alone = self.groups > 1 and self.w.shape[1] == 1 and self.w.dim() == 4 and not self.is_channels_last
        return bool(alone and prod(self.w.shape[2:]) > LARGE_WINDOW and prod(self.y.shape[2:]) >= LARGE_IMAGE)


def _has_columns(node: Node, w: TensorSpec) -> bool:
    """True for strided windows along one axis, without padding, dilation and groups, and with a small column matrix.

    oneDNN is slow for strided images of one row. Measured with copies included, for samples of 25 KB to 2 MB:
    products with column matrices compute the gradient by the weights in 0.2 to 1.1 of oneDNN's time on 1 to 16 threads;
    the gradient by the input in 0.2 to 1.1 on one thread, and up to 1.8 on several. With fewer than `VECTOR_CHANNELS`
    input channels the forward pass takes 0.2 to 0.9, and the gradient by the input 0.2 to 1.2. See also
    `_adds_columns_faster`.
    """
    over = _windows_of(node, w)
    if len(over.kernel) > 1 or is_channels_last(node.attrs) or node.attrs["groups"] != 1:
        return False
    is_plain = not any((*over.begins, *over.ends)) and over.dilations[0] == 1 and over.strides[0] > 1
    return is_plain and w.dtype in (DType.F32, DType.F64) and over.kernel[0] <= MAX_COLUMN_RATIO * over.strides[0]


def _adds_columns_faster(w: Tensor, dy: Tensor) -> bool:
    """True if column matrices take less time than oneDNN for a gradient by the input, see `_has_columns`.

    Measured on two threads with 32 to 512 channels: 0.06 to 0.9 of oneDNN's time for few taps and many windows, once
    1.25; else up to 5. oneDNN writes the gradient with channels last, and ATen copies the gradient.
    """
    threads = torch().get_num_threads()
    is_short = w.shape[2] <= MAX_ADDED_TAPS and dy.shape[2] >= MIN_ADDED_WINDOWS
    return bool(w.shape[1] < VECTOR_CHANNELS or threads == 1 or (threads == 2 and is_short))


def _column_bytes(node: Node, w: TensorSpec, y: TensorSpec) -> int:
    """Return the bytes of the column matrix of a sample; 0 if the convolution uses none."""
    return TensorSpec(w.dtype, (*w.shape[1:], y.shape[2])).nbytes if _has_columns(node, w) else 0


class _ColumnMatrix:
    """The column matrix of a sample in scratch memory: for each tap of the window the elements under the tap.

    taps    the matrix as [C, K, O]
    matrix  the matrix as [C K, O]
    w       the weights as [channels of y, C K]
    """

    def __init__(self, node: Node, w: Tensor, y: Tensor, scratch: Tensor) -> None:
        channels, kernel = w.shape[1:]
        self._stride = windows_from_attrs(node.attrs, (kernel,)).strides[0]
        self.taps = scratch_tensor(scratch, w.dtype, (channels, kernel, y.shape[2]))
        self.matrix, self.w = self.taps.flatten(0, 1), w.view(len(w), -1)

    def _windows(self, sample: Tensor) -> Tensor:
        """Return a sample [C, L] seen as the columns [C, K, O]."""
        return sample.as_strided(self.taps.shape, (sample.stride(0), 1, self._stride), sample.storage_offset())

    def fill(self, sample: Tensor) -> Call:
        """Return the call copying a sample to the columns."""
        return partial(self.taps.copy_, self._windows(sample))

    def add_to(self, sample: Tensor) -> list[Call]:
        """Return the calls adding the columns to a sample of zeros. Windows without overlap need one copy."""
        windows, kernel = self._windows(sample), self.taps.shape[1]
        if kernel <= self._stride:
            return [partial(windows.copy_, self.taps)]
        return [partial(windows[:, tap].add_, self.taps[:, tap]) for tap in range(kernel)]


def _call_channels_last(function: Callable[..., Any], dy: Tensor, x: Tensor, *rest: Any) -> Any:
    form = torch().channels_last
    return function(dy.contiguous(memory_format=form), x.contiguous(memory_format=form), *rest)


def _slices(count: int, step: int) -> list[slice]:
    return [slice(begin, min(count, begin + step)) for begin in range(0, count, step)]


def _sample_slices(x: Tensor, weights: int, y: Tensor) -> list[slice]:
    """Return slices of the batch, large enough to make the preparation of `weights` bytes per slice negligible.

    A slice has at most half of a large batch, even if the slice keeps not all threads busy.
    """
    each, prepared = (x.nbytes + y.nbytes) // len(x), 4 * weights
    step = -(-max(prepared, MIN_SAMPLE_BYTES * torch().get_num_threads()) // each)
    half = -(-len(x) // 2)
    return _slices(len(x), min(step, half) if half * each >= max(prepared, MIN_HALF_BYTES) else step)


def _copy_to(place: Tensor, function: Callable[[], Any]) -> None:
    place.copy_(function())


def _copy_rows(place: Tensor, function: Callable[[], Any], begin: int) -> None:
    place.copy_(function()[:, :, begin : begin + place.shape[2]])


def _copy_item(place: Tensor, function: Callable[[], Any], item: int) -> None:
    place.copy_(function()[item])


def _add_item(place: Tensor, function: Callable[[], Any], item: int) -> None:
    place.add_(function()[item])


def _optional_bias(inputs: Operands) -> Tensor:
    return inputs[2] if len(inputs) > 2 else None


def _conv(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    w, b = inputs[1], _optional_bias(inputs)
    if _is_matrix_product(node, spec_of(operand(node, 1))):
        return _pointwise_product(node, inputs[0], w[(..., *(0,) * (w.ndim - 2))], b, outputs[0])
    if w.shape[1] < VECTOR_CHANNELS and _has_columns(node, spec_of(operand(node, 1))):
        return _column_product(_ColumnMatrix(node, w, outputs[0], scratch), inputs[0], b, outputs[0])
    conv = _ConvolutionTensors(node, inputs[0], w, outputs[0], scratch)
    calls: list[Call] = (
        []
        if conv.unpadded_x is conv.x
        else [conv.x.zero_, partial(conv.unpadded_x.copy_, _channels_first(node, inputs[0]))]
    )
    zeros = [0] * len(conv.strides)
    slices = conv.output_slices()
    strided = (conv.strides, conv.pads, conv.dilations, False, zeros, conv.groups)
    for n in conv.sample_slices(len(conv.channel_slices(0))):
        for o, rows in slices:
            given = (conv.x[n][:, :, rows.read], w[o], None if b is None else b[o])
            place = conv.y[n, o][:, :, rows.taken]
            calls.append(partial(_copy_rows, place, partial(torch().convolution, *given, *strided), rows.dropped))
    return calls


def _column_product(columns: _ColumnMatrix, x: Tensor, b: Tensor, y: Tensor) -> list[Call]:
    """Return calls for y[n] = w columns of x[n] + b."""
    product = torch().mm if b is None else partial(torch().addmm, b[:, None])
    calls: list[Call] = []
    for xn, yn in zip(x, y, strict=True):
        calls += [columns.fill(xn), partial(product, columns.w, columns.matrix, out=yn)]
    return calls


def _column_input_gradient(columns: _ColumnMatrix, dy: Tensor, dx: Tensor) -> list[Call]:
    """Return calls for the columns of dx[n] = w^T dy[n], added up to dx[n]."""
    calls: list[Call] = [dx.zero_]
    for dyn, dxn in zip(dy, dx, strict=True):
        calls += [partial(torch().mm, columns.w.t(), dyn, out=columns.matrix), *columns.add_to(dxn)]
    return calls


def _column_weight_gradient(columns: _ColumnMatrix, dy: Tensor, x: Tensor) -> list[Call]:
    """Return calls for dw = the sum of dy[n] (columns of x[n])^T over samples, in place of the weights."""
    calls: list[Call] = [columns.w.zero_]
    for dyn, xn in zip(dy, x, strict=True):
        calls += [columns.fill(xn), partial(columns.w.addmm_, dyn, columns.matrix.t())]
    return calls


def _input_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, w, dx, b = inputs[0], inputs[1], outputs[0], _optional_bias(inputs)
    calls: list[Call] = []
    if _is_matrix_product(node, spec_of(operand(node, 1))):
        matrix = w[(..., *(0,) * (w.ndim - 2))].t()
        if _uses_onednn(dy, matrix):
            dense = scratch_tensor(scratch, w.dtype, matrix.shape)
            calls, matrix = [partial(dense.copy_, matrix)], dense
        calls += _pointwise_product(node, dy, matrix, None, dx)
    elif _has_columns(node, spec_of(operand(node, 1))) and _adds_columns_faster(w, dy):
        calls += _column_input_gradient(_ColumnMatrix(node, w, dy, scratch), dy, dx)
    else:
        conv = _ConvolutionTensors(node, dx, w, dy, scratch)
        channels = conv.channel_slices(1)
        for n in conv.sample_slices(len(channels)):
            for c in channels:
                part = conv.x[n, c] if conv.groups == 1 else conv.x[n]
                calls.append(partial(_copy_item, part, conv.gradient_call(conv.y[n], part, w[:, c], 0), 0))
        if conv.unpadded_x is not conv.x:
            calls.append(partial(_channels_first(node, dx).copy_, conv.unpadded_x))
    if b is not None:
        image = _channels_first(node, dx)
        calls.append(partial(image.add_, b.view(-1, *(1,) * (image.ndim - 2))))
    return calls


def _weight_gradient(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    dy, x, dw = inputs[0], inputs[1], outputs[0]
    is_product = _is_matrix_product(node, spec_of(result(node)))
    if is_product and not (is_channels_last(node.attrs) and _uses_onednn(x, dw)):
        return _weight_product(node, _channels_first(node, dy), _channels_first(node, x), dw)
    if _has_columns(node, spec_of(result(node))):
        return _column_weight_gradient(_ColumnMatrix(node, dw, dy, scratch), dy, x)
    conv = _ConvolutionTensors(node, x, dw, dy, scratch)
    calls: list[Call] = (
        [] if conv.unpadded_x is conv.x else [conv.x.zero_, partial(conv.unpadded_x.copy_, _channels_first(node, x))]
    )
    channels = conv.channel_slices(
        0, MAX_WEIGHT_BYTES // 2
    )  # twice as many copies: the gradient has the size of the weights
    # oneDNN copies only the weights, not channels-last operands: no slices of the batch are needed.
    samples = [slice(0, len(x))] if conv.is_channels_last else conv.sample_slices(len(channels))
    for o in channels:
        for i, n in enumerate(samples):
            gradient = conv.gradient_call(conv.y[n, o], conv.x[n], dw[o], 1)
            calls.append(partial(_add_item if i else _copy_item, dw[o], gradient, 1))
    return calls


def _pointwise_product(node: Node, x: Tensor, w: Tensor, b: Tensor, y: Tensor) -> list[Call]:
    """Return calls for y = w x + b over the channels at each point; `w` is a matrix."""
    if not is_channels_last(node.attrs):
        return _batch_product(w, x.flatten(2), b, y.flatten(2))
    x, y = as_matrix(x), as_matrix(y)
    if not _uses_onednn(x, w) or len(x) < MIN_ONEDNN_ROWS:
        return [matrix_product(x, w.t(), b, y)]
    return [y.zero_, _accumulate_product(y, x, w, b)]


def _uses_onednn(x: Tensor, w: Tensor) -> bool:
    """True if oneDNN computes the matrix product.

    With several threads and enough work, oneDNN is up to twice as fast as the library behind `mm`, unless this
    library is MKL on a processor of Intel: MKL is then up to twice as fast as oneDNN, and writes in place. With one
    thread oneDNN is slower, and PyTorch avoids oneDNN too.
    """
    if torch().get_num_threads() == 1 or _has_fast_mkl():
        return False
    there = torch().backends.mkldnn.is_available() and hasattr(torch().ops.mkldnn, "_convolution_pointwise_")
    return bool(there and x.dtype == torch().float32 and x.numel() * w.shape[0] >= MIN_ONEDNN_WORK)


@cache
def _has_fast_mkl() -> bool:
    """True if MKL computes matrix products on a processor of Intel. MKL takes slower code on other processors."""
    if not torch().backends.mkl.is_available():
        return False
    try:
        vendor = Path("/proc/cpuinfo").read_text()
    except OSError:
        vendor = platform.processor()  # names the vendor on Windows
    return "GenuineIntel" in vendor


def _accumulate_product(y: Tensor, x: Tensor, w: Tensor, b: Tensor = None) -> Call:
    """Return the call y += x w^T + b in oneDNN, for matrices.

    oneDNN receives rows as points of an image, and copies w or parts of w.
    """
    points = [t.view(1, t.shape[0], 1, t.shape[1]).permute(0, 3, 1, 2) for t in (y, x)]
    single: tuple[Any, ...] = ([0, 0], [1, 1], [1, 1], 1, "add", 1.0, None, [], None)
    add = torch().ops.mkldnn._convolution_pointwise_.binary
    return partial(add, *points, w[:, :, None, None], b, *single)


def _batch_product(w: Tensor, x: Tensor, b: Tensor, y: Tensor) -> list[Call]:
    """Return calls for y[n] = w x[n] + b."""
    if _uses_onednn(x, w):
        convolution, single = torch().mkldnn_convolution, ([0, 0], [1, 1], [1, 1], 1)
        x, y = x.unsqueeze(2), y.unsqueeze(2)
        samples = _sample_slices(x, w.nbytes, y)
        weights = w[:, :, None, None]
        return [partial(_copy_to, y[n], partial(convolution, x[n], weights, b, *single)) for n in samples]
    weights = w.expand(len(x), *w.shape)
    if b is None:
        return [partial(torch().bmm, weights, x, out=y)]
    return [partial(torch().baddbmm, b[None, :, None].expand(y.shape), weights, x, out=y)]


def _weight_product(node: Node, dy: Tensor, x: Tensor, dw: Tensor) -> Calls:
    """Return calls for dw = the sum of dy x^T over samples; dy and x are [N, C, *spatial]."""
    dw = dw.view(dw.shape[:2])
    if is_channels_last(node.attrs):
        dy, x = (as_matrix(t.movedim(1, -1)) for t in (dy, x))
        return partial(torch().mm, dy.t(), x, out=dw)
    dy, x = dy.flatten(2), x.flatten(2)
    if _uses_onednn(x, dw):
        calls: list[Call] = [dw.zero_]
        calls += [_accumulate_product(dw, *sample) for sample in zip(dy, x, strict=True)]
        return calls
    return partial(torch().addbmm, dw, dy, x.transpose(1, 2), beta=0, out=dw)


def _takes_strides(node: Node, inputs: Collection[int]) -> bool:
    """True for results of channels-first images, each a copy or a matrix of a product."""
    return not inputs and not is_channels_last(node.attrs)


def _conv_scratch(node: Node) -> int:
    x, w = (spec_of(operand(node, i)) for i in range(2))
    columns = _column_bytes(node, w, spec_of(result(node))) if w.shape[1] < VECTOR_CHANNELS else 0
    return _padded_bytes(node, x, w) + columns


def _input_scratch(node: Node) -> int:
    w = spec_of(operand(node, 1))
    if _is_matrix_product(node, w):
        return w.nbytes
    return _padded_bytes(node, spec_of(result(node)), w) + _column_bytes(node, w, spec_of(operand(node, 0)))


def _weight_scratch(node: Node) -> int:
    dy, x, dw = spec_of(operand(node, 0)), spec_of(operand(node, 1)), spec_of(result(node))
    return _padded_bytes(node, x, dw) + _column_bytes(node, dw, dy)


KERNELS: Mapping[str, TorchKernel] = {
    "conv": TorchKernel(_conv, _conv_scratch, allocates=True, strided=_takes_strides),
    "conv_input_gradient": TorchKernel(_input_gradient, _input_scratch, allocates=True, strided=_takes_strides),
    "conv_weight_gradient": TorchKernel(_weight_gradient, _weight_scratch, allocates=True),
    "conv_transpose": TorchKernel(_input_gradient, _input_scratch, allocates=True),
}
