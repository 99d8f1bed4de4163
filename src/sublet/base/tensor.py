"""Tensor types: a data type and a shape, before any bytes are assigned.

`TensorSpec` describes a tensor that the planner can place. `Unplannable` describes a value that the planner cannot
place (a sequence, a string, a data-dependent shape), with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from sublet.base.errors import SubletError

CACHE_LINE_BYTES = 64
"""Bytes of a cache line, the default alignment of offsets and of allocated memory.

Convolutions are up to 15 % slower over weights that are not aligned to a cache line.
"""

MAX_BYTES = 1 << 56
"""Bytes of a single tensor, at most: offsets and their sums then stay exact in 64-bit arithmetic."""

MAX_AXES = 64
"""Axes of a tensor, the limit of NumPy and PyTorch."""


class DType(Enum):
    """A data type: a short name and the bits of one element.

    4-bit types are packed two to a byte, as in ONNX and ml_dtypes' serialised form.
    """

    BOOL = ("bool", 8)
    I4 = ("i4", 4)
    I8 = ("i8", 8)
    I16 = ("i16", 16)
    I32 = ("i32", 32)
    I64 = ("i64", 64)
    U4 = ("u4", 4)
    U8 = ("u8", 8)
    U16 = ("u16", 16)
    U32 = ("u32", 32)
    U64 = ("u64", 64)
    F16 = ("f16", 16)
    BF16 = ("bf16", 16)
    F32 = ("f32", 32)
    F64 = ("f64", 64)
    F8E4M3FN = ("f8e4m3fn", 8)
    F8E4M3FNUZ = ("f8e4m3fnuz", 8)
    F8E5M2 = ("f8e5m2", 8)
    F8E5M2FNUZ = ("f8e5m2fnuz", 8)
    F8E8M0FNU = ("f8e8m0fnu", 8)
    F4E2M1 = ("f4e2m1", 4)
    I2 = ("i2", 2)
    U2 = ("u2", 2)
    C64 = ("c64", 64)
    C128 = ("c128", 128)

    def __init__(self, text: str, bits: int):
        self.text = text
        self.bits = bits

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> DType:
        """Return the type with the given short name. Raises SubletError for an unknown name."""
        try:
            return _BY_TEXT[text]
        except KeyError:
            known = ", ".join(_BY_TEXT)
            raise SubletError(f"unknown data type {text!r}; known: {known}") from None


_BY_TEXT = {dtype.text: dtype for dtype in DType}

INTEGERS = (DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.U64)
"""The integer types of whole bytes."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and data type of a dense row-major tensor.

    `nbytes` are the bytes of the elements, sub-byte types packed and rounded up to a whole byte.
    Invariant: at most `MAX_AXES` dimensions, each an int >= 0, and `nbytes` is at most `MAX_BYTES`.
    Raises SubletError when the invariant does not hold.
    """

    dtype: DType
    shape: tuple[int, ...] = ()
    nbytes: int = field(init=False, repr=False, compare=False)  # cached: the planner reads the size very often

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_AXES:
            raise SubletError(f"a tensor of {len(self.shape)} axes; at most {MAX_AXES} can be planned")
        object.__setattr__(self, "nbytes", (self.size * self.dtype.bits + 7) // 8)
        if any(extent < 0 for extent in self.shape):
            raise SubletError(f"negative dimension in shape {list(self.shape)}")
        if any(extent > MAX_BYTES for extent in self.shape) or self.nbytes > MAX_BYTES:
            raise SubletError(f"{self} is too large: more than {MAX_BYTES} bytes (2^56)")

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


Dims = tuple[int | None, ...] | None
"""Known extents, with None for each open extent; None instead of a tuple for an unknown rank."""


def format_dims(dims: Sequence[int | None] | None) -> str:
    """Return extents as text: "[2,?]", or "[...]" when not even the rank is known."""
    return "[...]" if dims is None else f"[{','.join('?' if extent is None else str(extent) for extent in dims)}]"


_TENSOR = re.compile(r"([a-z0-9]{1,16})\[(\.\.\.|(?:(?:\?|[0-9]{1,19})(?:,(?:\?|[0-9]{1,19}))*)?)\]", re.ASCII)

MOST_EXTENT = 10**18
"""Elements along an axis. `Unplannable.dtype_and_dims` treats a longer extent as unknown."""


SHAPE_CONFLICT = "shape inference failed"
"""The prefix of the reason for a shape conflict: every run that reaches the node fails."""

DEPENDS_ON_DATA = "the shape depends on data"
"""The prefix of the reason for extents known only in a run."""


@dataclass(frozen=True, slots=True)
class Unplannable:
    """The type of a value without a byte size known ahead of time.

    reason    why the size is unknown
    element   of a tensor the short name of the element type ("f32", or "str", which is no `DType`)
    dims      the extents, None for each unknown extent
    other     the type in the words of the source, for a value that is no tensor ("seq(i64[...])")
    """

    reason: str
    element: str = ""
    dims: Dims = None
    other: str = ""

    @classmethod
    def parse(cls, type: str, reason: str) -> Unplannable:
        """Return the type described by a text like "i64[2,?]", "f32[...]" or "seq(i64[...])"."""
        match = _TENSOR.fullmatch(type)
        if match is None:
            return cls(reason, other=type)
        dims = None if match[2] == "..." else tuple(int(d) if d != "?" else None for d in match[2].split(",") if d)
        return cls(reason, match[1], dims)

    @property
    def is_conflict(self) -> bool:
        """True if every run that computes the value fails."""
        return self.reason.startswith(SHAPE_CONFLICT)

    @property
    def has_bound(self) -> bool:
        """True for a tensor with a declared bound for each extent that depends on data."""
        return self.dtype is not None and self.dims is not None and None not in self.dims

    @property
    def type(self) -> str:
        """The type as text."""
        if not self.element:
            return self.other
        return f"{self.element}{format_dims(self.dims)}"

    @property
    def dtype(self) -> DType | None:
        """The element type of a tensor; None for a type outside `DType`."""
        return _BY_TEXT.get(self.element)

    @property
    def dtype_and_dims(self) -> tuple[DType, Dims] | None:
        """The element type and extents of a tensor; None for a non-tensor, an unknown type, or a huge extent."""
        if self.dtype is None or any(extent is not None and extent >= MOST_EXTENT for extent in self.dims or ()):
            return None
        return self.dtype, self.dims

    def __str__(self) -> str:
        return f"outside<{self.type}>"


Spec = TensorSpec | Unplannable


# NumPy data types for Sublet's data types; ml_dtypes provides the types that NumPy lacks.

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
