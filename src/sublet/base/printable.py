"""Text for people: that of strangers made safe to print, as names in a model may hold terminal escapes; long lists."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import islice

HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories that steer a terminal or cannot be seen: controls, bidirectional marks, surrogates."""

KNOWN = 20
"""Names that a message lists for who asked for one that is not there."""


def printable(text: str, *, keep: str = "") -> str:
    """`text` with every character that is not plainly visible written as its escape; `keep` stays."""
    return "".join(
        character if character in keep or unicodedata.category(character) not in HIDDEN else _escape(character)
        for character in text
    )


def listed(texts: Sequence[str], most: int) -> str:
    """The first of some texts, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def known_names(names: Iterable[str]) -> str:
    """The first of the names that there are, for who asked for another one."""
    return ", ".join(repr(printable(name)) for name in islice(names, KNOWN)) or "none"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
