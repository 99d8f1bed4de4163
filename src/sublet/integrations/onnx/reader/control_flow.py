"""Conversion of ONNX control flow: If becomes a branch, Loop and Scan become loops.

Conversion of ONNX If to a `CaseOf` node: arm 0 is the else branch (False), arm 1 the then branch (True).

An If with a constant condition becomes no branch: the nodes of the taken arm are inlined. An arm with conflicting
shapes fails whenever the arm runs, so the output types come from the remaining arm alone (for example a network for two
sampling rates, whose bound length fits only one rate).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from sublet.base.extents import Dimension, Extent, as_extent, greatest, is_at_least_zero, is_ranged, upper_bound
from sublet.base.tensor import SHAPE_CONFLICT
from sublet.integrations.onnx.reader.conversion_state import (
    BOOL_SCALAR,
    COUNT_SCALAR,
    GraphConversion,
    GraphConverter,
    ImportState,
    KnownValue,
    Scope,
    as_scalar,
    graph_attribute,
    integer_constant,
    node_error,
    results_of,
    true_constant,
)
from sublet.integrations.onnx.reader.loop_invariants import (
    CarryGuess,
    ConvertedBody,
    RowStacking,
    SettledLoop,
    add_while,
    find_invariants,
)
from sublet.integrations.onnx.reader.model_file import first_output
from sublet.integrations.onnx.reader.types import TensorType, Type, merge_types, read_type
from sublet.ir.graph import CaseOf, Graph, Value
from sublet.passes.trip_counts import EVERY_LOOP

if TYPE_CHECKING:
    import onnx


def convert_if(frame: GraphConversion, node: onnx.NodeProto, name: str, convert: GraphConverter) -> None:
    """Add the `CaseOf` node, or inline the taken arm if the condition is constant.

    Raises ModelError for an If with a missing condition or branch, or with fewer branch outputs than node outputs.
    """
    condition = frame.lookup(node.input[0]) if len(node.input) == 1 else None
    if condition is None:
        raise node_error(frame, node, "needs exactly one input, the condition")
    index = as_scalar(frame, condition, BOOL_SCALAR, f"{name}.condition")
    branches = [graph_attribute(frame, node, f"{arm}_branch") for arm in ("else", "then")]
    if any(len(branch.output) < len(node.output) for branch in branches):
        raise node_error(frame, node, f"has {len(node.output)} outputs; one of its branches has fewer")
    if index.weight is not None:
        _inline_branch(frame, node, branches, bool(index.weight.array()), convert)
        return
    arms: list[Graph] = []
    results: list[tuple[KnownValue, ...]] = []
    for branch, title in zip(branches, ("else_branch", "then_branch"), strict=True):
        scope = frame.scope.new_child()
        with frame.program.in_conditional_code():
            inner = convert(frame.program, branch, scope)
        outputs = results_of(frame.program, branch, scope)[: len(node.output)]
        arms.append(Graph(title, (), tuple(inner.nodes), tuple(known.value for known in outputs)))
        results.append(outputs)
    outs = tuple(
        _define_output(frame, name, output, both) if output else None
        for output, both in zip(node.output, zip(*results, strict=True), strict=True)
    )
    frame.nodes.append(CaseOf(name, "case", (index.value,), outs, arms=tuple(arms)))


def _inline_branch(
    frame: GraphConversion,
    node: onnx.NodeProto,
    branches: Sequence[onnx.GraphProto],
    condition: bool,
    convert: GraphConverter,
) -> None:
    """Inline the branch of an If with a constant condition."""
    program, scope, branch = frame.program, frame.scope.new_child(), branches[condition]
    outer_path, program.path = program.path, (*program.path, first_output(node))
    if program.path[-1] and len(program.path) == len(frame.scope.maps):  # neither in a loop nor in an open branch
        program.taken[program.path] = condition
    try:
        inner = convert(program, branch, scope)
    finally:
        program.path = outer_path
    frame.nodes.extend(inner.nodes)
    for output, known in zip(node.output, results_of(frame.program, branch, scope), strict=False):
        if output:
            frame.scope[output] = known


def _define_output(frame: GraphConversion, name: str, output: str, arms: tuple[KnownValue, ...]) -> Value:
    """Define one output of the branch, with the type common to all arms able to run."""
    possible = [known for known in arms if not known.unplannable_reason.startswith(SHAPE_CONFLICT)] or arms
    differ = f"the branches of If {name!r} return {arms[0].type} and {arms[1].type}"
    reason = next((known.unplannable_reason for known in possible if known.unplannable_reason), differ)
    return frame.define(output, merge_types([known.type for known in possible]), reason)


# Conversion of ONNX Loop to a `While` node.
#
# The body's first input is the iteration counter. The loop continues while the counter is below the trip count, if any,
# and while the body's condition holds, if the condition can become false. In the latter case the condition is an extra
# loop-carried value, and no output reads the final condition.

if TYPE_CHECKING:
    import onnx

UNBOUNDED_TRIP_COUNT = (1 << 63) - 1
"""The trip count written by exporters for a loop ended only by the condition."""


@dataclass(frozen=True)
class _LoopBody:
    """The body of one Loop, converted repeatedly under guesses; the first carry is the condition."""

    frame: GraphConversion
    name: str
    graph: onnx.GraphProto
    convert: GraphConverter
    limit: KnownValue | None
    iteration: Extent | str

    def convert_under(self, carries: Sequence[CarryGuess]) -> ConvertedBody:
        """Convert the body under the guesses `carries`."""
        program, names = self.frame.program, [value.name for value in self.graph.input]
        scope = self.frame.scope.new_child()
        grows = any(carry.growth is not None for carry in carries)
        number = np.array(self.iteration, object) if grows else None  # the elements of the counter
        base = program.values.fresh(names[0] or f"{self.name}.counter")
        counter = program.known_value(base, COUNT_SCALAR, "", number)
        before = GraphConversion(program, scope, {})
        scope[names[0]] = self._counter_as_declared(before, counter)
        parameters = tuple(
            carry.body_value(program, name or f"{self.name}.carry", self.name)
            for carry, name in zip(carries, names[1:], strict=True)
        )
        scope.update(zip(names[1:], parameters, strict=True))
        with program.in_conditional_code(not self._has_first_iteration(carries[0])):
            inner = self.convert(program, self.graph, scope)
        results = results_of(program, self.graph, scope)
        updates = (as_scalar(inner, results[0], BOOL_SCALAR, f"{self.name}.goon"), *results[1 : len(carries)])
        return ConvertedBody(counter, parameters, (), updates, results[len(carries) :], (*before.nodes, *inner.nodes))

    def _has_first_iteration(self, goon: CarryGuess) -> bool:
        """True if the loop certainly has a first iteration."""
        literal = (UNBOUNDED_TRIP_COUNT,) if self.limit is None else self.limit.value.literal
        return _starts_true(goon) and literal is not None and is_at_least_zero(cast(int, literal[0]) - 1)

    def _counter_as_declared(self, before: GraphConversion, counter: KnownValue) -> KnownValue:
        """Return the counter in the shape declared by the body: a scalar, or a tensor of one element."""
        declared = read_type(self.graph.input[0].type)
        if not isinstance(declared, TensorType) or declared.dims is None or len(declared.dims) != 1:
            return counter
        shape = integer_constant(before.program, f"{self.name}.one", 1)
        return before.emit("onnx.Reshape", f"{counter.value.name}.1d", (counter, shape), TensorType(7, (1,)))


def convert_loop(frame: GraphConversion, node: onnx.NodeProto, name: str, convert: GraphConverter) -> None:
    """Convert the Loop node and add the `While` to `frame`. Raises ModelError for a malformed Loop."""
    graph, carried = graph_attribute(frame, node, "body"), len(node.input) - 2
    inits = [frame.lookup(text) for text in node.input[2:]]
    rows = len(graph.output) - 1 - carried
    if carried < 0 or None in inits or rows < 0 or len(graph.input) != 2 + carried:
        what = f"has {len(node.input)} inputs; its body has {len(graph.input)} inputs and {len(graph.output)} outputs"
        raise node_error(frame, node, what)
    if len(node.output) > carried + rows:
        raise node_error(frame, node, f"has {len(node.output)} outputs; its body returns {carried + rows}")
    limit = frame.lookup(node.input[0])
    limit = limit and as_scalar(frame, limit, COUNT_SCALAR, f"{name}.trip")
    start = frame.lookup(node.input[1]) or true_constant(frame.program, f"{name}.start")
    start = as_scalar(frame, start, BOOL_SCALAR, f"{name}.start")
    iteration = _iteration_of(frame.program, node, name, limit)
    body = _LoopBody(frame, name, graph, convert, limit, iteration)
    guess = [CarryGuess.strongest(known) for known in (start, *inits) if known is not None]
    carries, final = find_invariants(frame.program, guess, body.convert_under, iteration)
    prefix, condition = _continuation_condition(frame.program, name, limit, carries[0], final)
    names = [*node.output, *[""] * (carried + rows - len(node.output))]
    stacking = RowStacking((0,) * rows, (False,) * rows, _loop_trip_count(limit, carries[0]))
    loop = SettledLoop(node, name, carries, final, stacking, tuple(prefix.nodes), condition.value)
    add_while(frame, loop, ["", *names[:carried]], names[carried:])


def _iteration_of(program: ImportState, node: onnx.NodeProto, name: str, limit: KnownValue | None) -> Extent | str:
    """Return the number of the iteration as an extent; a text with the condition, where no carried value may grow."""
    if program.loop_limits is None:
        doors = "--dim NAME=LOW..HIGH, or sublet.compile_ranges"
        return f"a plan over ranges ({doors}) has room for rows that each iteration adds"
    names = (name, node.name, *node.output, EVERY_LOOP)
    maxima = [program.loop_limits[each] for each in names if each in program.loop_limits][:1]
    literal = limit.value.literal if limit is not None else None
    if literal is not None and literal != (UNBOUNDED_TRIP_COUNT,):
        maxima.append(upper_bound(cast(int, literal[0])))
    if not maxima:
        return "with a maximum trip count (--max-trips) the plan has room for rows that each iteration adds"
    return as_extent(Dimension(f"{name}.iteration", 0, max(min(maxima) - 1, 1)))


def _continuation_condition(
    program: ImportState, name: str, limit: KnownValue | None, goon: CarryGuess, final: ConvertedBody
) -> tuple[GraphConversion, KnownValue]:
    """Return the nodes evaluated before each iteration, and the continuation condition."""
    prefix = GraphConversion(program, Scope(), {})
    if goon.constant and not _starts_true(goon):
        return prefix, goon.init
    if limit is None or limit.value.literal == (UNBOUNDED_TRIP_COUNT,):
        return prefix, goon.init if goon.constant else final.parameters[0]
    below = prefix.emit("onnx.Less", f"{name}.below", (final.counter, limit), BOOL_SCALAR)
    if goon.constant:
        return prefix, below
    return prefix, prefix.emit("onnx.And", f"{name}.check", (below, final.parameters[0]), BOOL_SCALAR)


def _starts_true(goon: CarryGuess) -> bool:
    """True if the condition starts as the constant true."""
    return goon.init.value.literal == (True,)


def _loop_trip_count(limit: KnownValue | None, goon: CarryGuess) -> int | None:
    """Return the trip count, None if unknown before the run."""
    if not goon.constant:
        return None
    if not _starts_true(goon):
        return 0
    literal = limit.value.literal if limit is not None else None
    if literal is None or literal == (UNBOUNDED_TRIP_COUNT,):
        return None
    return cast(int, greatest(cast(int, literal[0]), 0))


# Conversion of ONNX Scan to a `While` node: each iteration reads a slice of each sequence and writes a row per output.
#
# Scan of operator set 8 has an additional batch axis, and stays one node.

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class _ScanBody:
    """The body of one Scan, converted repeatedly under guesses."""

    frame: GraphConversion
    name: str
    graph: onnx.GraphProto
    convert: GraphConverter
    slice_types: tuple[Type, ...]
    reasons: tuple[str, ...]

    def convert_under(self, carries: Sequence[CarryGuess]) -> ConvertedBody:
        """Convert the body under the guesses `carries`."""
        program, scope = self.frame.program, self.frame.scope.new_child()
        counter = program.fresh(f"{self.name}.counter", COUNT_SCALAR)
        names = [value.name for value in self.graph.input]
        parameters = tuple(
            carry.body_value(program, name, self.name) for carry, name in zip(carries, names, strict=False)
        )
        slices = tuple(
            program.fresh(name, type, reason)
            for name, type, reason in zip(names[len(carries) :], self.slice_types, self.reasons, strict=True)
        )
        scope.update(zip(names, (*parameters, *slices), strict=True))
        inner = self.convert(program, self.graph, scope)
        results = results_of(program, self.graph, scope)
        updates, rows = results[: len(carries)], results[len(carries) :]
        return ConvertedBody(counter, parameters, slices, updates, rows, tuple(inner.nodes))


def convert_scan(frame: GraphConversion, node: onnx.NodeProto, name: str, convert: GraphConverter) -> None:
    """Convert the Scan node and add the `While` to `frame`. Raises ModelError for a malformed Scan."""
    graph = graph_attribute(frame, node, "body")
    inputs = [known for text in node.input if (known := frame.lookup(text)) is not None]
    count = next((int(a.i) for a in node.attribute if a.name == "num_scan_inputs"), 0)
    states, rows = len(inputs) - count, len(graph.output) - (len(inputs) - count)
    if count < 1 or states < 0 or rows < 0 or len(graph.input) != len(inputs) or len(node.output) > states + rows:
        what = f"has {len(inputs)} inputs, {count} of them sequences, and {len(node.output)} outputs;"
        raise node_error(frame, node, f"{what} its body has {len(graph.input)} and {len(graph.output)}")
    sequences = inputs[states:]
    axes = _front_axes(frame, node, "scan_input_axes", [_rank_of(known.type) for known in sequences])
    types = tuple(_slice_type(known.type, axis) for known, axis in zip(sequences, axes, strict=True))
    body = _ScanBody(frame, name, graph, convert, types, tuple(known.unplannable_reason for known in sequences))
    carries, final = find_invariants(
        frame.program, [CarryGuess.strongest(known) for known in inputs[:states]], body.convert_under
    )
    trip, limit = _scan_trip_count(frame, node, name, sequences, axes)
    prefix = GraphConversion(frame.program, Scope(), {})
    condition = prefix.emit("onnx.Less", f"{name}.below", (final.counter, limit), BOOL_SCALAR)
    ranks = [None if (rank := _rank_of(row.type)) is None else rank + 1 for row in final.rows]
    stacking = RowStacking(
        _front_axes(frame, node, "scan_output_axes", ranks),
        _reversals(frame, node, "scan_output_directions", rows),
        trip,
    )
    flips = _reversals(frame, node, "scan_input_directions", count)
    loop = SettledLoop(
        node, name, carries, final, stacking, tuple(prefix.nodes), condition.value, tuple(sequences), axes, flips
    )
    names = [*node.output, *[""] * (states + rows - len(node.output))]
    add_while(frame, loop, names[:states], names[states:])


def _int_list(frame: GraphConversion, node: onnx.NodeProto, name: str, count: int) -> list[int]:
    """Return a list attribute of `count` numbers, all 0 if absent."""
    numbers = next((list(a.ints) for a in node.attribute if a.name == name), [0] * count)
    if len(numbers) != count:
        raise node_error(frame, node, f"has {len(numbers)} {name} instead of {count}")
    return numbers


def _front_axes(
    frame: GraphConversion, node: onnx.NodeProto, name: str, ranks: Sequence[int | None]
) -> tuple[int, ...]:
    """Return the axes counted from the front; an axis of a tensor of unknown rank stays unchanged."""
    axes: list[int] = []
    for axis, rank in zip(_int_list(frame, node, name, len(ranks)), ranks, strict=True):
        if rank is not None and not -rank <= axis < rank:
            raise node_error(frame, node, f"has {axis} in {name}, for a tensor of rank {rank}")
        axes.append(axis + rank if rank is not None and axis < 0 else axis)
    return tuple(axes)


def _reversals(frame: GraphConversion, node: onnx.NodeProto, name: str, count: int) -> tuple[bool, ...]:
    """Return True for each sequence or output traversed backwards."""
    return tuple(direction == 1 for direction in _int_list(frame, node, name, count))


def _rank_of(type: Type) -> int | None:
    """Return the rank of the type, None if unknown."""
    return len(type.dims) if isinstance(type, TensorType) and type.dims is not None else None


def _slice_type(sequence: Type, axis: int) -> Type:
    """Return the type of one slice of a sequence along `axis`."""
    if not isinstance(sequence, TensorType) or sequence.dims is None:
        return TensorType(sequence.elem) if isinstance(sequence, TensorType) else None
    return TensorType(sequence.elem, sequence.dims[:axis] + sequence.dims[axis + 1 :])


def _scan_trip_count(
    frame: GraphConversion, node: onnx.NodeProto, name: str, sequences: Sequence[KnownValue], axes: Sequence[int]
) -> tuple[int | None, KnownValue]:
    """Return the trip count, None if data-dependent, and the scalar value of the trip count.

    Raises ModelError for sequences of different lengths.
    """
    lengths = {
        type.dims[axis]: None
        for known, axis in zip(sequences, axes, strict=True)
        if isinstance(type := known.type, TensorType) and type.dims is not None
    }
    known_lengths = [length for length in lengths if length is not None]
    if len(known_lengths) > 1:
        listed, are_ranged = ", ".join(map(str, known_lengths)), any(map(is_ranged, known_lengths))
        what = f"lengths that may differ within the ranges: {listed}" if are_ranged else f"different lengths: {listed}"
        raise node_error(frame, node, f"has sequences of {what}")
    length = known_lengths[0] if known_lengths else None
    if length is not None and not is_ranged(length):
        return length, integer_constant(frame.program, f"{name}.trip", length, scalar=True)
    at = integer_constant(frame.program, f"{name}.axis", axes[0], scalar=True)
    shape = frame.emit("onnx.Shape", f"{name}.shape", (sequences[0],), TensorType(7, (_rank_of(sequences[0].type),)))
    return length, frame.emit("onnx.Gather", f"{name}.trip", (shape, at), COUNT_SCALAR)
