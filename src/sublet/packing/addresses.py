"""Arithmetic on addresses."""

from __future__ import annotations


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple
