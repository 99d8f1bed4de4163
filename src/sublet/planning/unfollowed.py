"""What is copied in the next plan because the checker could not follow where this one points."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sublet.analysis.layouts import NOT_FOLLOWED
from sublet.base.errors import Finding
from sublet.ir.graph import Graph, Value
from sublet.ir.walk import assignments
from sublet.plan import MemoryPlan

MOST_NAMED = 3
"""So often only the pointers that findings name are given up; then all are."""


def unfollowed(
    graph: Graph, findings: Sequence[Finding], before: Collection[Value], *, by_name: bool
) -> frozenset[Value]:
    """What may be no pointer: what loops and branches assign that the findings name, and what was none `before`.

    When they name nothing new, or `by_name` is false, nothing may be a pointer.
    """
    assigned = {node.name: frozenset(to for to, _ in assignments(node)) for node in graph.walk() if node.subgraphs}
    told = {name for finding in findings for name in finding.names}
    named = [values for name, values in assigned.items() if not told.isdisjoint({name, *(v.name for v in values)})]
    more = frozenset(before).union(*named)
    return more if by_name and more != frozenset(before) else frozenset().union(*assigned.values())


def followed(plan: MemoryPlan) -> bool:
    """Whether the checker could follow all that planning would have pointed at."""
    return all(move.why != NOT_FOLLOWED for move in plan.moves)
