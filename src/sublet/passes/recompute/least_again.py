"""A lower bound on extra time, by a linear program over a few moments and all stages between consecutive moments.

The bound covers programs in the given order with every node at its position, plus clones. A moment is the position of
an original node. The unknowns of the linear program are the blocks live at each moment, and the nodes rerun in each
stage, between consecutive moments. Like a schedule by stages (Jain et al., "Checkmate", 2020, section 4), but with few
stages, and with constraints over any number of stages: a block read after a moment was live at the moment, or a clone
of the defining node runs between the moment and the read; and each operand of the clone was live at the moment too, or
is recomputed on the way. A dropped chain is therefore paid for in full. Bytes between moments are unconstrained, and a
node rerun twice in a stage counts once. The optimum is therefore at most the cost of any real program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sublet.passes.recompute.level import Level
from sublet.passes.recompute.linear import Linear, Term
from sublet.passes.recompute.timeline import Timeline, written_over

SMALLEST = 1 / 256
"""Minimum size of a tracked block, as a share of the largest block. Smaller blocks are free and always available."""

CANDIDATES = 24
"""Maximum number of candidate moments: the highest peak above the budget in each of as many stretches."""

MOMENTS = 5
"""Maximum number of moments constrained jointly."""

MOST_UNKNOWNS = 2000
"""Maximum variables of the program with one more moment: with more, branch and bound would take minutes."""

NODES = 50
"""Maximum nodes of branch and bound."""

MARGIN = 1e-6
"""Allowance for the tolerances of the solver, both relative and in units."""


@dataclass(frozen=True)
class Facts:
    """A problem, with the facts shared by all choices of moments."""

    level: Level
    plain: Timeline

    @cached_property
    def unit(self) -> int:
        """The bytes of the largest block: the unit of bytes in the linear program."""
        return max([*self.level.blocks.nbytes, 1])

    @cached_property
    def second(self) -> float:
        """The seconds of the longest node: the unit of time in the linear program."""
        return max(self.level.seconds) or 1.0

    @cached_property
    def counted(self) -> frozenset[int]:
        """The blocks with a variable in the linear program."""
        nbytes, kept = self.level.blocks.nbytes, self.level.blocks.kept
        return frozenset(b for b, size in enumerate(nbytes) if b not in kept and size > SMALLEST * self.unit)

    @cached_property
    def read(self) -> list[list[int]]:
        """The nodes reading each block."""
        return self.level.blocks.readers

    def saved(self, moment: int) -> int:
        """Return the bytes saved by in-place results at a moment of the plain program."""
        lives = self.plain.lives
        ending = [c.block for c in lives if c.read and c.read[-1] == moment and not c.kept]
        return written_over(self.level, self.level.blocks.over[moment], ending)

    def renews(self, block: int) -> int | None:
        """Return the node whose clone redefines the block, or None."""
        j = self.level.maker.get(block)
        return j if j is not None and block in self.level.renewed[j] else None


def least_seconds_again(level: Level, budget: int, plain: Timeline) -> float | None:
    """Return a lower bound on the extra seconds of any program within the budget; None if no choice fits.

    `plain` is the timeline without clones.
    """
    facts = Facts(level, plain)
    moments = _chosen(facts, budget)
    if not moments:
        return 0.0
    program = _Choices(facts, moments, budget).program
    bounds = program.least(), program.least(NODES)
    known = [bound for bound in bounds if bound is not None]
    return max(0.0, max(known) * (1 - MARGIN) - MARGIN) * facts.second if len(known) == len(bounds) else None


def _chosen(facts: Facts, budget: int) -> list[int]:
    """Return the moments with the best joint bound, selected greedily by linear programs.

    Evaluation is lazy: the gain of a moment shrinks as more moments are chosen, so a gain is recomputed only while the
    moment may still be the best.
    """
    best, chosen = 0.0, list[int]()
    hopes = dict.fromkeys(_candidates(facts, budget), np.inf)
    while hopes and len(chosen) < MOMENTS:
        fresh = set[int]()
        while hopes and (moment := max(hopes, key=lambda t: hopes[t])) not in fresh:
            program = _Choices(facts, sorted([*chosen, moment]), budget).program
            bound = program.least() if len(program.costs) <= MOST_UNKNOWNS or not chosen else 0.0
            hopes[moment] = np.inf if bound is None else bound - best
            fresh.add(moment)
        if hopes[moment] <= 0:
            break
        best += hopes.pop(moment)
        chosen.append(moment)
    return sorted(chosen)


def _candidates(facts: Facts, budget: int) -> list[int]:
    """Return the highest peak above the budget in each of CANDIDATES stretches of peaks."""
    live = np.concatenate([[0], facts.plain.live, [0]])
    peaks = np.flatnonzero((live[1:-1] > budget) & (live[1:-1] >= live[:-2]) & (live[1:-1] > live[2:]))
    stretches = np.array_split(peaks, min(CANDIDATES, max(len(peaks), 1)))
    return [int(several[np.argmax(facts.plain.live[several])]) for several in stretches if len(several)]


class _Choices:
    """A linear program over the live blocks at some moments and the clones after each moment.

    At a moment an original node runs; clones standing before the node ran earlier. Stage k contains the nodes and
    clones after moment k, up to moment k + 1.
    """

    def __init__(self, facts: Facts, moments: Sequence[int], budget: int) -> None:
        self.program = Linear()
        self._facts, self._level, self._moments = facts, facts.level, moments
        self._ends = [*moments, len(facts.level.names)]
        self._alive: dict[tuple[int, int], int] = {}
        self._again: dict[tuple[int, int, int], int] = {}
        self._open: list[tuple[int, int, int]] = []
        for k, moment in enumerate(moments):
            for block in facts.counted:
                later = bisect_left(facts.read[block], moment + 1)
                if later < len(facts.read[block]):
                    self._need(block, k, bisect_left(self._ends, facts.read[block][later]), None)
        self._close()
        self._carry()
        for k in range(len(moments)):
            self._hold(k, budget)

    def _need(self, block: int, k: int, end: int, clone: int | None) -> None:
        """Constrain: a block read in stages k to `end`, by a node or by `clone`, is live at moment k or recomputed."""
        facts = self._facts
        if block not in facts.counted or self._level.maker.get(block, -1) >= self._moments[k]:
            return
        terms = [(self._at(block, k), -1.0)]
        j = facts.renews(block)
        if j is not None and self._may(j, k):
            terms.append((self._within(j, k, end), -1.0))
        if clone is None:
            self.program.hold(terms, -1.0)
        else:
            self.program.hold([(clone, 1.0), *terms], 0.0)

    def _at(self, block: int, k: int) -> int:
        """Return the variable: the content of the block at moment k was defined before and is read later."""
        if (block, k) not in self._alive:
            self._alive[block, k] = self.program.unknown()
        return self._alive[block, k]

    def _may(self, j: int, k: int) -> bool:
        """True if a clone of the node may stand after moment k."""
        return self._level.latest[j] > self._moments[k]

    def _within(self, j: int, k: int, end: int) -> int:
        """Return the variable: a clone of node j runs in some stage from k to `end`.

        A clone in a single stage costs the seconds of j.
        """
        if (j, k, end) not in self._again:
            cost = self._level.seconds[j] / self._facts.second if end == k + 1 else 0.0
            self._again[j, k, end] = self.program.unknown(cost)
            self._open.append((j, k, end))
        return self._again[j, k, end]

    def _close(self) -> None:
        """Constrain every clone variable until no clone variable is unconstrained.

        The operands of a clone are available. A clone in a range of stages runs in the first stage or in the rest.
        """
        while self._open:
            j, k, end = self._open.pop()
            clone = self._again[j, k, end]
            for block in self._level.cloned[j]:
                self._need(block, k, end, clone)
            if end > k + 1:
                parts = [(k, k + 1)] + ([(k + 1, end)] if self._may(j, k + 1) else [])
                self.program.hold([(clone, 1.0), *((self._within(j, *part), -1.0) for part in parts)], 0.0)

    def _carry(self) -> None:
        """Constrain: a block live at a moment was live at the previous moment, or was defined in between."""
        for block, k in list(self._alive):
            if k and self._level.maker.get(block, -1) < self._moments[k - 1]:
                terms = [(self._at(block, k), 1.0), (self._at(block, k - 1), -1.0)]
                j = self._facts.renews(block)
                if j is not None and self._may(j, k - 1):
                    terms.append((self._within(j, k - 1, k), -1.0))
                self.program.hold(terms, 0.0)
        self._close()

    def _hold(self, k: int, budget: int) -> None:
        """Constrain the live bytes at moment k to the budget, relative to the plain program."""
        facts, nbytes, moment = self._facts, self._level.blocks.nbytes, self._moments[k]
        live = int(facts.plain.live[moment]) - sum(nbytes[b] for b in self._waiting(moment))
        saved, terms = self._written_over(k)
        terms += [
            (number, nbytes[block] / facts.unit)
            for (block, at), number in self._alive.items()
            if at == k and block not in self._level.blocks.read[moment]
        ]
        self.program.hold(terms, (budget - live - saved) / facts.unit)

    def _waiting(self, moment: int) -> Iterator[int]:
        """Yield the blocks carried through a moment by the plain program: defined before, and read only after."""
        read = self._level.blocks.read[moment]
        for content in self._facts.plain.lives:
            last = content.read[-1] if content.read else -1
            if content.made < moment < last and not content.kept and content.block not in read:
                yield content.block

    def _written_over(self, k: int) -> tuple[int, list[Term]]:
        """Return the bytes saved in place at moment k by the plain program, and the terms for any program.

        Each block dead after the moment is overwritten once. A result overwrites one operand, a concatenation several.
        """
        facts, nbytes, moment = self._facts, self._level.blocks.nbytes, self._moments[k]
        pairs = [pair for pair in self._level.blocks.over[moment] if pair[1] not in self._level.blocks.kept]
        from_source, to_made = dict[int, list[Term]](), dict[int, list[Term]]()
        terms: list[Term] = []
        for made, source in pairs:
            pair = self.program.unknown()
            terms.append((pair, -nbytes[source] / facts.unit))
            from_source.setdefault(source, []).append((pair, 1.0))
            if nbytes[source] >= nbytes[made]:
                to_made.setdefault(made, []).append((pair, 1.0))
        for source, several in from_source.items():
            alive = [(self._alive[source, k], 1.0)] if (source, k) in self._alive else []
            self.program.hold([*several, *alive], 1.0)
        for several in to_made.values():
            self.program.hold(several, 1.0)
        return facts.saved(moment) if pairs else 0, terms
