"""Recall: what a concatenation contains is read from there, once it is needed long afterwards.

Requires a legal graph. Ensures that no value which a concatenation copied is kept beyond the peak of live bytes next
to the concatenation, where that lowers the peak: each late reader reads a slice, made right before it. In training,
DenseNet then keeps one tensor a block instead of one a layer (as Pleiss et al., 2017, do by hand).

    %z = nn.concat(%a, %b)               %z = nn.concat(%a, %b)
    ...                           ->     ...
    %d = nn.relu_gradient(%g, %a)        %a2 = nn.slice(%z)
                                         %d = nn.relu_gradient(%g, %a2)

Operands that the planner can write in place in the concatenation cost nothing to keep and stay. Only the root level
is looked at: it is there that forward and backward are one list of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import reads_inside, results
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import pick, spec_of
from sublet.passes.live_bytes import blocks_of

ROUNDS = 4
"""How often a new peak is looked at."""

NEAR = 16
"""Readers of one value that are no more nodes apart share a slice."""

LEAST = 1 << 14
"""Bytes below which a value is kept."""


def recalled(graph: Graph) -> Graph:
    """The graph with late readers of concatenated values reading slices, as long as that lowers the peak."""
    peak = _peak(graph)
    for _ in range(ROUNDS):
        changed = _recalled_after(graph, peak[1])
        if changed is None:
            break
        lower = _peak(changed)
        if lower[0] >= peak[0]:
            break
        graph, peak = changed, lower
    return graph


def _peak(graph: Graph) -> tuple[int, int]:
    """The highest estimate of live bytes, and the node at which it is."""
    blocks = blocks_of(graph, graph.nodes, results(graph), {})
    curve = blocks.curve(range(len(graph.nodes)))
    highest = max(curve, default=0)
    return highest, curve.index(highest) if curve else 0


@dataclass(frozen=True)
class _Part:
    """A value as the part of another that begins at `start` along `axis`."""

    whole: Value
    axis: int
    start: int


def _recalled_after(graph: Graph, peak: int) -> Graph | None:
    """The graph with slices for readers behind the node `peak`; None when there is nothing to do."""
    late: dict[Value, list[int]] = {}
    fixed = set(results(graph))
    for i, node in enumerate(graph.nodes):
        for value in reads_inside(node):
            if value not in node.uses:
                fixed.add(value)
            if i > peak:
                late.setdefault(value, []).append(i)
    parts: dict[Value, _Part] = {}
    for node in reversed(graph.nodes[: peak + 1]):
        (whole,) = node.defs if len(node.defs) == 1 else (None,)
        if node.op == "nn.concat" and whole is not None and (whole in late or whole in parts):
            for value, part in _copied_parts(node, whole):
                if value in late and value not in fixed and value.nbytes >= LEAST:
                    parts.setdefault(value, _outermost(part, parts))
    return _with_slices(graph, parts, late) if parts else None


def _copied_parts(node: Node, whole: Value) -> Sequence[tuple[Value, _Part]]:
    """The operands that a concatenation copies, with their places; not those that may be born there."""
    born = {share.input for share in lookup(node.op).parts(node)}
    axis = pick(node.attrs, "axis") % len(spec_of(whole).shape)
    found, start = [], 0
    for i, value in enumerate(node.uses):
        if i not in born:
            found.append((value, _Part(whole, axis, start)))
        start += spec_of(value).shape[axis]
    return found


def _outermost(part: _Part, parts: dict[Value, _Part]) -> _Part:
    """The part as one of a value that is itself no part of another along the same axis."""
    outer = parts.get(part.whole)
    if outer is not None and outer.axis == part.axis:
        return _Part(outer.whole, part.axis, outer.start + part.start)
    return part


def _with_slices(graph: Graph, parts: dict[Value, _Part], late: dict[Value, list[int]]) -> Graph:
    emit = Emitter.of(graph)
    emit.nodes.clear()
    current: dict[Value, tuple[int, Value]] = {}
    for i, node in enumerate(graph.nodes):
        inputs = list(node.inputs)
        for position, value in enumerate(inputs):
            part = parts.get(value) if value is not None and i in late.get(value, ()) else None
            if value is None or part is None:
                continue
            at, made = current.get(value, (-NEAR, value))
            if i - at >= NEAR:
                emit.scope, emit.source = f"{value.name}.", node.source
                made = _slice(emit, part, value)
            current[value] = (i, made)
            inputs[position] = made
        emit.nodes.append(node if tuple(inputs) == node.inputs else replace(node, inputs=tuple(inputs)))
    return replace(graph, nodes=tuple(emit.nodes))


def _slice(emit: Emitter, part: _Part, value: Value) -> Value:
    shape = spec_of(part.whole).shape
    extent = spec_of(value).shape[part.axis]
    starts = tuple(part.start if axis == part.axis else 0 for axis in range(len(shape)))
    ends = tuple(part.start + extent if axis == part.axis else size for axis, size in enumerate(shape))
    return emit("nn.slice", part.whole, starts=starts, ends=ends, steps=(1,) * len(shape))
