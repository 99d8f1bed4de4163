"""The grammar of programs, written once: what nodes read, what control flow assigns, other values in their place.

results       what a graph is computed for
reads         what a node reads at its own level: what it takes, and what its sub-graphs give and test
reads_inside  the same, of all nodes inside as well
captures      what a sub-graph reads of the graphs around
needs         what has to be there when a node starts: what it takes, and what anything inside captures
makers        at which position the node stands that makes each value
made_by       which node makes each value
assignments   what control flow lets values be
steps         what each round of a loop takes of a whole, or adds to one
room          how many rounds a loop's sequences have steps for
mapped        a node with other sub-graphs
renamed       a program with other values in the place of some
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import CaseOf, Graph, Node, Value, While

Of = Callable[[Value], Value]
"""What stands in the place of a value."""


def results(graph: Graph) -> tuple[Value, ...]:
    """What a graph is computed for: its outputs, and the sources of its updates."""
    return (*graph.outputs, *(source for _, source in graph.updates))


def tested(node: Node) -> tuple[Value, ...]:
    """The condition of a loop."""
    return (node.condition,) if isinstance(node, While) else ()


def reads(node: Node) -> tuple[Value, ...]:
    """What a node reads at its own level: inputs, and what its sub-graphs give or test."""
    return (*node.uses, *(value for sub in node.subgraphs for value in sub.outputs), *tested(node))


def reads_inside(node: Node) -> set[Value]:
    """All that a node and the nodes of its sub-graphs read, what is defined in there included."""
    found = set(reads(node))
    for sub in node.subgraphs:
        for inner in sub.nodes:
            found |= reads_inside(inner)
    return found


def captures(graph: Graph, also: Iterable[Value] = ()) -> tuple[Value, ...]:
    """The values a sub-graph, or who reads `also` inside it, reads but does not define; in order of first use."""
    defined = set(graph.values())
    read = [value for node in graph.walk() for value in reads(node)]
    return tuple(value for value in dict.fromkeys([*read, *graph.outputs, *also]) if value not in defined)


def needs(node: Node) -> tuple[Value, ...]:
    """The values of the graphs around that a node, or anything inside it, reads; each once, in order of first use."""
    inside = (value for sub in node.subgraphs for value in captures(sub, tested(node)))
    return tuple(dict.fromkeys([*node.uses, *inside]))


def makers(nodes: Sequence[Node]) -> dict[Value, int]:
    """The position among nodes of one level of the one that makes each value."""
    return {value: i for i, node in enumerate(nodes) for value in node.defs}


def made_by(nodes: Iterable[Node]) -> dict[Value, Node]:
    """The node of one level that makes each value."""
    return {value: node for node in nodes for value in node.defs}


def assignments(node: Node) -> Iterator[tuple[Value, tuple[Value, ...]]]:
    """Each value that a loop or branch lets be another one, with all that it may be.

    A parameter of a loop is the initial value or the update, in this order; a final value is the parameter; an output
    of a branch is what an arm gives, arm by arm, or the fallback. Slices and rows are parts of others, see `While`.
    """
    if isinstance(node, While):
        for parameter, final, *sources in zip(node.parameters, node.finals, node.inits, node.updates, strict=True):
            yield parameter, tuple(sources)
            if final is not None:
                yield final, (parameter,)
    elif isinstance(node, CaseOf):
        ways = [arm.outputs for arm in node.arms] + ([node.fallbacks] if node.fallbacks else [])
        for output, *several in zip(node.outputs, *ways, strict=True):
            if output is not None:
                yield output, tuple(several)


def steps(loop: While) -> Iterator[tuple[str, Value, Value, int, bool]]:
    """Each "slice" of a sequence and "row" of a stacked output: (kind, part, whole, axis, whether from the far end)."""
    for details in zip(loop.slices, loop.sequences, loop.slice_axes, loop.slice_reversed, strict=True):
        yield "slice", *details
    for part, whole, axis, backwards in zip(loop.rows, loop.stacked, loop.row_axes, loop.row_reversed, strict=True):
        if whole is not None:
            yield "row", part, whole, axis, backwards


def room(loop: While) -> int | None:
    """The number of rounds that every planned sequence and stacked output of a loop has steps for; None for any."""
    axes = (*zip(loop.sequences, loop.slice_axes, strict=True), *zip(loop.stacked, loop.row_axes, strict=True))
    extents = [v.spec.shape[axis] for v, axis in axes if v is not None and isinstance(v.spec, TensorSpec)]
    return min(extents, default=None)


def mapped(node: Node, change: Callable[[Graph], Graph]) -> Node:
    """The node with each of its sub-graphs changed."""
    if isinstance(node, While):
        return replace(node, body=change(node.body))
    if isinstance(node, CaseOf):
        return replace(node, arms=tuple(map(change, node.arms)))
    return node


def with_results(graph: Graph, of: Of) -> Graph:
    """The graph with `of(value)` in place of each output and source of an update."""
    updates = tuple((target, of(source)) for target, source in graph.updates)
    return replace(graph, outputs=tuple(map(of, graph.outputs)), updates=updates)


def with_inputs(node: Node, of: Of) -> Node:
    """The node with `of(value)` in place of each of its inputs."""
    inputs = tuple(None if value is None else of(value) for value in node.inputs)
    return node if inputs == node.inputs else replace(node, inputs=inputs)


def renamed(graph: Graph, names: Mapping[Value, Value], *, definitions: bool = True) -> Graph:
    """The graph with other values in the place of some, where they are read and, if so wished, defined."""

    def of(value: Value) -> Value:
        return names.get(value, value)

    inputs = tuple(map(of, graph.inputs)) if definitions else graph.inputs
    nodes = tuple(renamed_in(node, names, definitions=definitions) for node in graph.nodes)
    return with_results(replace(graph, nodes=nodes, inputs=inputs), of)


def renamed_in(node: Node, names: Mapping[Value, Value], *, definitions: bool = False) -> Node:
    """The node with other values in the place of some, in its sub-graphs too."""

    def of(value: Value) -> Value:
        return names.get(value, value)

    node = with_inputs(node, of)
    if definitions:
        node = replace(node, outputs=tuple(None if value is None else of(value) for value in node.outputs))
    if isinstance(node, While):
        node = replace(node, condition=of(node.condition))
    return mapped(node, lambda sub: renamed(sub, names, definitions=definitions))
