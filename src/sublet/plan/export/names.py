"""Names of tensors as identifiers of C."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_LETTERS = 40
"""Of a tensor's name in an identifier, its number included. C99 tells identifiers apart by 63 letters (31 where a
linker sees them), so a prefix of 12 leaves all of a plan apart, with suffixes of up to ten ("_OFFSET_12")."""


def identifier(name: str) -> str:
    """A name in small letters, digits and single underscores; "x" in front where it begins otherwise."""
    plain = re.sub(r"_+", "_", re.sub(r"[^0-9a-z]", "_", name.lower())).strip("_")[:MOST_LETTERS].rstrip("_")
    return plain if plain[:1].isalpha() else f"x{plain}"


def identifiers(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """An identifier for each name, none of the reserved; names that would share one are numbered, so that no two do."""
    found: dict[str, str] = {}
    taken = set(reserved)
    for name in dict.fromkeys(names):
        base = chosen = identifier(name)
        count = 1
        while chosen in taken:
            count += 1
            number = f"_{count}"
            chosen = base[: MOST_LETTERS - len(number)].rstrip("_") + number
        taken.add(chosen)
        found[name] = chosen
    return found
