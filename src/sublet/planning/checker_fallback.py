"""Fallback after a failed check: the choice of renamed values to copy, with bindings the checker could not follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sublet.analysis.alias_planner import NOT_FOLLOWED_BY_CHECKER
from sublet.base.errors import Finding
from sublet.checker import CheckResult
from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph, Value
from sublet.packing import Buffer, Packing, Problem, lower_bound
from sublet.packing.normalize import normalize
from sublet.packing.search import SEARCH, Limits, decide_capacity
from sublet.plan import MemoryPlan

MAX_NAMED_ATTEMPTS = 3
"""Attempts that copy only the renamed values of loops and branches named by findings. The next attempt copies all."""


def carries_to_copy(
    graph: Graph, findings: Sequence[Finding], before: Collection[Value], *, by_name: bool
) -> frozenset[Value]:
    """Return the loop-carried values to copy in the next attempt: the values named by findings, plus all in `before`.

    `before` holds the values already copied. If the findings name no new value, or with `by_name` false, all values
    assigned by loops and branches are returned.
    """
    assigned = {node.name: frozenset(to for to, _ in assignments(node)) for node in graph.walk() if node.subgraphs}
    named_in_findings = {name for finding in findings for name in finding.names}
    named = [
        values
        for name, values in assigned.items()
        if not named_in_findings.isdisjoint({name, *(v.name for v in values)})
    ]
    more = frozenset(before).union(*named)
    return more if by_name and more != frozenset(before) else frozenset().union(*assigned.values())


def is_without_fallback(plan: MemoryPlan) -> bool:
    """True if the checker could follow every binding the planner wanted."""
    return all(move.why != NOT_FOLLOWED_BY_CHECKER for move in plan.moves)


# Repeated proof of a lower bound that a search found: no placement of the same buffers is smaller.
#
# The checker follows proofs by sets of buffers. Smaller arenas that a search refuted can only be refuted by another
# search: this module runs the packing core again, on the buffers with the live ranges found by the checker.

BOUND_FIELD = "lower_bound_bytes"


def reprove_bound(plan: MemoryPlan, checked: CheckResult) -> CheckResult:
    """Return the judgement with the bound proven, false, or unproven for a better reason.

    The judgement is returned unchanged if it has findings or if its bound is settled.
    """
    needed = checked.bound.must_live_buffers
    if checked.findings or not checked.bound.unproven_reason or not needed:
        return checked
    if len(plan.arenas) != 1 or any(step.stream for step in plan.schedule.steps):
        return _with_unproven_bound(checked, "only a bound for one arena and one stream can be proven again")
    strips = [block.segments for block in needed.values() if block.segments]
    if any(len(several) > 1 for several in strips):
        return _with_unproven_bound(checked, "only a bound of buffers needed as a whole can be proven again")
    buffers = [
        Buffer.alive_in(str(number), strip.high - strip.low, strip.live, plan.alignment)
        for number, (strip,) in enumerate(strips)
    ]
    problem = normalize(Problem(tuple(buffers))).problem
    known = Packing(tuple(strip.low for (strip,) in strips), plan.arena_bytes, plan.strategy)
    repeated = decide_capacity(problem, plan.lower_bound_bytes - 1, lower_bound(problem), known, Limits())
    if repeated.packing.arena_bytes < plan.lower_bound_bytes:
        claim = f"is {plan.lower_bound_bytes} bytes, but a packing exists with "
        finding = Finding("false-bound", "the lower bound", claim + f"{repeated.packing.arena_bytes}")
        return replace(checked, findings=(finding,))
    if repeated.bound.bytes >= plan.lower_bound_bytes:
        unproven = {name: why for name, why in checked.unproven.items() if name != BOUND_FIELD}
        return replace(checked, unproven=unproven, bound=replace(checked.bound, unproven_reason=""))
    return _with_unproven_bound(checked, f"the {SEARCH} ended before refuting {plan.lower_bound_bytes - 1} bytes")


def _with_unproven_bound(checked: CheckResult, why: str) -> CheckResult:
    """Return the judgement with an unproven bound and the reason `why`."""
    return replace(
        checked, unproven={**checked.unproven, BOUND_FIELD: why}, bound=replace(checked.bound, unproven_reason=why)
    )
