"""Sublet's data types as NumPy's, with ml_dtypes for those NumPy lacks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sublet.tensor import DType, TensorSpec

NUMPY: dict[DType, np.dtype[Any]] = {
    dtype: np.dtype(kind)
    for dtype, kind in {
        DType.BOOL: np.bool_,
        DType.I4: ml_dtypes.int4,
        DType.I8: np.int8,
        DType.I16: np.int16,
        DType.I32: np.int32,
        DType.I64: np.int64,
        DType.U4: ml_dtypes.uint4,
        DType.U8: np.uint8,
        DType.U16: np.uint16,
        DType.U32: np.uint32,
        DType.U64: np.uint64,
        DType.F16: np.float16,
        DType.BF16: ml_dtypes.bfloat16,
        DType.F32: np.float32,
        DType.F64: np.float64,
        DType.F8E4M3FN: ml_dtypes.float8_e4m3fn,
        DType.F8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
        DType.F8E5M2: ml_dtypes.float8_e5m2,
        DType.F8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
        DType.F8E8M0FNU: ml_dtypes.float8_e8m0fnu,
        DType.F4E2M1: ml_dtypes.float4_e2m1fn,
        DType.I2: ml_dtypes.int2,
        DType.U2: ml_dtypes.uint2,
        DType.C64: np.complex64,
        DType.C128: np.complex128,
    }.items()
}
"""One element of a type with fewer than 8 bits takes a whole byte in such an array."""


def packed(spec: TensorSpec) -> bool:
    """Whether several elements share a byte."""
    return spec.dtype.bits < 8


def array_over(raw: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """The tensor that lies in `raw`, as an array over the same bytes; packed types stay bytes."""
    if packed(spec):
        return raw
    return raw.view(NUMPY[spec.dtype]).reshape(spec.shape)


def pack(array: NDArray[Any], spec: TensorSpec) -> NDArray[np.uint8]:
    """The bytes of a packed type, first element in the lowest bits; `array` has one element a byte."""
    bits, per_byte = spec.dtype.bits, 8 // spec.dtype.bits
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(spec.nbytes * per_byte, np.uint8)
    padded[: raw.size] = raw
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    packed_bytes: NDArray[np.uint8] = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed_bytes


def unpack(raw: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """One element a byte, of the NumPy type, from packed bytes."""
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


def plain(operand: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """The elements an array over planned bytes stands for, one by one; a copy only for packed types."""
    return unpack(operand, spec) if packed(spec) else operand
