"""State of the differentiation of one level of a program, and removal of dead nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from sublet.base.errors import GradientError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import needs
from sublet.ops.emitter import Emitter
from sublet.passes.accumulate import Box, Contributions
from sublet.passes.autodiff.schedules import Checkpoints

SCALAR = TensorSpec(DType.I64)

Flow = tuple[Value, Value, Box | None]
"""A contribution: (value, gradient, box). The gradient is of the whole value if the box is None."""

Run = Callable[["Level", Sequence[Node], Contributions], None]
"""(level, nodes, contributions): the backward walk over the nodes of a level."""


@dataclass
class Trail:
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
    asked: Checkpoints = None
    cut: dict[str, bool] = field(default_factory=dict)


@dataclass
class Level:
    """A level of a program during differentiation.

    `emit` writes the backward; `forward` holds the forward nodes of the same level and may be the same emitter. A loop
    or branch in need of more outputs is replaced in `forward` by a node of the same name.
    """

    emit: Emitter
    forward: Emitter
    trail: Trail = field(repr=False)

    def current(self, node: Node) -> Node:
        """Return the current version of a node, possibly with more outputs than the original."""
        return next(found for found in self.forward.nodes if found.name == node.name)

    def replace(self, node: Node, *by: Node) -> None:
        """Replace the node of this name by the nodes `by`."""
        position = next(i for i, found in enumerate(self.forward.nodes) if found.name == node.name)
        self.forward.nodes[position : position + 1] = by

    def below(self, graph: Graph) -> Level:
        """Return the level of a sub-graph."""
        inner = Level(self.emit.inside(), self.forward.inside(), self.trail)
        inner.forward.nodes.extend(graph.nodes)
        return inner

    def fresh(self, hint: str, spec: TensorSpec) -> Value:
        """Return a new value of the backward."""
        return Value(self.emit.names.fresh(f"{self.emit.scope}{hint}"), spec)


def zeros(emit: Emitter, value: Value) -> Value:
    """Return zeros as the gradient of a value without contributions."""
    if isinstance(value.spec, TensorSpec):
        return emit.filled(0, value.spec)
    assert value.spec.dtype is not None, "only what is differentiable has a gradient"
    extents = tuple(extent or 0 for extent in value.spec.dims or ())
    return emit.filled(
        0, TensorSpec(value.spec.dtype, extents)
    )  # run-time rows: a value without contributions has none


def makers_of(nodes: Iterable[Node]) -> dict[Value, Node]:
    """Return the node defining each value, including sub-graphs."""
    makers: dict[Value, Node] = {}
    for node in nodes:
        makers.update((value, node) for value in node.defs)
        for sub in node.subgraphs:
            makers.update(makers_of(sub.nodes))
    return makers


def needed(
    nodes: Sequence[Node], outputs: Iterable[Value], always: set[str] | frozenset[str] = frozenset()
) -> list[Node]:
    """Return the nodes reachable backwards from `outputs`, and the nodes named in `always`, in order."""
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        if node.name in always or any(value in wanted for value in node.defs):
            wanted.update(needs(node))
            kept.append(node)
    return kept[::-1]


def refuse(node: Node, what: str) -> GradientError:
    """Return a GradientError naming the node and the source line of the node."""
    return GradientError(f"node {node.told}: {what}")
