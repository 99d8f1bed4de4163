"""Access of a backward sub-graph to forward values: stored or recomputed."""

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
"""Commands costing no more than storing and reloading the result."""


@dataclass
class Reads:
    """Access of a backward sub-graph to the values of a forward sub-graph.

    makers        the values of the forward sub-graph, each with the defining node (None for inputs)
    source        emits and returns a stored copy of a value; None if the value must be recomputed
    is_invariant  True if a value is the same in each iteration; an invariant is recomputed at any cost
    storable      if everything is recomputed, loops included: the values allowed to be stored; else None
    """

    inner: Mapping[Value, Node | None]
    source: Callable[[Emitter, Value], Value | None]
    same: Callable[[Value], bool] = lambda value: False
    kept: frozenset[Value] | None = None

    def stored(
        self, values: Sequence[Value], at_hand: Callable[[Value], bool], free: Callable[[Value], bool] | None = None
    ) -> list[Value]:
        """Return the values to store, with the fewest bytes, to make `values` stored, at hand or recomputable.

        Comparisons, arithmetic, moves of elements and loop invariants are recomputed. A value accepted by `free` is
        stored for another purpose already and has no price.
        """

        def not_at_hand(of: Iterable[Value]) -> list[Value]:
            """Return the forward values not at hand."""
            return [value for value in of if value in self.inner and not at_hand(value)]

        uses: dict[Value, list[Value] | None] = {}
        waiting = not_at_hand(values)
        while waiting:
            value = waiting.pop()
            if value not in uses:
                maker = self.inner[value]
                of = uses[value] = (
                    not_at_hand(needs(maker)) if maker is not None and self._again(maker, value) else None
                )
                waiting += of or []
        order = {value: i for i, value in enumerate(self.inner)}
        free = free or (lambda value: False)
        price = {value: 1 if free(value) else max(value.nbytes, 2) for value in uses}
        never = 1 + sum(price.values())
        price |= {v: never for v in uses if not v.plannable or (self.kept is not None and v not in self.kept)}
        wanted = sorted(not_at_hand(values), key=lambda value: order[value])
        return sorted(least_stored(wanted, uses, price), key=lambda value: order[value])

    def _again(self, maker: Node, value: Value) -> bool:
        """True if `value` may be recomputed by a copy of `maker`."""
        if self.kept is not None:
            return is_pure(maker)
        if maker.subgraphs or not maker.plannable:
            return False
        return lookup(maker.op).pure and (maker.op in CHEAP or self.same(value))

    def write(self, emit: Emitter, nodes: Iterable[Node], outputs: Sequence[Value]) -> tuple[Value, ...]:
        """Append the nodes of a backward. The forward values read by a node are emitted before the first reader.

        Returns the replacements of `outputs`.
        """
        now: dict[Value, Value] = {}
        for node in nodes:
            emit.source = node.source
            self._fetch(emit, needs(node), now)
            emit.nodes.append(renamed_in(node, now))
        self._fetch(emit, outputs, now)
        return tuple(now.get(value, value) for value in outputs)

    def _fetch(self, emit: Emitter, values: Iterable[Value], now: dict[Value, Value]) -> None:
        """Emit loads or recomputations of `values` and record the new values in `now`."""
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
    """Return the values of `inner` captured by a graph of another level, in order of first use."""
    return [value for value in captures(graph) if value in inner]
