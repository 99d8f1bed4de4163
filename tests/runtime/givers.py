"""Memory of many libraries, for tests of what crosses without a copy."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from sublet.base.dlpack import SharedArray
from sublet.base.tensor import NUMPY, DType

TORCH = {
    DType.BOOL: torch.bool,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F32: torch.float32,
    DType.F64: torch.float64,
    DType.F8E4M3FN: torch.float8_e4m3fn,
    DType.F8E5M2: torch.float8_e5m2,
    DType.C64: torch.complex64,
}
DTYPES = tuple(TORCH)
ARRAY_CODES = {DType.I8: "b", DType.U8: "B", DType.I32: "i", DType.I64: "q", DType.F32: "f", DType.F64: "d"}


class OnlyDlpack:
    """What another library gives, with nothing but DLPack to get at it."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __dlpack__(self, **asked: Any) -> Any:
        return self._owner.__dlpack__(**asked)

    def __dlpack_device__(self) -> Any:
        return self._owner.__dlpack_device__()


class OldDlpack(OnlyDlpack):
    """A library that knows the protocol of before versions."""

    def __dlpack__(self) -> Any:  # type: ignore[override]
        return self._owner.__dlpack__()


def content(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Small numbers, which every type has."""
    numbers = np.random.default_rng(seed).integers(0, 4, shape)
    return numbers.astype(NUMPY[dtype])


def of_torch(dtype: DType, made: np.ndarray) -> torch.Tensor:
    """A tensor of PyTorch's, made without Sublet."""
    kind = TORCH[dtype]
    if dtype in (DType.BF16, DType.F8E4M3FN, DType.F8E5M2):
        return torch.from_numpy(made.astype(np.float32)).to(kind)
    return torch.from_numpy(made.copy())


def _array(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    given = array(ARRAY_CODES.get(dtype, "B"), made.tobytes())
    return given, given.buffer_info()[0]


def _mapped(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    given = mmap.mmap(-1, made.nbytes)
    given[:] = made.tobytes()
    return given, np.frombuffer(given, np.uint8).ctypes.data


def _memoryview(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    mine = made.copy()
    try:
        return memoryview(mine), mine.ctypes.data
    except ValueError:  # the buffer protocol has no word for the type
        return memoryview(mine.view(np.uint8).reshape(-1)), mine.ctypes.data


def _torch(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    tensor = of_torch(dtype, made)
    return tensor, tensor.data_ptr()


def _grad(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    tensor = of_torch(dtype, made)
    return tensor.requires_grad_(tensor.is_floating_point() or tensor.is_complex()), tensor.data_ptr()


def _torchs_dlpack(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    tensor = of_torch(dtype, made)
    return OnlyDlpack(tensor), tensor.data_ptr()


def _old_dlpack(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    tensor = of_torch(dtype, made)
    return OldDlpack(tensor), tensor.data_ptr()


def _shared(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    mine = made.copy()
    return OnlyDlpack(SharedArray(mine)), mine.ctypes.data


def _numpy(dtype: DType, made: np.ndarray) -> tuple[Any, int]:
    mine = made.copy()
    return mine, mine.ctypes.data


GIVERS: dict[str, Callable[[DType, np.ndarray], tuple[Any, int]]] = {
    "numpy": _numpy,
    "torch": _torch,
    "torch with a gradient": _grad,
    "PyTorch's DLPack": _torchs_dlpack,
    "DLPack before versions": _old_dlpack,
    "our DLPack": _shared,
    "memoryview": _memoryview,
    "array": _array,
    "mmap": _mapped,
}
"""(type, elements) -> memory with these elements, and its address."""
