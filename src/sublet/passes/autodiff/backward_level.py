"""State of the differentiation of one level of a program, and removal of dead nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.base.errors import GradientError
from sublet.base.names import NameGenerator
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import map_subgraphs, rename_values, rename_values_in_node, required_values
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.emitter import Emitter
from sublet.passes.autodiff.checkpoint_schedules import Checkpoints
from sublet.passes.gradient_sums import Box, Contributions

# Copies of nodes and graphs with fresh names for all definitions, including sub-graphs.


def copy_node(
    node: Node, names: NameGenerator, scope: str, now: Mapping[Value, Value]
) -> tuple[Node, dict[Value, Value]]:
    """Return a copy of the node with operands replaced by `now`, and the new outputs by the old outputs."""
    made = {value: _fresh_value(value, names, scope) for value in node.outputs if value is not None}
    inside = {v: _fresh_value(v, names, scope) for sub in node.subgraphs for v in sub.values()}
    copy = rename_values_in_node(node, {**now, **inside, **made}, definitions=True)
    name = next((value.name for value in made.values()), node.name)
    return replace(_with_fresh_names(copy, names), name=name), made


def copy_graph(graph: Graph, names: NameGenerator) -> Graph:
    """Return a copy of a sub-graph with fresh names."""
    own = {value: _fresh_value(value, names, "") for value in graph.values()}
    return _graph_with_fresh_names(rename_values(graph, own), names)


def _fresh_value(value: Value, names: NameGenerator, scope: str) -> Value:
    return replace(value, name=names.fresh(f"{scope}{value.name}"))


def _with_fresh_names(node: Node, names: NameGenerator) -> Node:
    return map_subgraphs(node, lambda sub: _graph_with_fresh_names(sub, names))


def _graph_with_fresh_names(graph: Graph, names: NameGenerator) -> Graph:
    nodes = tuple(replace(_with_fresh_names(node, names), name=names.fresh(node.name)) for node in graph.nodes)
    return replace(graph, name=names.fresh(graph.name), nodes=nodes)


SCALAR = TensorSpec(DType.I64)

Contribution = tuple[Value, Value, Box | None]
"""A contribution: (value, gradient, box). The gradient is of the whole value if the box is None."""

Run = Callable[["BackwardLevel", Sequence[Node], Contributions], None]
"""(level, nodes, contributions): the backward walk over the nodes of a level."""


@dataclass
class BackwardContext:
    """State shared by all levels of a program during differentiation.

    active           values depending on a value of `wrt`
    makers           the forward node defining each value
    run              the backward walk over the nodes of a level
    checkpoints      how loops are differentiated
    recompute_loops  by name, the loops already in their final form: True if iterations are recomputed
    """

    active: set[Value]
    makers: dict[Value, Node]
    run: Run
    checkpoints: Checkpoints = None
    recompute_loops: dict[str, bool] = field(default_factory=dict)


@dataclass
class BackwardLevel:
    """A level of a program during differentiation.

    `emit` writes the backward; `forward` holds the forward nodes of the same level and may be the same emitter. A loop
    or branch in need of more outputs is replaced in `forward` by a node of the same name.
    """

    emit: Emitter
    forward: Emitter
    context: BackwardContext = field(repr=False)

    def current_version(self, node: Node) -> Node:
        """Return the current version of a node, possibly with more outputs than the original."""
        return next(found for found in self.forward.nodes if found.name == node.name)

    def replace_node(self, node: Node, *by: Node) -> None:
        """Replace the node of this name by the nodes `by`."""
        position = next(i for i, found in enumerate(self.forward.nodes) if found.name == node.name)
        self.forward.nodes[position : position + 1] = by

    def sublevel(self, graph: Graph) -> BackwardLevel:
        """Return the level of a sub-graph."""
        inner = BackwardLevel(self.emit.for_subgraph(), self.forward.for_subgraph(), self.context)
        inner.forward.nodes.extend(graph.nodes)
        return inner

    def fresh_value(self, hint: str, spec: TensorSpec) -> Value:
        """Return a new value of the backward."""
        return Value(self.emit.names.fresh(f"{self.emit.scope}{hint}"), spec)


def zero_gradient(emit: Emitter, value: Value) -> Value:
    """Return zeros as the gradient of a value without contributions."""
    if isinstance(value.spec, TensorSpec):
        return emit.full(0, value.spec)
    assert value.spec.dtype is not None, "only floating-point values have a gradient"
    extents = tuple(extent or 0 for extent in value.spec.dims or ())
    return emit.full(0, TensorSpec(value.spec.dtype, extents))  # run-time rows: a value without contributions has none


def makers_of(nodes: Iterable[Node]) -> dict[Value, Node]:
    """Return the node defining each value, including sub-graphs."""
    makers: dict[Value, Node] = {}
    for node in nodes:
        makers.update((value, node) for value in node.defs)
        for sub in node.subgraphs:
            makers.update(makers_of(sub.nodes))
    return makers


def nodes_needed_for(
    nodes: Sequence[Node], outputs: Iterable[Value], always: set[str] | frozenset[str] = frozenset()
) -> list[Node]:
    """Return the nodes reachable backwards from `outputs`, and the nodes named in `always`, in order."""
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        if node.name in always or any(value in wanted for value in node.defs):
            wanted.update(required_values(node))
            kept.append(node)
    return kept[::-1]


def gradient_error(node: Node, what: str) -> GradientError:
    """Return a GradientError naming the node and the source line of the node."""
    return GradientError(f"node {node.label}: {what}")
