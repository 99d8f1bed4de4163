"""Access of a backward sub-graph to forward values: stored or recomputed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sublet.ir.dataflow import captures, rename_values_in_node, required_values
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.passes.autodiff.backward_level import copy_node
from sublet.passes.rewriting import is_pure

# Choice of values to store for recomputation: a minimum cut, in bytes, between lost values and values to read.
#
# Each value is an edge with the bytes of the value as capacity. Cutting the edge means storing the value: the operands
# of a stored value are not needed. Values without a recomputation are connected to the source, values to read to the
# sink (Ford and Fulkerson, 1956; PyTorch's partitioner solves the same problem for a whole training step). The flow
# grows along shortest paths (Edmonds and Karp, 1972), found from the sink.


def min_cut_values(
    wanted: Sequence[Value], uses: Mapping[Value, Sequence[Value] | None], price: Mapping[Value, int]
) -> set[Value]:
    """Return the values to store at the least total price, making all `wanted` values stored or recomputable.

    `uses` maps each value to the operands of its recomputation, or to None if recomputation is impossible. Of several
    minimum cuts the function takes the cut closest to the wanted values, with the least recomputation.
    """
    at = {value: 2 * i for i, value in enumerate(uses)}
    source, sink = 2 * len(at), 2 * len(at) + 1
    endless = 1 + sum(price[value] for value in at)
    edges = [(at[value], at[value] + 1, price[value]) for value in at]
    for value, of in uses.items():
        edges += [(begin, at[value], endless) for begin in ([source] if of is None else [at[use] + 1 for use in of])]
    edges += [(at[value] + 1, sink, endless) for value in wanted if value in at]
    room_from: list[dict[int, int]] = [{} for _ in range(sink + 1)]  # by end, then by begin
    for begin, end, capacity in edges:
        room_from[end][begin] = capacity
        room_from[begin].setdefault(end, 0)
    while source in (next_to_sink := _paths_to(sink, source, room_from)):
        path = [source]
        while path[-1] != sink:
            path.append(next_to_sink[path[-1]])
        flow = min(room_from[end][begin] for begin, end in pairwise(path))
        for begin, end in pairwise(path):
            room_from[end][begin] -= flow
            room_from[begin][end] += flow
    return {value for value, i in at.items() if i not in next_to_sink and i + 1 in next_to_sink}


def _paths_to(sink: int, source: int, room_from: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return the next node on a shortest path with room to the sink, for each node with a path, until the source."""
    next_to_sink, queue = {sink: sink}, [sink]
    for end in queue:
        for begin, room in room_from[end].items():
            if room and begin not in next_to_sink:
                next_to_sink[begin] = end
                queue.append(begin)
        if source in next_to_sink:
            break
    return next_to_sink


CHEAP_COMMANDS = frozenset(
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
class TapeAccess:
    """Access of a backward sub-graph to the values of a forward sub-graph.

    makers        the values of the forward sub-graph, each with the defining node (None for inputs)
    source        emits and returns a stored copy of a value; None if the value must be recomputed
    is_invariant  True if a value is the same in each iteration; an invariant is recomputed at any cost
    storable      if everything is recomputed, loops included: the values allowed to be stored; else None
    """

    makers: Mapping[Value, Node | None]
    source: Callable[[Emitter, Value], Value | None]
    is_invariant: Callable[[Value], bool] = lambda value: False
    storable: frozenset[Value] | None = None

    def values_to_store(
        self, values: Sequence[Value], at_hand: Callable[[Value], bool], free: Callable[[Value], bool] | None = None
    ) -> list[Value]:
        """Return the values to store, with the fewest bytes, to make `values` stored, at hand or recomputable.

        Comparisons, arithmetic, moves of elements and loop invariants are recomputed. A value accepted by `free` is
        stored for another purpose already and has no price.
        """

        def not_at_hand(of: Iterable[Value]) -> list[Value]:
            """Return the forward values not at hand."""
            return [value for value in of if value in self.makers and not at_hand(value)]

        uses: dict[Value, list[Value] | None] = {}
        waiting = not_at_hand(values)
        while waiting:
            value = waiting.pop()
            if value not in uses:
                maker = self.makers[value]
                of = uses[value] = (
                    not_at_hand(required_values(maker))
                    if maker is not None and self._can_recompute(maker, value)
                    else None
                )
                waiting += of or []
        order = {value: i for i, value in enumerate(self.makers)}
        free = free or (lambda value: False)
        price = {value: 1 if free(value) else max(value.nbytes, 2) for value in uses}
        never = 1 + sum(price.values())
        price |= {v: never for v in uses if not v.plannable or (self.storable is not None and v not in self.storable)}
        wanted = sorted(not_at_hand(values), key=lambda value: order[value])
        return sorted(min_cut_values(wanted, uses, price), key=lambda value: order[value])

    def _can_recompute(self, maker: Node, value: Value) -> bool:
        """True if `value` may be recomputed by a copy of `maker`."""
        if self.storable is not None:
            return is_pure(maker)
        if maker.subgraphs or not maker.plannable:
            return False
        return lookup(maker.op).pure and (maker.op in CHEAP_COMMANDS or self.is_invariant(value))

    def write_backward(self, emit: Emitter, nodes: Iterable[Node], outputs: Sequence[Value]) -> tuple[Value, ...]:
        """Append the nodes of a backward. The forward values read by a node are emitted before the first reader.

        Returns the replacements of `outputs`.
        """
        now: dict[Value, Value] = {}
        for node in nodes:
            emit.source = node.source
            self._materialize(emit, required_values(node), now)
            emit.nodes.append(rename_values_in_node(node, now))
        self._materialize(emit, outputs, now)
        return tuple(now.get(value, value) for value in outputs)

    def _materialize(self, emit: Emitter, values: Iterable[Value], now: dict[Value, Value]) -> None:
        """Emit loads or recomputations of `values` and record the new values in `now`."""
        for value in values:
            if value not in self.makers or value in now:
                continue
            found = self.source(emit, value)
            if found is not None:
                now[value] = found
                continue
            maker = self.makers[value]
            assert maker is not None
            self._materialize(emit, required_values(maker), now)
            copy, made = copy_node(maker, emit.names, emit.scope, now)
            emit.nodes.append(copy)
            now.update(made)


def captured_values(graph: Graph, inner: set[Value]) -> list[Value]:
    """Return the values of `inner` captured by a graph of another level, in order of first use."""
    return [value for value in captures(graph) if value in inner]
