"""Data-flow queries and substitutions on programs: reads of nodes, assignments by control flow, renamed values.

results                the outputs and update sources of a graph
reads                  values read by a node at its own level: operands, and the outputs and conditions of sub-graphs
reads_inside           the same, with the reads of all nodes inside
captures               values of the enclosing graphs read by a sub-graph
required_values        values needed before a node starts: operands, and captures of its sub-graphs
producer_positions     the position of the node producing each value
producing_nodes        the node producing each value
assignments            the values assigned by control flow, with their possible sources
slices_and_rows        the slices and rows of one iteration of a loop
conflict_in            the reason why every run of a sub-graph fails
max_trip_count         the trip count allowed by the extents of a loop's sequences
iteration_of           the dimension of the iteration of a loop with extents that grow
map_subgraphs          a node with other sub-graphs
rename_values          a program with some values replaced
all_names              the names of all values and nodes of a program
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sublet.base.extents import Dimension, Extent
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.ir.graph import CaseOf, Graph, Node, Value, While

Substitution = Callable[[Value], Value]
"""A substitution: the value to use in place of a value."""


def results(graph: Graph) -> tuple[Value, ...]:
    """Return the values computed for the caller: outputs, followed by the sources of updates."""
    return (*graph.outputs, *(source for _, source in graph.updates))


def all_names(graph: Graph) -> Iterator[str]:
    """Yield the names of all values and nodes of a program."""
    yield from (value.name for value in graph.values())
    yield from (node.name for node in graph.walk())


def conditions_of(node: Node) -> tuple[Value, ...]:
    """Return the condition of a loop as a 1-tuple; an empty tuple for any other node."""
    return (node.condition,) if isinstance(node, While) else ()


def reads(node: Node) -> tuple[Value, ...]:
    """Return the values read by a node at its own level: inputs, and the outputs and conditions of its sub-graphs."""
    return (*node.uses, *(value for sub in node.subgraphs for value in sub.outputs), *conditions_of(node))


def reads_inside(node: Node) -> set[Value]:
    """Return all values read by a node and by the nodes of its sub-graphs, including values defined inside."""
    values = set(reads(node))
    for sub in node.subgraphs:
        for inner in sub.nodes:
            values |= reads_inside(inner)
    return values


def captures(graph: Graph, also: Iterable[Value] = ()) -> tuple[Value, ...]:
    """Return the values read but not defined in a sub-graph, each once, in order of first use.

    `also` are additional reads inside the sub-graph, for example the condition of a loop.
    """
    defined = set(graph.values())
    read = [value for node in graph.walk() for value in reads(node)]
    return tuple(value for value in dict.fromkeys([*read, *graph.outputs, *also]) if value not in defined)


def required_values(node: Node) -> tuple[Value, ...]:
    """Return the values of the enclosing graphs read by a node or inside the node; each once, in order of first use."""
    inside = (value for sub in node.subgraphs for value in captures(sub, conditions_of(node)))
    return tuple(dict.fromkeys([*node.uses, *inside]))


def producer_positions(nodes: Sequence[Node]) -> dict[Value, int]:
    """Return, for each value produced by nodes of one level, the position of the producing node."""
    return {value: i for i, node in enumerate(nodes) for value in node.defs}


def producing_nodes(nodes: Iterable[Node]) -> dict[Value, Node]:
    """Return the producing node of each value, for nodes of one level."""
    return {value: node for node in nodes for value in node.defs}


def assignments(node: Node) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """Yield each value assigned by a loop or branch, with all possible sources.

    A parameter of a loop takes the initial value or the update, in this order; a final value takes the parameter;
    an output of a branch takes the output of an arm, arm by arm, or the fallback. Slices and rows are parts of
    sequences, see `While`.
    """
    if isinstance(node, While):
        for parameter, final, *sources in zip(node.parameters, node.finals, node.inits, node.updates, strict=True):
            yield parameter, tuple(sources)
            if final is not None:
                yield final, (parameter,)
    elif isinstance(node, CaseOf):
        alternatives = [arm.outputs for arm in node.arms] + ([node.fallbacks] if node.fallbacks else [])
        for output, *several in zip(node.outputs, *alternatives, strict=True):
            if output is not None:
                yield output, tuple(several)


def slices_and_rows(loop: While) -> Iterator[tuple[str, Value, Value, int, bool]]:
    """Yield each "slice" of a sequence and each "row" of a stacked output as (kind, part, whole, axis, reversed).

    `reversed` is True if the loop starts at the far end of the axis.
    """
    for details in zip(loop.slices, loop.sequences, loop.slice_axes, loop.slice_reversed, strict=True):
        yield "slice", *details
    for part, whole, axis, backwards in zip(
        loop.rows, loop.stacked_outputs, loop.row_axes, loop.row_reversed, strict=True
    ):
        if whole is not None:
            yield "row", part, whole, axis, backwards


def conflict_in(graph: Graph) -> str:
    """Return the reason why every run of a graph fails, a shape conflict of a node; "" without one."""
    specs = (value.spec for node in graph.nodes for value in node.defs)
    return next((spec.reason for spec in specs if isinstance(spec, Unplannable) and spec.is_conflict), "")


def max_trip_count(loop: While) -> int | None:
    """Return the trip count allowed by the extents of all planned sequences and stacked outputs; None if unlimited."""
    axes = (*zip(loop.sequences, loop.slice_axes, strict=True), *zip(loop.stacked_outputs, loop.row_axes, strict=True))
    extents = [v.spec.shape[axis] for v, axis in axes if v is not None and isinstance(v.spec, TensorSpec)]
    return min(extents, default=None)


def iteration_of(node: Node) -> Dimension | None:
    """Return the dimension of the number of the iteration, for a loop with extents that grow; else None."""
    literal = node.counter.literal if isinstance(node, While) else None
    if literal is None or not isinstance(number := literal[0], Extent):
        return None
    (dimension,) = number.dimensions
    return dimension


def map_subgraphs(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """Return the node with `change` applied to each of its sub-graphs."""
    if isinstance(node, While):
        return replace(node, body=change(node.body))
    if isinstance(node, CaseOf):
        return replace(node, arms=tuple(map(change, node.arms)))
    return node


def with_results(graph: Graph, of: Substitution) -> Graph:
    """Return the graph with `of(value)` in place of each output and of each source of an update."""
    updates = tuple((target, of(source)) for target, source in graph.updates)
    return replace(graph, outputs=tuple(map(of, graph.outputs)), updates=updates)


def with_inputs(node: Node, of: Substitution) -> Node:
    """Return the node with `of(value)` in place of each of its inputs."""
    inputs = tuple(None if value is None else of(value) for value in node.inputs)
    return node if inputs == node.inputs else replace(node, inputs=inputs)


def rename_values(graph: Graph, names: Mapping[Value, Value], *, definitions: bool = True) -> Graph:
    """Return the graph with values replaced by `names` where read and, if `definitions`, where defined."""

    def of(value: Value) -> Value:
        return names.get(value, value)

    inputs, updates = graph.inputs, graph.updates
    if definitions:
        inputs, updates = tuple(map(of, inputs)), tuple((of(target), source) for target, source in updates)
    nodes = tuple(rename_values_in_node(node, names, definitions=definitions) for node in graph.nodes)
    return with_results(replace(graph, nodes=nodes, inputs=inputs, updates=updates), of)


def rename_values_in_node(node: Node, names: Mapping[Value, Value], *, definitions: bool = False) -> Node:
    """Return the node with values replaced by `names`, in its sub-graphs too; with `definitions` also where defined."""

    def of(value: Value) -> Value:
        return names.get(value, value)

    node = with_inputs(node, of)
    if definitions:
        node = replace(node, outputs=tuple(None if value is None else of(value) for value in node.outputs))
    if isinstance(node, While):
        node = replace(node, condition=of(node.condition))
    return map_subgraphs(node, lambda sub: rename_values(sub, names, definitions=definitions))
