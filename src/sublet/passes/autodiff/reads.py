"""How the backward of a sub-graph gets at what the forward computed: stored, or computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import captures, needs, renamed_in
from sublet.ops import lookup
from sublet.ops.emitter import Emitter

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


def taken(graph: Graph, inner: set[Value]) -> list[Value]:
    """The values of `inner` that a graph of another level captures, in order of first use."""
    return [value for value in captures(graph) if value in inner]
