"""JSON from strangers: parsed within a bound on memory, each key once."""

from __future__ import annotations

import json
from typing import Any

MOST_VALUES = 4 << 20
"""Values in one text. A parsed value takes 30 to 240 bytes, so a text takes at most 1 GB, and a text with more values
is refused before it is parsed. The plan of a program with 100,000 nodes has about 3 million values."""


def parse_json(text: str | bytes, source: str, error: type[Exception], most_values: int = MOST_VALUES) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the JSON, as text or as UTF-8 bytes.
        source: the name that errors give to the text.
        error: the type of exception to raise.
        most_values: the largest number of values that the text may have.

    Raises:
        error: for a text that is no JSON, is nested too deep, repeats a key of an object, or has too many values.
    """
    if count_values(text) > most_values:
        raise error(f"{source}: has more than {most_values:,} values of JSON, which is more than Sublet reads")
    try:
        plain = text if isinstance(text, str) else text.decode()  # `json` would take UTF-16 and UTF-32 as well
        return json.loads(plain, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as cause:
        raise error(f"{source}: is not JSON that can be read: {str(cause)[:200]}") from None


def count_values(text: str | bytes) -> int:
    """Return an upper bound on the number of values in a JSON text, without parsing the text."""
    if isinstance(text, bytes):
        return 1 + sum(map(text.count, (b"{", b"[", b",")))
    return 1 + sum(map(text.count, "{[,"))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON as a dict. Raises ValueError for a key that stands there twice."""
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"the key {key[:40]!r} stands twice in one object")
        record[key] = value
    return record
