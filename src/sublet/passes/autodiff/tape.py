"""The tape: rows stacked by the forward loop for the backward, and the ways to read forward values in the backward.

A backward sub-graph reads a forward value where the value is stored, or computes the value again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sublet.base.tensor import Spec, TensorSpec, Unplannable
from sublet.ir.dataflow import captures, producing_nodes, rename_values_in_node, required_values
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff.backward_level import SCALAR, BackwardLevel, copy_node, gradient_error
from sublet.passes.autodiff.trip_count import BackwardIterations, Lane, lane_of, max_trip_count_of, trip_count_value
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


UNPLANNED_REASON = "its number of rows is the trip count, unknown before the run; declare max_trips to plan it"

SCALAR_BYTES = 64
"""Bytes a scalar typically takes in an arena: a tape of a few scalars is not worth the scalars replacing the tape."""


@dataclass(frozen=True)
class TapeSlice:
    """A slice read by the backward loop."""

    value: Value
    sequence: Value
    axis: int
    backwards: bool


class Tape:
    """The rows stacked by a forward loop for the backward, and the remaining ways to read forward values.

    lanes         values of the body already stacked, or steps of an outer value, with the lane of each
    again         True if each iteration is recomputed, and only the values live at its start are stacked
    new           the rows stacked for the backward alone
    carried_back  updates with a stacked parameter: the backward loop carries the parameter to the iteration before;
                  (carried value, initial value, parameter)
    shifted       parameters with a stacked update: (lane of the update, initial value)
    slices        the slices of the backward loop
    """

    def __init__(
        self, level: BackwardLevel, node: While, forward: Emitter, rounds: BackwardIterations, again: bool = False
    ) -> None:
        self.level = level
        self.again = again
        self.node = node
        self.inside = forward
        self.rounds = rounds
        self.slices: list[TapeSlice] = []
        makers: dict[Value, Node | None] = dict.fromkeys(node.body.inputs)
        self.inner = {**makers, **producing_nodes(forward.nodes)}
        self.extent = max_trip_count_of(node)
        self.lanes: dict[Value, Lane] = {}
        self.outputs = list(node.outputs)
        self.carried_back: dict[Value, tuple[Value, Value, Value]] = {}
        self.shifted: dict[Value, tuple[Lane, Value]] = {}
        self.new: list[tuple[Value, Value]] = []
        self._same: dict[Value, bool] = {}
        for value, sequence, axis, backwards in zip(
            node.slices, node.sequences, node.slice_axes, node.slice_reversed, strict=True
        ):
            self._check_steps(sequence)
            self.lanes[value] = lane_of(sequence, axis, value.spec, backwards)  # type: ignore[arg-type]

    def choose_stored(self, backward: Graph) -> None:
        """Choose the values to stack for the backward of a body."""
        read = captured_values(backward, set(self.inner))
        if self.rounds.static is None and self.rounds.count is None:
            self.rounds.count = self.level.fresh_value(f"{self.node.name}.rounds", SCALAR)
            self.counted = True
        else:
            self.counted = False
        details = zip(
            self.node.rows, self.node.stacked_outputs, self.node.row_axes, self.node.row_reversed, strict=True
        )
        for row, whole, axis, backwards in details:
            if whole is not None and row not in self.lanes:
                self.lanes[row] = lane_of(whole, axis, spec_of(row), backwards)
        updates = dict(zip(self.node.updates, self.node.parameters, strict=True))
        shareable = {
            update for update, parameter in updates.items() if parameter in read and self._is_worth_sharing(parameter)
        }
        stored = self.tape_access().values_to_store(read, self._is_at_hand, shareable.__contains__)
        self._share_carry_tapes(stored)
        for value in (value for value in stored if value not in self.shifted and value not in self.carried_back):
            whole = Value(self.inside.names.fresh(f"{self.node.name}.tape.{value.name}"), self._stack_spec(value))
            self.new.append((value, whole))
            self.lanes[value] = lane_of(whole, 0, spec_of(value), backwards=False)

    @property
    def row_bytes(self) -> int:
        """The bytes added to the tape by an iteration."""
        return sum(value.nbytes for value, _ in self.new)

    def _is_at_hand(self, value: Value) -> bool:
        """True if the backward can read the value without storing or recomputing."""
        return value == self.node.counter or value in self.lanes or self._invariant_carry(value) is not None

    def _invariant_carry(self, value: Value) -> Value | None:
        """Return the initial value of a parameter passed on unchanged by every iteration, else None."""
        for parameter, update, init in zip(self.node.parameters, self.node.updates, self.node.inits, strict=True):
            if value == parameter == update:
                return init
        return None

    def _share_carry_tapes(self, stored: Sequence[Value]) -> None:
        """Use a single tape for a parameter and its update if bytes are saved: both are equal one iteration apart."""
        carries = list(zip(self.node.parameters, self.node.updates, self.node.inits, strict=True))
        origin: dict[Value, Value] = {}
        for i, (parameter, update, init) in enumerate(carries):
            if parameter not in stored or not self._is_worth_sharing(parameter):
                continue
            if update in stored and update not in self.carried_back and origin.get(parameter, parameter) != update:
                origin[update] = origin.get(parameter, parameter)
                final = self.outputs[i] or Value(self.inside.names.fresh(f"{self.node.name}.last"), parameter.spec)
                self.outputs[i] = final
                carried = self.level.fresh_value(f"{update.name}.next", spec_of(update))
                self.carried_back[update] = (carried, final, parameter)
            elif update in self.lanes and parameter not in self.carried_back and self.lanes[update].whole.plannable:
                self.shifted[parameter] = (self.lanes[update], init)

    def _is_worth_sharing(self, value: Value) -> bool:
        """True if omitting the tape of a value saves more bytes than the additional scalars take."""
        row = max(value.nbytes, SCALAR_BYTES)
        return self.extent is None or self.extent * value.nbytes > 4 * SCALAR_BYTES + row

    def _stack_spec(self, value: Value) -> Spec:
        """Return the spec of the stack of a value."""
        if not isinstance(value.spec, TensorSpec):
            what = (
                f"%{value.name} has an unknown number of rows in each iteration. Declare max_trips of the inner loop."
            )
            raise gradient_error(self.node, what)
        shape, dtype = value.spec.shape, value.spec.dtype
        if self.extent is not None:
            return TensorSpec(dtype, (self.extent, *shape))
        return Unplannable(UNPLANNED_REASON, str(dtype), (None, *shape))

    def _check_steps(self, sequence: Value) -> None:
        """Raise GradientError unless a sequence outside the plan has exactly one step for each iteration."""
        if isinstance(sequence.spec, TensorSpec):
            return
        maker, count = self.level.context.makers.get(sequence), self.rounds.count
        same = (
            isinstance(maker, While)
            and count is not None
            and (count in maker.finals or count == trip_count_value(maker))
        )
        if not same and not isinstance(maker, CaseOf):
            what = f"the loop may run fewer iterations than %{sequence.name} has slices, and the trip count is unknown"
            raise gradient_error(self.node, f"{what}. Declare max_trips of the loop that stacks %{sequence.name}.")

    def forward_with_tape(self) -> While:
        """Return the forward loop with the tape."""
        node = self.node
        nodes = node.body.nodes if self.again else tuple(self.inside.nodes)
        early = {value for inner in node.body.nodes[: node.check] for value in inner.defs}
        begin = max((i + 1 for i, inner in enumerate(nodes) if not early.isdisjoint(inner.defs)), default=0)
        changed = replace(
            node,
            outputs=(*self.outputs, *(whole for _, whole in self.new)),
            body=replace(
                node.body,
                nodes=nodes,
                outputs=(*node.body.outputs, *(value for value, _ in self.new)),
            ),
            check=begin,
            row_axes=(*node.row_axes, *(0 for _ in self.new)),
            row_reversed=(*node.row_reversed, *(False for _ in self.new)),
        )
        return self._with_counted_iterations(changed) if self.counted else changed

    def _with_counted_iterations(self, node: While) -> While:
        """Return the loop with the trip count as an additional carried value."""
        emit, n = self.inside, node.carried
        parameter = Value(emit.names.fresh(f"{node.name}.round"), SCALAR)
        begin = len(emit.nodes)
        update = emit("nn.add", parameter, emit.full(1, SCALAR))
        body = replace(
            node.body,
            inputs=(*node.body.inputs[: 1 + n], parameter, *node.body.inputs[1 + n :]),
            nodes=(*node.body.nodes, *emit.nodes[begin:]),
            outputs=(*node.body.outputs[:n], update, *node.body.outputs[n:]),
        )
        return replace(
            node,
            inputs=(*node.inputs[:n], emit.full(0, SCALAR), *node.inputs[n:]),
            outputs=(*node.outputs[:n], self.rounds.count, *node.outputs[n:]),
            body=body,
            carried=n + 1,
        )

    def add_lane(self, value: Value, lane: Lane) -> None:
        """Declare `value`, read by the backward, as the step of a lane."""
        self.inner[value] = None
        self.lanes[value] = lane

    def tape_access(self) -> TapeAccess:
        """Return the access of the backward to forward values."""
        kept = frozenset(self.node.body.values()) if self.again else None
        return TapeAccess(self.inner, self._emit_source, self._is_invariant, kept)

    def _emit_source(self, emit: Emitter, value: Value) -> Value | None:
        """Emit a read of a forward value, or return None if the value must be recomputed."""
        if value == self.node.counter:
            return self.rounds.forward_index(emit)
        constant = self._invariant_carry(value)
        if constant is not None:
            return constant
        maker = self.inner[value]
        descends = maker is not None and maker.op == "nn.sub" and maker.uses[1] == self.node.counter
        if maker is not None and descends and self.rounds.is_last_index(maker.uses[0], self.level.context.makers):
            return self.rounds.counter  # the forward loop counts down: the backward loop counts up again
        if value in self.carried_back:
            return self.carried_back[value][0]
        if value in self.shifted:
            return self.rounds.read_previous_step(emit, *self.shifted[value])
        lane = self.lanes.get(value)
        return None if lane is None else self._read_lane(emit, value, lane)

    def _read_lane(self, emit: Emitter, value: Value, lane: Lane) -> Value:
        """Return the step of a lane, as a new slice of the backward loop if possible."""
        sliced = self.rounds.sequence_to_slice(lane)
        if sliced is None:
            return self.rounds.read_step(emit, lane)
        slice_value = self.level.fresh_value(value.name, lane.part)
        self.slices.append(TapeSlice(slice_value, sliced[0], lane.axis, sliced[1]))
        return slice_value

    def _is_invariant(self, value: Value) -> bool:
        """True if every iteration computes the same value."""
        if value not in self._same:
            maker = self.inner.get(value)
            if value not in self.inner or self._invariant_carry(value) is not None:
                self._same[value] = True
            else:
                self._same[value] = (
                    maker is not None and not maker.subgraphs and all(map(self._is_invariant, maker.uses))
                )
        return self._same[value]
