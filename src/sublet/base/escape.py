"""Escapes for untrusted text, as names in a model may hold terminal escapes; abbreviated lists of names."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import islice

HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories that control a terminal or are invisible: controls, bidirectional marks, surrogates."""

KNOWN = 20
"""Existing names listed by an error about an unknown name."""


def printable(text: str, *, keep: str = "") -> str:
    """Return `text` with escapes for all characters not plainly visible, except for the characters in `keep`."""
    return "".join(
        character if character in keep or unicodedata.category(character) not in HIDDEN else _escape(character)
        for character in text
    )


def abbreviated_list(texts: Sequence[str], most: int) -> str:
    """Return the first `most` texts, separated by commas, and the number of texts left out."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def known_names(names: Iterable[str]) -> str:
    """Return the first of the existing names, for an error about an unknown name; "none" without any name."""
    return ", ".join(repr(printable(name)) for name in islice(names, KNOWN)) or "none"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
