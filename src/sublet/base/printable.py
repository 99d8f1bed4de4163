"""Text from strangers, made safe to print: names in a model may hold terminal escapes."""

from __future__ import annotations

import unicodedata

HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Unicode categories that steer a terminal or cannot be seen: controls, bidirectional marks, surrogates."""


def printable(text: str, *, keep: str = "") -> str:
    """`text` with every character that is not plainly visible written as its escape; `keep` stays."""
    return "".join(
        character if character in keep or unicodedata.category(character) not in HIDDEN else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
