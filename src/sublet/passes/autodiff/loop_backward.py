"""The gradient of a loop: a loop over the same iterations in reverse order.

The backward loop carries the gradient of each loop-carried value, and a sum for each captured value. The forward loop
stacks every value read by the backward loop on a tape, one row an iteration [NNC: tape]; the backward loop reads the
tape in slices. The following values need no tape: captured values, values cheaper to recompute than to store, slices of
sequences, rows already stacked by the forward loop; and a parameter and its update share one tape.

    %y = while(%i; %x = %x0) { %p = nn.mul(%x, %a)  next %p }

becomes, with a tape of %x,

    %dx0, %da = while(%j; %dx = %dy, %sum = 0; %x in %tape reversed) {
      %t = nn.mul(%dx, %x)  %sum2 = nn.add(%sum, %t)  %dp = nn.mul(%dx, %a)  next %dp, %sum2 }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sublet.base.tensor import TensorSpec, Unplannable
from sublet.ir.dataflow import captures, producing_nodes
from sublet.ir.graph import Graph, Node, Value, While
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff.activity import carries_leading_to
from sublet.passes.autodiff.backward_level import (
    SCALAR,
    BackwardLevel,
    Contribution,
    gradient_error,
    nodes_needed_for,
    zero_gradient,
)
from sublet.passes.autodiff.tape import Tape
from sublet.passes.autodiff.trip_count import (
    MAX_TRIPS,
    BackwardIterations,
    Lane,
    lane_of,
    trip_count_of,
    trip_count_value,
)
from sublet.passes.gradient_sums import Contributions


@dataclass
class LoopBackward:
    """The gradients returned by the backward of a loop.

    `init_grads` are the gradients of initial values, by position. `step_grads` are the stacked gradients of sequences
    and captured stacks. Gradients of captured values are added directly to the contributions of the surrounding level.
    """

    init_grads: dict[int, Value] = field(default_factory=dict)
    step_grads: list[tuple[Lane, Value]] = field(default_factory=list)


@dataclass
class _BackwardBody:
    """The body of a backward loop during construction.

    carried         (parameter, initial value, update, differentiated value)
    init_positions  positions of the forward loop-carried values of the first entries of `carried`
    rows            (gradient of a step, the lane of the step)
    row_grads       slice -> lane: the incoming gradients of stacked rows
    """

    level: BackwardLevel
    carried: list[tuple[Value, Value, Value, Value]] = field(default_factory=list)
    init_positions: list[int] = field(default_factory=list)
    rows: list[tuple[Value, Lane]] = field(default_factory=list)
    row_grads: dict[Value, Lane] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def outputs(self) -> tuple[Value, ...]:
        """Return the outputs of the body: updates, then rows."""
        return (*(update for _, _, update, _ in self.carried), *(row for row, _ in self.rows))


def loop_gradient(
    level: BackwardLevel, node: While, grads: Sequence[Value | None], contributions: Contributions
) -> list[Contribution]:
    """Return the gradients of initial values and sequences; add the gradients of captured values to `contributions`."""
    again = level.context.recompute_loops.get(node.name, False)
    back = differentiate_loop(level, node, grads, contributions, again=again)
    flows: list[Contribution] = [(node.inits[i], grad, None) for i, grad in back.init_grads.items()]
    rounds = trip_count_of(node)
    for lane, whole in back.step_grads:
        static = rounds is not None and isinstance(whole.spec, TensorSpec)
        flows.append((lane.whole, whole, lane.box(rounds) if rounds is not None and static else None))
    return flows


def differentiate_loop(
    level: BackwardLevel, node: While, grads: Sequence[Value | None], contributions: Contributions, *, again: bool
) -> LoopBackward:
    """Write the backward of a loop, add the tape to the forward loop, and return the gradients.

    With `again` the forward loop stores only the values live at the start of an iteration, and the backward loop
    recomputes each iteration.
    """
    rounds = BackwardIterations(
        trip_count_of(node), trip_count_value(node), level.fresh_value("counter", SCALAR), level.emit
    )
    body = _backward_body(level, node, grads, rounds, contributions)
    if not body.carried and not body.rows:
        return LoopBackward()
    tape = _choose_tape(level, node, body, rounds, again)
    level.replace_node(node, tape.forward_with_tape())
    return _write_backward_loop(level, body, tape, rounds, contributions)


def tape_bytes(level: BackwardLevel, node: While, grads: Sequence[Value | None]) -> tuple[int, int]:
    """Return the bytes stored for an iteration by a checkpointed loop and by a plain loop."""
    aside = BackwardLevel(
        level.emit.for_subgraph(), level.forward.for_subgraph(), replace(level.context, checkpoints=None)
    )
    rounds = BackwardIterations(
        trip_count_of(node), trip_count_value(node), level.fresh_value("counter", SCALAR), aside.emit
    )
    body = _backward_body(aside, node, grads, rounds, Contributions())
    begins, row = (_choose_tape(aside, node, body, rounds, again) for again in (True, False))
    return begins.row_bytes, row.row_bytes


def _choose_tape(
    level: BackwardLevel, node: While, body: _BackwardBody, rounds: BackwardIterations, again: bool
) -> Tape:
    """Return the tape for the backward body."""
    tape = Tape(level, node, body.level.forward, rounds, again)
    tape.choose_stored(Graph("", (), tuple(body.nodes), body.outputs()))
    return tape


def _backward_body(
    level: BackwardLevel,
    node: While,
    grads: Sequence[Value | None],
    rounds: BackwardIterations,
    around_it: Contributions,
) -> _BackwardBody:
    """Return the backward body of one iteration, before the reads of forward values are resolved.

    `around_it` are the contributions of the surrounding level.
    """
    active, body = level.context.active, _BackwardBody(level.sublevel(node.body))
    emit, contributions = body.level.emit, Contributions()
    finals = dict(enumerate(grads[: node.carried]))
    stacked = [(j, grad) for j, grad in enumerate(grads[node.carried :]) if grad is not None and node.rows[j] in active]
    targets = [node.rows[j] for j, _ in stacked]
    targets += [node.updates[i] for i, grad in finals.items() if grad is not None and node.updates[i] in active]
    flowing = carries_leading_to(node, targets)
    flowing |= {i for i, grad in finals.items() if grad is not None}
    carries = [i for i in sorted(flowing) if node.parameters[i] in active]
    carried = {i: level.fresh_value(f"{node.parameters[i].name}.grad", spec_of(node.parameters[i])) for i in carries}
    for i, parameter in carried.items():
        if node.updates[i] in active:
            contributions.add(emit, node.updates[i], parameter)
    for j, grad in stacked:
        part = level.fresh_value(f"{node.rows[j].name}.grad", _row_spec(node, node.rows[j]))
        body.row_grads[part] = lane_of(grad, node.row_axes[j], spec_of(part), node.row_reversed[j])
        contributions.add(emit, node.rows[j], part)
    steps = _step_lanes(level, node, rounds)
    around = [
        value for value in captures(node.body) if value in active and value not in _stacks_read_by_steps(node, steps)
    ]
    sums = {value: level.fresh_value(f"{value.name}.sum", spec_of(value)) for value in around if value.plannable}
    for value, parameter in sums.items():
        contributions.add(emit, value, parameter)
    level.context.run(body.level, _without_selects(node, steps), contributions)
    for value in around:
        if value not in sums and value in contributions:
            raise gradient_error(
                node,
                f"%{value.name} is read whole, but its number of rows is unknown before the run. Declare max_trips.",
            )
    _collect_results(level, node, grads, body, carried, steps, contributions)
    for value, parameter in sums.items():
        update = contributions.total(emit, value) or parameter
        if update != parameter:
            before = around_it.total(level.emit, value)  # the sum continues from later contributions
            body.carried.append((parameter, before or zero_gradient(level.emit, value), update, value))
    body.nodes = nodes_needed_for(emit.nodes, body.outputs())
    return body


def _collect_results(
    level: BackwardLevel,
    node: While,
    grads: Sequence[Value | None],
    body: _BackwardBody,
    carried: dict[int, Value],
    steps: dict[Value, Lane],
    contributions: Contributions,
) -> None:
    """Collect the updates and rows of the backward body."""
    emit = body.level.emit
    for i, parameter in carried.items():
        update = contributions.total(emit, node.parameters[i]) or zero_gradient(emit, node.parameters[i])
        init = grads[i] or zero_gradient(level.emit, node.parameters[i])
        body.carried.append((parameter, init, update, node.inits[i]))
        body.init_positions.append(i)
    for value, lane in steps.items():
        if (grad := contributions.total(emit, value)) is not None:
            body.rows.append((grad, lane))


def _row_spec(node: While, row: Value) -> TensorSpec:
    """Return the spec of one row. Raises GradientError for a row with a size known only at run time."""
    if isinstance(row.spec, TensorSpec):
        return row.spec
    what = f"%{row.name} has an unknown number of rows in each iteration. Declare max_trips of the inner loop."
    raise gradient_error(node, what)


def _step_lanes(level: BackwardLevel, node: While, rounds: BackwardIterations) -> dict[Value, Lane]:
    """Return the values of the body equal to one step of an outer value in each iteration, with the lane of each.

    Steps are slices, and rows of a captured stack selected by the counter, upwards or downwards.
    """
    lanes: dict[Value, Lane] = {}
    details = zip(node.slices, node.sequences, node.slice_axes, node.slice_reversed, strict=True)
    for value, sequence, axis, backwards in details:
        if value in level.context.active:
            lanes[value] = lane_of(sequence, axis, _row_spec(node, value), backwards)
    inside = set(node.body.values())
    for inner in node.body.nodes:
        if inner.op != "nn.select" or inner.defs[0] not in level.context.active or inner.uses[0] in inside:
            continue
        lane = _lane_of_select(level, node, inner, rounds)
        if lane is not None:
            lanes[inner.defs[0]] = lane
    return lanes


def _lane_of_select(level: BackwardLevel, node: While, select: Node, rounds: BackwardIterations) -> Lane | None:
    """Return the lane of a row of a captured stack if consecutive iterations select consecutive rows, else None."""
    stack, index = select.uses
    part, extent = spec_of(select.defs[0]), spec_of(stack).shape[0]
    if index == node.counter:
        lane = Lane(stack, 0, part, 0, down=False)
        return lane if rounds.static is None or rounds.static <= extent else None
    maker = producing_nodes(node.body.nodes).get(index)
    if maker is None or maker.op != "nn.sub" or maker.uses[1] != node.counter:
        return None
    start = maker.uses[0]
    if rounds.static is not None and start.literal is not None:
        first = int(start.literal[0])
        return Lane(stack, 0, part, first, down=True) if rounds.static - 1 <= first < extent else None
    return Lane(stack, 0, part, None, down=True) if rounds.is_last_index(start, level.context.makers) else None


def _without_selects(node: While, steps: dict[Value, Lane]) -> list[Node]:
    """Return the nodes of the body without definitions of `steps`."""
    return [inner for inner in node.body.nodes if not any(value in steps for value in inner.defs)]


def _stacks_read_by_steps(node: While, steps: dict[Value, Lane]) -> set[Value]:
    """Return the captured stacks read only by the selections in `steps`."""
    left = replace(node.body, nodes=tuple(_without_selects(node, steps)))
    return {lane.whole for lane in steps.values()} - set(captures(left))


def _write_backward_loop(
    level: BackwardLevel, body: _BackwardBody, tape: Tape, rounds: BackwardIterations, contributions: Contributions
) -> LoopBackward:
    """Write the backward loop and return the gradients."""
    emit = level.emit
    inner = emit.for_subgraph()
    go = inner("nn.less", rounds.counter, rounds.trip_count())
    slices = tape.slices  # `tape_access().write_backward` appends the slices
    for part, lane in body.row_grads.items():
        tape.add_lane(part, lane)
    for update, (parameter, init, source) in tape.carried_back.items():
        body.carried.append((parameter, init, source, update))
    outputs = tape.tape_access().write_backward(inner, body.nodes, body.outputs())
    name = emit.names.fresh(f"{emit.scope}loop")
    finals = [
        None if of in tape.carried_back else Value(emit.names.fresh(f"{emit.scope}{of.name}"), of.spec)
        for _, _, _, of in body.carried
    ]
    stacks = [_gradient_stack(level, lane, rounds) for _, lane in body.rows]
    parameters = [parameter for parameter, _, _, _ in body.carried]
    emit.nodes.append(
        While(
            name,
            "while",
            (*(init for _, init, _, _ in body.carried), *(entry.sequence for entry in slices)),
            (*finals, *(whole for whole, _ in stacks)),
            {} if rounds.static is not None or tape.extent is None else {MAX_TRIPS: tape.extent},
            emit.source,
            body=Graph(name, (rounds.counter, *parameters, *(s.value for s in slices)), tuple(inner.nodes), outputs),
            condition=go,
            check=1,
            carried=len(finals),
            slice_axes=tuple(entry.axis for entry in slices),
            slice_reversed=tuple(entry.backwards for entry in slices),
            row_axes=tuple(lane.axis for _, lane in body.rows),
            row_reversed=tuple(backwards for _, backwards in stacks),
        )
    )
    back = LoopBackward({i: final for i, final in zip(body.init_positions, finals, strict=False) if final is not None})
    for (_, _, _, of), final in list(zip(body.carried, finals, strict=True))[len(body.init_positions) :]:
        if final is not None:
            contributions.set_total(of, final)
    for (whole, _), (_, lane) in zip(stacks, body.rows, strict=True):
        placed = isinstance(whole.spec, TensorSpec) and rounds.static is None
        back.step_grads.append((lane, rounds.scatter_rows(whole, lane) if placed else whole))
    return back


def _gradient_stack(level: BackwardLevel, lane: Lane, rounds: BackwardIterations) -> tuple[Value, bool]:
    """Return the stacked output for the gradients of the steps of a lane, and True if filled from the end."""
    hint = level.emit.names.fresh(f"{level.emit.scope}{lane.whole.name}.rows")
    if isinstance(lane.whole.spec, Unplannable):
        return Value(hint, lane.whole.spec), not lane.down
    shape = spec_of(lane.whole).shape
    extent = shape[lane.axis] if rounds.static is None else rounds.static
    spec = TensorSpec(spec_of(lane.whole).dtype, (*shape[: lane.axis], extent, *shape[lane.axis + 1 :]))
    return Value(hint, spec), rounds.static is not None and not lane.down
