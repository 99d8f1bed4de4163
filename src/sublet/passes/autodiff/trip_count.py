"""Trip counts of loops, and the index of a sequence accessed by an iteration, as needed by the backward of a loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import max_trip_count, producing_nodes
from sublet.ir.graph import Node, Value, While
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff.backward_level import SCALAR
from sublet.passes.gradient_sums import slice_box

MAX_TRIPS = "max_trips"
"""The attribute of a loop declaring the maximum number of iterations."""


def trip_count_of(node: While) -> int | None:
    """Return the number of iterations if statically known: the loop runs while the counter is below a literal."""
    limit = _counter_limit(node)
    return None if limit is None or limit.literal is None else max(int(limit.literal[0]), 0)


def max_trip_count_of(node: While) -> int | None:
    """Return the maximum number of iterations, or None if unlimited.

    The limit is the attribute `max_trips` or the extent of a planned sequence or stacked output, whichever is smaller.
    """
    declared = max_trip_count(node), trip_count_of(node), node.attrs.get(MAX_TRIPS)
    limits = [trips for trips in declared if isinstance(trips, int)]
    conjunction = _maker_before_check(node, node.condition)
    if conjunction is not None and conjunction.op == "nn.logical_and":
        bounds = [_limit_if_below(node, value) for value in conjunction.uses]
        limits += [max(int(limit.literal[0]), 0) for limit in bounds if limit is not None and limit.literal is not None]
    return min(limits, default=None)


def trip_count_value(node: While) -> Value | None:
    """Return the scalar around the loop equal to the trip count, or None.

    The scalar is a carried value counting iterations, or the limit of the counter. The limit may be negative: the loop
    then has no iteration.
    """
    makers = producing_nodes(node.body.nodes)
    for init, parameter, update, final in zip(node.inits, node.parameters, node.updates, node.finals, strict=True):
        maker = makers.get(update)
        counts = maker is not None and maker.op == "nn.add" and maker.uses[0] == parameter and init.spec == SCALAR
        if counts and maker is not None and init.literal == (0,) and maker.uses[1].literal == (1,):
            return final
    limit = _counter_limit(node)
    return limit if limit is not None and limit.spec == SCALAR else None


def _counter_limit(node: While) -> Value | None:
    """Return the outer value the counter must stay below, or None."""
    return _limit_if_below(node, node.condition)


def _limit_if_below(node: While, condition: Value) -> Value | None:
    """Return the outer value compared with the counter if `condition` is "counter below outer value", else None."""
    maker = _maker_before_check(node, condition)
    sides = {"nn.less": (0, 1), "nn.greater": (1, 0)}
    if maker is None or maker.op not in sides:
        return None
    counter, limit = (maker.inputs[side] for side in sides[maker.op])
    inside = set(node.body.values())
    return limit if counter == node.counter and limit not in inside else None


def _maker_before_check(node: While, value: Value) -> Node | None:
    """Return the node before the check defining the value, or None."""
    return next((inner for inner in node.body.nodes[: node.check] if value in inner.defs), None)


@dataclass(frozen=True)
class Lane:
    """An affine access of a loop to steps of a value, along an axis.

    Iteration k reads or writes index `first + k`, or `first - k` if `down`. `first` is None for index `count - 1 - k`
    with a trip count known only at run time.
    """

    whole: Value
    axis: int
    part: TensorSpec
    first: int | None
    down: bool

    def index_range(self, rounds: int) -> tuple[int, int]:
        """Return the range of indices accessed by the given number of iterations: the first, and the last plus 1."""
        assert self.first is not None
        return (self.first - rounds + 1, self.first + 1) if self.down else (self.first, self.first + rounds)

    def box(self, rounds: int) -> tuple[tuple[int, int], ...]:
        """Return the part of the value accessed by the given number of iterations."""
        shape = spec_of(self.whole).shape
        return tuple(self.index_range(rounds) if i == self.axis else (0, extent) for i, extent in enumerate(shape))


def lane_of(whole: Value, axis: int, part: TensorSpec, backwards: bool) -> Lane:
    """Return the lane of a slice or row. A sequence outside the plan has exactly one step an iteration."""
    extent = whole.spec.shape[axis] if isinstance(whole.spec, TensorSpec) else None
    return Lane(whole, axis, part, extent - 1 if backwards and extent is not None else 0, backwards)


@dataclass
class BackwardIterations:
    """The iterations of a backward loop: iteration j differentiates iteration `count - 1 - j` of the forward loop.

    static   the trip count, if statically known
    count    the trip count as a value around the loop, if known only at run time
    counter  the counter of the backward loop
    outer    emitter of the level around the loop
    last     count - 1, once emitted
    index    the index of the forward iteration, once emitted
    """

    static: int | None
    count: Value | None
    counter: Value
    outer: Emitter
    last: Value | None = None
    index: Value | None = None

    def forward_index(self, emit: Emitter) -> Value:
        """Emit and return the index of the forward iteration differentiated by the backward iteration."""
        if self.index is None:
            self.index = emit("nn.sub", self.last_index(), self.counter)
        return self.index

    def last_index(self) -> Value:
        """Return the index of the last forward iteration."""
        if self.static is not None:
            return self.outer.full(self.static - 1, SCALAR)
        if self.last is None:
            assert self.count is not None
            self.last = self.outer("nn.sub", self.count, self.outer.full(1, SCALAR))
        return self.last

    def is_last_index(self, value: Value, makers: Mapping[Value, Node]) -> bool:
        """True if an outer value is the index of the last forward iteration."""
        if self.static is not None:
            return value.spec == SCALAR and value.literal == (self.static - 1,)
        maker = makers.get(value)
        return (
            maker is not None and maker.op == "nn.sub" and maker.uses[0] == self.count and maker.uses[1].literal == (1,)
        )

    def trip_count(self) -> Value:
        """Return the exclusive limit of the counter."""
        if self.static is not None:
            return self.outer.full(self.static, SCALAR)
        assert self.count is not None
        return self.count

    def read_step(self, emit: Emitter, lane: Lane) -> Value:
        """Emit the step accessed by the forward iteration, where the step cannot be a slice of the backward loop."""
        if lane.first is None:
            index = self.counter
        else:
            index = self.forward_index(emit)
            if lane.down:
                index = emit("nn.sub", emit.full(lane.first, SCALAR), index)
            elif lane.first:
                index = emit("nn.add", emit.full(lane.first, SCALAR), index)
        return emit_step(emit, lane, index)

    def read_previous_step(self, emit: Emitter, lane: Lane, init: Value) -> Value:
        """Emit the step accessed by the previous forward iteration, or `init` in the first iteration."""
        index, zero, one = self.forward_index(emit), emit.full(0, SCALAR), emit.full(1, SCALAR)
        earlier = emit("nn.maximum", emit("nn.sub", index, one), zero)
        if lane.down:
            assert lane.first is not None
            earlier = emit("nn.sub", emit.full(lane.first, SCALAR), earlier)
        elif lane.first:
            earlier = emit("nn.add", emit.full(lane.first, SCALAR), earlier)
        return emit("nn.where", emit("nn.equal", index, zero), init, emit_step(emit, lane, earlier))

    def sequence_to_slice(self, lane: Lane) -> tuple[Value, bool] | None:
        """Return the sequence to slice in the backward loop, and True if sliced from the end; None if impossible."""
        if not isinstance(lane.whole.spec, TensorSpec):
            return lane.whole, not lane.down
        if self.static is None:
            return None
        return slice_box(self.outer, lane.whole, lane.box(self.static)), not lane.down

    def scatter_rows(self, rows: Value, lane: Lane) -> Value:
        """Return the gradient of the value of a lane, from rows stacked by the backward with a run-time trip count.

        Row j belongs to the step accessed by iteration count - 1 - j. Steps accessed by no iteration have zeros.
        """
        emit, (extent, spec) = self.outer, (spec_of(lane.whole).shape[lane.axis], spec_of(rows))
        assert self.count is not None
        step = emit("nn.iota", count=extent, dtype=DType.I64.text)
        if lane.first is None:
            row = step
        elif lane.down:  # step = first - iteration, so row = count - 1 - first + step
            row = emit("nn.add", step, emit("nn.sub", self.last_index(), emit.full(lane.first, SCALAR)))
        else:
            row = emit("nn.sub", self.last_index(), step)
        zero = emit.full(0, SCALAR)
        made = emit("nn.logical_and", emit("nn.greater_equal", row, zero), emit("nn.less", row, self.count))
        safe = emit("nn.where", made, row, zero)
        made = emit("nn.reshape", made, shape=tuple(extent if i == lane.axis else 1 for i in range(len(spec.shape))))
        picked = emit("nn.index_select", rows, safe, axis=lane.axis)
        return emit("nn.where", made, picked, emit.constant(0, rows))


def emit_step(emit: Emitter, lane: Lane, index: Value) -> Value:
    """Emit a step of a value at a run-time index."""
    if lane.axis == 0:
        return emit("nn.select", lane.whole, index)
    step = emit("nn.index_select", lane.whole, emit("nn.reshape", index, shape=(1,)), axis=lane.axis)
    return emit("nn.reshape", step, shape=lane.part.shape)
