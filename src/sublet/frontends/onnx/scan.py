"""Conversion of ONNX Scan to a `While` node: each iteration reads a slice of each sequence and writes a row per output.

Scan of operator set 8 has an additional batch axis, and stays one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sublet.frontends.onnx.graph_conversion import (
    BOOL_SCALAR,
    COUNT_SCALAR,
    GraphConversion,
    GraphConverter,
    graph_attribute,
    integer_constant,
    node_error,
    results_of,
)
from sublet.frontends.onnx.import_state import KnownValue, Scope
from sublet.frontends.onnx.loop_invariants import (
    CarryGuess,
    ConvertedBody,
    RowStacking,
    SettledLoop,
    add_while,
    find_invariants,
)
from sublet.frontends.onnx.types import TensorType, Type

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
        raise node_error(frame, node, f"has sequences of different lengths: {', '.join(map(str, known_lengths))}")
    if known_lengths:
        return known_lengths[0], integer_constant(frame.program, f"{name}.trip", known_lengths[0], scalar=True)
    at = integer_constant(frame.program, f"{name}.axis", axes[0], scalar=True)
    shape = frame.emit("onnx.Shape", f"{name}.shape", (sequences[0],), TensorType(7, (_rank_of(sequences[0].type),)))
    return None, frame.emit("onnx.Gather", f"{name}.trip", (shape, at), COUNT_SCALAR)
