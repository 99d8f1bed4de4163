"""One level of a program while it is differentiated, and what the rules of loops and branches are written with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.errors import GradientError
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import captures, needs, renamed_in
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.passes.accumulate import Box, Contributions
from sublet.tensor import DType, TensorSpec

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
    """

    active: set[Value]
    makers: dict[Value, Node]
    run: Run


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

    def replace(self, node: Node, *before: Node) -> None:
        """Put a node in the place of the one of its name, after some new ones."""
        position = next(i for i, found in enumerate(self.forward.nodes) if found.name == node.name)
        self.forward.nodes[position : position + 1] = [*before, node]

    def below(self, graph: Graph) -> Level:
        """The level of a sub-graph."""
        inner = Level(self.emit.inside(), self.forward.inside(), self.trail)
        inner.forward.nodes.extend(graph.nodes)
        return inner

    def fresh(self, hint: str, spec: TensorSpec) -> Value:
        """A new value of the backward."""
        return Value(self.emit.names.fresh(f"{self.emit.scope}{hint}"), spec)


def place_of(node: Node) -> str:
    """A node for messages, with the line it comes from."""
    return f"node {node.name}{f' ({node.source})' if node.source else ''}"


def zeros(emit: Emitter, value: Value) -> Value:
    """The gradient of a value that nothing depends on."""
    if isinstance(value.spec, TensorSpec):
        return emit.filled(0, value.spec)
    dtype, _, shape = value.spec.type.removesuffix("]").partition("[")
    extents = tuple(0 if text == "?" else int(text) for text in shape.split(",") if text)
    return emit.filled(0, TensorSpec(DType.parse(dtype), extents))  # rows outside the plan: there are none


def defined(nodes: Iterable[Node]) -> dict[Value, Node]:
    """The node that defines each value at one level."""
    return {value: node for node in nodes for value in node.defs}


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


def taken(graph: Graph, inner: set[Value]) -> list[Value]:
    """The values of `inner` that a graph of another level captures, in order of first use."""
    return [value for value in captures(graph) if value in inner]


CHEAP = frozenset(
    f"nn.{name}"
    for name in (
        *("add", "sub", "mul", "neg", "abs", "sign", "square", "maximum", "minimum", "clamp", "floor", "where", "relu"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
        *("logical_and", "logical_or", "logical_not"),
        *("fill", "undefined", "iota", "cast", "reshape", "broadcast_to", "slice", "split", "transpose", "one_hot"),
        *("select", "index_select", "embedding"),
    )
)
"""Commands that cost no more than storing what they compute and reading it again."""


@dataclass
class Reads:
    """How the backward of a sub-graph gets at what the forward computed.

    inner     the values of the forward sub-graph, each with its maker (None for what enters it)
    source    writes what stands for a value that the backward has, and gives it; None where it must be computed
    same      whether a value is the same in each round, so that it is computed again at whatever cost
    """

    inner: Mapping[Value, Node | None]
    source: Callable[[Emitter, Value], Value | None]
    same: Callable[[Value], bool] = lambda value: False

    def stored(self, values: Sequence[Value], at_hand: Callable[[Value], bool]) -> list[Value]:
        """Which of `values` must be stored: those not at hand that cannot be computed again from what is.

        Comparisons, arithmetic and moves of elements are computed again, and whatever does not change.
        """
        order = {value: i for i, value in enumerate(self.inner)}
        kept = dict.fromkeys(v for v in values if not at_hand(v) and not self._again(v))

        def there(value: Value) -> bool:
            if value not in self.inner or at_hand(value) or value in kept:
                return True
            maker = self.inner[value]
            return maker is not None and self._again(value) and all(map(there, maker.uses))

        for value in sorted(values, key=lambda value: order[value]):
            if not there(value):
                kept[value] = None
        return sorted(kept, key=lambda value: order[value])

    def _again(self, value: Value) -> bool:
        maker = self.inner[value]
        if maker is None or maker.subgraphs or not all(v.plannable for v in (*maker.uses, *maker.defs)):
            return False
        return lookup(maker.op).pure and (maker.op in CHEAP or self.same(value))

    def write(self, emit: Emitter, nodes: Iterable[Node], outputs: Sequence[Value]) -> tuple[Value, ...]:
        """Append the nodes of a backward, with what they read written before the first that reads it.

        Returns what stands for `outputs`.
        """
        now: dict[Value, Value] = {}
        for node in nodes:
            emit.source = node.source
            self._fetch(emit, needs(node), now)
            emit.nodes.append(renamed_in(node, now))
        self._fetch(emit, outputs, now)
        return tuple(now.get(value, value) for value in outputs)

    def _fetch(self, emit: Emitter, values: Iterable[Value], now: dict[Value, Value]) -> None:
        for value in values:
            if value not in self.inner or value in now:
                continue
            found = self.source(emit, value)
            if found is not None:
                now[value] = found
                continue
            maker = self.inner[value]
            assert maker is not None
            self._fetch(emit, maker.uses, now)
            outputs = tuple(
                None if old is None else Value(emit.names.fresh(f"{emit.scope}{old.name}"), old.spec)
                for old in maker.outputs
            )
            name = next(new.name for new in outputs if new is not None)
            emit.nodes.append(replace(renamed_in(maker, now), name=name, outputs=outputs))
            now.update((old, new) for old, new in zip(maker.outputs, outputs, strict=True) if old and new)


def refuse(node: Node, what: str) -> GradientError:
    """The error that names a node."""
    return GradientError(f"{place_of(node)}: {what}")
