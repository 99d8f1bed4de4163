"""The checker: replays a plan against graph and schedule, byte by byte, independently of the planner.

The checker imports nothing of analysis, packing or planning. From the graph, the facts of the ops, the schedule and the
plan, the checker derives the bytes read and written by every step.

    build_layout            the plan by itself: every value has bytes, inside a storage, aligned
    check_form              the schedule runs every node of this graph once
    check_storage_swaps     swapped storages of updated values; all proofs hold for a graph with redirected updates
    compute_contents        the bytes of every value: views and parts consist of bytes of their sources
    check_order             values are written before they are read
    ActionBuilder           the reads and writes of every node
    replay                  every read finds the bytes of its value, in every branch and every iteration, and no node
                            overwrites an operand still to be read
    check_races             steps without an order do not access the same bytes
    check_claims            all further claims: live ranges, sums, peak, copies, sharing, the lower bound

The graph must be legal (`ops.verify`) and the plan made for this graph: the caller compares fingerprints.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.base.errors import Finding, PlanViolation
from sublet.checker.bound import BoundStatus
from sublet.checker.claims import LABELS, PROVEN, check_claims
from sublet.checker.contents import byte_sources_of, compute_contents
from sublet.checker.layout import build_layout
from sublet.checker.moves import check_storage_swaps, redirect_updates
from sublet.checker.races import check_races
from sublet.checker.replay import replay
from sublet.checker.timeline import check_form, check_order
from sublet.ir.graph import CaseOf, Graph, While
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule

__all__ = ["LABELS", "PROVEN", "BoundStatus", "CheckResult", "check", "check_bytes", "judge", "require_valid"]


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: violations, and unproven claims as a map from the field of the plan to the reason."""

    findings: tuple[Finding, ...]
    unproven: dict[str, str] = field(default_factory=dict)
    bound: BoundStatus = field(default_factory=BoundStatus)

    @property
    def claim_status(self) -> dict[str, str]:
        """The status of each claim: proven, not proven with the reason, or a label; empty if there are violations."""
        if self.findings:
            return {}
        proven = {name: f"not proven: {self.unproven[name]}" if name in self.unproven else "proven" for name in PROVEN}
        return {**proven, **dict.fromkeys(LABELS, "a label")}


def judge(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> CheckResult:
    """Check the bytes of a plan, then the claims; a plan with wrong bytes skips the check of claims."""
    findings = check_bytes(graph, schedule, plan)
    if findings:
        return CheckResult(findings)
    claims = check_claims(redirect_updates(graph, plan), schedule, plan)
    return CheckResult(tuple(claims.findings), claims.unproven, claims.bound)


def check(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> tuple[Finding, ...]:
    """Return all violations. An empty result proves that the plan runs right, and that no checked claim is false."""
    return judge(graph, schedule, plan).findings


def check_bytes(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> tuple[Finding, ...]:
    """Return the violations of a run.

    An empty result proves that every read of a scheduled run finds the right bytes.
    """
    layout, findings = build_layout(graph, plan)
    malformed = [*check_form(graph, schedule), *check_storage_swaps(graph, plan)]
    if malformed or any(finding.rule == "illegal-graph" for finding in findings):
        return (*findings, *malformed)
    graph = redirect_updates(graph, plan)
    in_rows = {place.value for place in plan.placements if place.region.rows != 1}
    plain = (node for node in graph.walk() if not isinstance(node, While | CaseOf))
    origins = {node.name: byte_sources_of(node, in_rows) for node in plain}
    known = compute_contents(graph, origins)
    findings += check_order(graph, schedule)
    misread, accesses = replay(graph, schedule, layout, known, origins)
    return (*findings, *dict.fromkeys(check_races(graph, schedule, accesses, layout.cells)), *misread)


def require_valid(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> CheckResult:
    """Return the result of a check without violations. Raises PlanViolation with all violations, if there are any."""
    judged = judge(graph, schedule, plan)
    if judged.findings:
        raise PlanViolation(judged.findings)
    return judged
