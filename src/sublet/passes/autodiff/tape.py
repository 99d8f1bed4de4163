"""The tape: rows stacked by the forward loop for the backward, and the ways to read forward values in the backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sublet.base.tensor import Spec, TensorSpec, Unplannable
from sublet.ir.dataflow import producing_nodes
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff.backward_level import SCALAR, BackwardLevel, gradient_error
from sublet.passes.autodiff.tape_access import TapeAccess, captured_values
from sublet.passes.autodiff.trip_count import BackwardIterations, Lane, lane_of, max_trip_count_of, trip_count_value

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
