"""Conversion of packing problems to the form of the C++ core.

The core runs the inner loops: greedy placement and the search. The core counts bytes in 64 bits, so
the conversion refuses a problem whose buffers could reach beyond 2^62 bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import lcm

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ProblemError
from sublet.packing import _core
from sublet.packing.conflicts import clusters_of, conflicts_of
from sublet.packing.problem import MAX_SIZE, Problem

Numbers = NDArray[np.int64]

_latest: tuple[weakref.ref[Problem], _core.Problem] | None = None
"""Cache of one entry: the strategies of one `pack` convert the same problem in turn."""


def core_of(problem: Problem) -> _core.Problem:
    """Return a normalized problem in the form of the core. Raises ProblemError when offsets could exceed 2^62."""
    global _latest
    if _latest is not None and _latest[0]() is problem:
        return _latest[1]
    check_reach(problem)
    if problem.may_overlap or any(companion.distance for companion in problem.companions):
        raise ProblemError("the core takes normalized problems: pass `normalize(problem).problem`")
    if problem.companions:
        clusters_of(problem, conflicts_of(problem))  # raises ProblemError for companions in conflict
    core = _new_core_problem(problem)
    _latest = (weakref.ref(problem), core)
    return core


def core_with_shifts(problem: Problem, shifts: Sequence[int]) -> _core.Problem:
    """Return a problem whose companions lie at `shifts` bytes above a common offset; greedy placement only."""
    core = _new_core_problem(problem)
    core.set_shifts(_int64_array(shifts))
    return core


def check_reach(problem: Problem) -> None:
    """Raise ProblemError unless all buffers stacked on top of each other end below 2^62.

    The bound counts the common multiple of all alignments, to which some strategies round.
    """
    common = lcm(*(buffer.alignment for buffer in problem.buffers))
    reach = sum(buffer.size for buffer in problem.buffers) + common * (len(problem.buffers) + 1)
    reach += max((buffer.pinned or 0 for buffer in problem.buffers), default=0)
    if reach > MAX_SIZE:
        what = f"{reach} bytes with their alignments, whose common multiple is {common}"
        raise ProblemError(f"the buffers together may need {what}; the limit is 2^62")


def _new_core_problem(problem: Problem) -> _core.Problem:
    buffers = problem.buffers
    pieces = [list(buffer.pieces) for buffer in buffers] if any(b.gaps for b in buffers) else None
    if pieces is None:
        first_piece = np.arange(len(buffers) + 1, dtype=np.int64)
        begins, ends = _int64_array([b.lower for b in buffers]), _int64_array([b.upper for b in buffers])
    else:
        first_piece = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
        begins = _int64_array([begin for ranges in pieces for begin, _ in ranges])
        ends = _int64_array([end for ranges in pieces for _, end in ranges])
    core = _core.problem(
        sizes=_int64_array([buffer.size for buffer in buffers]),
        alignments=_int64_array([buffer.alignment for buffer in buffers]),
        pinned=_int64_array([-1 if buffer.pinned is None else buffer.pinned for buffer in buffers]),
        first_piece=first_piece,
        begins=begins,
        ends=ends,
        companions=np.array([(c.first, c.second) for c in problem.companions], dtype=np.int32).reshape(-1, 2),
    )
    if problem.precedence is not None:
        pairs = np.argwhere(np.triu(problem.precedence.conflicts()))
        core.set_conflicts(np.ascontiguousarray(pairs, dtype=np.int32))
    return core


def _int64_array(numbers: Sequence[int]) -> Numbers:
    return np.array(numbers, dtype=np.int64)
