"""Columns of integers as little-endian typed arrays, of the narrowest sufficient type."""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

ColumnPlace = tuple[str, int, int]
"""Type, byte position among the columns, count."""

_WIDTHS = (
    ("u8", "B", 1 << 8),
    ("u16", "H", 1 << 16),
    ("u32", "I", 1 << 32),
    ("f64", "d", 1 << 53),
    ("u64", "Q", 1 << 64),
)
"""Name for the page, typecode of `array`, and the smallest number too large for the type.

JavaScript computes with doubles, exact for integers up to 2^53; only larger numbers need 64-bit integers.
"""


class Columns:
    """Columns in sequence, each at a multiple of 8 bytes, as JavaScript's typed arrays require."""

    def __init__(self) -> None:
        self._packed = bytearray()

    def add(self, numbers: Iterable[int]) -> ColumnPlace:
        """Append numbers from 0 to 2^64 - 1, and return type, byte position and count."""
        values = list(numbers)
        largest = max(values, default=0)
        name, typecode = next((name, typecode) for name, typecode, limit in _WIDTHS if largest < limit)
        packed = array(typecode, values)
        if sys.byteorder == "big":
            packed.byteswap()
        position = len(self._packed)
        self._packed += packed.tobytes()
        self._packed += bytes(-len(self._packed) % 8)
        return name, position, len(values)

    def to_base64(self, model: dict[str, Any]) -> str:
        """Return the model as JSON with the columns, compressed, in base64.

        Before compression: the length of the JSON in 8 bytes, the JSON padded to a multiple of 8 bytes, the columns.
        """
        text = json.dumps(model, ensure_ascii=True, separators=(",", ":")).encode("ascii")
        text += b" " * (-len(text) % 8)
        content = len(text).to_bytes(8, "little") + text + self._packed
        return b64encode(zlib.compress(content, level=6)).decode("ascii")
