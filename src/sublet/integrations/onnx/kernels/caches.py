"""Kernels of the `cache` dialect by NumPy: a cache is an array with strides, and no row moves.

NumPy passes matrices with strides to BLAS without a copy, where the elements of a row, or of a column, are neighbours.
BLAS adds in another order than ONNX Runtime: results differ in the last bits.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import c_char
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sublet.base.tensor import NUMPY, TensorSpec
from sublet.integrations.onnx.cache_ops import APPEND_ROWS, MATMUL
from sublet.ir.graph import Node
from sublet.runtime.kernel import Array, BindAtPoint, Call, Kernel, Operand, PlaceNumbers

FIRST = mmap.PAGESIZE
"""The first address that an array may have."""

ADDRESS_SPACE = (c_char * (sys.maxsize - FIRST)).from_address(FIRST)
"""The memory of the process as a buffer: an array over an address then takes half a microsecond."""

Make = Callable[[Node, Sequence[Any]], Call]
"""(node, arrays of the inputs and the output) -> the call that computes the node."""


def _append_rows(node: Node, arrays: Sequence[Any]) -> Call:
    """Return the call that writes new rows; a result in other memory takes the old rows too."""
    buffer, rows, length, out = arrays
    axis: Any = node.attrs["axis"]
    before, count, room = (slice(None),) * axis, rows.shape[axis], out.shape[axis]
    is_apart = out.ctypes.data != buffer.ctypes.data

    def run() -> None:
        begin = int(length[0])
        if not 0 <= begin <= room - count:
            raise IndexError(f"{begin} rows and {count} new rows in a cache of {room} rows")
        if is_apart:
            out[(*before, slice(begin))] = buffer[(*before, slice(begin))]
        out[(*before, slice(begin, begin + count))] = rows

    return run


def _matmul(node: Node, arrays: Sequence[Any]) -> Call:
    """Return the call of a product with the first rows of a cache."""
    attrs: Any = node.attrs
    position, axis, order = attrs["cache"], attrs["axis"], attrs["order"]
    buffer, other, out = arrays[position], arrays[1 - position], arrays[2]
    inner = other.shape[-1 if (position == 1) != bool(attrs["transposed"]) else -2]
    is_inner = order[1 - position] == axis
    cache = buffer[(*(slice(None),) * axis, slice(inner if is_inner else out.shape[-1 if position else -2]))]
    matrices = cache.transpose(*(each for each in range(cache.ndim) if each not in order), *order)
    batch, repeats = matrices.shape[:-2], attrs["repeats"]
    if repeats > 1 and position == 1 and not attrs["transposed"]:  # one product for all heads of a group
        other, out = (each.reshape(*batch, repeats * each.shape[-2], each.shape[-1]) for each in (other, out))
    elif repeats > 1:
        other, out = (each.reshape(*batch, repeats, *each.shape[-2:]) for each in (other, out))
        matrices = matrices[..., None, :, :]
    else:
        other, out = (each.reshape(*batch, *each.shape[-2:]) for each in (other, out))
    other = other.swapaxes(-1, -2) if attrs["transposed"] else other
    product = partial(np.matmul, *((matrices, other) if position == 0 else (other, matrices)), out=out)
    alpha = attrs["alpha"]

    def run() -> None:
        with np.errstate(all="ignore"):
            product()
            if alpha != 1.0:
                np.multiply(out, alpha, out=out)

    return run


MAKERS: Mapping[str, Make] = {APPEND_ROWS: _append_rows, MATMUL: _matmul}


def cache_kernel(node: Node) -> Kernel | None:
    """Return the kernel of an op of the `cache` dialect; None for other ops."""
    return _CacheKernel(node, MAKERS[node.op]) if node.op in MAKERS else None


@dataclass(frozen=True)
class _CacheKernel:
    """The kernel of a node."""

    node: Node
    make: Make
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        return _CacheCall(self, self.make(self.node, [*inputs, *outputs]))


@dataclass(frozen=True)
class _CacheCall:
    """A call that can be bound to other shapes."""

    kernel: _CacheKernel
    call: Call

    def __call__(self) -> None:
        self.call()

    def over_ranges(
        self,
        places: Mapping[str, PlaceNumbers],
        copied: Mapping[int, Sequence[PlaceNumbers]],
        moving: Collection[int],
    ) -> BindAtPoint:
        """See `kernel.Ranged`."""
        node = self.kernel.node
        values = (*node.uses, *node.defs)
        dtypes = [NUMPY[value.spec.dtype] for value in values if isinstance(value.spec, TensorSpec)]
        numbers = [places[value.name] for value in values]
        return partial(_CacheAtPoint, partial(self.kernel.make, node), dtypes, numbers)


class _CacheAtPoint:
    """A call at a point; arrays are made at the first run after a move."""

    __slots__ = ("_call", "_dtypes", "_make", "_numbers", "_places")

    def __init__(
        self,
        make: Callable[[Sequence[Any]], Call],
        dtypes: Sequence[np.dtype[Any]],
        numbers: Sequence[PlaceNumbers],
        shapes: list[tuple[int, ...]],
        addresses: list[int],
    ) -> None:
        self._make, self._dtypes, self._numbers = make, dtypes, numbers
        self.move(shapes, addresses)

    def move(self, shapes: list[tuple[int, ...]], addresses: list[int]) -> None:
        """See `kernel.PointCall`."""
        self._places = [(shapes[shape], addresses[address]) for shape, address in self._numbers]
        self._call: Call | None = None

    def __call__(self) -> None:
        if self._call is None:
            pairs = zip(self._places, self._dtypes, strict=True)
            arrays = [np.ndarray(shape, dtype, ADDRESS_SPACE, address - FIRST) for (shape, address), dtype in pairs]
            self._call = self._make(arrays)
        self._call()
