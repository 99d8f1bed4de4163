"""Tensors of a `.pt2` file: types, layouts and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from sublet.base.tensor import MAX_AXES, MAX_BYTES
from sublet.frontends.torch.pt2_schema import field_error
from sublet.frontends.torch.traced_tensor import torch

# PyTorch's numbers of enumerations: ScalarType, Layout and MemoryFormat in torch/_export/serde/schema.py.
DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz", 33: "float8_e8m0fnu",
    34: "uint32", 35: "uint64",
}  # fmt: skip
STRIDED = 7


@dataclass(frozen=True)
class Payload:
    """The content of a tensor in the file; `is_parameter` is True for a parameter."""

    tensor: Any
    is_parameter: bool


def meta_dtype(meta: Mapping[str, Any], where: str) -> Any:
    """Return the PyTorch dtype of a "meta" record. Raises ModelError for an unknown number."""
    return dtype_of_number(meta["dtype"], where)


def dtype_of_number(number: int, where: str) -> Any:
    """Return the PyTorch dtype of a number in the file. Raises ModelError for an unknown number."""
    if number not in DTYPES:
        raise field_error(where, f"elements of type {number} are not known")
    return getattr(torch(), DTYPES[number])


def meta_layout(meta: Mapping[str, Any], where: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return extents, strides and offset of a "meta" record, in elements.

    Raises:
        ModelError: for an open or negative extent, more than `MAX_AXES` axes, a tensor beyond `MAX_BYTES` bytes, and a
            tensor without strides.
    """
    if meta["layout"] != STRIDED:
        raise field_error(where, f"a tensor of layout {meta['layout']} cannot be planned; {STRIDED} is strided")
    numbers = [*meta["sizes"], *meta["strides"], meta["storage_offset"]]
    if any("as_int" not in each for each in numbers):
        raise field_error(where, "an extent is open: export with fixed extents")
    size, stride = (tuple(each["as_int"] for each in meta[key]) for key in ("sizes", "strides"))
    offset = meta["storage_offset"]["as_int"]
    if len(size) > MAX_AXES or len(size) != len(stride):
        raise field_error(where, f"{len(size)} extents and {len(stride)} steps; at most {MAX_AXES} axes, one step each")
    reach = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else 0
    if min([offset, 0, *size, *stride]) < 0 or max(prod(size), reach + offset, *size, 0) > MAX_BYTES // 16:
        raise field_error(where, f"extents {str(list(size))[:80]} and steps {str(list(stride))[:80]} are out of range")
    return size, stride, offset


def tensor_over_bytes(content: bytes, meta: Mapping[str, Any], where: str) -> Any:
    """Return a tensor over a copy of the bytes. Raises ModelError for a tensor longer than the bytes."""
    size, stride, offset = meta_layout(meta, where)
    dtype, held = meta_dtype(meta, where), bytearray(content)
    count = len(held) // dtype.itemsize
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else offset - 1
    if last >= count:
        raise field_error(where, f"is said to be longer than its {len(held)} bytes")
    flat = torch().frombuffer(held, dtype=dtype, count=count) if count else torch().empty(0, dtype=dtype)
    return flat.as_strided(size, stride, offset)
