"""No less extra time than this: a bound by linear programming.

It holds for programs in the order given in which every node runs where it stands, and clones besides. A block that is
not alive all the way between two readers costs its share of a clone of its maker, and what that needs at least (see
`_Clones`); what it saves counts in full, in-place results included, and what clones write themselves counts nothing. So
the least over these is no more than what any such program costs. Fractions of a block may be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from sublet.passes.recompute.level import NONE, Level
from sublet.passes.recompute.timeline import Lives, timeline

UNIT = 1 << 20
"""Bytes are told to the solver in these."""

MOST_NEEDED = 16
"""Smaller values that are asked for with each clone; what others cost counts nothing."""


@dataclass
class _Choices:
    """What a program may do, each to a fraction from 0 to 1, at a cost in seconds.

    freed  (position of a node, number of the choice, bytes that are not alive then: fewer than none where more are)
    needs  (number of a choice, number of another, and of a third): no more of the first than of the others together
    """

    seconds: list[float] = field(default_factory=list)
    freed: list[tuple[int, int, float]] = field(default_factory=list)
    needs: list[tuple[int, int, int]] = field(default_factory=list)

    def add(self, seconds: float, nbytes: float, moments: range) -> int:
        """One more, which frees so many bytes at each of some moments."""
        self.seconds.append(seconds)
        self.freed += [(t, len(self.seconds) - 1, nbytes) for t in moments]
        return len(self.seconds) - 1


def least_extra_seconds(level: Level, budget: int) -> float | None:
    """No such program within the budget takes less more time; None where the relaxation has none at all."""
    plain = timeline(level, NONE)
    over = {t: row for row, t in enumerate(np.flatnonzero(plain.live > budget).tolist())}
    if not over:
        return 0.0
    choices = _choices(level, plain.lives)
    entries = [(over[t], number, -nbytes / UNIT) for t, number, nbytes in choices.freed if t in over]
    if not entries:
        return None
    for row, (choice, *others) in enumerate(choices.needs, len(over)):
        entries += [(row, choice, 1.0), *((row, other, -1.0) for other in others)]
    rows, columns, factors = zip(*entries, strict=True)
    shape = (len(over) + len(choices.needs), len(choices.seconds))
    most = np.zeros(shape[0])
    most[: len(over)] = (budget - plain.live[list(over)]) / UNIT
    hold = LinearConstraint(coo_array((factors, (rows, columns)), shape=shape).tocsr(), -np.inf, most)
    found = milp(choices.seconds, constraints=hold, bounds=Bounds(0, 1))  # without integrality: a linear program
    return max(0.0, float(found.fun)) if found.status == 0 else None


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
                choices.needs.append((dropped, again, kept))
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
        self.maker = {b: j for j, born in enumerate(level.blocks.born) for b in born}
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
