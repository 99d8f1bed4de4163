"""What moves ask of arrays of NumPy's, and alike of tensors of PyTorch's, which may lie on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from sublet.runtime.kernel import Array


def address(array: Array) -> int:
    """Where its first byte lies."""
    return array.ctypes.data if isinstance(array, np.ndarray) else _of_tensor(array)


def _of_tensor(tensor: Any) -> int:
    return int(tensor.data_ptr())


def overlapping(a: Array, b: Array) -> bool:
    """Whether two share bytes; the elements of a tensor lie one after another."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    return address(a) < address(b) + b.nbytes and address(b) < address(a) + a.nbytes


def copied(array: Array) -> Any:
    """The same elements in memory of their own."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def put(source: Array, to: Array) -> None:
    """Copy elements to memory that may share bytes with theirs, which PyTorch does not take."""
    if not isinstance(to, np.ndarray) and overlapping(source, to):
        source = copied(source)
    to[...] = source


def along(array: Array, axis: int) -> Array:
    """Seen with an axis first."""
    if isinstance(array, np.ndarray):
        return np.moveaxis(array, axis, 0)
    moved: Array = array.movedim(axis, 0)
    return moved
