"""Fallback after a failed check: the choice of renamed values to copy, with bindings the checker could not follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sublet.analysis.alias_planner import NOT_FOLLOWED_BY_CHECKER
from sublet.base.errors import Finding
from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph, Value
from sublet.plan import MemoryPlan

MAX_NAMED_ATTEMPTS = 3
"""Attempts that copy only the renamed values named by findings. The next attempt copies all of them."""


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
