"""The safetensors format: a JSON header with the type, shape and byte range of each tensor, followed by the bytes.

Files are untrusted: the reader validates the header against the length of the file before any access to a tensor, and
never executes content of the file.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ModelError
from sublet.base.files import parse_json, write_parts
from sublet.base.formatting import printable
from sublet.base.tensor import NUMPY, DType

Array = NDArray[Any]

TYPES: dict[str, np.dtype[Any]] = {
    name: NUMPY[dtype]
    for name, dtype in {
        "BOOL": DType.BOOL,
        "U8": DType.U8,
        "I8": DType.I8,
        "F8_E4M3": DType.F8E4M3FN,
        "F8_E4M3FNUZ": DType.F8E4M3FNUZ,
        "F8_E5M2": DType.F8E5M2,
        "F8_E5M2FNUZ": DType.F8E5M2FNUZ,
        "F8_E8M0": DType.F8E8M0FNU,
        "I16": DType.I16,
        "U16": DType.U16,
        "F16": DType.F16,
        "BF16": DType.BF16,
        "I32": DType.I32,
        "U32": DType.U32,
        "F32": DType.F32,
        "F64": DType.F64,
        "I64": DType.I64,
        "U64": DType.U64,
        "C64": DType.C64,
    }.items()
}
NAMES = {dtype: name for name, dtype in TYPES.items()}
METADATA = "__metadata__"
MAX_HEADER = 100_000_000
"""Bytes of a header, the limit of the reference implementation."""
MAX_AXES = 64
LENGTH = 8
"""Bytes of the header's length field."""


class Tensors(Mapping[str, Array]):
    """The tensors of a file, read-only and memory-mapped: the operating system reads only accessed pages.

    The file must not change in place while the tensors are in use. Replacing the whole file, as `write_tensors` does,
    is safe.
    """

    def __init__(self, path: str | Path) -> None:
        """Map the file. Raises ModelError for an unreadable file, or a header inconsistent with the file's length."""
        self.path = path
        self._map = _map_file(path)
        try:
            size = int.from_bytes(self._map[:LENGTH], "little")
            self._begin = LENGTH + size
            header = _header(self._map, size)
            self._entries = {name: _TensorRecord(name, record) for name, record in header.items() if name != METADATA}
            _require_cover(self._entries.values(), len(self._map) - self._begin)
        except _HeaderError as error:
            raise ModelError(f"{path}: no valid safetensors file: {error}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        flat = np.frombuffer(self._map, np.uint8, entry.end - entry.begin, self._begin + entry.begin)
        return flat.view(entry.dtype).reshape(entry.shape)


class _HeaderError(Exception):
    """An error in a header."""


class _TensorRecord:
    """The header's record of one tensor."""

    def __init__(self, name: str, entry: Any) -> None:
        self.name = printable(name)
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise _HeaderError(f"tensor {self.name!r} must have the fields dtype, shape and data_offsets only")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in TYPES:
            raise _HeaderError(
                f"tensor {self.name!r} has the type {printable(str(dtype))[:40]!r}, which Sublet does not know"
            )
        if not _naturals(shape) or len(shape) > MAX_AXES or not _naturals(offsets) or len(offsets) != 2:
            raise _HeaderError(f"tensor {self.name!r}: shape and data_offsets must be lists of integers from 0 on")
        self.dtype, self.shape, (self.begin, self.end) = TYPES[dtype], tuple(shape), offsets
        needed = self.dtype.itemsize
        for extent in shape:
            needed *= extent
        if self.end - self.begin != needed:
            raise _HeaderError(
                f"tensor {self.name!r} takes {needed:,} bytes, but its data_offsets are {self.begin:,} to {self.end:,}"
            )


def _naturals(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(item) is int and 0 <= item < 2**63 for item in numbers)


def _map_file(path: str | Path) -> mmap.mmap:
    try:
        with Path(path).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as cause:
        raise ModelError(f"{path}: cannot be read: {getattr(cause, 'strerror', None) or cause}") from None


def _header(content: mmap.mmap, size: int) -> dict[str, Any]:
    if len(content) < LENGTH or size > len(content) - LENGTH:
        raise _HeaderError(f"it has {len(content):,} bytes, too few for the declared header")
    if size > MAX_HEADER:
        raise _HeaderError(f"its header has {size:,} bytes, more than {MAX_HEADER:,}")
    header = parse_json(content[LENGTH : LENGTH + size], "its header", _HeaderError)
    if not isinstance(header, dict):
        raise _HeaderError("its header is no JSON object")
    return header


def _require_cover(entries: Any, nbytes: int) -> None:
    """Raise unless the tensors lie one after another over all bytes."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != end:
            what = "overlaps another" if entry.begin < end else f"leaves the bytes from {end:,} on unused"
            raise _HeaderError(f"tensor {entry.name!r} begins at {entry.begin:,}: it {what}")
        end = entry.end
    if end != nbytes:
        raise _HeaderError(f"its tensors take {end:,} bytes, but the file has {nbytes:,} for tensors")


def write_tensors(path: str | Path, tensors: Mapping[str, Array]) -> None:
    """Write a file atomically, the widest types first.

    Raises ModelError for unsupported types, or if the write fails.
    """
    for name, array in tensors.items():
        if array.dtype not in NAMES:
            raise ModelError(f"{path}: {printable(name)!r} is of {array.dtype}, which safetensors does not have")
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header, end = {}, 0
    for name in order:
        array = tensors[name]
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH)
    arrays = (np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8) for name in order)
    write_parts(path, (len(text).to_bytes(LENGTH, "little"), text, *arrays), ModelError)
