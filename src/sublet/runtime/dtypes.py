"""Tensors as arrays over their bytes, with packing and unpacking of elements smaller than a byte."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.tensor import NUMPY, DType, TensorSpec


def is_packed(spec: TensorSpec) -> bool:
    """True if several elements share a byte."""
    return spec.dtype.bits < 8


def array_over(raw: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """Return the tensor in `raw` as an array over the same bytes; packed types stay bytes."""
    if is_packed(spec):
        return raw
    return raw.view(NUMPY[spec.dtype]).reshape(spec.shape)


def pack(array: NDArray[Any], spec: TensorSpec) -> NDArray[np.uint8]:
    """Return the bytes of a packed type, first element in the lowest bits; `array` has one element per byte."""
    bits, per_byte = spec.dtype.bits, 8 // spec.dtype.bits
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(spec.nbytes * per_byte, np.uint8)
    padded[: raw.size] = raw
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed_bytes: NDArray[np.uint8] = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed_bytes


def unpack(raw: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """Return the elements of packed bytes, one per byte, in the NumPy type of `spec`."""
    bits, per_byte = spec.dtype.bits, 8 // spec.dtype.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    elements = ((raw.reshape(-1, 1) >> shifts) & np.uint8((1 << bits) - 1)).reshape(-1)[: spec.size]
    if spec.dtype in (DType.I4, DType.I2):
        sign = np.uint8(1 << (bits - 1))
        elements = ((elements ^ sign) - sign).view(np.int8).astype(NUMPY[spec.dtype])
        return elements.reshape(spec.shape)
    if spec.dtype is DType.F4E2M1:
        return elements.view(NUMPY[spec.dtype]).reshape(spec.shape)
    return elements.astype(NUMPY[spec.dtype]).reshape(spec.shape)


def unpacked_elements(operand: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """Return the elements of the tensor at `operand`, unpacked if packed; a copy only for packed types."""
    return unpack(operand, spec) if is_packed(spec) else operand
