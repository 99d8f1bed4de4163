"""Plans for ranges of dimensions: one plan, valid at every point of a box.

    facts_over_box       the sharing facts that hold at every point, with offsets as expressions
    plan_over_ranges     the plan of the upper bounds of all sizes, and the same plan with expressions

The blocks of the plan have fixed offsets: every value has room for its upper bound over the box, and shrinks in place.
Offsets within a block, of views and concat operands, are expressions. A sharing fact of the largest sizes may be false
elsewhere (`Add(a[s], b[t])` may overwrite `a` at s = t, and not at s = 1), so the planner sees only facts that are
proven for the box.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

from sublet.analysis.options import Options, Progress
from sublet.analysis.program_facts import ProgramFacts, SharingFacts
from sublet.base.errors import Finding, PlanError, PlanViolation
from sublet.base.extents import Extent, is_ranged, upper_bound
from sublet.checker.box import check_box
from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph, Node
from sublet.ir.model import Model
from sublet.ops import Share, lookup
from sublet.ops.op import shares_of
from sublet.plan import ARENA, MemoryPlan, Region, bound_storage_name
from sublet.plan.ranges import RangedPlan, graph_at
from sublet.planning.pipeline import plan_memory

MOST_ATTEMPTS = 8
"""Plans with fewer and fewer sharing facts, before a plan without any."""

NO_FACTS = SharingFacts((), (), ())
_NAMED_VALUE = re.compile(r"%([^\s:,;]+)")

Link = tuple[str, str, int]
"""Two values and the distance in bytes, an expression, from the first to the second."""


def plan_over_ranges(model: Model, options: Options | None = None, progress: Progress | None = None) -> RangedPlan:
    """Return the plan of a model over ranges, proven for every point by the checker.

    Where the checker refuses a plan, the nodes around the refused values share no bytes in the next attempt; in the
    last attempt no node does. Raises PlanError for several streams or arenas, PlanViolation if the checker refuses even
    the last plan, and the errors of `plan_memory`.
    """
    options = options or Options()
    if options.streams > 1 or options.regions or options.weights != "bound":
        raise PlanError("ranges of dimensions need one stream, one arena, and weights outside")
    known = facts_over_box(model.graph, options.alignment)
    for attempt in count():
        try:
            ranged = _plan_with_facts(model, options, progress, known)
            findings = check_box(ranged.box, ranged.within, ranged.at)
        except PlanViolation as violation:  # of the upper bounds, which may belong to no single point
            findings = violation.findings
        if not findings:
            return ranged
        fewer = _without_refused(model.graph, known, findings) if attempt < MOST_ATTEMPTS else {}
        if not any(_is_sharing(each) for each in known.values()):
            raise PlanViolation(findings)
        known = {name: fewer.get(name, NO_FACTS) for name in known}
    raise AssertionError("unreachable")


def _plan_with_facts(
    model: Model, options: Options, progress: Progress | None, known: Mapping[str, SharingFacts]
) -> RangedPlan:
    """Return the plan of the upper bounds with the given facts, and the same plan with expressions."""
    worst = graph_at(model.graph, upper_bound)
    facts = _BoxFacts(worst, {name: _at_upper_bounds(each) for name, each in known.items()})
    bound = replace(model, graph=worst, dims={name: upper_bound(extent) for name, extent in model.dims.items()})
    plan = plan_memory(bound, options, progress=progress, facts=facts)
    extents: Iterable[tuple[str, Any]] = model.dims.items()
    equal = [(n, d.name) for n, e in extents if isinstance(e, Extent) for d in e.dimensions if d.name != n]
    return ranged_plan(replace(plan, ranges=model.ranges, equal_dims=tuple(equal)), model.graph, known)


def ranged_plan(plan: MemoryPlan, graph: Graph, facts: Mapping[str, SharingFacts] | None = None) -> RangedPlan:
    """Return the plan of the upper bounds with expressions, for its graph over ranges; `check_box` proves the result.

    `facts` are the sharing facts that the plan was made with, by node; all facts over the box if left out.
    """
    known = facts_over_box(graph, plan.alignment) if facts is None else facts
    return RangedPlan(plan, _with_expressions(plan, graph, known), graph, plan.ranges)


def _is_sharing(facts: SharingFacts) -> bool:
    """True if a node may share bytes."""
    return bool(facts.views or facts.parts or facts.inplace)


def _without_refused(
    graph: Graph, known: Mapping[str, SharingFacts], findings: Sequence[Finding]
) -> dict[str, SharingFacts]:
    """Return the facts without those of the nodes around the values in the findings; none if no node has any there."""
    text = " ".join(f"{each.where} {each.what}" for each in findings)
    named = set(_NAMED_VALUE.findall(text))
    refused = {
        node.name
        for node in graph.walk()
        if not named.isdisjoint(value.name for value in (*node.uses, *node.defs))
        and _is_sharing(known.get(node.name, NO_FACTS))
    }
    return {name: NO_FACTS if name in refused else each for name, each in known.items()} if refused else {}


def facts_over_box(graph: Graph, alignment: int) -> dict[str, SharingFacts]:
    """Return, by node, the sharing facts at every point. Offsets are expressions, aligned alike at every point."""
    facts: dict[str, SharingFacts] = {}
    for node in graph.walk():
        if not node.subgraphs:
            op = lookup(node.op)
            views, parts, inplace = (_proven_shares(each, node, alignment) for each in (op.views, op.parts, op.inplace))
            facts[node.name] = SharingFacts(views, parts, inplace)
    return facts


def _proven_shares(shares: Callable[[Node], tuple[Share, ...]], node: Node, alignment: int) -> tuple[Share, ...]:
    """Return the shares of a node proven for the box; none if a comparison differs within the box."""
    return tuple(share for share in shares_of(node, shares) if not is_ranged(share.offset % alignment))


def _at_upper_bounds(facts: SharingFacts) -> SharingFacts:
    """Return the facts with the upper bounds of all offsets."""
    views, parts, inplace = (
        tuple(share._replace(offset=upper_bound(share.offset)) for share in shares)
        for shares in (facts.views, facts.parts, facts.inplace)
    )
    return SharingFacts(views, parts, inplace)


class _BoxFacts(ProgramFacts):
    """The facts of a program at the upper bounds of all sizes: only sharing facts that hold at every point."""

    obstacle = "plans over ranges rename no values, and copy slices and rows"

    def __init__(self, graph: Graph, known: Mapping[str, SharingFacts]) -> None:
        super().__init__(graph)
        self._known = known

    def sharing_facts_of(self, node: Node) -> SharingFacts:
        """Return the sharing facts of a program node."""
        return self._known[node.name]

    @cached_property
    def row_facts(self) -> Mapping[str, Any]:
        """No facts of rows: their pitch would differ from point to point."""
        return {}


def _with_expressions(plan: MemoryPlan, graph: Graph, facts: Mapping[str, SharingFacts]) -> MemoryPlan:
    """Return the plan with expressions as sizes, and as offsets of values within a buffer."""
    values = {value.name: value for value in graph.values()}
    offsets = _offsets_within_buffers(plan, list(_links(graph, facts)))
    placements = tuple(
        replace(
            place,
            spec=str(values[place.value].spec),
            region=replace(
                place.region, offset=offsets.get(place.value, place.region.offset), nbytes=values[place.value].nbytes
            ),
        )
        for place in plan.placements
    )
    owners = {bound_storage_name(name): value for name, value in values.items()}
    storages = tuple(
        each if each.kind == ARENA else replace(each, nbytes=owners[each.name].nbytes) for each in plan.storages
    )
    return replace(plan, placements=placements, storages=storages)


def _links(graph: Graph, facts: Mapping[str, SharingFacts]) -> Iterator[Link]:
    """Yield the distances between values that may lie in one buffer."""
    for node in graph.walk():
        yield from ((source.name, to.name, 0) for to, sources in assignments(node) for source in sources)
        known = facts.get(node.name)
        for shares, sign in ((known.views, 1), (known.parts, -1), (known.inplace, 1)) if known else ():
            for share in shares:
                out, read = node.outputs[share.output], node.inputs[share.input]
                if out is not None and read is not None:
                    yield read.name, out.name, sign * share.offset


@dataclass
class _Member:
    """A value of a buffer: its region at the upper bounds, and its links."""

    region: Region
    links: list[tuple[str, int]]


def _offsets_within_buffers(plan: MemoryPlan, links: list[Link]) -> dict[str, int]:
    """Return the offset of every value as an expression, from the first value of each buffer.

    A link counts if both values lie at its distance in the plan.
    """
    places = {place.value: place for place in plan.placements if place.buffer >= 0 and not place.copies}
    members = {name: _Member(place.region, []) for name, place in places.items()}
    for one, other, distance in links:
        if one in places and other in places and places[one].buffer == places[other].buffer:
            apart = places[other].region.offset - places[one].region.offset
            if apart == upper_bound(distance) or -apart == upper_bound(-distance):
                members[one].links.append((other, distance))
                members[other].links.append((one, -distance))
    offsets: dict[str, int] = {}
    for name in sorted(members, key=lambda name: (members[name].region.offset, -members[name].region.nbytes)):
        if name in offsets:
            continue
        offsets[name] = members[name].region.offset
        todo = [name]
        while todo:
            here = todo.pop()
            for other, distance in members[here].links:
                if other not in offsets:
                    offsets[other] = offsets[here] + distance
                    todo.append(other)
    return offsets
