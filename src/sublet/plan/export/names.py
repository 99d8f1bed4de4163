"""C identifiers for the names of tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST_LETTERS = 40
"""Characters of a tensor's name in an identifier, number included. C99 distinguishes identifiers by 63 characters (31
for external linkage): a prefix of 12 and a suffix of 10 ("_OFFSET_12") keep all identifiers of a plan distinct."""


def identifier(name: str) -> str:
    """Return a name in small letters, digits and single underscores; the first character is always a letter.

    The function prefixes "x" where the name begins otherwise.
    """
    plain = re.sub(r"_+", "_", re.sub(r"[^0-9a-z]", "_", name.lower())).strip("_")[:MOST_LETTERS].rstrip("_")
    return plain if plain[:1].isalpha() else f"x{plain}"


def identifiers(names: Iterable[str], reserved: Iterable[str] = ()) -> dict[str, str]:
    """Return a unique identifier for each name, avoiding the reserved identifiers; equal identifiers get numbers."""
    chosen_names: dict[str, str] = {}
    taken = set(reserved)
    for name in dict.fromkeys(names):
        base = chosen = identifier(name)
        count = 1
        while chosen in taken:
            count += 1
            number = f"_{count}"
            chosen = base[: MOST_LETTERS - len(number)].rstrip("_") + number
        taken.add(chosen)
        chosen_names[name] = chosen
    return chosen_names
