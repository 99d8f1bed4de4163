"""Lower bounds on extra time: two bounds by linear programming, of which the better is returned.

Both hold for programs in the given order with every node at its position, plus clones. The bound of
`time_bound_stages.py` covers few moments, and whole recomputed chains. The bound of this module covers all moments: a
block dropped somewhere between two readers costs a share of a clone of the defining node, plus the least needs of the
clone (see `_CloneCosts`); savings count in full, in-place results included, and the bytes defined by clones count zero.
Fractions of a block may be dropped. The optimum is therefore at most the cost of any real program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sublet.passes.recompute.linear_program import LinearProgram, Term
from sublet.passes.recompute.remat_problem import NO_CLONES, RematProblem
from sublet.passes.recompute.remat_timeline import ContentLifetime, RematTimeline, remat_timeline
from sublet.passes.recompute.time_bound_stages import stage_time_bound

BYTE_UNIT = 1 << 20
"""Unit of bytes in the linear program."""

MAX_NEEDS = 16
"""Maximum number of smaller values required with each clone; further values count nothing."""


@dataclass
class _DropChoices:
    """A linear program over choices, each taken to a fraction from 0 to 1 at a cost in seconds.

    freed  (position of a node, variable, bytes freed at the position: negative if the choice takes bytes)
    """

    program: LinearProgram = field(default_factory=LinearProgram)
    freed: list[tuple[int, int, float]] = field(default_factory=list)

    def add_choice(self, seconds: float, nbytes: float, moments: range) -> int:
        """Add a choice freeing `nbytes` at each of `moments`; return the variable."""
        number = self.program.add_variable(seconds)
        self.freed += [(t, number, nbytes) for t in moments]
        return number


def least_extra_seconds(level: RematProblem, budget: int) -> float | None:
    """Return a lower bound on the extra seconds of any program within the budget; None if proven infeasible."""
    plain = remat_timeline(level, NO_CLONES)
    if plain.peak <= budget:
        return 0.0
    bounds = _gap_bound(level, budget, plain), stage_time_bound(level, budget, plain)
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _gap_bound(level: RematProblem, budget: int, plain: RematTimeline) -> float | None:
    """Return the bound by blocks dropped between two readers."""
    choices, freed = _drop_choices(level, plain.contents), dict[int, list[Term]]()
    for moment, number, nbytes in choices.freed:
        freed.setdefault(moment, []).append((number, -nbytes / BYTE_UNIT))
    for moment in np.flatnonzero(plain.live > budget).tolist():
        choices.program.add_constraint(freed.get(moment, ()), (budget - int(plain.live[moment])) / BYTE_UNIT)
    found = choices.program.lower_bound()
    return None if found is None else max(0.0, found)


def _drop_choices(level: RematProblem, contents: list[ContentLifetime]) -> _DropChoices:
    """Return the choices: each block may be dropped in each gap, and each need of a clone recomputed or kept."""
    clones, choices = _CloneCosts(level, contents), _DropChoices()
    for lives in contents:
        j = clones.maker.get(lives.block, -1)
        if j < 0 or lives.kept or not level.blocks.nbytes[lives.block]:
            continue
        for moments in _droppable_gaps(level, lives, j):
            dropped = choices.add_choice(
                clones.seconds_to_recompute(lives.block), level.blocks.nbytes[lives.block], moments
            )
            for seconds, nbytes in clones.costs_of_needs(lives.block):
                again, kept = choices.add_choice(seconds, 0, range(0)), choices.add_choice(0.0, -nbytes, moments)
                choices.program.add_constraint([(dropped, 1.0), (again, -1.0), (kept, -1.0)], 0.0)
    return choices


def _droppable_gaps(level: RematProblem, lives: ContentLifetime, j: int) -> Iterator[range]:
    """Yield, as ranges of positions, the gaps between readers of a content of node `j` that a clone can end."""
    for before, reader in zip([lives.made, *lives.read], lives.read, strict=False):
        over = before != lives.made and any(source == lives.block for _, source in level.blocks.inplace[before])
        begin = before if over else before + 1  # the earlier reader may then overwrite the block
        end = max(before + 1, min(reader, level.latest[j] + 1))
        if level.latest[j] > before and begin < end:
            yield range(begin, end)


class _CloneCosts:
    """Lower bounds on the cost of a clone, attributed to the defined blocks by shares of bytes.

    Consider a value read by a single node. When a clone of the node runs, the value is dead unless the value was kept
    or recomputed for the clone, once for each clone. If the value is at least as large as all results of the node, the
    bound recomputes the value: keeping the results instead would need no more bytes, and no clone. For example, a clone
    of an activation pays for the normalisation overwritten by the activation. A smaller value may be kept while the
    results are dropped.
    """

    def __init__(self, level: RematProblem, contents: list[ContentLifetime]) -> None:
        self.maker = level.maker
        self._level = level
        self._nbytes = level.blocks.nbytes
        self._made = [sum(self._nbytes[b] for b in born) for born in level.blocks.born]
        self._readers: dict[int, set[int]] = {}
        for j, read in enumerate(level.cloned):
            for block in read if level.blocks.born[j] else ():  # a view is live wherever the base is
                self._readers.setdefault(block, set()).add(j)
        self._contents: dict[int, list[ContentLifetime]] = {}
        for lives in contents:
            self._contents.setdefault(lives.block, []).append(lives)
        self._seconds: list[float] = []
        self._needed: list[list[tuple[float, float]]] = []
        for j, seconds in enumerate(level.seconds):
            alone = [*self._private_blocks(j)] if self._made[j] else []
            large = [block for block in alone if self._nbytes[block] >= self._made[j]]
            small = [
                (self.seconds_to_recompute(block), float(self._nbytes[block])) for block in alone if block not in large
            ]
            self._seconds.append(seconds + sum(map(self.seconds_to_recompute, large)))
            self._needed.append([*small, *(each for block in large for each in self.costs_of_needs(block))][:MAX_NEEDS])

    def seconds_to_recompute(self, block: int) -> float:
        """Return the seconds to recompute a block, without optional needs."""
        return self._seconds[self.maker[block]] * self._share_of_maker(block)

    def costs_of_needs(self, block: int) -> list[tuple[float, float]]:
        """Return, for each need of a recomputation of the block, the seconds to recompute and the bytes to keep."""
        share = self._share_of_maker(block)
        return [(seconds * share, nbytes * share) for seconds, nbytes in self._needed[self.maker[block]]]

    def _share_of_maker(self, block: int) -> float:
        """Return the share of the block in the bytes defined by its node."""
        made = self._made[self.maker[block]]
        return self._nbytes[block] / made if made else 0.0

    def _private_blocks(self, j: int) -> Iterator[int]:
        """Yield the blocks read only by node `j`, dead afterwards."""
        for block in dict.fromkeys(self._level.cloned[j]):
            (lives, *others) = self._contents[block]
            alone = self._readers.get(block) == {j} and lives.read[-1:] == [j] and not (lives.kept or others)
            if alone and self._nbytes[block] and 0 <= self.maker.get(block, -1) < j:
                yield block
