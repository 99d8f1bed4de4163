"""No less extra time than this: a bound by linear programming.

It holds for programs in the order given in which every node runs where it stands, and clones besides. A block that is
not alive all the way between two readers costs its share of a clone of its maker, whatever else that needs; what it
saves counts in full, in-place results included, and what clones need themselves counts nothing. So the least over these
is no more than what any such program costs. Fractions of a block may be dropped.
"""

from __future__ import annotations

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
    blocks, gaps = level.blocks, _Gaps()
    maker = {b: j for j, born in enumerate(blocks.born) for b in born}
    for lives in contents:
        j = maker.get(lives.block, -1)
        if j >= 0 and not lives.kept and blocks.nbytes[lives.block]:
            _add_gaps(gaps, level, lives, j, sum(blocks.nbytes[b] > 0 for b in blocks.born[j]))
    return gaps


def _add_gaps(gaps: _Gaps, level: Level, lives: Lives, j: int, shared: int) -> None:
    """The spans between readers of one content, as far as a clone can end them; `shared` contents come of one clone."""
    nbytes = level.blocks.nbytes[lives.block]
    for before, reader in zip([lives.made, *lives.read], lives.read, strict=False):
        freed = range(before + 1, min(reader, level.latest[j] + 1))
        over = before != lives.made and any(source == lives.block for _, source in level.blocks.over[before])
        if level.latest[j] <= before or not (freed or over):
            continue
        number = len(gaps.seconds)
        gaps.seconds.append(level.seconds[j] / shared)
        gaps.saved += [(t, number, nbytes) for t in freed]
        if over:  # what reads it before may then write its result there
            gaps.saved.append((before, number, nbytes))
