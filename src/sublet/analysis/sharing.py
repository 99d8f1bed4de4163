"""Which values are the same bytes on purpose: views, parts of a concatenation, in-place, carries.

Starting from one buffer a value, buffers are merged, in this order, wherever `merging` allows it:

    pointer  an instance of a pointer and what it stands for there; always
    window   a slice or row that is bytes of its whole in every round, see `windows`
    view     an output that is bytes of an input
    part     a concatenation's operand, written at its place in the output
    carry    what updates an input or weight born in its place
    inplace  an output that takes over an input's bytes
    carry    the source of a control flow move (a carried update, an arm's result) born where it goes
    part     once more: what raised the peak may not, now that updates take no bytes of their own
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from sublet.analysis.content import contents
from sublet.analysis.flow import Flow, Point
from sublet.analysis.groups import Group, Member, add
from sublet.analysis.liveness import LiveRanges, Pieces
from sublet.analysis.merging import Copy, Merger, Permitted
from sublet.analysis.options import SMALLEST
from sublet.analysis.order import Concurrency
from sublet.analysis.scopes import Facts
from sublet.analysis.windows import Window, obstacle
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import Share
from sublet.plan import Edge


@dataclass(frozen=True)
class SharedBuffer:
    """Values that live in one block of `nbytes`.

    `home` names the bound storage the block is, "" for the arena; with a `window` the block is bytes of another,
    other ones every round. Invariant: at any time the bytes that several members cover are equal for all members
    alive then.
    """

    members: tuple[Member, ...]
    nbytes: int
    live: Pieces
    home: str = ""
    window: Window | None = None

    @property
    def packed(self) -> bool:
        """Whether it needs bytes of the arena."""
        return not self.home and self.window is None


def share(
    graph: Graph,
    flow: Flow,
    ranges: LiveRanges[Value],
    *,
    alignment: int = 1,
    homes: Mapping[Value, tuple[str, bool]] | None = None,
    merging: bool = True,
    blocks: bool = True,
    placed: Mapping[Value, int] | None = None,
    smallest: int = SMALLEST,
) -> tuple[SharedBuffer, ...]:
    """Merge the values of a program into buffers, in order of definition; without `merging`, one a value.

    `homes` gives the values bound outside the arena: the name of the storage and whether the network may write it.
    Unless buffers are placed as `blocks`, whatever may be merged is, but for what is to be `placed` at other offsets.
    Slices and rows of fewer than `smallest` bytes are not windows. Values of zero bytes and values that cannot be
    planned get no buffer.
    """
    merger = _start(graph, flow, ranges, alignment, homes or {})
    merger.blocks, merger.placed = blocks, placed or {}
    for alias, source in flow.unrolling.aliases:
        merger.join(alias, source)
    if not merging:
        return _finish(merger)
    _lay_windows(merger, flow, alignment, smallest)
    nodes = [(point.node, point.facts) for point in flow.points if point.node and point.facts]
    for node, facts in nodes:
        for view, base, offset in _pairs(node, facts.views):
            merger.merge("view", view, base, offset)
    _lay_parts(merger, nodes)
    for point in flow.points:
        if point.kind == "update":
            _carry(merger, point)
    for point in flow.points:
        _take_over(merger, point)
    for point in flow.points:
        _carry(merger, point)
    for first, later in flow.unrolling.alike:
        merger.merge("carry", first, later, 0)
    _lay_parts(merger, nodes)
    return _finish(merger)


def _lay_parts(merger: Merger, nodes: list[tuple[Node, Facts]]) -> None:
    """Let operands of concatenations lie in them."""
    for node, facts in nodes:
        for whole, part, offset in _pairs(node, facts.parts):
            merger.merge("part", part, whole, offset)


def copying(flow: Flow, buffers: tuple[SharedBuffer, ...]) -> list[tuple[Point, Value, Value]]:
    """The control flow moves that copy bytes: (point, source, destination) whose places differ."""
    places = {member.value: (i, member.offset) for i, buffer in enumerate(buffers) for member in buffer.members}
    return [
        (point, source, to)
        for point in flow.points
        for source, to in point.moves
        if to.nbytes and places.get(source) != places.get(to)
    ]


def _start(
    graph: Graph, flow: Flow, ranges: LiveRanges[Value], alignment: int, homes: Mapping[Value, tuple[str, bool]]
) -> Merger:
    """Every value in a group of its own."""
    curve = np.zeros(len(flow.points), dtype=np.int64)
    groups: dict[Value, Group] = {}
    filled = {*graph.inputs, *graph.weights}
    for value in flow.unrolling.instances:
        if value.nbytes:
            home, writable = homes.get(value, ("", True))
            live = ranges.points(value)
            groups[value] = Group({}, value, 0, value.nbytes, live, home, writable, value in filled, first=value)
            groups[value].put(Member(value, 0), ranges.halves.get(value, ()))
            add(curve, groups[value], 1, 0)
    return Merger(
        alignment=alignment,
        ranges=ranges,
        concurrency=Concurrency(flow),
        contents=contents(flow),
        groups=groups,
        offsets=dict.fromkeys(groups, 0),
        curve=curve,
        permitted=permitted(flow),
        made_by_copies=_copies(flow),
        ways=flow.unrolling.ways,
        pointed=frozenset(flow.unrolling.pointed),
        rewritten=_rewritten(flow),
        updates={pair: t for t, point in enumerate(flow.points) if point.kind == "update" for pair in point.moves},
    )


def _lay_windows(merger: Merger, flow: Flow, alignment: int, smallest: int) -> None:
    """Let slices and rows lie in their wholes, but not what control flow hands on.

    The exception is a row that is an update, and what the loop leaves in it: pointers of that loop may stand for it.
    In several streams the latter may be read beside what is written over the whole, so that there it is none.
    """
    edges = ("next", "exit") if flow.serial else ("next",)
    handed: dict[Value, set[tuple[Value, Edge]]] = {}
    moved = [(source, Edge("")) for point in flow.points for source, _ in point.moves]
    for source, edge in (
        *moved,
        *((source, edge) for source, passed in flow.unrolling.pointed.items() for edge in passed),
    ):
        for segment in merger.contents.get(source, ()):
            handed.setdefault(segment.token, set()).add((source, edge))
    aliases: dict[Value, list[Value]] = {}
    for alias, source in flow.unrolling.aliases:
        aliases.setdefault(source, []).append(alias)
    replaced = {(source, 2 * point + 1) for point, source, _ in merger.permitted}
    for window in flow.unrolling.windows:
        if obstacle(window.value, window.whole, window.axis, alignment, smallest):
            continue
        tokens = {segment.token for segment in merger.contents[window.value]}
        on = {known for token in tokens for known in handed.get(token, ())}
        if not on or (window.kind == "row" and _stays_a_row(window, on, edges, aliases, merger.ranges, replaced)):
            merger.lay_window(window)


def _stays_a_row(
    window: Window,
    on: set[tuple[Value, Edge]],
    edges: Collection[str],
    aliases: Mapping[Value, list[Value]],
    ranges: LiveRanges[Value],
    replaced: Collection[tuple[Value, int]],
) -> bool:
    """Whether only the row itself is handed on, to the next round and out of the loop, and while its whole lives.

    Nor is it read for the last time where something may be written over the whole: `replaced` tells of what and when.
    """
    row, loop, whole = window.value, window.loop.name, ranges.halves[window.whole]
    standing = aliases.get(row, [])
    known = all(
        edge.kind in edges and edge.node == loop and (value == row if edge.kind == "next" else value in standing)
        for value, edge in on
    )
    lives = [piece for alias in standing for piece in ranges.halves.get(alias, ())]
    return known and all(
        any(
            first <= begin and (end < last or (end == last and (window.whole, end) not in replaced))
            for first, last in whole
        )
        for begin, end in lives
    )


def _pairs(node: Node, shares: tuple[Share, ...]) -> Iterator[tuple[Value, Value, int]]:
    """The (output, input, offset) of each share whose values are present."""
    for share in shares:
        output, source = node.outputs[share.output], node.inputs[share.input]
        if output is not None and source is not None:
            yield output, source, share.offset


def permitted(flow: Flow) -> Permitted:
    """Where ops and moves may write a value over another, or where nothing is written: a pointer begins."""
    return frozenset(_permitted(flow))


def _permitted(flow: Flow) -> Iterator[tuple[int, Value, Value]]:
    aliases = {alias for alias, _ in flow.unrolling.aliases}
    for t, point in enumerate(flow.points):
        yield from ((t, source, alias) for alias in point.defs if alias in aliases for source in point.uses)
        yield from ((t, source, destination) for source, destination in point.moves)
        yield from ((t, source, output) for output, source in _inplace(point))


def _rewritten(flow: Flow) -> dict[Value, tuple[int, ...]]:
    """The points at which each value is written that is written at several."""
    points: dict[Value, list[int]] = {}
    for t, point in enumerate(flow.points):
        for value in point.defs:
            points.setdefault(value, []).append(t)
    return {value: tuple(several) for value, several in points.items() if len(several) > 1}


def _copies(flow: Flow) -> dict[tuple[Value, Value], tuple[Copy, ...]]:
    """For each (input, output) of a view or concatenation, all that its node may copy into the output, by place."""
    found: dict[tuple[Value, Value], tuple[Copy, ...]] = {}
    for point in flow.points:
        node, facts = point.node, point.facts
        if node is None or facts is None or not (facts.views or facts.parts):
            continue
        copies: dict[Value, list[Copy]] = {}
        for output, base, offset in _pairs(node, facts.views):
            copies.setdefault(output, []).append(Copy(base, -offset, 0, output.nbytes))
        for output, part, offset in _pairs(node, facts.parts):
            copies.setdefault(output, []).append(Copy(part, offset, offset, offset + part.nbytes))
        for output, several in copies.items():
            made = tuple(sorted(several, key=lambda copy: copy.begin))
            found.update(dict.fromkeys(((operand, output) for operand in node.uses), made))
    return found


def _inplace(point: Point) -> list[tuple[Value, Value]]:
    """The (output, input) pairs of a node of which the first may overwrite the second.

    An input that is given twice may be overwritten only if the op allows it at both positions. An operand that may
    be one of several instances counts as each of them: over those it is not at the time nothing is lost.
    """
    if point.node is None or point.facts is None or not point.facts.inplace:
        return []
    choices = dict(point.choices)
    pairs = [
        (output, to)
        for output, source, _ in _pairs(point.node, point.facts.inplace)
        for to in choices.get(source, (source,))
    ]
    given = [to for source in point.node.inputs if source is not None for to in choices.get(source, (source,))]
    return [pair for pair in dict.fromkeys(pairs) if pairs.count(pair) == given.count(pair[1])]


def _take_over(merger: Merger, point: Point) -> None:
    """Let each output take over the first input it can."""
    done: set[Value] = set()
    for output, source in _inplace(point):
        if output not in done and merger.merge("inplace", output, source, 0):
            done.add(output)


def _carry(merger: Merger, point: Point) -> None:
    """Let both ends of control flow moves be the same bytes, so that nothing moves."""
    for source, destination in point.moves:
        born_here = point.kind in ("next", "yield", "update")
        child, parent = (source, destination) if born_here else (destination, source)
        if child is not parent:
            merger.merge("carry", child, parent, 0)


def _finish(merger: Merger) -> tuple[SharedBuffer, ...]:
    buffers: list[SharedBuffer] = []
    seen: set[int] = set()
    for group in merger.groups.values():
        if id(group) in seen:
            continue
        seen.add(id(group))
        members = tuple(Member(m.value, m.offset - group.low, m.how, m.shares) for m in group.in_order())
        buffers.append(SharedBuffer(members, group.high - group.low, group.live, group.home, group.window))
    return tuple(buffers)
