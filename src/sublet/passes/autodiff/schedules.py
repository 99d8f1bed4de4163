"""Which rounds of a loop are stored for its backward, and which are computed again: a loop as loops in loops.

A loop of T rounds keeps a tape of T rows. Cut in segments of k rounds, it keeps what each segment begins with, a
checkpoint, and in the backward each segment runs once more with a tape of k rows: with k near the root of T both are
O(sqrt(T)), for one more forward. Segments may be cut again: d levels of T^(1/d) rounds each take d - 1 more forwards,
and with 8 rounds a level both are O(log(T)) (Griewank and Walther, 2000).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import isqrt, prod

from sublet.base.errors import SpecError

PLAIN, SQRT, TREE = "plain", "sqrt", "tree"

Checkpoint = int | str
"""How a loop is differentiated: "plain", "sqrt", "tree", or every how many rounds a checkpoint is stored."""

Checkpoints = Checkpoint | Mapping[str, Checkpoint] | None
"""One for all loops, or by the names of loops; None is "plain"."""

LEVEL = 8
NEAR = range(LEVEL // 2, LEVEL + 3)
"""Rounds of a level of the tree: fewer would take less memory, but more forwards and a longer program."""

LAST = LEVEL // 2
"""Rounds of the innermost level, which keep a tape: its rows are the larger ones."""


@dataclass(frozen=True)
class Chunk:
    """Rounds that follow each other, as a loop in a loop ..., with so many rounds each, the outermost first.

    All but the innermost store what their rounds begin with, and compute them again; with `again` that one too.
    """

    extents: tuple[int, ...]
    again: bool = False

    @property
    def rounds(self) -> int:
        """Of all."""
        return prod(self.extents)

    @property
    def cut(self) -> bool:
        """Whether anything is computed again."""
        return self.again or len(self.extents) > 1


def checked(checkpoints: Checkpoints) -> Checkpoints:
    """What was asked for. Raises SpecError where it is none of the ways there are."""
    each = checkpoints.values() if isinstance(checkpoints, Mapping) else [checkpoints]
    for one in each:
        counted = isinstance(one, int) and not isinstance(one, bool) and one >= 1
        if one is not None and not counted and one not in (PLAIN, SQRT, TREE):
            ways = '"plain", "sqrt", "tree", or a number of rounds from 1 on'
            raise SpecError(f"checkpoint={one!r} is no way to store a loop: give {ways}")
    return checkpoints


def asked_for(checkpoints: Checkpoints, loop: str) -> Checkpoint:
    """How this loop is differentiated."""
    found = checkpoints.get(loop) if isinstance(checkpoints, Mapping) else checkpoints
    return PLAIN if found is None else found


def chunks_of(checkpoint: Checkpoint, rounds: int, begins: int, row: int) -> tuple[Chunk, ...]:
    """A loop of so many rounds in chunks. `begins` are the bytes that a round begins with, `row` those of the tape."""
    if checkpoint == PLAIN or rounds < 2:
        return (Chunk((rounds,)),)
    if checkpoint == TREE:
        return _tree(rounds)
    if isinstance(checkpoint, int):
        return _every(rounds, checkpoint)
    if not row:
        return (Chunk((rounds,)),)
    return _every(rounds, min(max(isqrt(rounds * begins // row), 1), rounds))


def _every(rounds: int, apart: int) -> tuple[Chunk, ...]:
    """Checkpoints so many rounds apart. The last segment needs none: its backward comes right after its forward."""
    if apart == 1:
        return (Chunk((rounds,), again=True),)
    segments = -(-rounds // apart) - 1
    last = Chunk((rounds - segments * apart,))
    return (Chunk((segments, apart)), last) if segments else (last,)


def _tree(rounds: int) -> tuple[Chunk, ...]:
    """The largest product of extents near LEVEL, and LAST, that is no more than the rounds; then what is left."""
    if rounds < LEVEL * LEVEL:
        return _every(rounds, isqrt(rounds))
    found = max(_products(rounds // LAST), key=lambda extents: (prod(extents), -sum(extents)))
    left = rounds - prod(found) * LAST
    return (Chunk((*found, LAST)), *(_tree(left) if left else ()))


def _products(most: int) -> list[tuple[int, ...]]:
    """The products of numbers near LEVEL that are not above `most`, of no more levels than LEVEL takes."""
    depth, found = 1, list[tuple[int, ...]]()
    while LEVEL ** (depth - 1) < most:
        found += [each[::-1] for each in combinations_with_replacement(NEAR, depth) if prod(each) <= most]
        depth += 1
    return found
