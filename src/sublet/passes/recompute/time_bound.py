"""Lower bounds on extra time: two bounds by linear programming, of which the better is returned.

Both hold for programs in the given order with every node at its position, plus clones. The bound by
stages covers few moments, and whole recomputed chains. The bound by fractions covers all moments: a
block dropped somewhere between two readers costs a share of a clone of the defining node, plus the least needs of the
clone (see `_CloneCosts`); savings count in full, in-place results included, and the bytes defined by clones count zero.
Fractions of a block may be dropped. The optimum is therefore at most the cost of any real program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sublet.base.linear_program import LinearProgram, Term
from sublet.passes.recompute.remat_problem import NO_CLONES, RematProblem
from sublet.passes.recompute.remat_timeline import ContentLifetime, RematTimeline, remat_timeline

# A lower bound on extra time, by a linear program over a few moments and all stages between consecutive moments.
#
# The bound covers programs in the given order with every node at its position, plus clones. A moment is the position of
# an original node. The unknowns of the linear program are the blocks live at each moment, and the nodes rerun in each
# stage, between consecutive moments. Like a schedule by stages (Jain et al., "Checkmate", 2020, section 4), but with
# few stages, and with constraints over any number of stages: a block read after a moment was live at the moment, or a
# clone of the defining node runs between the moment and the read; and each operand of the clone was live at the moment
# too, or is recomputed on the way. A dropped chain is therefore paid for in full. Bytes between moments are
# unconstrained, and a node rerun twice in a stage counts once. The optimum is therefore at most the cost of any real
# program.

MIN_BLOCK_SHARE = 1 / 256
"""Minimum size of a tracked block, as a share of the largest block. Smaller blocks are free and always available."""

CANDIDATES = 24
"""Maximum number of candidate moments: the highest peak above the budget in each of as many stretches."""

MAX_MOMENTS = 5
"""Maximum number of moments constrained jointly."""

MAX_VARIABLES = 2000
"""Maximum variables of the program with one more moment: with more, branch and bound would take minutes."""

BRANCH_NODES = 50
"""Maximum nodes of branch and bound."""

MARGIN = 1e-6
"""Allowance for the tolerances of the solver, both relative and in units."""


@dataclass(frozen=True)
class StageFacts:
    """A problem, with the facts shared by all choices of moments."""

    level: RematProblem
    plain: RematTimeline

    @cached_property
    def byte_unit(self) -> int:
        """The bytes of the largest block: the unit of bytes in the linear program."""
        return max([*self.level.blocks.nbytes, 1])

    @cached_property
    def time_unit(self) -> float:
        """The seconds of the longest node: the unit of time in the linear program."""
        return max(self.level.seconds) or 1.0

    @cached_property
    def tracked_blocks(self) -> frozenset[int]:
        """The blocks with a variable in the linear program."""
        nbytes, kept = self.level.blocks.nbytes, self.level.blocks.kept
        return frozenset(
            b for b, size in enumerate(nbytes) if b not in kept and size > MIN_BLOCK_SHARE * self.byte_unit
        )

    @cached_property
    def readers(self) -> list[list[int]]:
        """The nodes reading each block."""
        return self.level.blocks.readers

    def bytes_saved_in_place(self, moment: int) -> int:
        """Return the bytes saved by in-place results at a moment of the plain program."""
        lives = self.plain.contents
        ending = [c.block for c in lives if c.read and c.read[-1] == moment and not c.kept]
        return self.level.blocks.bytes_overwritten(moment, ending)

    def maker_with_clone(self, block: int) -> int | None:
        """Return the node whose clone redefines the block, or None."""
        j = self.level.maker.get(block)
        return j if j is not None and block in self.level.renewed[j] else None


def stage_time_bound(level: RematProblem, budget: int, plain: RematTimeline) -> float | None:
    """Return a lower bound on the extra seconds of any program within the budget; None if no choice fits.

    `plain` is the timeline without clones.
    """
    facts = StageFacts(level, plain)
    moments = _choose_moments(facts, budget)
    if not moments:
        return 0.0
    program = _StageProgram(facts, moments, budget).program
    bounds = program.lower_bound(), program.lower_bound(BRANCH_NODES)
    known = [bound for bound in bounds if bound is not None]
    return max(0.0, max(known) * (1 - MARGIN) - MARGIN) * facts.time_unit if len(known) == len(bounds) else None


def _choose_moments(facts: StageFacts, budget: int) -> list[int]:
    """Return the moments with the best joint bound, selected greedily by linear programs.

    Evaluation is lazy: the gain of a moment shrinks as more moments are chosen, so a gain is recomputed only while the
    moment may still be the best.
    """
    best, chosen = 0.0, list[int]()
    hopes = dict.fromkeys(_candidate_moments(facts, budget), np.inf)
    while hopes and len(chosen) < MAX_MOMENTS:
        fresh = set[int]()
        while hopes and (moment := max(hopes, key=lambda t: hopes[t])) not in fresh:
            program = _StageProgram(facts, sorted([*chosen, moment]), budget).program
            bound = program.lower_bound() if len(program.costs) <= MAX_VARIABLES or not chosen else 0.0
            hopes[moment] = np.inf if bound is None else bound - best
            fresh.add(moment)
        if hopes[moment] <= 0:
            break
        best += hopes.pop(moment)
        chosen.append(moment)
    return sorted(chosen)


def _candidate_moments(facts: StageFacts, budget: int) -> list[int]:
    """Return the highest peak above the budget in each of CANDIDATES stretches of peaks."""
    live = np.concatenate([[0], facts.plain.live, [0]])
    peaks = np.flatnonzero((live[1:-1] > budget) & (live[1:-1] >= live[:-2]) & (live[1:-1] > live[2:]))
    stretches = np.array_split(peaks, min(CANDIDATES, max(len(peaks), 1)))
    return [int(several[np.argmax(facts.plain.live[several])]) for several in stretches if len(several)]


class _StageProgram:
    """A linear program over the live blocks at some moments and the clones after each moment.

    At a moment an original node runs; clones standing before the node ran earlier. Stage k contains the nodes and
    clones after moment k, up to moment k + 1.
    """

    def __init__(self, facts: StageFacts, moments: Sequence[int], budget: int) -> None:
        self.program = LinearProgram()
        self._facts, self._level, self._moments = facts, facts.level, moments
        self._ends = [*moments, len(facts.level.names)]
        self._alive: dict[tuple[int, int], int] = {}
        self._again: dict[tuple[int, int, int], int] = {}
        self._open: list[tuple[int, int, int]] = []
        for k, moment in enumerate(moments):
            for block in facts.tracked_blocks:
                later = bisect_left(facts.readers[block], moment + 1)
                if later < len(facts.readers[block]):
                    self._require_block(block, k, bisect_left(self._ends, facts.readers[block][later]), None)
        self._constrain_clones()
        self._link_moments()
        for k in range(len(moments)):
            self._limit_bytes(k, budget)

    def _require_block(self, block: int, k: int, end: int, clone: int | None) -> None:
        """Constrain: a block read in stages k to `end`, by a node or by `clone`, is live at moment k or recomputed."""
        facts = self._facts
        if block not in facts.tracked_blocks or self._level.maker.get(block, -1) >= self._moments[k]:
            return
        terms = [(self._alive_variable(block, k), -1.0)]
        j = facts.maker_with_clone(block)
        if j is not None and self._can_clone_after(j, k):
            terms.append((self._clone_variable(j, k, end), -1.0))
        if clone is None:
            self.program.add_constraint(terms, -1.0)
        else:
            self.program.add_constraint([(clone, 1.0), *terms], 0.0)

    def _alive_variable(self, block: int, k: int) -> int:
        """Return the variable: the content of the block at moment k was defined before and is read later."""
        if (block, k) not in self._alive:
            self._alive[block, k] = self.program.add_variable()
        return self._alive[block, k]

    def _can_clone_after(self, j: int, k: int) -> bool:
        """True if a clone of the node may stand after moment k."""
        return self._level.latest[j] > self._moments[k]

    def _clone_variable(self, j: int, k: int, end: int) -> int:
        """Return the variable: a clone of node j runs in some stage from k to `end`.

        A clone in a single stage costs the seconds of j.
        """
        if (j, k, end) not in self._again:
            cost = self._level.seconds[j] / self._facts.time_unit if end == k + 1 else 0.0
            self._again[j, k, end] = self.program.add_variable(cost)
            self._open.append((j, k, end))
        return self._again[j, k, end]

    def _constrain_clones(self) -> None:
        """Constrain every clone variable until no clone variable is unconstrained.

        The operands of a clone are available. A clone in a range of stages runs in the first stage or in the rest.
        """
        while self._open:
            j, k, end = self._open.pop()
            clone = self._again[j, k, end]
            for block in self._level.cloned[j]:
                self._require_block(block, k, end, clone)
            if end > k + 1:
                parts = [(k, k + 1)] + ([(k + 1, end)] if self._can_clone_after(j, k + 1) else [])
                self.program.add_constraint(
                    [(clone, 1.0), *((self._clone_variable(j, *part), -1.0) for part in parts)], 0.0
                )

    def _link_moments(self) -> None:
        """Constrain: a block live at a moment was live at the previous moment, or was defined in between."""
        for block, k in list(self._alive):
            if k and self._level.maker.get(block, -1) < self._moments[k - 1]:
                terms = [(self._alive_variable(block, k), 1.0), (self._alive_variable(block, k - 1), -1.0)]
                j = self._facts.maker_with_clone(block)
                if j is not None and self._can_clone_after(j, k - 1):
                    terms.append((self._clone_variable(j, k - 1, k), -1.0))
                self.program.add_constraint(terms, 0.0)
        self._constrain_clones()

    def _limit_bytes(self, k: int, budget: int) -> None:
        """Constrain the live bytes at moment k to the budget, relative to the plain program."""
        facts, nbytes, moment = self._facts, self._level.blocks.nbytes, self._moments[k]
        live = int(facts.plain.live[moment]) - sum(nbytes[b] for b in self._carried_blocks(moment))
        saved, terms = self._inplace_savings(k)
        terms += [
            (number, nbytes[block] / facts.byte_unit)
            for (block, at), number in self._alive.items()
            if at == k and block not in self._level.blocks.read[moment]
        ]
        self.program.add_constraint(terms, (budget - live - saved) / facts.byte_unit)

    def _carried_blocks(self, moment: int) -> Iterator[int]:
        """Yield the blocks carried through a moment by the plain program: defined before, and read only after."""
        read = self._level.blocks.read[moment]
        for content in self._facts.plain.contents:
            last = content.read[-1] if content.read else -1
            if content.made < moment < last and not content.kept and content.block not in read:
                yield content.block

    def _inplace_savings(self, k: int) -> tuple[int, list[Term]]:
        """Return the bytes saved in place at moment k by the plain program, and the terms for any program.

        Each block dead after the moment is overwritten once. A result overwrites one operand, a concatenation several.
        """
        facts, nbytes, moment = self._facts, self._level.blocks.nbytes, self._moments[k]
        pairs = [pair for pair in self._level.blocks.inplace[moment] if pair[1] not in self._level.blocks.kept]
        from_source, to_made = dict[int, list[Term]](), dict[int, list[Term]]()
        terms: list[Term] = []
        for made, source in pairs:
            pair = self.program.add_variable()
            terms.append((pair, -nbytes[source] / facts.byte_unit))
            from_source.setdefault(source, []).append((pair, 1.0))
            if nbytes[source] >= nbytes[made]:
                to_made.setdefault(made, []).append((pair, 1.0))
        for source, several in from_source.items():
            alive = [(self._alive[source, k], 1.0)] if (source, k) in self._alive else []
            self.program.add_constraint([*several, *alive], 1.0)
        for several in to_made.values():
            self.program.add_constraint(several, 1.0)
        return facts.bytes_saved_in_place(moment) if pairs else 0, terms


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
