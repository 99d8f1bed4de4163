"""No less extra time than this: what is read behind a moment, and is not alive there, is made again behind it.

It holds for programs in the order given in which every node runs where it stands, and clones besides. Of each there is
told which blocks are alive at a few moments, and which nodes run again between one of these and the next. As in a
schedule by stages (Jain et al., "Checkmate", 2020, section 4), but in few of them, and over any number of stages at
once: a block that is read behind a moment was alive there, or a clone of its maker runs between the two; and whatever
that clone reads was alive there too, or is made again on the way. So a whole chain is paid for where nothing of it is
kept. Nothing is said of the bytes between these moments, and what runs again twice from one to the next counts once:
the least over these choices is no more than what any such program costs.
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
"""A share of the largest block: smaller ones are taken to be wherever they are needed, without any bytes."""

CANDIDATES = 24
"""Moments that are tried: of the peaks above the budget the highest of as many stretches."""

MOMENTS = 5
"""Moments that are held to the budget together, of these."""

MOST_UNKNOWNS = 2000
"""No moment is added to those that make so many: branch and bound would take minutes."""

NODES = 50
"""Nodes of branch and bound."""

MARGIN = 1e-6
"""What the solver's tolerances are left, as a share and in units."""


@dataclass(frozen=True)
class Facts:
    """A level, and what is asked of it for every choice of moments."""

    level: Level
    plain: Timeline

    @cached_property
    def unit(self) -> int:
        """The bytes of the largest block: the solver is told of bytes in these."""
        return max([*self.level.blocks.nbytes, 1])

    @cached_property
    def second(self) -> float:
        """The seconds of the longest node: the solver is told of time in these."""
        return max(self.level.seconds) or 1.0

    @cached_property
    def counted(self) -> frozenset[int]:
        """The blocks that are told apart."""
        nbytes, kept = self.level.blocks.nbytes, self.level.blocks.kept
        return frozenset(b for b, size in enumerate(nbytes) if b not in kept and size > SMALLEST * self.unit)

    @cached_property
    def read(self) -> list[list[int]]:
        """The nodes that read each block."""
        return self.level.blocks.readers

    def saved(self, moment: int) -> int:
        """The bytes that the plain program saves at a moment by what is written in place."""
        lives = self.plain.lives
        ending = [c.block for c in lives if c.read and c.read[-1] == moment and not c.kept]
        return written_over(self.level, self.level.blocks.over[moment], ending)

    def renews(self, block: int) -> int | None:
        """The node whose clone makes the block anew."""
        j = self.level.maker.get(block)
        return j if j is not None and block in self.level.renewed[j] else None


def least_seconds_again(level: Level, budget: int, plain: Timeline) -> float | None:
    """No such program within the budget takes less more time; None where not even the choices told of here fit.

    `plain` is the timeline of the level as it is.
    """
    facts = Facts(level, plain)
    moments = _chosen(facts, budget)
    if not moments:
        return 0.0
    program = _Choices(facts, moments, budget).program
    found = program.least(), program.least(NODES)
    known = [bound for bound in found if bound is not None]
    return max(0.0, max(known) * (1 - MARGIN) - MARGIN) * facts.second if len(known) == len(found) else None


def _chosen(facts: Facts, budget: int) -> list[int]:
    """Moments that bound the time best together: one by one that which adds most to the others, by linear programs.

    What each would add is worked out anew only while it may still be the best: it adds less beside more others.
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
    live = np.concatenate([[0], facts.plain.live, [0]])
    peaks = np.flatnonzero((live[1:-1] > budget) & (live[1:-1] >= live[:-2]) & (live[1:-1] > live[2:]))
    stretches = np.array_split(peaks, min(CANDIDATES, max(len(peaks), 1)))
    return [int(several[np.argmax(facts.plain.live[several])]) for several in stretches if len(several)]


class _Choices:
    """What is alive at some moments, and what runs again behind them, as a linear program.

    A moment is when a node runs that was there before: clones that stand before it ran earlier. Stage k are the nodes
    and clones behind moment k, up to moment k + 1.
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
        """What is read in the stages from k to `end`, by a node or by a clone, is alive at moment k or made again."""
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
        """Whether what is in the block at moment k was made before and is read behind it."""
        if (block, k) not in self._alive:
            self._alive[block, k] = self.program.unknown()
        return self._alive[block, k]

    def _may(self, j: int, k: int) -> bool:
        """Whether a clone of the node may stand behind moment k."""
        return self._level.latest[j] > self._moments[k]

    def _within(self, j: int, k: int, end: int) -> int:
        """Whether a clone of node j runs in one of the stages from k to `end`: in one it costs its seconds."""
        if (j, k, end) not in self._again:
            cost = self._level.seconds[j] / self._facts.second if end == k + 1 else 0.0
            self._again[j, k, end] = self.program.unknown(cost)
            self._open.append((j, k, end))
        return self._again[j, k, end]

    def _close(self) -> None:
        """Whatever runs again has what it reads; what runs in several stages runs in the first or in the others."""
        while self._open:
            j, k, end = self._open.pop()
            clone = self._again[j, k, end]
            for block in self._level.cloned[j]:
                self._need(block, k, end, clone)
            if end > k + 1:
                parts = [(k, k + 1)] + ([(k + 1, end)] if self._may(j, k + 1) else [])
                self.program.hold([(clone, 1.0), *((self._within(j, *part), -1.0) for part in parts)], 0.0)

    def _carry(self) -> None:
        """What is alive at a moment was so at the one before, or was made between them."""
        for block, k in list(self._alive):
            if k and self._level.maker.get(block, -1) < self._moments[k - 1]:
                terms = [(self._at(block, k), 1.0), (self._at(block, k - 1), -1.0)]
                j = self._facts.renews(block)
                if j is not None and self._may(j, k - 1):
                    terms.append((self._within(j, k - 1, k), -1.0))
                self.program.hold(terms, 0.0)
        self._close()

    def _hold(self, k: int, budget: int) -> None:
        """The bytes alive at moment k are within the budget: those of the plain program, more and less."""
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
        """The blocks that the plain program carries through a moment: made before it, and read behind it alone."""
        read = self._level.blocks.read[moment]
        for content in self._facts.plain.lives:
            last = content.read[-1] if content.read else -1
            if content.made < moment < last and not content.kept and content.block not in read:
                yield content.block

    def _written_over(self, k: int) -> tuple[int, list[Term]]:
        """The bytes that the plain program saves at moment k by what is written in place, and what any saves there.

        Of what is not alive behind the moment, each once; into one result one operand, but a whole has several parts.
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
