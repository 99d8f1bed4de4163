"""The checker: replays a plan against graph and schedule, byte by byte. It judges the planner.

It shares no code with the planner: it knows the graph, the facts of the ops, the schedule and the
plan, and works out for itself which bytes every step reads and writes.

    lay_out         the plan by itself: every value has its bytes, inside a storage, aligned
    check_form      the schedule runs every node of this graph once
    contents        what the bytes of every value are: views and parts are their sources' bytes
    check_order     data are there before they are read
    Actions         what every node reads and writes
    check_races     steps that nothing orders do not touch the same bytes
    replay          every read finds the bytes of its value, in every branch and every round, and no node
                    writes over what it still reads

The graph must be legal (`ir.verify`) and the plan made for it: comparing fingerprints is the
caller's business.
"""

from __future__ import annotations

from sublet.analysis.schedule import Schedule, happens_before
from sublet.checker.actions import Actions
from sublet.checker.contents import contents, sources
from sublet.checker.layout import lay_out
from sublet.checker.order import check_form, check_order
from sublet.checker.races import check_races
from sublet.checker.replay import replay
from sublet.errors import Finding, PlanViolation
from sublet.ir.graph import CaseOf, Graph, While
from sublet.plan import MemoryPlan

__all__ = ["check", "require_valid"]


def check(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> tuple[Finding, ...]:
    """All violations; none is a proof that running the schedule in these regions reads the right bytes."""
    layout, findings = lay_out(graph, plan)
    malformed = [*check_form(graph, schedule)]
    if malformed or any(finding.rule == "illegal-graph" for finding in findings):
        return (*findings, *malformed)
    origins = {node.name: sources(node) for node in graph.walk() if not isinstance(node, While | CaseOf)}
    known = contents(graph, origins)
    findings += check_order(graph, schedule)
    if not _total(schedule) and (layout.pointers or layout.turning or layout.cells.known):
        what = "has values that take turns among regions, or move from round to round, in a program of several streams"
        return (*findings, Finding("race", "the plan", what, "plan it with one stream, or without pointers"))
    builder = Actions(layout, known, origins)
    findings += check_races(graph, schedule, layout, {node.name: builder.of(node) for node in graph.walk()})
    findings += replay(graph, schedule, layout, known, origins)
    return tuple(findings)


def _total(schedule: Schedule) -> bool:
    """Whether all steps come one after another, in sub-graphs too."""
    bodies = (body for several in schedule.bodies.values() for body in several)
    ordered = all(mask == (1 << i) - 1 for i, mask in enumerate(happens_before(schedule)))
    return ordered and all(_total(body) for body in bodies)


def require_valid(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> None:
    """Raises PlanViolation with all violations, if there are any."""
    findings = check(graph, schedule, plan)
    if findings:
        raise PlanViolation(findings)
