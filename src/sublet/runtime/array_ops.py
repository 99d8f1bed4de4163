"""Array operations shared by NumPy arrays and PyTorch tensors, also tensors on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from sublet.runtime.kernel import Array


def address_of(array: Array) -> int:
    """Return the address of the first byte."""
    return array.ctypes.data if isinstance(array, np.ndarray) else _tensor_address(array)


def _tensor_address(tensor: Any) -> int:
    return int(tensor.data_ptr())


def arrays_overlap(a: Array, b: Array) -> bool:
    """True if two arrays share bytes; the elements of a tensor are taken as contiguous."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    return address_of(a) < address_of(b) + b.nbytes and address_of(b) < address_of(a) + a.nbytes


def copy_of(array: Array) -> Any:
    """Return a copy of the array in new memory."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def copy_elements(source: Array, to: Array) -> None:
    """Copy elements from `source` to `to`; the two may overlap, which PyTorch alone does not allow."""
    if not isinstance(to, np.ndarray) and arrays_overlap(source, to):
        source = copy_of(source)
    to[...] = source


def axis_first(array: Array, axis: int) -> Array:
    """Return a view of the array with `axis` moved to the front."""
    if isinstance(array, np.ndarray):
        return np.moveaxis(array, axis, 0)
    moved: Array = array.movedim(axis, 0)
    return moved
