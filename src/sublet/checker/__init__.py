"""The checker: replays a plan against graph and schedule, byte by byte. It judges the planner.

It shares no code with the rooms that plan: it knows the graph, the facts of the ops, the schedule and the
plan, and works out for itself which bytes every step reads and writes.

    lay_out         the plan by itself: every value has its bytes, inside a storage, aligned
    check_form      the schedule runs every node of this graph once
    check_exchange  memory that updated values exchange: what is proven is proven of a graph whose updates go there
    contents        what the bytes of every value are: views and parts are their sources' bytes
    check_order     data are there before they are read
    Actions         what every node reads and writes
    replay          every read finds the bytes of its value, in every branch and every round, and no node
                    writes over what it still reads
    check_races     steps that nothing orders do not touch the same bytes
    check_claims    what the plan says besides: lives, sums, peak, moves, sharing, the lower bound

The graph must be legal (`ops.verify`) and the plan made for it: comparing fingerprints is the
caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.base.errors import Finding, PlanViolation
from sublet.checker.bound import Standing
from sublet.checker.claims import LABELS, PROVEN, check_claims
from sublet.checker.contents import contents, sources
from sublet.checker.exchange import as_exchanged, check_exchange
from sublet.checker.layout import lay_out
from sublet.checker.order import check_form, check_order
from sublet.checker.races import check_races
from sublet.checker.replay import replay
from sublet.ir.graph import CaseOf, Graph, While
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule

__all__ = ["LABELS", "PROVEN", "Judgement", "Standing", "check", "check_bytes", "judge", "require_valid"]


@dataclass(frozen=True)
class Judgement:
    """What a check found: violations, and what is claimed without a proof (the field of the plan, and why)."""

    findings: tuple[Finding, ...]
    unproven: dict[str, str] = field(default_factory=dict)
    bound: Standing = field(default_factory=Standing)

    @property
    def claims(self) -> dict[str, str]:
        """Of each thing a plan says whether it is proven; nothing is when there are violations."""
        if self.findings:
            return {}
        proven = {name: f"not proven: {self.unproven[name]}" if name in self.unproven else "proven" for name in PROVEN}
        return {**proven, **dict.fromkeys(LABELS, "a label")}


def judge(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> Judgement:
    """Whether the plan runs right, and what it says about itself is true; that is not asked of one that runs wrong."""
    findings = check_bytes(graph, schedule, plan)
    if findings:
        return Judgement(findings)
    claims = check_claims(as_exchanged(graph, plan), schedule, plan)
    return Judgement(tuple(claims.findings), claims.unproven, claims.bound)


def check(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> tuple[Finding, ...]:
    """All violations: none means that the plan runs right, and that nothing it says is false."""
    return judge(graph, schedule, plan).findings


def check_bytes(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> tuple[Finding, ...]:
    """Those of a run alone; none is a proof that running the schedule in these regions reads the right bytes."""
    layout, findings = lay_out(graph, plan)
    malformed = [*check_form(graph, schedule), *check_exchange(graph, plan)]
    if malformed or any(finding.rule == "illegal-graph" for finding in findings):
        return (*findings, *malformed)
    graph = as_exchanged(graph, plan)
    origins = {node.name: sources(node) for node in graph.walk() if not isinstance(node, While | CaseOf)}
    known = contents(graph, origins)
    findings += check_order(graph, schedule)
    misread, accesses = replay(graph, schedule, layout, known, origins)
    return (*findings, *dict.fromkeys(check_races(graph, schedule, accesses, layout.cells)), *misread)


def require_valid(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> Judgement:
    """The judgement of a plan without violations. Raises PlanViolation with all of them, if there are any."""
    judged = judge(graph, schedule, plan)
    if judged.findings:
        raise PlanViolation(judged.findings)
    return judged
