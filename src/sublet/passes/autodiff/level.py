"""One level of a program while it is differentiated, and which of its nodes are needed."""

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
"""A contribution: the gradient of a value, or of the part of it in a box."""

Run = Callable[["Level", Sequence[Node], Contributions], None]


@dataclass
class Trail:
    """What all levels of a program share.

    active   the values that depend on what the gradient is wanted of
    makers   the nodes of the forward program by what they define
    run      walks back over the nodes of a level
    asked    how loops are differentiated
    cut      the loops that are as they were asked for, by name: whether their rounds are computed again
    """

    active: set[Value]
    makers: dict[Value, Node]
    run: Run
    asked: Checkpoints = None
    cut: dict[str, bool] = field(default_factory=dict)


@dataclass
class Level:
    """`emit` writes the backward; `forward` holds the forward nodes of the same level, which may be the same list.

    A loop or branch that must hand more out is replaced in `forward` by another node of the same name.
    """

    emit: Emitter
    forward: Emitter
    trail: Trail = field(repr=False)

    def current(self, node: Node) -> Node:
        """The node as it is now: it may have been given more outputs since."""
        return next(found for found in self.forward.nodes if found.name == node.name)

    def replace(self, node: Node, *by: Node) -> None:
        """Put nodes in the place of the one of this name."""
        position = next(i for i, found in enumerate(self.forward.nodes) if found.name == node.name)
        self.forward.nodes[position : position + 1] = by

    def below(self, graph: Graph) -> Level:
        """The level of a sub-graph."""
        inner = Level(self.emit.inside(), self.forward.inside(), self.trail)
        inner.forward.nodes.extend(graph.nodes)
        return inner

    def fresh(self, hint: str, spec: TensorSpec) -> Value:
        """A new value of the backward."""
        return Value(self.emit.names.fresh(f"{self.emit.scope}{hint}"), spec)


def zeros(emit: Emitter, value: Value) -> Value:
    """The gradient of a value that nothing depends on."""
    if isinstance(value.spec, TensorSpec):
        return emit.filled(0, value.spec)
    assert value.spec.dtype is not None, "only what is differentiable has a gradient"
    extents = tuple(extent or 0 for extent in value.spec.dims or ())
    return emit.filled(0, TensorSpec(value.spec.dtype, extents))  # rows outside the plan: there are none


def makers_of(nodes: Iterable[Node]) -> dict[Value, Node]:
    """The node that defines each value, sub-graphs included."""
    found: dict[Value, Node] = {}
    for node in nodes:
        found.update((value, node) for value in node.defs)
        for sub in node.subgraphs:
            found.update(makers_of(sub.nodes))
    return found


def needed(
    nodes: Sequence[Node], outputs: Iterable[Value], always: set[str] | frozenset[str] = frozenset()
) -> list[Node]:
    """The nodes that `outputs` depend on, and those with a name in `always`, in order."""
    wanted, kept = set(outputs), list[Node]()
    for node in reversed(nodes):
        if node.name in always or any(value in wanted for value in node.defs):
            wanted.update(needs(node))
            kept.append(node)
    return kept[::-1]


def refuse(node: Node, what: str) -> GradientError:
    """The error that names a node, with the line it comes from."""
    return GradientError(f"node {node.told}: {what}")
