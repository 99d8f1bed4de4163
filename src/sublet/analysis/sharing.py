"""Buffer sharing: coalesces aliases, views, concatenation operands, in-place outputs and carries, in a fixed order.

Every value starts in a separate buffer. Buffers are merged in the following order, wherever `analysis.coalescing` finds
a merge legal and profitable:

    pointer     a version of a renamed value with the source bound to the version; always, whatever the cost
    slice, row  a slice or row as a strided view of the whole in every iteration, see `analysis.program_facts`
    view        a view with the base
    part        a concatenation operand, written in place in the result
    view, part  the same row by row, for values of which only each row is contiguous: channel slices of a batch
    carry       the source of an update, written straight into the updated input or weight
    inplace     an output written over an input at the last use of the input
    carry       the source of a control-flow move (the update of a parameter, the result of an arm), written straight
                into the destination; then the bindings of a prologue version with the bindings of the period
    part        once more: an operand rejected for raising the peak may fit, now that updates take no separate bytes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from sublet.analysis.byte_provenance import compute_provenance, row_bytes
from sublet.analysis.coalesced_buffer import CoalescedBuffer, Member, add_live_bytes
from sublet.analysis.coalescing import AllowedOverwrites, Coalescer, NodeCopy, RowSharing
from sublet.analysis.control_flow import ControlFlowGraph, FlowPoint
from sublet.analysis.liveness import LiveRange, LiveRanges
from sublet.analysis.options import MIN_VIEW_BYTES
from sublet.analysis.program_facts import LoopView, RowFacts, SharingFacts
from sublet.analysis.streams import Concurrency
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import Share
from sublet.plan import Edge

# The buffer assignment of a program: control flow with live ranges and shared buffers.


@dataclass(frozen=True)
class BufferAssignment:
    """Control flow of a program with live ranges and shared buffers.

    residual_copies     the moves still copying bytes: (point, source, destination)
    renaming_obstacles  the values excluded from renaming, each with the reason, "" where the reason is unknown
    """

    flow: ControlFlowGraph
    ranges: LiveRanges[Value]
    buffers: tuple[SharedBuffer, ...]
    residual_copies: tuple[tuple[FlowPoint, Value, Value], ...]
    renaming_obstacles: Mapping[Value, str] = field(default_factory=dict)

    @property
    def arena_buffers(self) -> tuple[SharedBuffer, ...]:
        """The buffers with bytes in an arena."""
        return tuple(buffer for buffer in self.buffers if buffer.needs_arena)

    @cached_property
    def copied_bytes(self) -> tuple[int, int]:
        """The bytes copied by moves, slices and rows: in an iteration of any loop, and altogether.

        Body versions of the same move count once.
        """
        bases, inside = self.flow.unrolling.versions, self.flow.unrolling.facts.nodes_in_loops
        moved = {(point.kind, bases[to].base): point.node for point, _, to in self.residual_copies}
        often = {to for (kind, to), node in moved.items() if kind == "next" or (node and node.name in inside)}
        views = sum(self.copied_loop_views.values())
        return sum(to.nbytes for to in often) + views, sum(to.nbytes for _, to in moved) + views

    @cached_property
    def placed_loop_views(self) -> frozenset[tuple[Value, Value]]:
        """The slices and rows placed as views of their wholes: (slice or row, whole)."""
        return frozenset(
            (buffer.loop_view.value, buffer.loop_view.whole) for buffer in self.buffers if buffer.loop_view
        )

    @cached_property
    def copied_loop_views(self) -> Mapping[tuple[str, Value, Value], int]:
        """The bytes of every slice and row still copied, by (kind, slice or row, whole)."""
        base = self.flow.unrolling.versions
        return {
            (window.kind, base[window.value].base, base[window.whole].base): window.value.nbytes
            for window in self.flow.unrolling.loop_views
            if (window.value, window.whole) not in self.placed_loop_views
        }


@dataclass(frozen=True)
class SharedBuffer:
    """A set of values sharing a block of `nbytes` bytes.

    `bound_storage` names the storage outside the arena, "" for the arena. A buffer with a `loop_view` owns no bytes: in
    every iteration the buffer is a different slice or row of another buffer. A buffer of several `rows` repeats a row;
    offsets of members are offsets in the first row. Invariant: bytes covered by several members live at the same time
    are equal for all these members.
    """

    members: tuple[Member, ...]
    nbytes: int
    live: LiveRange
    bound_storage: str = ""
    loop_view: LoopView | None = None
    rows: int = 1

    @property
    def pitch(self) -> int:
        """The bytes from row to row."""
        return self.nbytes // self.rows

    @property
    def needs_arena(self) -> bool:
        """True if the buffer needs bytes in the arena."""
        return not self.bound_storage and self.loop_view is None


class RowLimits(NamedTuple):
    """Limits of sharing row by row.

    smallest    the least bytes of a row; 0 for rows at any price
    live_bytes  the live bytes that merges may reach anywhere
    """

    smallest: int
    live_bytes: int

    def allow(self, part: Value, call_bytes: Mapping[Value, int]) -> bool:
        """True if the rows are large enough, and a copy reads and writes as many bytes as nodes computed row by row.

        Measured with ONNX Runtime: calls a row made DenseNet-121 no slower, which copies concatenations again and
        again, but took GoogLeNet 4 % more time than copies of results of convolutions.
        """
        is_cheaper = not self.smallest or 2 * part.nbytes >= call_bytes.get(part, 0)
        return is_cheaper and row_bytes(part) >= self.smallest


MAX_SIZE = 1 << 62
"""More bytes than any plan has."""


def share_buffers(
    graph: Graph,
    flow: ControlFlowGraph,
    ranges: LiveRanges[Value],
    *,
    alignment: int = 1,
    homes: Mapping[Value, tuple[str, bool]] | None = None,
    merging: bool = True,
    blocks: bool = True,
    fixed_offsets: Mapping[Value, int] | None = None,
    smallest: int = MIN_VIEW_BYTES,
    row_limits: RowLimits | None = None,
) -> tuple[SharedBuffer, ...]:
    """Coalesce the values of a program into buffers and return the buffers, in order of definition.

    `homes` maps values bound outside the arena to the name of the storage, and to True if the network may write there.
    Without `merging`, only renamed values are merged, with the values bound to them. With `blocks`, a merge must not
    raise the peak of live bytes; without, every legal merge is made, but for merges contradicting the fixed offsets in
    `fixed_offsets` (bytes). Slices and rows below `smallest` bytes are not placed as views. Offsets of views and
    operands must be multiples of `alignment` bytes. With `row_limits`, values may share bytes row by row. Values of
    zero bytes and unplannable values get no buffer.
    """
    merger = _initial_coalescer(graph, flow, ranges, alignment, homes or {})
    merger.rectangular, merger.fixed_offsets = blocks, fixed_offsets or {}
    for alias, source in flow.unrolling.aliases:
        merger.coalesce_alias(alias, source)
    if not merging:
        return _to_shared_buffers(merger)
    _place_loop_views(merger, flow, alignment, smallest)
    nodes = [(point.node, point.facts) for point in flow.points if point.node and point.facts]
    for node, facts in nodes:
        for view, base, offset in _present_shares(node, facts.views):
            merger.try_coalesce("view", view, base, offset)
    _place_concat_operands(merger, nodes)
    row_facts = flow.unrolling.facts.row_facts if row_limits is not None else {}
    limits = row_limits or RowLimits(0, 0)
    in_order = [(node, row_facts[node.name]) for node, _ in nodes if node.name in row_facts]
    if row_facts:
        merger.by_rows = _row_sharing_of(flow, row_facts, limits.live_bytes)
    views: dict[tuple[Value, int], list[tuple[Value, int]]] = {}
    for node, by_row in in_order:
        for view, base, offset in _present_shares(node, by_row.views):
            if limits.allow(view, merger.by_rows.call_bytes):
                views.setdefault((base, by_row.rows), []).append((view, offset))
    for (base, rows), of_base in views.items():
        merger.coalesce_rows("view", base, of_base, rows)
    _place_concat_rows(merger, in_order, limits)
    for point in flow.points:
        if point.kind == "update":
            _coalesce_moves(merger, point)
    for point in flow.points:
        _coalesce_inplace(merger, point)
    for point in flow.points:
        _coalesce_moves(merger, point)
    for first, later in flow.unrolling.prologue_pairs:
        merger.try_coalesce("carry", first, later, 0)
    _place_concat_operands(merger, nodes)
    _place_concat_rows(merger, in_order, limits)
    return _to_shared_buffers(merger)


def _place_concat_operands(merger: Coalescer, nodes: list[tuple[Node, SharingFacts]]) -> None:
    """Merge the operands of concatenations into the results."""
    for node, facts in nodes:
        for whole, part, offset in _present_shares(node, facts.parts):
            merger.try_coalesce("part", part, whole, offset)


def _place_concat_rows(merger: Coalescer, nodes: list[tuple[Node, RowFacts]], limits: RowLimits) -> None:
    """Merge the operands of concatenations into the results, row by row, within limits."""
    for node, facts in nodes:
        call_bytes = merger.by_rows.call_bytes
        shares = [share for share in _present_shares(node, facts.parts) if limits.allow(share[1], call_bytes)]
        for whole in dict.fromkeys(whole for whole, _, _ in shares):
            parts = [(part, offset) for around, part, offset in shares if around == whole]
            merger.coalesce_rows("part", whole, parts, facts.rows)


def _row_sharing_of(flow: ControlFlowGraph, row_facts: Mapping[str, RowFacts], live_bytes: int) -> RowSharing:
    """Return the facts of sharing row by row, for a program in a single stream."""
    contiguous: set[Value] = set()
    call_bytes: Counter[Value] = Counter()
    for point in flow.points:
        facts = row_facts.get(point.node.name) if point.node is not None and point.facts is not None else None
        if facts is None or point.node is None:
            contiguous.update((*point.uses, *point.defs, *(value for pair in point.moves for value in pair)))
            continue
        if facts.call_bytes:
            call_bytes.update(dict.fromkeys(point.node.uses, facts.call_bytes))
            call_bytes.update(dict.fromkeys(point.node.defs, MAX_SIZE))  # a computed result stays contiguous
        inputs, outputs = enumerate(point.node.inputs), enumerate(point.node.outputs)
        contiguous.update(value for i, value in inputs if value is not None and i not in facts.strided_inputs)
        contiguous.update(value for i, value in outputs if value is not None and i not in facts.strided_outputs)
    strided = frozenset(value for value in flow.unrolling.versions if value not in contiguous)
    copies = _node_copies_of(flow, lambda point: row_facts.get(point.node.name) if point.node else None, row_bytes)
    return RowSharing(compute_provenance(flow, row_facts), copies, strided, call_bytes, live_bytes)


def find_copying_moves(
    flow: ControlFlowGraph, buffers: tuple[SharedBuffer, ...]
) -> list[tuple[FlowPoint, Value, Value]]:
    """Return the control-flow moves between different places: (point, source, destination)."""
    places = {member.value: (i, member.offset) for i, buffer in enumerate(buffers) for member in buffer.members}
    return [
        (point, source, to)
        for point in flow.points
        for source, to in point.moves
        if to.nbytes and places.get(source) != places.get(to)
    ]


def _initial_coalescer(
    graph: Graph,
    flow: ControlFlowGraph,
    ranges: LiveRanges[Value],
    alignment: int,
    homes: Mapping[Value, tuple[str, bool]],
) -> Coalescer:
    """Return a coalescer with every value in a separate buffer."""
    curve = np.zeros(len(flow.points), dtype=np.int64)
    groups: dict[Value, CoalescedBuffer] = {}
    filled = {*graph.inputs, *graph.weights}
    for value in flow.unrolling.versions:
        if value.nbytes:
            home, writable = homes.get(value, ("", True))
            live = ranges.point_ranges(value)
            groups[value] = CoalescedBuffer(
                {}, value, 0, value.nbytes, live, home, writable, value in filled, owner=value
            )
            groups[value].add_member(Member(value, 0), ranges.slot_ranges.get(value, ()))
            add_live_bytes(curve, groups[value], 1, 0)
    return Coalescer(
        alignment=alignment,
        ranges=ranges,
        concurrency=Concurrency(flow),
        provenance=compute_provenance(flow),
        buffer_of=groups,
        offset_of=dict.fromkeys(groups, 0),
        live_bytes=curve,
        allowed_overwrites=allowed_overwrites(flow),
        node_copies=_node_copies_of(flow),
        exit_edges=flow.unrolling.exit_edges,
        renamed_sources=frozenset(flow.unrolling.renamed_sources),
        multiple_definitions=_multiple_definitions(flow),
        update_points={
            pair: t for t, point in enumerate(flow.points) if point.kind == "update" for pair in point.moves
        },
    )


def _place_loop_views(merger: Coalescer, flow: ControlFlowGraph, alignment: int, smallest: int) -> None:
    """Place slices and rows as views of their wholes, unless control flow assigns their bytes to a value.

    Exception: a row may be the update of a renamed parameter, and also the final value of the loop. In several streams
    a node may read the final value while another node overwrites the whole; a row assigned on an exit edge is then
    copied.
    """
    edges = ("next", "exit") if flow.is_serial else ("next",)
    handed: dict[Value, set[tuple[Value, Edge]]] = {}
    moved = [(source, Edge("")) for point in flow.points for source, _ in point.moves]
    for source, edge in (
        *moved,
        *((source, edge) for source, passed in flow.unrolling.renamed_sources.items() for edge in passed),
    ):
        for segment in merger.provenance.get(source, ()):
            handed.setdefault(segment.origin, set()).add((source, edge))
    aliases: dict[Value, list[Value]] = {}
    for alias, source in flow.unrolling.aliases:
        aliases.setdefault(source, []).append(alias)
    replaced = {(source, 2 * point + 1) for point, source, _ in merger.allowed_overwrites.listed}
    if flow.unrolling.loop_views:
        known = merger.allowed_overwrites.aliases
        bound = (t for t, point in enumerate(flow.points) if not known.isdisjoint(point.defs))
        replaced |= {(source, 2 * t + 1) for t in bound for source in flow.points[t].uses}
    for window in flow.unrolling.loop_views:
        facts = flow.unrolling.facts
        if facts.why_not_loop_view(window.value, window.whole, window.axis, alignment, smallest):
            continue
        tokens = {segment.origin for segment in merger.provenance[window.value]}
        on = {known for token in tokens for known in handed.get(token, ())}
        if not on or (window.kind == "row" and _may_carry_row(window, on, edges, aliases, merger.ranges, replaced)):
            merger.place_loop_view(window)


def _may_carry_row(
    window: LoopView,
    on: set[tuple[Value, Edge]],
    edges: Collection[str],
    aliases: Mapping[Value, list[Value]],
    ranges: LiveRanges[Value],
    replaced: Collection[tuple[Value, int]],
) -> bool:
    """True if control flow carries only the row itself, and only while the whole is live.

    The row may be carried to the next iteration and out of the loop. `on` holds the (value, edge) pairs assigning bytes
    of the row, `edges` the permitted kinds of edges. A last use of the row must not coincide with an overwrite of the
    whole: `replaced` holds the (value, slot) pairs of permitted overwrites.
    """
    row, loop, whole = window.value, window.loop.name, ranges.slot_ranges[window.whole]
    standing = aliases.get(row, [])
    known = all(
        edge.kind in edges and edge.node == loop and (value == row if edge.kind == "next" else value in standing)
        for value, edge in on
    )
    lives = [piece for alias in standing for piece in ranges.slot_ranges.get(alias, ())]
    return known and all(
        any(
            first <= begin and (end < last or (end == last and (window.whole, end) not in replaced))
            for first, last in whole
        )
        for begin, end in lives
    )


def _present_shares(node: Node, shares: tuple[Share, ...]) -> Iterator[tuple[Value, Value, int]]:
    """Yield (output, input, offset in bytes) for every entry of `shares` with both values present."""
    for share in shares:
        output, source = node.outputs[share.output], node.inputs[share.input]
        if output is not None and source is not None:
            yield output, source, share.offset


def allowed_overwrites(flow: ControlFlowGraph) -> AllowedOverwrites:
    """Return the points where a value may overwrite another at the last use: (point, value read, value written).

    Ops and moves permit an overwrite. The definition of a renamed value writes no bytes, hence may coincide with the
    last use of any value read at the same point.
    """
    moves = {(t, source, to) for t, point in enumerate(flow.points) for source, to in point.moves}
    inplace = {(t, source, output) for t, point in enumerate(flow.points) for output, source in _inplace_pairs(point)}
    return AllowedOverwrites(frozenset(moves | inplace), frozenset(alias for alias, _ in flow.unrolling.aliases))


def _multiple_definitions(flow: ControlFlowGraph) -> dict[Value, tuple[int, ...]]:
    """Return the defining points of every value with several definitions."""
    points: dict[Value, list[int]] = {}
    for t, point in enumerate(flow.points):
        for value in point.defs:
            points.setdefault(value, []).append(t)
    return {value: tuple(defining) for value, defining in points.items() if len(defining) > 1}


def _node_copies_of(
    flow: ControlFlowGraph,
    facts_of: Callable[[FlowPoint], SharingFacts | RowFacts | None] = attrgetter("facts"),
    width: Callable[[Value], int] = attrgetter("nbytes"),
) -> dict[tuple[Value, Value], tuple[NodeCopy, ...]]:
    """Map (operand, output) of every view or concatenation to the copies made into the output, by offset."""
    by_pair: dict[tuple[Value, Value], tuple[NodeCopy, ...]] = {}
    for point in flow.points:
        node, facts = point.node, facts_of(point)
        if node is None or facts is None or not (facts.views or facts.parts):
            continue
        copies: dict[Value, list[NodeCopy]] = {}
        for output, base, offset in _present_shares(node, facts.views):
            copies.setdefault(output, []).append(NodeCopy(base, -offset, 0, width(output)))
        for output, part, offset in _present_shares(node, facts.parts):
            copies.setdefault(output, []).append(NodeCopy(part, offset, offset, offset + width(part)))
        for output, of_output in copies.items():
            by_offset = tuple(sorted(of_output, key=lambda copy: copy.begin))
            by_pair.update(dict.fromkeys(((operand, output) for operand in node.uses), by_offset))
    return by_pair


def _inplace_pairs(point: FlowPoint) -> list[tuple[Value, Value]]:
    """Return the (output, input) pairs of a node where the output may overwrite the input.

    An input passed at several positions must permit the overwrite at all positions. An operand bound to any of several
    versions counts as each version: overwriting a version not bound at run time loses no data.
    """
    if point.node is None or point.facts is None or not point.facts.inplace:
        return []
    choices = dict(point.choices)
    pairs = [
        (output, to)
        for output, source, _ in _present_shares(point.node, point.facts.inplace)
        for to in choices.get(source, (source,))
    ]
    given = [to for source in point.node.inputs if source is not None for to in choices.get(source, (source,))]
    return [pair for pair in dict.fromkeys(pairs) if pairs.count(pair) == given.count(pair[1])]


def _coalesce_inplace(merger: Coalescer, point: FlowPoint) -> None:
    """Merge each output of a node into the first possible input to overwrite."""
    done: set[Value] = set()
    for output, source in _inplace_pairs(point):
        if output not in done and merger.try_coalesce("inplace", output, source, 0):
            done.add(output)


def _coalesce_moves(merger: Coalescer, point: FlowPoint) -> None:
    """Merge source and destination of every control-flow move at a point, which makes the move free."""
    for source, destination in point.moves:
        born_here = point.kind in ("next", "yield", "update")
        child, parent = (source, destination) if born_here else (destination, source)
        if child is not parent:
            merger.try_coalesce("carry", child, parent, 0)


def _to_shared_buffers(merger: Coalescer) -> tuple[SharedBuffer, ...]:
    """Return the coalesced buffers as `SharedBuffer` records, in order of definition."""
    buffers: list[SharedBuffer] = []
    seen: set[int] = set()
    for group in merger.buffer_of.values():
        if id(group) in seen:
            continue
        seen.add(id(group))
        members = tuple(Member(m.value, m.offset - group.low, m.how, m.shares) for m in group.members_in_order())
        buffers.append(
            SharedBuffer(members, group.nbytes, group.live, group.bound_storage, group.loop_view, group.rows)
        )
    return tuple(buffers)
