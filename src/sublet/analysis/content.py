"""Byte provenance: for every value, the computed bytes copied into the value.

A computed value is the origin of all its bytes. A view copies bytes of the base, and a concatenation copies bytes of
the operands. Two values may share bytes while both are live if the provenance agrees wherever the values overlap;
in-place views (NNC: "alias") and concatenations rely on the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from sublet.analysis.flow import Flow
from sublet.analysis.scopes import Facts
from sublet.ir.graph import Node, Value


class Segment(NamedTuple):
    """Bytes [offset, offset + nbytes) of a value, equal to the bytes of the value `origin` from `origin_offset` on."""

    offset: int
    nbytes: int
    token: Value
    start: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


Content = tuple[Segment, ...]

MAX_SEGMENTS = 1024
"""Segments of a value. A concatenation with more counts as computed, and its operands as copied."""
MAX_ALL_SEGMENTS = 1 << 20
"""Segments of all values of a program together. Views and concatenations beyond count as computed."""


def contents(flow: Flow) -> dict[Value, Content]:
    """Return the provenance of every version, as segments by ascending offset.

    A version with several definitions counts as computed. A renamed version has the provenance of the source.
    """
    provenance: dict[Value, Content] = {value: _own(value) for value in flow.unrolling.instances}
    writes = Counter(value for point in flow.points for value in point.defs)
    aliases = dict(flow.unrolling.aliases)
    total = 0
    for point in flow.points:
        for value in point.defs:
            if value in aliases:
                provenance[value] = provenance[aliases[value]]
        if point.node is None or point.facts is None:
            continue
        for value, content in _derived(point.node, point.facts, provenance):
            total += len(content)
            if len(content) <= MAX_SEGMENTS and total <= MAX_ALL_SEGMENTS and writes[value] == 1:
                provenance[value] = content
    return provenance


def _derived(node: Node, facts: Facts, found: dict[Value, Content]) -> Iterator[tuple[Value, Content]]:
    """Yield (output, provenance) for every view and concatenation computed by a node."""
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
    """Return the provenance of a computed value: the value itself."""
    return (Segment(0, value.nbytes, value, 0),)


def _slice(content: Content, offset: int, nbytes: int) -> Content:
    """Return the provenance of bytes [offset, offset + nbytes), moved to offset 0."""
    cut = []
    for segment in content:
        begin, end = max(segment.offset, offset), min(segment.end, offset + nbytes)
        if begin < end:
            cut.append(Segment(begin - offset, end - begin, segment.token, segment.start + begin - segment.offset))
    return tuple(cut)


def _shift(content: Content, distance: int) -> Content:
    """Return the provenance moved by `distance` bytes."""
    return tuple(Segment(s.offset + distance, s.nbytes, s.token, s.start) for s in content)


def _cover(value: Value, parts: list[Segment]) -> Content:
    """Return `parts` with the gaps filled by bytes of `value` itself."""
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
    """True if two provenances, placed at `a_offset` and `b_offset`, name the same bytes wherever the values overlap."""
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
