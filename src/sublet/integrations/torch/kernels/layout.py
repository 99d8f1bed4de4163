"""Kernels of the commands that move elements and compute none. Kernels create views when bound."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from sublet.integrations.torch.kernels.conversion import permute_kernel
from sublet.integrations.torch.kernels.kernel import Calls, Operands, Tensor, TorchKernel, torch
from sublet.ir.graph import Node
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.layout import padded_region
from sublet.ops.nn.rules import normalize_axes, number_as, result
from sublet.runtime.kernel import Array, Call


def numpy_bits(tensor: Tensor) -> Array:
    """Return a NumPy array over a tensor, for moving elements; of i16 for bf16, a type missing in NumPy."""
    t = torch()
    array: Array = (tensor.view(t.int16) if tensor.dtype == t.bfloat16 else tensor).numpy()
    return array


def _transpose_axes(node: Node, rank: int) -> tuple[int, ...]:
    return tuple(pick(node.attrs, "axes"))


def _slice(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    attrs = node.attrs
    source = inputs[0][tuple(map(slice, pick(attrs, "starts"), pick(attrs, "ends"), pick(attrs, "steps")))]
    return partial(outputs[0].copy_, source)


def _concat(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Copy every input except inputs already in place."""
    axis = int(pick(node.attrs, "axis")) % outputs[0].ndim
    begins = np.cumsum([0, *(x.shape[axis] for x in inputs)]).tolist()
    places = [outputs[0].narrow(axis, begin, x.shape[axis]) for x, begin in zip(inputs, begins, strict=False)]
    if all(x.data_ptr() != place.data_ptr() for x, place in zip(inputs, places, strict=True)):
        return partial(torch().cat, list(inputs), axis, out=outputs[0])
    pairs = [(x, place) for x, place in zip(inputs, places, strict=True) if x.data_ptr() != place.data_ptr()]
    return [partial(place.copy_, x) for x, place in pairs]


def _split(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    pieces = inputs[0].split(list(pick(node.attrs, "sizes")), pick(node.attrs, "axis"))
    pairs = [(piece, out) for piece, out in zip(pieces, outputs, strict=True) if out is not None and out.numel()]
    return [partial(out.copy_, piece) for piece, out in pairs if out.data_ptr() != piece.data_ptr()]


def _pad(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Fill the margins and copy the input, unless the input is already in place.

    With padding between elements: fill the whole result before copying the input.
    """
    x, y = inputs[0], outputs[0]
    pads, between = pick(node.attrs, "pads"), pick(node.attrs, "between")
    value = number_as(pick(node.attrs, "value"), spec_of(result(node)).dtype)
    places = padded_region(x.shape, pads, between)
    if any(place.step > 1 and n > 1 for place, n in zip(places, x.shape, strict=True)):
        return [partial(y.fill_, value), partial(y[places].copy_, x)]
    rest, calls = y, list[Call]()
    for axis, place in enumerate(places):
        margins = (rest.narrow(axis, 0, place.start), rest.narrow(axis, place.stop, rest.shape[axis] - place.stop))
        calls += [partial(margin.fill_, value) for margin in margins if margin.numel()]
        rest = rest.narrow(axis, place.start, place.stop - place.start)
    if x.numel() and x.data_ptr() != rest.data_ptr():
        calls.append(partial(rest.copy_, x))
    return calls


def _flip(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Copy with NumPy, because NumPy arrays may have negative strides."""
    source = np.flip(numpy_bits(inputs[0]), normalize_axes(pick(node.attrs, "axes"), inputs[0].ndim))
    return partial(np.copyto, numpy_bits(outputs[0]), source)


def _tile(node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
    """Copy through a view of the result with two axes for each axis of the input: repetition and position."""
    x, repeats = inputs[0], pick(node.attrs, "repeats")
    apart = [n for pair in zip(repeats, x.shape, strict=True) for n in pair]
    source = x.view([n for extent in x.shape for n in (1, extent)]).expand(apart)
    return partial(outputs[0].view(apart).copy_, source)


KERNELS: Mapping[str, TorchKernel] = {
    "transpose": TorchKernel(permute_kernel(_transpose_axes), only_moves=True),
    "slice": TorchKernel(_slice, only_moves=True),
    "concat": TorchKernel(_concat, only_moves=True, keeps=True),
    "split": TorchKernel(_split, only_moves=True, keeps=True),
    "pad": TorchKernel(_pad, only_moves=True, keeps=True),
    "flip": TorchKernel(_flip, only_moves=True),
    "tile": TorchKernel(_tile, only_moves=True),
}
