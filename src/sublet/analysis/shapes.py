"""Shared buffers as the strips of bytes that are needed at one time, for programs in one stream.

A buffer of several strips is several items of a packing problem at fixed distances, so that others may lie where none
of its values needs bytes: where the operands of a concatenation will be, and where the base of a view has been.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.analysis.liveness import LiveRanges
from sublet.analysis.sharing import SharedBuffer
from sublet.base.ranges import gaps
from sublet.base.strips import Strip, strips
from sublet.ir.graph import Value
from sublet.packing.bounds import Bound
from sublet.packing.problem import Buffer, Companion, Packing, Problem


@dataclass(frozen=True)
class Shapes:
    """A packing problem of strips: of each the position of its buffer, and where in it that begins."""

    problem: Problem
    buffers: tuple[int, ...]
    begins: tuple[int, ...]

    @property
    def rigid(self) -> bool:
        """Whether every buffer is one strip, needed as a whole: a block."""
        return not self.problem.companions and not self.problem.pinned

    def offsets(self, packing: Packing) -> tuple[int, ...]:
        """The offsets of the buffers in a packing of the strips."""
        of_strips = zip(self.buffers, packing.offsets, self.begins, strict=True)
        found = {buffer: offset - begin for buffer, offset, begin in of_strips}
        return tuple(found[buffer] for buffer in sorted(found))

    def of_buffers(self, bound: Bound) -> Bound:
        """A bound that strips prove, as one that their buffers prove."""
        return replace(bound, members=tuple(sorted({self.buffers[strip] for strip in bound.members})))


def shapes(
    problem: Problem,
    buffers: Sequence[SharedBuffer],
    ranges: LiveRanges[Value] | None,
    alignment: int,
    placed: Mapping[Value, int] | None = None,
) -> Shapes:
    """The problem of placing `buffers` by what they need at each point; `problem` is that of placing them as blocks.

    Without the lives of their values they are blocks, each of one strip. Buffers with `placed` values are pinned.
    """
    if ranges is None:
        return Shapes(problem, tuple(range(len(buffers))), (0,) * len(buffers))
    items: list[Buffer] = []
    ties: list[Companion] = []
    owners: list[int] = []
    begins: list[int] = []
    for i, (block, buffer) in enumerate(zip(problem.buffers, buffers, strict=True)):
        first = len(items)
        pins = [placed[m.value] - m.offset for m in buffer.members if m.value in placed] if placed else []
        for strip in _strips(buffer, ranges, alignment):
            if len(items) > first:
                ties.append(Companion(first, len(items), strip.begin - begins[first]))
            item = _item(block, strip, len(items) - first)
            items.append(replace(item, pinned=pins[0] + strip.begin) if pins else item)
            owners.append(i)
            begins.append(strip.begin)
    tied = Problem(tuple(items), companions=tuple(ties), name=problem.name) if ties or placed else problem
    return Shapes(tied, tuple(owners), tuple(begins))


def _strips(buffer: SharedBuffer, ranges: LiveRanges[Value], alignment: int) -> tuple[Strip, ...]:
    """The strips of a buffer; a value that never lives is needed as long as the others are."""
    members = (
        Strip(member.offset, member.offset + member.value.nbytes, ranges.points(member.value) or buffer.live)
        for member in buffer.members
    )
    return strips(members, alignment)


def _item(block: Buffer, strip: Strip, number: int) -> Buffer:
    """A strip as an item: the first has the name of the buffer."""
    identity = f"{block.id}.{number}" if number else block.id
    live = strip.live
    return replace(block, id=identity, size=strip.nbytes, lower=live[0][0], upper=live[-1][1], gaps=gaps(live))
