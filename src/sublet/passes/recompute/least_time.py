"""No less extra time than this: a bound by linear programming.

It holds for programs in the order given in which every node runs where it stands, and clones besides. A block that is
not alive all the way between two readers costs its share of a clone of its maker, and of clones of what that alone
reads (see `_Costs`); what it saves counts in full, in-place results included, and what clones need themselves counts
nothing. So the least over these is no more than what any such program costs. Fractions of a block may be dropped.
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


@dataclass
class _Gaps:
    """Spans in which a block need not be alive, each a fraction from 0 to 1 that costs seconds.

    saved  (position of the node, number of the span, bytes that are not alive then)
    """

    seconds: list[float] = field(default_factory=list)
    saved: list[tuple[int, int, int]] = field(default_factory=list)


def least_extra_seconds(level: Level, budget: int) -> float | None:
    """No such program within the budget takes less more time; None where the relaxation has none at all."""
    plain = timeline(level, NONE)
    over = {t: row for row, t in enumerate(np.flatnonzero(plain.live > budget).tolist())}
    if not over:
        return 0.0
    gaps = _gaps(level, plain.lives)
    entries = [(over[t], number, nbytes) for t, number, nbytes in gaps.saved if t in over]
    if not entries:
        return None
    rows, columns, nbytes = zip(*entries, strict=True)
    freed = coo_array((-np.array(nbytes) / UNIT, (rows, columns)), shape=(len(over), len(gaps.seconds)))
    wanted = (budget - plain.live[list(over)]) / UNIT
    rows_hold = LinearConstraint(freed.tocsr(), -np.inf, wanted)
    found = milp(gaps.seconds, constraints=rows_hold, bounds=Bounds(0, 1))  # without integrality: a linear program
    return max(0.0, float(found.fun)) if found.status == 0 else None


def _gaps(level: Level, contents: list[Lives]) -> _Gaps:
    costs, gaps = _Costs(level, contents), _Gaps()
    for lives in contents:
        j = costs.maker.get(lives.block, -1)
        if j >= 0 and not lives.kept and level.blocks.nbytes[lives.block]:
            _add_gaps(gaps, level, lives, j, costs.of(lives.block))
    return gaps


def _add_gaps(gaps: _Gaps, level: Level, lives: Lives, j: int, seconds: float) -> None:
    """The spans between readers of one content that node j makes, as far as a clone can end them for some seconds."""
    nbytes = level.blocks.nbytes[lives.block]
    for before, reader in zip([lives.made, *lives.read], lives.read, strict=False):
        freed = range(before + 1, min(reader, level.latest[j] + 1))
        over = before != lives.made and any(source == lives.block for _, source in level.blocks.over[before])
        if level.latest[j] <= before or not (freed or over):
            continue
        number = len(gaps.seconds)
        gaps.seconds.append(seconds)
        gaps.saved += [(t, number, nbytes) for t in freed]
        if over:  # what reads it before may then write its result there
            gaps.saved.append((before, number, nbytes))


class _Costs:
    """Seconds that a clone costs at least, shared among what it makes by bytes.

    A node that alone reads a value, which has no fewer bytes than all that the node makes, is not computed again from
    that value kept: keeping what it made, from where it stands, needs no more bytes, and no clone. So each clone of
    such a node needs a clone of its own of what makes the value, as a normalisation is computed again for an activation
    over its result.
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
        for j, seconds in enumerate(level.seconds):
            self._seconds.append(seconds + sum(self.of(block) for block in self._alone(j)))

    def of(self, block: int) -> float:
        """The share of one block in a clone of its maker."""
        j = self.maker[block]
        return self._seconds[j] * self._nbytes[block] / self._made[j] if self._made[j] else 0.0

    def _alone(self, j: int) -> Iterator[int]:
        """The blocks that must be made again for each clone of a node."""
        for block in dict.fromkeys(self._level.cloned[j]):
            (lives, *others) = self._contents[block]
            alone = self._readers.get(block) == {j} and lives.read[-1:] == [j] and not (lives.kept or others)
            if alone and 0 <= self.maker.get(block, -1) < j and 0 < self._made[j] <= self._nbytes[block]:
                yield block
