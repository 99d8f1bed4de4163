"""Re-slicing of concat operands: late readers of a concatenated value read a slice of the concatenation instead.

Requires a legal graph. Ensures that no value copied into a concatenation is kept alive beyond the peak of live bytes
together with the concatenation, where the change lowers the peak: each late reader reads a slice, taken right before
the reader. In training, DenseNet then keeps one tensor a block instead of one a layer (as Pleiss et al., 2017, do by
hand).

    %z = nn.concat(%a, %b)               %z = nn.concat(%a, %b)
    ...                           ->     ...
    %d = nn.relu_gradient(%g, %a)        %a2 = nn.slice(%z)
                                         %d = nn.relu_gradient(%g, %a2)

Operands that can be computed in place in the concatenation cost no bytes and stay. The pass only examines the root
level, the level with forward and backward in one list of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sublet.ir.dataflow import reads_inside, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import pick, spec_of
from sublet.passes.live_bytes import estimated_peak

MAX_REPEATS = 4
"""Maximum number of repetitions, each at the peak of the last."""

SHARING_DISTANCE = 16
"""Consecutive readers of a value share a slice if fewer than this number of nodes apart."""

MIN_BYTES = 1 << 14
"""Minimum bytes of a value to re-slice. Smaller values stay alive."""


def with_resliced_operands(graph: Graph) -> Graph:
    """Return the graph with late readers of concatenated values reading slices, while the peak falls."""
    peak = estimated_peak(graph)
    for _ in range(MAX_REPEATS):
        changed = _reslice_after(graph, peak[1])
        if changed is None:
            break
        lower = estimated_peak(changed)
        if lower[0] >= peak[0]:
            break
        graph, peak = changed, lower
    return graph


@dataclass(frozen=True)
class _ConcatPart:
    """A value as a part of a concatenation: the part begins at index `start` of `axis` of `whole`."""

    whole: Value
    axis: int
    start: int


def _reslice_after(graph: Graph, peak: int) -> Graph | None:
    """Return the graph with slices for the readers after position `peak`, or None if no reader qualifies."""
    late: dict[Value, list[int]] = {}
    fixed = set(results(graph))
    for i, node in enumerate(graph.nodes):
        for value in reads_inside(node):
            if value not in node.uses:
                fixed.add(value)
            if i > peak:
                late.setdefault(value, []).append(i)
    parts: dict[Value, _ConcatPart] = {}
    for node in reversed(graph.nodes[: peak + 1]):
        (whole,) = node.defs if len(node.defs) == 1 else (None,)
        if node.op == "nn.concat" and whole is not None and (whole in late or whole in parts):
            for value, part in _copied_operands(node, whole):
                if value in late and value not in fixed and value.nbytes >= MIN_BYTES:
                    parts.setdefault(value, _outermost(part, parts))
    return _with_slices(graph, parts, late) if parts else None


def _copied_operands(node: Node, whole: Value) -> Sequence[tuple[Value, _ConcatPart]]:
    """Return the operands that a concatenation copies, with positions, without operands computed in place."""
    in_place = {share.input for share in lookup(node.op).parts(node)}
    axis = pick(node.attrs, "axis") % len(spec_of(whole).shape)
    copied, start = [], 0
    for i, value in enumerate(node.uses):
        if i not in in_place:
            copied.append((value, _ConcatPart(whole, axis, start)))
        start += spec_of(value).shape[axis]
    return copied


def _outermost(part: _ConcatPart, parts: dict[Value, _ConcatPart]) -> _ConcatPart:
    """Return the part relative to the outermost concatenation along the same axis."""
    outer = parts.get(part.whole)
    if outer is not None and outer.axis == part.axis:
        return _ConcatPart(outer.whole, part.axis, outer.start + part.start)
    return part


def _with_slices(graph: Graph, parts: dict[Value, _ConcatPart], late: dict[Value, list[int]]) -> Graph:
    """Return the graph with the late readers of `parts` reading slices.

    `late` maps a value to the positions of late readers.
    """
    emit = Emitter.from_graph(graph)
    emit.nodes.clear()
    slices: dict[Value, tuple[int, Value]] = {}
    for i, node in enumerate(graph.nodes):
        inputs = list(node.inputs)
        for position, value in enumerate(inputs):
            part = parts.get(value) if value is not None and i in late.get(value, ()) else None
            if value is None or part is None:
                continue
            last_use, slice_value = slices.get(value, (-SHARING_DISTANCE, value))
            if i - last_use >= SHARING_DISTANCE:
                emit.scope, emit.source = f"{value.name}.", node.source
                slice_value = _emit_slice(emit, part, value)
            slices[value] = (i, slice_value)
            inputs[position] = slice_value
        emit.nodes.append(node if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs)))
    return replace(graph, nodes=tuple(emit.nodes))


def _emit_slice(emit: Emitter, part: _ConcatPart, value: Value) -> Value:
    """Emit the slice of the concatenation equal to the value."""
    shape = spec_of(part.whole).shape
    extent = spec_of(value).shape[part.axis]
    starts = tuple(part.start if axis == part.axis else 0 for axis in range(len(shape)))
    ends = tuple(part.start + extent if axis == part.axis else size for axis, size in enumerate(shape))
    return emit("nn.slice", part.whole, starts=starts, ends=ends, steps=(1,) * len(shape))
