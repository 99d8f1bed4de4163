"""How the backward of a sub-graph gets at what the forward computed: stored, or computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import captures, needs, renamed_in
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.passes.autodiff.copies import copied
from sublet.passes.autodiff.cuts import least_stored
from sublet.passes.rewriting import is_pure

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
    kept      where everything is computed again, loops included: the values that may be stored
    """

    inner: Mapping[Value, Node | None]
    source: Callable[[Emitter, Value], Value | None]
    same: Callable[[Value], bool] = lambda value: False
    kept: frozenset[Value] | None = None

    def stored(
        self, values: Sequence[Value], at_hand: Callable[[Value], bool], free: Callable[[Value], bool] | None = None
    ) -> list[Value]:
        """Which values to store, of the fewest bytes, so that `values` are stored, at hand, or can be computed again.

        Comparisons, arithmetic and moves of elements are computed again, and whatever does not change. What is `free`
        to store is stored by something else already.
        """

        def away(of: Iterable[Value]) -> list[Value]:
            return [value for value in of if value in self.inner and not at_hand(value)]

        uses: dict[Value, list[Value] | None] = {}
        waiting = away(values)
        while waiting:
            value = waiting.pop()
            if value not in uses:
                maker = self.inner[value]
                of = uses[value] = away(needs(maker)) if maker is not None and self._again(maker, value) else None
                waiting += of or []
        order = {value: i for i, value in enumerate(self.inner)}
        free = free or (lambda value: False)
        price = {value: 1 if free(value) else max(value.nbytes, 2) for value in uses}
        never = 1 + sum(price.values())
        price |= {v: never for v in uses if not v.plannable or (self.kept is not None and v not in self.kept)}
        wanted = sorted(away(values), key=lambda value: order[value])
        return sorted(least_stored(wanted, uses, price), key=lambda value: order[value])

    def _again(self, maker: Node, value: Value) -> bool:
        if self.kept is not None:
            return is_pure(maker)
        if maker.subgraphs or not maker.plannable:
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
            self._fetch(emit, needs(maker), now)
            copy, made = copied(maker, emit.names, emit.scope, now)
            emit.nodes.append(copy)
            now.update(made)


def taken(graph: Graph, inner: set[Value]) -> list[Value]:
    """The values of `inner` that a graph of another level captures, in order of first use."""
    return [value for value in captures(graph) if value in inner]
