"""Byte provenance: for every value, the computed bytes copied into the value.

A computed value is the origin of all its bytes. A view copies bytes of the base, and a concatenation copies bytes of
the operands. Two values may share bytes while both are live if the provenance agrees wherever the values overlap;
in-place views (NNC: "alias") and concatenations rely on the rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from sublet.analysis.control_flow import ControlFlowGraph
from sublet.analysis.program_facts import RowFacts, SharingFacts
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value


class OriginSegment(NamedTuple):
    """Bytes [offset, offset + nbytes) of a value, equal to the bytes of the value `origin` from `origin_offset` on."""

    offset: int
    nbytes: int
    origin: Value
    origin_offset: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


Provenance = tuple[OriginSegment, ...]

MAX_SEGMENTS = 1024
"""Segments of a value. A concatenation with more counts as computed, and its operands as copied."""
MAX_TOTAL_SEGMENTS = 1 << 20
"""Segments of all values of a program together. Views and concatenations beyond count as computed."""


def compute_provenance(
    flow: ControlFlowGraph, row_facts: Mapping[str, RowFacts] | None = None
) -> dict[Value, Provenance]:
    """Return the provenance of every version, as segments by ascending offset.

    A version with several definitions counts as computed. A renamed version has the provenance of the source. With
    `row_facts`, the provenance is that of the first row, and holds for the bytes of all rows alike.
    """
    width = _nbytes if row_facts is None else row_bytes
    provenance: dict[Value, Provenance] = {
        value: (OriginSegment(0, width(value), value, 0),) for value in flow.unrolling.versions
    }
    writes = Counter(value for point in flow.points for value in point.defs)
    aliases = dict(flow.unrolling.aliases)
    total = 0
    for point in flow.points:
        for value in point.defs:
            if value in aliases:
                provenance[value] = provenance[aliases[value]]
        if point.node is None or point.facts is None:
            continue
        facts = point.facts if row_facts is None else row_facts.get(point.node.name)
        if facts is None:
            continue
        for value, content in _copied_outputs(point.node, facts, provenance, width):
            total += len(content)
            if len(content) <= MAX_SEGMENTS and total <= MAX_TOTAL_SEGMENTS and writes[value] == 1:
                provenance[value] = content
    return provenance


def _copied_outputs(
    node: Node, facts: SharingFacts | RowFacts, provenance: dict[Value, Provenance], width: Callable[[Value], int]
) -> Iterator[tuple[Value, Provenance]]:
    """Yield (output, provenance) for every view and concatenation computed by a node."""
    for share in facts.views:
        base, view = node.inputs[share.input], node.outputs[share.output]
        if base is not None and view is not None:
            of_base = provenance.get(base) or (OriginSegment(0, width(base), base, 0),)
            yield view, _slice_provenance(of_base, share.offset, width(view))
    wholes: dict[Value, list[OriginSegment]] = {}
    for share in facts.parts:
        part, whole = node.inputs[share.input], node.outputs[share.output]
        if part is not None and whole is not None:
            wholes.setdefault(whole, []).extend(
                _shift_provenance(provenance.get(part) or (OriginSegment(0, width(part), part, 0),), share.offset)
            )
    for whole, parts in wholes.items():
        yield whole, _fill_gaps(whole, width(whole), sorted(parts, key=lambda segment: segment.offset))


def _nbytes(value: Value) -> int:
    """Return the bytes of a value."""
    return value.nbytes


def row_bytes(value: Value) -> int:
    """Return the bytes of a row of a value: of an element along the leading axis; 0 without one."""
    extents = value.spec.shape if isinstance(value.spec, TensorSpec) else ()
    return value.nbytes // extents[0] if extents and extents[0] else 0


def _slice_provenance(content: Provenance, offset: int, nbytes: int) -> Provenance:
    """Return the provenance of bytes [offset, offset + nbytes), moved to offset 0."""
    cut = []
    for segment in content:
        begin, end = max(segment.offset, offset), min(segment.end, offset + nbytes)
        if begin < end:
            cut.append(
                OriginSegment(
                    begin - offset, end - begin, segment.origin, segment.origin_offset + begin - segment.offset
                )
            )
    return tuple(cut)


def _shift_provenance(content: Provenance, distance: int) -> Provenance:
    """Return the provenance moved by `distance` bytes."""
    return tuple(OriginSegment(s.offset + distance, s.nbytes, s.origin, s.origin_offset) for s in content)


def _fill_gaps(value: Value, nbytes: int, parts: list[OriginSegment]) -> Provenance:
    """Return `parts` with the gaps filled by bytes of `value` itself, of `nbytes` bytes in all."""
    filled: list[OriginSegment] = []
    position = 0
    for part in [*parts, OriginSegment(nbytes, 0, value, 0)]:
        if position < part.offset:
            filled.append(OriginSegment(position, part.offset - position, value, position))
        if part.nbytes:
            filled.append(part)
        position = part.end
    return tuple(filled)


def have_equal_overlap(a: Provenance, a_offset: int, b: Provenance, b_offset: int) -> bool:
    """True if two provenances, placed at `a_offset` and `b_offset`, name the same bytes wherever the values overlap."""
    i = j = 0
    while i < len(a) and j < len(b):
        x, y = a[i], b[j]
        x_begin, y_begin = x.offset + a_offset, y.offset + b_offset
        x_end, y_end = x_begin + x.nbytes, y_begin + y.nbytes
        overlap = max(x_begin, y_begin) < min(x_end, y_end)
        if overlap and (x.origin is not y.origin or x_begin - x.origin_offset != y_begin - y.origin_offset):
            return False
        if x_end <= y_end:
            i += 1
        if y_end <= x_end:
            j += 1
    return True
