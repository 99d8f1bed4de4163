"""The equivalence checker: run the original and the rewritten program symbolically, and compare the results.

The checker knows nothing of policies. Its inputs are two programs, and the facts about in-place operators. A verdict
(`EquivalenceVerdict`) proves equal bits of all fetched and all persistable variables, for the tried trip counts and the
tried ways through branches; a condition computed from constants goes only its computed way. For a run that Paddle
itself aborts, such as a run with a read of an unwritten variable, the verdict proves less: no fetched or persistable
result depends on memory assigned by the rewriting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sublet.base.errors import Finding
from sublet.integrations.paddle.checking.control import run_block
from sublet.integrations.paddle.checking.ordinary_operators import VIEW, new_operand_types, unlisted_captures
from sublet.integrations.paddle.checking.storage import BranchOutcomes, Term, Terms
from sublet.integrations.paddle.checking.symbolic_machine import (
    KnownExtents,
    OriginalFacts,
    SymbolicRun,
    SymbolicStep,
    content_of,
    inplace_slots_of,
)
from sublet.integrations.paddle.format.program import TENSOR, PaddleOp, PaddleProgram

TRIPS = (0, 1, 2, 3)
"""Tried trip counts of loops without a known condition."""
MAX_COMBINATIONS = 64
"""Limit of tried combinations of branches for each trip count. Beyond, `every_way` of the verdict is False."""
INITIAL_STATE = PaddleOp("given", {}, {}, {})


@dataclass(frozen=True)
class EquivalenceVerdict:
    """Verdict on the equivalence of two programs.

    findings  the differences, each with block, operator and name; empty if the programs are equal
    trips     the tried trip counts of loops without a known condition
    every_way True if every combination of branches was tried for each trip count
    in_order  True if the verdict holds only for execution in program order: Paddle does not order operators by views of
              a common tensor (`FLAGS_new_executor_sequential_run=1` enforces program order)
    """

    findings: tuple[Finding, ...]
    trips: tuple[int, ...]
    every_way: bool
    in_order: bool = False

    @property
    def equal(self) -> bool:
        """True if no difference was found."""
        return not self.findings


def judge_equivalence(
    original: PaddleProgram,
    rewritten: PaddleProgram,
    sizes: KnownExtents,
    *,
    keep: Iterable[str] = (),
    trips: Iterable[int] = TRIPS,
    most_ways: int = MAX_COMBINATIONS,
) -> EquivalenceVerdict:
    """Return the verdict on the equivalence of two programs.

    `keep` names the fetched variables, `sizes` has the extents of the original, `trips` the trip counts to try, and
    `most_ways` limits the combinations of branches for each trip count.
    """
    findings = dict.fromkeys((*unlisted_captures(original, rewritten), *new_operand_types(original, rewritten)))
    kept, usual, every_way = frozenset(keep), inplace_slots_of(original), True
    tried: list[int] = []
    for count in trips:
        terms, asked = Terms(), False
        choices = BranchOutcomes(terms)
        for _ in choices.combinations(most_ways):
            known = OriginalFacts()
            first = SymbolicRun(original, terms, choices, count, kept, usual, known, sizes)
            second = SymbolicRun(rewritten, terms, choices, count, kept, usual, known)
            findings.update(dict.fromkeys(_compare_runs(first, second)))
            asked |= first.used_requested_trips or second.used_requested_trips
        every_way &= choices.all_tried
        if not asked:
            break  # all trip counts follow from the program: further counts change nothing
        tried.append(count)
    in_order = any(op.type == VIEW for block in rewritten.blocks for op in block.ops)
    return EquivalenceVerdict(tuple(findings), tuple(tried), every_way, in_order)


def _compare_runs(first: SymbolicRun, second: SymbolicRun) -> Iterator[Finding]:
    """Run both programs and yield the findings of each run and all differences of their results."""
    ends = [_run_program(first)]
    second.known.observed, second.known.absent = first.observed, first.absent
    ends.append(_run_program(second))
    yield from (*first.findings, *second.findings)
    for name, term in ends[0].items():
        if ends[1].get(name) != term:
            yield Finding("differs", f"%{name}", "ends with another value than in the original program")
    if first.observed != second.observed:
        yield Finding("differs", "the program", "fetches, or branches on, another value than the original program")


def _run_program(run: SymbolicRun) -> dict[str, Term]:
    """Run a program with all persistable and fed variables present, and return the final term of each kept name."""
    block = run.program.blocks[0]
    written = {name for op in block.ops for name in op.writes}
    for name, var in block.vars.items():
        if var.kind == TENSOR and (var.persistable or name not in written):
            SymbolicStep(run, block, -1, INITIAL_STATE, run.top).write_term(name, run.terms.term_of("given", name))
    run_block(run, 0, run.top, frozenset())
    lasting = [name for name, var in block.vars.items() if var.persistable or name in run.keep]
    return {name: _final_term(run, name) for name in lasting}


def _final_term(run: SymbolicRun, name: str) -> Term:
    """Return the term held by a name at the end; a new lost term if the bytes are mixed."""
    term = content_of(run.terms, run.top.find(name))
    return run.terms.lost_term(name) if term is None else term
