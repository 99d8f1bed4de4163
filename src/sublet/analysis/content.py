"""What the bytes of a value are copies of, so that two values may share bytes that are equal anyway.

A computed value has bytes of its own. The bytes of a view are those of its base, and the bytes of a
concatenation are those of its operands. Views (NNC: "alias") and concatenations written in
place rest on this: two values may lie on the same bytes at the same time exactly where their
contents agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from sublet.analysis.flow import Flow
from sublet.analysis.scopes import Facts
from sublet.ir.graph import Node, Value


class Segment(NamedTuple):
    """`nbytes` bytes that are those of value `token` from `start` on, placed at `offset`."""

    offset: int
    nbytes: int
    token: Value
    start: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


Content = tuple[Segment, ...]

MAX_SEGMENTS = 1024
"""A concatenation in more segments counts as computed, and its operands as copied."""
MAX_ALL_SEGMENTS = 1 << 20


def contents(flow: Flow) -> dict[Value, Content]:
    """The content of every instance of a program, in segments by ascending offset.

    One that is written at several points counts as computed; a pointer's is its source's.
    """
    found: dict[Value, Content] = {value: _own(value) for value in flow.unrolling.instances}
    writes = Counter(value for point in flow.points for value in point.defs)
    aliases = dict(flow.unrolling.aliases)
    total = 0
    for point in flow.points:
        for value in point.defs:
            if value in aliases:
                found[value] = found[aliases[value]]
        if point.node is None or point.facts is None:
            continue
        for value, content in _derived(point.node, point.facts, found):
            total += len(content)
            if len(content) <= MAX_SEGMENTS and total <= MAX_ALL_SEGMENTS and writes[value] == 1:
                found[value] = content
    return found


def _derived(node: Node, facts: Facts, found: dict[Value, Content]) -> Iterator[tuple[Value, Content]]:
    """The outputs of a node that are copies of its inputs, with what they are copies of."""
    for share in facts.views:
        base, view = node.inputs[share.input], node.outputs[share.output]
        if base is not None and view is not None:
            yield view, _slice(found.get(base, _own(base)), share.offset, view.nbytes)
    wholes: dict[Value, list[Segment]] = {}
    for share in facts.parts:
        part, whole = node.inputs[share.input], node.outputs[share.output]
        if part is not None and whole is not None:
            wholes.setdefault(whole, []).extend(_shift(found.get(part, _own(part)), share.offset))
    for whole, parts in wholes.items():
        yield whole, _cover(whole, sorted(parts, key=lambda segment: segment.offset))


def _own(value: Value) -> Content:
    return (Segment(0, value.nbytes, value, 0),)


def _slice(content: Content, offset: int, nbytes: int) -> Content:
    """The segments of bytes [offset, offset + nbytes), moved to start at 0."""
    cut = []
    for segment in content:
        begin, end = max(segment.offset, offset), min(segment.end, offset + nbytes)
        if begin < end:
            cut.append(Segment(begin - offset, end - begin, segment.token, segment.start + begin - segment.offset))
    return tuple(cut)


def _shift(content: Content, distance: int) -> Content:
    return tuple(Segment(s.offset + distance, s.nbytes, s.token, s.start) for s in content)


def _cover(value: Value, parts: list[Segment]) -> Content:
    """`parts` with the bytes they leave uncovered filled by the value's own."""
    filled: list[Segment] = []
    position = 0
    for part in [*parts, Segment(value.nbytes, 0, value, 0)]:
        if position < part.offset:
            filled.append(Segment(position, part.offset - position, value, position))
        if part.nbytes:
            filled.append(part)
        position = part.end
    return tuple(filled)


def agree(a: Content, a_offset: int, b: Content, b_offset: int) -> bool:
    """Whether two contents, placed at these offsets, hold equal bytes wherever they overlap."""
    i = j = 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        x_begin, y_begin = x.offset + a_offset, y.offset + b_offset
        x_end, y_end = x_begin + x.nbytes, y_begin + y.nbytes
        overlap = max(x_begin, y_begin) < min(x_end, y_end)
        if overlap and (x.token is not y.token or x_begin - x.start != y_begin - y.start):
            return False
        if x_end <= y_end:
            i += 1
        if y_end <= x_end:
            j += 1
    return True
