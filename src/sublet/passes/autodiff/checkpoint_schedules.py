"""Checkpoint schedules: the loop iterations stored for the backward, and the iterations recomputed.

A loop of T iterations keeps a tape of T rows. Divided into segments of k iterations, the loop keeps only the values
live at the start of each segment (a checkpoint), and the backward reruns each segment with a tape of k rows: with k
near the root of T both are O(sqrt(T)), for one more forward. Segments may be divided again: d levels of T^(1/d)
iterations each take d - 1 more forwards, and with 8 iterations a level both are O(log(T)) (Griewank and Walther, 2000).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import isqrt, prod

from sublet.base.errors import SpecError

PLAIN, SQRT, TREE = "plain", "sqrt", "tree"

Checkpoint = int | str
"""The strategy for a loop: "plain", "sqrt", "tree", or the number of iterations between checkpoints."""

Checkpoints = Checkpoint | Mapping[str, Checkpoint] | None
"""A strategy for all loops, or strategies by loop name; None is "plain"."""

LEVEL = 8
LEVEL_EXTENTS = range(LEVEL // 2, LEVEL + 3)
"""Possible extents of a level of the tree: smaller extents need less memory, but more forwards and a longer program."""

LAST = LEVEL // 2
"""Iterations of the innermost level, with a tape: rows of the tape are larger than checkpoints."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive iterations as nested loops, with the extents of the loops, outermost first.

    All but the innermost loop store a checkpoint each iteration and recompute the iteration; with `again`, the
    innermost too.
    """

    extents: tuple[int, ...]
    again: bool = False

    @property
    def iterations(self) -> int:
        """The total number of iterations."""
        return prod(self.extents)

    @property
    def has_recomputation(self) -> bool:
        """True if any iteration is recomputed."""
        return self.again or len(self.extents) > 1


def check_checkpoints(checkpoints: Checkpoints) -> Checkpoints:
    """Return `checkpoints`. Raises SpecError for an unknown strategy."""
    strategies = checkpoints.values() if isinstance(checkpoints, Mapping) else [checkpoints]
    for strategy in strategies:
        counted = isinstance(strategy, int) and not isinstance(strategy, bool) and strategy >= 1
        if strategy is not None and not counted and strategy not in (PLAIN, SQRT, TREE):
            ways = '"plain", "sqrt", "tree", or a number of iterations of at least 1'
            raise SpecError(f"checkpoint={strategy!r} is unknown. Pass {ways}.")
    return checkpoints


def checkpoint_of(checkpoints: Checkpoints, loop: str) -> Checkpoint:
    """Return the checkpoint strategy of a loop."""
    found = checkpoints.get(loop) if isinstance(checkpoints, Mapping) else checkpoints
    return PLAIN if found is None else found


def chunks_of(checkpoint: Checkpoint, rounds: int, begins: int, row: int) -> tuple[Chunk, ...]:
    """Return the chunks of a loop of `rounds` iterations.

    `begins` are the bytes of a checkpoint, `row` the bytes of a row of a plain tape.
    """
    if checkpoint == PLAIN or rounds < 2:
        return (Chunk((rounds,)),)
    if checkpoint == TREE:
        return _tree_chunks(rounds)
    if isinstance(checkpoint, int):
        return _checkpoints_every(rounds, checkpoint)
    if not row:
        return (Chunk((rounds,)),)
    return _checkpoints_every(rounds, min(max(isqrt(rounds * begins // row), 1), rounds))


def _checkpoints_every(rounds: int, apart: int) -> tuple[Chunk, ...]:
    """Return chunks with a checkpoint every `apart` iterations.

    The last segment needs no checkpoint: the backward of the segment directly follows the forward.
    """
    if apart == 1:
        return (Chunk((rounds,), again=True),)
    segments = -(-rounds // apart) - 1
    last = Chunk((rounds - segments * apart,))
    return (Chunk((segments, apart)), last) if segments else (last,)


def _tree_chunks(rounds: int) -> tuple[Chunk, ...]:
    """Return chunks with the largest product of extents near LEVEL, times LAST, within `rounds`; then the rest."""
    if rounds < LEVEL * LEVEL:
        return _checkpoints_every(rounds, isqrt(rounds))
    found = max(_level_extents(rounds // LAST), key=lambda extents: (prod(extents), -sum(extents)))
    left = rounds - prod(found) * LAST
    return (Chunk((*found, LAST)), *(_tree_chunks(left) if left else ()))


def _level_extents(most: int) -> list[tuple[int, ...]]:
    """Return all lists of extents near LEVEL with a product of at most `most`, with the fewest necessary levels."""
    depth, found = 1, list[tuple[int, ...]]()
    while LEVEL ** (depth - 1) < most:
        found += [each[::-1] for each in combinations_with_replacement(LEVEL_EXTENTS, depth) if prod(each) <= most]
        depth += 1
    return found
