"""Text for people: numbers of bytes, such as "1.5 MiB" as output and "256K" as input, and escaped untrusted text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import islice

from sublet.base.errors import SubletError

_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_UNITS = {
    "": 1,
    "B": 1,
    **{unit: 1 << 10 * power for power, unit in enumerate(_BINARY_UNITS, start=1)},
    **{unit.replace("i", ""): 1000**power for power, unit in enumerate(_BINARY_UNITS, start=1)},
}
_SHORT_UNITS = {unit[0]: _UNITS[unit] for unit in _BINARY_UNITS}
"""K, M, ... alone are powers of 1024, as in linkers and most tools."""
_BY_LOWER_CASE = {unit.lower(): factor for unit, factor in {**_UNITS, **_SHORT_UNITS}.items()}
_QUANTITY = re.compile(r"([0-9][0-9_]{0,29}(?:\.[0-9]{1,30})?)\s*([a-z]*)", re.IGNORECASE | re.ASCII)


def human(nbytes: int) -> str:
    """Return three significant digits and a binary unit: `1536` -> `"1.5 KiB"`. Below 1 KiB the text is exact.

    The function drops trailing zeros and rounds halves up, like the code of the HTML page.
    """
    if nbytes < 0:
        return f"-{human(-nbytes)}"
    if nbytes < 1024:
        return f"{nbytes} B"
    for power, unit in enumerate(_BINARY_UNITS, start=1):
        whole = nbytes >> 10 * power
        digits = 2 if whole < 10 else 1 if whole < 100 else 0
        scaled = _divide_rounding_half_up(nbytes * 10**digits, 1 << 10 * power)
        if scaled < 1024 * 10**digits or unit == _BINARY_UNITS[-1]:
            return f"{_decimal(scaled, digits)} {unit}"
    raise AssertionError("the last unit takes everything")


def percent(part: float) -> str:
    """Return a fraction as per cent: `"0 %"` only for exactly 0, `"<0.01 %"` for a fraction below 1e-4."""
    if part == 0:
        return "0 %"
    return "<0.01 %" if part < 1e-4 else f"{100 * part:.2f} %"


def _divide_rounding_half_up(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def _decimal(scaled: int, digits: int) -> str:
    whole, rest = divmod(scaled, 10**digits)
    fraction = f"{rest:0{digits}d}".rstrip("0") if digits else ""
    return f"{whole}.{fraction}" if fraction else str(whole)


def parse_bytes(text: str) -> int:
    """Return the bytes of a quantity like `"256KiB"`, `"256K"`, `"1.5 MB"` or `"1048576"`, rounded down.

    KB, MB, ... are powers of 1000; KiB, MiB, ... and K, M, ... powers of 1024; case does not matter.
    Raises SubletError when the text is not a quantity of bytes.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise SubletError(
            f"{_quoted_excerpt(text)} is not a number of bytes. Write for example 1048576, 256KiB or 1.5MB."
        )
    number, unit = match.groups()
    factor = _BY_LOWER_CASE.get(unit.lower())
    if factor is None:
        raise SubletError(
            f"{_quoted_excerpt(text)} has the unknown unit {unit!r}: use one of {', '.join(filter(None, _UNITS))}"
        )
    return int(Fraction(number.replace("_", "")) * factor)


def _quoted_excerpt(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


# Escapes for untrusted text, as names in a model may hold terminal escapes; abbreviated lists of names.

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


def count_with_noun(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1: "1 node", "2 nodes"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def abbreviated_list(texts: Sequence[str], most: int) -> str:
    """Return the first `most` texts, separated by commas, and the number of texts left out."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def known_names(names: Iterable[str]) -> str:
    """Return the first of the existing names, for an error about an unknown name; "none" without any name."""
    return ", ".join(repr(printable(name)) for name in islice(names, KNOWN)) or "none"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
