"""NumPy data types for Sublet's data types; ml_dtypes provides the types that NumPy lacks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from sublet.base.tensor import DType

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
"""The NumPy type of each data type. In an array each sub-byte element takes a whole byte."""
