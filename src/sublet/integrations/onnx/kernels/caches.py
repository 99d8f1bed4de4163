"""Kernels of the `cache` dialect: a cache is an array with strides, and no row moves.

Appends and products of few rows are compiled (`core/caches.cpp`), larger products are NumPy's: it passes matrices with
strides to BLAS without a copy, where the elements of a row, or of a column, are neighbours. Both add in another order
than ONNX Runtime, so results differ in the last bits.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping, Sequence
from ctypes import c_char
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sublet.base.tensor import NUMPY, TensorSpec
from sublet.integrations.onnx.cache_ops import APPEND_ROWS, FIRST_ROWS, MATMUL, RESERVE
from sublet.integrations.onnx.kernels import _sessions
from sublet.ir.graph import Node
from sublet.runtime.kernel import Array, BindAtPoint, Call, Kernel, Operand, PlaceNumbers

FIRST = mmap.PAGESIZE
"""The first address that an array may have."""

ADDRESS_SPACE: Any = (c_char * (sys.maxsize - FIRST)).from_address(FIRST)
"""The memory of the process as a buffer: an array over an address then takes half a microsecond."""

FEW_ROWS = 4
"""Rows of a product, those of all heads of a group together, up to which memory decides the time."""


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


def _copy_rows(node: Node, arrays: Sequence[Any]) -> Call:
    """Return the call that copies the rows of the smaller array between a buffer and rows without gaps."""
    source, target = arrays
    axis: Any = node.attrs["axis"]
    rows = (*(slice(None),) * axis, slice(min(source.shape[axis], target.shape[axis])))
    return partial(np.copyto, target[rows], source[rows])


def cache_kernel(node: Node) -> Kernel | None:
    """Return the kernel of an op of the `cache` dialect; None for other ops."""
    return _CacheKernel(node) if node.op in (APPEND_ROWS, FIRST_ROWS, MATMUL, RESERVE) else None


@dataclass(frozen=True)
class _CacheKernel:
    """The kernel of a node."""

    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        arrays: list[Any] = [*inputs, *outputs]
        numbers = [(i, i) for i in range(len(arrays))]
        bound = _binder(self.node, numbers)([each.shape for each in arrays], [each.ctypes.data for each in arrays])
        return _CacheCall(self.node, bound)


@dataclass(frozen=True)
class _CacheCall:
    """A call that can be bound to other shapes."""

    node: Node
    call: Call

    def __call__(self) -> None:
        self.call()

    def over_ranges(
        self,
        places: Mapping[str, PlaceNumbers],
        copied: Mapping[int, Sequence[PlaceNumbers]],
    ) -> BindAtPoint:
        """See `kernel.Ranged`."""
        return _binder(self.node, [places[value.name] for value in (*self.node.uses, *self.node.defs)])


def _binder(node: Node, numbers: Sequence[PlaceNumbers]) -> BindAtPoint:
    """Return the function that binds a node to shapes and addresses, of which the operands have `numbers`."""
    attrs: Any = node.attrs
    dtype = NUMPY[node.defs[0].spec.dtype] if isinstance(node.defs[0].spec, TensorSpec) else np.dtype(np.void)
    if node.op == APPEND_ROWS:
        return partial(_sessions.BoundAppend, _sessions.Append(numbers, attrs["axis"], dtype.itemsize))
    by_numpy = partial(_NumPyCall, node, dtype, numbers)
    if node.op in (FIRST_ROWS, RESERVE):
        return by_numpy
    if attrs["cache"] != 1 or attrs["transposed"] or dtype != np.float32:
        return by_numpy
    of_few_rows = _sessions.Product(numbers, attrs["order"], attrs["repeats"], attrs["alpha"], FEW_ROWS)
    return lambda shapes, addresses: _sessions.BoundProduct(of_few_rows, by_numpy(shapes, addresses), shapes, addresses)


class _NumPyCall:
    """A node at a point, computed by NumPy; arrays are made at the first run after a move."""

    __slots__ = ("_call", "_dtype", "_node", "_numbers", "_places")

    def __init__(
        self,
        node: Node,
        dtype: np.dtype[Any],
        numbers: Sequence[PlaceNumbers],
        shapes: list[tuple[int, ...]],
        addresses: list[int],
    ) -> None:
        self._node, self._dtype, self._numbers = node, dtype, numbers
        self.move(shapes, addresses)

    def move(self, shapes: list[tuple[int, ...]], addresses: list[int]) -> None:
        """See `kernel.PointCall`."""
        self._places = [(shapes[shape], addresses[address]) for shape, address in self._numbers]
        self._call: Call | None = None

    def __call__(self) -> None:
        if self._call is None:
            places = ((shape, self._dtype, ADDRESS_SPACE, address - FIRST) for shape, address in self._places)
            bind = _matmul if self._node.op == MATMUL else _copy_rows
            self._call = bind(self._node, [np.ndarray(*each) for each in places])
        self._call()
