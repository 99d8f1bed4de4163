"""Descriptions of unrolled loops: the body version of each iteration, and the bindings of renamed values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sublet.ir.graph import CaseOf, Graph, While
from sublet.plan.records import OPEN, POINTER, Context, MemoryPlan, Placement, RolledLoop


def iteration_lines(record: RolledLoop) -> Iterator[str]:
    """Yield lines that say which body version each iteration of a loop runs."""
    within = f" in {_format_context(record.within)}" if record.within else ""
    yield f"loop {record.loop}{within}: {record.copies} body versions, @0 to @{record.copies - 1}"
    if not record.jumps:
        first, ring = record.first, record.ring
        later = f"@{first} + (r - {first}) % {ring}" if first else f"@r % {ring}"
        yield f"iteration r runs @r while r < {first}, then {later}" if first else f"iteration r runs {later}"
        return
    for copy in range(record.copies):
        for ways, following in record.possible_successors(copy):
            left = " and ".join(f"{name} took exit {way}" for name, way in ways)
            yield f"after @{copy} comes @{following}{f' if {left}' if left else ''}"


def binding_descriptions(plan: MemoryPlan, graph: Graph | None) -> Mapping[str, str]:
    """Return a description of the binding of every renamed value, by name. Without a graph: all possible bindings."""
    descriptions = {
        place.value: f"bound to {' or '.join(place.stands_for)}" for place in plan.placements if place.how == POINTER
    }
    for node in graph.walk() if graph else ():
        if isinstance(node, While):
            descriptions |= _entry_descriptions(
                plan, node, [value.name for value in node.parameters if value.name in descriptions]
            )
            ends = zip(node.finals, node.parameters, strict=True)
            descriptions |= {
                final.name: f"bound to the last {parameter.name} of {node.name}"
                for final, parameter in ends
                if final is not None and final.name in descriptions
            }
        if isinstance(node, CaseOf):
            for i, output in enumerate(node.outputs):
                if output is not None and output.name in descriptions:
                    arms = (f"{arm.outputs[i].name} of arm {k}" for k, arm in enumerate(node.arms))
                    otherwise = f", {node.fallbacks[i].name} of no arm" if node.fallbacks else ""
                    descriptions[output.name] = f"bound to the result of {node.name}: {', '.join(arms)}{otherwise}"
    return descriptions


def _entry_descriptions(plan: MemoryPlan, loop: While, names: list[str]) -> Mapping[str, str]:
    """Return descriptions of the entry bindings of a loop's parameters, in each body version."""
    bindings: dict[str, list[str]] = {name: [] for name in names}
    for record in plan.rolled:
        if record.loop != loop.name:
            continue
        for copy, heads in enumerate(record.heads):
            at = _format_context((*record.within, (record.loop, copy)))
            for name, number in zip(names, heads, strict=True):
                what = (
                    "a value decided at run time"
                    if number == OPEN
                    else label_with_region(plan, plan.placements[number])
                )
                bindings[name].append(f"in {at} {what}")
    return {name: ", ".join(lines) for name, lines in bindings.items() if lines}


def label_with_region(plan: MemoryPlan, place: Placement) -> str:
    """Return the name of a tensor, with the number of the region for a tensor with several regions."""
    regions = list(dict.fromkeys(other.region for other in plan.placements if other.value == place.value))
    return place.value if len(regions) == 1 else f"{place.value} {regions.index(place.region)}"


def _format_context(context: Context) -> str:
    return "/".join(f"{loop}@{copy}" for loop, copy in context)
