"""No less extra time than this: two bounds by linear programming, of which the better is told.

Both hold for programs in the order given in which every node runs where it stands, and clones besides. That of
`least_again.py` sees few moments and whole chains behind them. The other sees all moments: a block that is not alive
all the way between two readers costs its share of a clone of its maker, and what that needs at least (see
`_Clones`); what it saves counts in full, in-place results included, and what clones write themselves counts nothing. So
the least over these is no more than what any such program costs. Fractions of a block may be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sublet.passes.recompute.least_again import least_seconds_again
from sublet.passes.recompute.level import NONE, Level
from sublet.passes.recompute.linear import Linear, Term
from sublet.passes.recompute.timeline import Lives, Timeline, timeline

UNIT = 1 << 20
"""Bytes are told to the solver in these."""

MOST_NEEDED = 16
"""Smaller values that are asked for with each clone; what others cost counts nothing."""


@dataclass
class _Choices:
    """What a program may do, each to a fraction from 0 to 1, at a cost in seconds.

    freed  (position of a node, number of the choice, bytes that are not alive then: fewer than none where more are)
    """

    program: Linear = field(default_factory=Linear)
    freed: list[tuple[int, int, float]] = field(default_factory=list)

    def add(self, seconds: float, nbytes: float, moments: range) -> int:
        """One more, which frees so many bytes at each of some moments."""
        number = self.program.unknown(seconds)
        self.freed += [(t, number, nbytes) for t in moments]
        return number


def least_extra_seconds(level: Level, budget: int) -> float | None:
    """No such program within the budget takes less more time, by either bound; None where one of them has none."""
    plain = timeline(level, NONE)
    if plain.peak <= budget:
        return 0.0
    bounds = _by_gaps(level, budget, plain), least_seconds_again(level, budget, plain)
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _by_gaps(level: Level, budget: int, plain: Timeline) -> float | None:
    """The bound by what is not alive between two readers."""
    choices, freed = _choices(level, plain.lives), dict[int, list[Term]]()
    for moment, number, nbytes in choices.freed:
        freed.setdefault(moment, []).append((number, -nbytes / UNIT))
    for moment in np.flatnonzero(plain.live > budget).tolist():
        choices.program.hold(freed.get(moment, ()), (budget - int(plain.live[moment])) / UNIT)
    found = choices.program.least()
    return None if found is None else max(0.0, found)


def _choices(level: Level, contents: list[Lives]) -> _Choices:
    clones, choices = _Clones(level, contents), _Choices()
    for lives in contents:
        j = clones.maker.get(lives.block, -1)
        if j < 0 or lives.kept or not level.blocks.nbytes[lives.block]:
            continue
        for moments in _gaps(level, lives, j):
            dropped = choices.add(clones.seconds(lives.block), level.blocks.nbytes[lives.block], moments)
            for seconds, nbytes in clones.needed(lives.block):
                again, kept = choices.add(seconds, 0, range(0)), choices.add(0.0, -nbytes, moments)
                choices.program.hold([(dropped, 1.0), (again, -1.0), (kept, -1.0)], 0.0)
    return choices


def _gaps(level: Level, lives: Lives, j: int) -> Iterator[range]:
    """The moments between readers of one content that node j makes, as far as a clone can end them."""
    for before, reader in zip([lives.made, *lives.read], lives.read, strict=False):
        over = before != lives.made and any(source == lives.block for _, source in level.blocks.over[before])
        begin = before if over else before + 1  # what reads it before may then write its result there
        end = max(before + 1, min(reader, level.latest[j] + 1))
        if level.latest[j] > before and begin < end:
            yield range(begin, end)


class _Clones:
    """What a clone costs at least: shares of it, by bytes, are told of each block that it makes.

    Of a value that a node alone reads, nothing is there when a clone of the node runs, unless it was kept for that or
    was made again, once for each such clone. Where the value has no fewer bytes than all that the node makes, it is
    made again: keeping what the node made needs no more bytes, and no clone. So activations ask for the normalisation
    that they were written over. A smaller one may be kept for as long as what the node made is not there.
    """

    def __init__(self, level: Level, contents: list[Lives]) -> None:
        self.maker = level.maker
        self._level = level
        self._nbytes = level.blocks.nbytes
        self._made = [sum(self._nbytes[b] for b in born) for born in level.blocks.born]
        self._readers: dict[int, set[int]] = {}
        for j, read in enumerate(level.cloned):
            for block in read if level.blocks.born[j] else ():  # a view is there wherever its base is
                self._readers.setdefault(block, set()).add(j)
        self._contents: dict[int, list[Lives]] = {}
        for lives in contents:
            self._contents.setdefault(lives.block, []).append(lives)
        self._seconds: list[float] = []
        self._needed: list[list[tuple[float, float]]] = []
        for j, seconds in enumerate(level.seconds):
            alone = [*self._alone(j)] if self._made[j] else []
            large = [block for block in alone if self._nbytes[block] >= self._made[j]]
            small = [(self.seconds(block), float(self._nbytes[block])) for block in alone if block not in large]
            self._seconds.append(seconds + sum(map(self.seconds, large)))
            self._needed.append([*small, *(each for block in large for each in self.needed(block))][:MOST_NEEDED])

    def seconds(self, block: int) -> float:
        """What it costs to make a block again, beside what is needed for that."""
        return self._seconds[self.maker[block]] * self._share(block)

    def needed(self, block: int) -> list[tuple[float, float]]:
        """The seconds of each value that is needed to make a block again, or the bytes where it is kept instead."""
        share = self._share(block)
        return [(seconds * share, nbytes * share) for seconds, nbytes in self._needed[self.maker[block]]]

    def _share(self, block: int) -> float:
        made = self._made[self.maker[block]]
        return self._nbytes[block] / made if made else 0.0

    def _alone(self, j: int) -> Iterator[int]:
        """The blocks that nothing but a node reads, and that nobody needs after it."""
        for block in dict.fromkeys(self._level.cloned[j]):
            (lives, *others) = self._contents[block]
            alone = self._readers.get(block) == {j} and lives.read[-1:] == [j] and not (lives.kept or others)
            if alone and self._nbytes[block] and 0 <= self.maker.get(block, -1) < j:
                yield block
