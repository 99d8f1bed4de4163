"""Hypothetical graphs: variants of a graph with a single change, to measure the memory the change would save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sublet.base.bytesize import human
from sublet.base.escape import abbreviated_list
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import reads_inside, rename_values, results
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops import lookup, present_shares
from sublet.passes.sink_invariant import input_independent_nodes
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule
from sublet.plan.verdict import buffers_at_peak

MAX_LISTED_READERS = 3


@dataclass(frozen=True, slots=True)
class HypotheticalGraph:
    """A changed graph, the change, and the way to make the change."""

    what: str
    how: str
    graph: Graph


@dataclass(frozen=True, slots=True)
class StoredConstants:
    """A graph with constants stored as weights: the number of new weights, and the bytes of all weights."""

    graph: Graph
    count: int
    bytes_before: int
    bytes_after: int


def in_schedule_order(graph: Graph, schedule: Schedule) -> Graph:
    """Return the graph with its nodes, on every level, in the order of a serial schedule."""
    nodes = {node.name: node for node in graph.nodes}
    return replace(graph, nodes=tuple(_with_scheduled_bodies(nodes[step.node], schedule) for step in schedule.steps))


def _with_scheduled_bodies(node: Node, schedule: Schedule) -> Node:
    """Return a loop or branch with scheduled sub-graphs; other nodes unchanged."""
    bodies = schedule.bodies.get(node.name, ())
    if isinstance(node, While):
        return replace(node, body=in_schedule_order(node.body, bodies[0]))
    if isinstance(node, CaseOf):
        arms = (in_schedule_order(arm, body) for arm, body in zip(node.arms, bodies, strict=True))
        return replace(node, arms=tuple(arms))
    return node


def store_constants(graph: Graph) -> StoredConstants | None:
    """Return the graph with values computed from constants alone as weights; None if no value qualifies.

    Values of the root level only. None as well if a stored value would be an output or is unplannable.
    """
    computed = input_independent_nodes(graph)
    rest = tuple(node for node in graph.nodes if node.name not in computed)
    wanted = {*results(graph), *(value for pair in graph.updates for value in pair)}
    wanted.update(*(reads_inside(node) for node in rest))
    made = [value for node in graph.nodes if node.name in computed for value in node.defs if value in wanted]
    if not made or any(value in results(graph) or not value.plannable for value in made):
        return None
    kept = tuple(weight for weight in graph.weights if weight in wanted)
    changed = replace(graph, nodes=rest, weights=(*kept, *made))
    return StoredConstants(changed, len(made), _total_bytes(graph.weights), _total_bytes(changed.weights))


def _total_bytes(values: tuple[Value, ...]) -> int:
    """Return the bytes of all values together."""
    return sum(value.nbytes for value in values)


def propose_overwrites(graph: Graph, name: str) -> Iterator[HypotheticalGraph]:
    """Yield the graphs in which the node `name` overwrites an operand that later nodes read today.

    In each graph the later readers of one operand read the result of the node instead.
    """
    place = next((i for i, node in enumerate(graph.nodes) if node.name == name and not node.subgraphs), None)
    if place is None:
        return
    node, later = graph.nodes[place], graph.nodes[place + 1 :]
    for result, operand, _ in present_shares(node, lookup(node.op).inplace(node)):
        if operand.spec != result.spec:
            continue
        if operand in graph.weights or operand in results(graph):
            continue
        readers = [each.name for each in later if operand in reads_inside(each)]
        if readers:
            instead = rename_values(replace(graph, nodes=later), {operand: result}, definitions=False)
            changed = replace(graph, nodes=(*graph.nodes[: place + 1], *instead.nodes))
            what = f"{name!r} written over %{operand.name}, if nothing reads %{operand.name} later"
            yield HypotheticalGraph(
                what, f"another network: {abbreviated_list(readers, MAX_LISTED_READERS)} must not read it", changed
            )


def halve_precision(graph: Graph, plan: MemoryPlan) -> HypotheticalGraph | None:
    """Return the graph with the largest buffer at the peak in f16 instead of f32; None if impossible.

    All f32 values sharing the buffer change. Impossible for updated values and weights.
    """
    alive = buffers_at_peak(plan)
    if not alive:
        return None
    first = alive[0].values[0]
    number = next(place.buffer for place in plan.in_arenas if place.value == first)
    names = {place.value for place in plan.in_arenas if place.buffer == number}
    half = {
        value: replace(value, spec=replace(value.spec, dtype=DType.F16))
        for value in graph.values()
        if value.name in names and isinstance(value.spec, TensorSpec) and value.spec.dtype is DType.F32
    }
    if not half or any(value in graph.updated_values or value in graph.weights for value in half):
        return None
    largest = max(half, key=lambda value: value.nbytes)
    others = f" and the {len(half) - 1} that share its bytes" if len(half) > 1 else ""
    what = f"%{largest.name} ({human(largest.nbytes)}, the largest at the peak){others} in f16"
    return HypotheticalGraph(what, "other numbers: half the precision for these tensors", rename_values(graph, half))
