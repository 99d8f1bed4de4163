"""A parser for untrusted JSON: bounded memory, no repeated keys."""

from __future__ import annotations

import json
from typing import Any

MOST_VALUES = 4 << 20
"""Values in one text. A parsed value takes 30 to 240 bytes, so a text takes at most 1 GB. `parse_json` refuses a text
with more values before parsing. The plan of a program with 100,000 nodes has about 3 million values."""


def parse_json(text: str | bytes, source: str, error: type[Exception], most_values: int = MOST_VALUES) -> Any:
    """Return the value of a JSON text.

    Args:
        text: the JSON, as text or as UTF-8 bytes.
        source: the name of the text in errors.
        error: the type of exception to raise.
        most_values: the largest number of values allowed in the text.

    Raises:
        error: for invalid JSON, too deep nesting, a repeated key of an object, or too many values.
    """
    if count_values(text) > most_values:
        raise error(f"{source}: has more than {most_values:,} JSON values, the limit of Sublet")
    try:
        plain = text if isinstance(text, str) else text.decode()  # `json` would accept UTF-16 and UTF-32 as well
        return json.loads(plain, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as cause:
        raise error(f"{source}: is not valid JSON: {str(cause)[:200]}") from None


def count_values(text: str | bytes) -> int:
    """Return an upper bound on the number of values in a JSON text, without parsing the text."""
    if isinstance(text, bytes):
        return 1 + sum(map(text.count, (b"{", b"[", b",")))
    return 1 + sum(map(text.count, "{[,"))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON as a dict. Raises ValueError for a repeated key."""
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"the key {key[:40]!r} occurs twice in one object")
        record[key] = value
    return record
