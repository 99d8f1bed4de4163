"""Addresses that cannot overflow: which NumPy type is wide enough for a problem's offsets."""

from __future__ import annotations

from math import lcm
from typing import Any

import numpy as np

from sublet.packing.problem import Problem

INT64_LIMIT = 1 << 62


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


def address_type(problem: Problem) -> np.dtype[Any]:
    """int64 when no offset a strategy can produce overflows it, else Python integers in object arrays.

    No strategy puts a buffer higher than on top of all others, each rounded up to the common multiple
    of all alignments.
    """
    common = lcm(*(buffer.alignment for buffer in problem.buffers))
    highest = sum(buffer.size for buffer in problem.buffers) + common * (len(problem.buffers) + 1)
    return np.dtype(np.int64) if highest < INT64_LIMIT else np.dtype(object)
