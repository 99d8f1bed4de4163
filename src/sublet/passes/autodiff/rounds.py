"""How many rounds a loop makes, and which index of a sequence a round touches: what its backward must know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Node, Value, While
from sublet.ir.walk import made_by, room
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.passes.accumulate import part_of
from sublet.passes.autodiff.level import SCALAR

MAX_TRIPS = "max_trips"
"""The attribute of a loop that declares how many rounds it makes at most."""


def rounds_of(node: While) -> int | None:
    """The number of rounds, when the program says it: the loop goes on while its counter is below a literal."""
    limit = _limit(node)
    return None if limit is None or limit.literal is None else max(int(limit.literal[0]), 0)


def bound_of(node: While) -> int | None:
    """The largest number of rounds that the loop may make; None when nothing limits it.

    An attribute `max_trips` declares it, and so does each planned sequence and stacked output by its extent.
    """
    told = room(node), rounds_of(node), node.attrs.get(MAX_TRIPS)
    limits = [trips for trips in told if isinstance(trips, int)]
    both = _maker(node, node.condition)
    if both is not None and both.op == "nn.logical_and":
        found = [_below(node, value) for value in both.uses]
        limits += [max(int(limit.literal[0]), 0) for limit in found if limit is not None and limit.literal is not None]
    return min(limits, default=None)


def told_count(node: While) -> Value | None:
    """The scalar around the loop that is the number of rounds: a carried value that counts them, or their limit.

    The limit may be below 0: then there is no round.
    """
    makers = made_by(node.body.nodes)
    for init, parameter, update, final in zip(node.inits, node.parameters, node.updates, node.finals, strict=True):
        maker = makers.get(update)
        counts = maker is not None and maker.op == "nn.add" and maker.uses[0] == parameter and init.spec == SCALAR
        if counts and maker is not None and init.literal == (0,) and maker.uses[1].literal == (1,):
            return final
    limit = _limit(node)
    return limit if limit is not None and limit.spec == SCALAR else None


def _limit(node: While) -> Value | None:
    return _below(node, node.condition)


def _below(node: While, condition: Value) -> Value | None:
    """What the counter is compared with, if `condition` is that it is below something from around the loop."""
    maker = _maker(node, condition)
    sides = {"nn.less": (0, 1), "nn.greater": (1, 0)}
    if maker is None or maker.op not in sides:
        return None
    counter, limit = (maker.inputs[side] for side in sides[maker.op])
    inside = set(node.body.values())
    return limit if counter == node.counter and limit not in inside else None


def _maker(node: While, value: Value) -> Node | None:
    return next((inner for inner in node.body.nodes[: node.check] if value in inner.defs), None)


@dataclass(frozen=True)
class Lane:
    """Where the rounds of a loop read or write one step of a value: round k at `first + k`, or `first - k`.

    `first` is None for `count - 1 - k`, where only a run tells the count.
    """

    whole: Value
    axis: int
    part: TensorSpec
    first: int | None
    down: bool

    def touched(self, rounds: int) -> tuple[int, int]:
        """The indices that so many rounds touch: the first and the one after the last."""
        assert self.first is not None
        return (self.first - rounds + 1, self.first + 1) if self.down else (self.first, self.first + rounds)

    def box(self, rounds: int) -> tuple[tuple[int, int], ...]:
        """The part of the value that so many rounds touch."""
        shape = spec_of(self.whole).shape
        return tuple(self.touched(rounds) if i == self.axis else (0, extent) for i, extent in enumerate(shape))


def lane_of(whole: Value, axis: int, part: TensorSpec, backwards: bool) -> Lane:
    """The lane of a slice or row. A sequence outside the plan has as many steps as there are rounds."""
    extent = whole.spec.shape[axis] if isinstance(whole.spec, TensorSpec) else None
    return Lane(whole, axis, part, extent - 1 if backwards and extent is not None else 0, backwards)


@dataclass
class Rounds:
    """The rounds of the backward of a loop: round j goes back over round `rounds - 1 - j` of the forward.

    static   the number of rounds, when it is known
    count    the number of rounds, as a value around the loop, when only a run tells it
    last     count - 1, once somebody needs it
    counter  that of the backward
    """

    static: int | None
    count: Value | None
    counter: Value
    outer: Emitter
    last: Value | None = None
    index: Value | None = None

    def number(self, emit: Emitter) -> Value:
        """Writes which round of the forward this one goes back over."""
        if self.index is None:
            self.index = emit("nn.sub", self.limit(), self.counter)
        return self.index

    def limit(self) -> Value:
        """The number of the last round of the forward."""
        if self.static is not None:
            return self.outer.filled(self.static - 1, SCALAR)
        if self.last is None:
            assert self.count is not None
            self.last = self.outer("nn.sub", self.count, self.outer.filled(1, SCALAR))
        return self.last

    def is_last(self, value: Value, makers: Mapping[Value, Node]) -> bool:
        """Whether a value around the loop is the number of the last round of the forward."""
        if self.static is not None:
            return value.spec == SCALAR and value.literal == (self.static - 1,)
        maker = makers.get(value)
        return (
            maker is not None and maker.op == "nn.sub" and maker.uses[0] == self.count and maker.uses[1].literal == (1,)
        )

    def end(self) -> Value:
        """What the counter stays below."""
        if self.static is not None:
            return self.outer.filled(self.static, SCALAR)
        assert self.count is not None
        return self.count

    def read(self, emit: Emitter, lane: Lane) -> Value:
        """Writes the step that the forward round touched, where it cannot be a slice of the backward loop."""
        if lane.first is None:
            index = self.counter
        else:
            index = self.number(emit)
            if lane.down:
                index = emit("nn.sub", emit.filled(lane.first, SCALAR), index)
            elif lane.first:
                index = emit("nn.add", emit.filled(lane.first, SCALAR), index)
        return step_of(emit, lane, index)

    def before(self, emit: Emitter, lane: Lane, init: Value) -> Value:
        """Writes the step that the forward round before touched; `init` where there was none."""
        index, zero, one = self.number(emit), emit.filled(0, SCALAR), emit.filled(1, SCALAR)
        earlier = emit("nn.maximum", emit("nn.sub", index, one), zero)
        if lane.down:
            assert lane.first is not None
            earlier = emit("nn.sub", emit.filled(lane.first, SCALAR), earlier)
        elif lane.first:
            earlier = emit("nn.add", emit.filled(lane.first, SCALAR), earlier)
        return emit("nn.where", emit("nn.equal", index, zero), init, step_of(emit, lane, earlier))

    def sliced(self, lane: Lane) -> tuple[Value, bool] | None:
        """The sequence whose slices the backward loop reads, and whether from its end; None where that cannot be."""
        if not isinstance(lane.whole.spec, TensorSpec):
            return lane.whole, not lane.down
        if self.static is None:
            return None
        return part_of(self.outer, lane.whole, lane.box(self.static)), not lane.down

    def placed(self, rows: Value, lane: Lane) -> Value:
        """The gradient of the value of a lane, from the rows that the backward stacked, when a run tells the count.

        Row j is of the step that round count - 1 - j touched; steps that no round touched have zeros.
        """
        emit, (extent, spec) = self.outer, (spec_of(lane.whole).shape[lane.axis], spec_of(rows))
        assert self.count is not None
        step = emit("nn.iota", count=extent, dtype=DType.I64.text)
        if lane.first is None:
            row = step
        elif lane.down:  # step = first - round, so row = count - 1 - first + step
            row = emit("nn.add", step, emit("nn.sub", self.limit(), emit.filled(lane.first, SCALAR)))
        else:
            row = emit("nn.sub", self.limit(), step)
        zero = emit.filled(0, SCALAR)
        made = emit("nn.logical_and", emit("nn.greater_equal", row, zero), emit("nn.less", row, self.count))
        safe = emit("nn.where", made, row, zero)
        made = emit("nn.reshape", made, shape=tuple(extent if i == lane.axis else 1 for i in range(len(spec.shape))))
        picked = emit("nn.index_select", rows, safe, axis=lane.axis)
        return emit("nn.where", made, picked, emit.constant(0, rows))


def step_of(emit: Emitter, lane: Lane, index: Value) -> Value:
    """One step of a value at an index that a run computes."""
    if lane.axis == 0:
        return emit("nn.select", lane.whole, index)
    step = emit("nn.index_select", lane.whole, emit("nn.reshape", index, shape=(1,)), axis=lane.axis)
    return emit("nn.reshape", step, shape=lane.part.shape)
