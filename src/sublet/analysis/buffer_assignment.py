"""The buffer assignment of a program: control flow with live ranges and shared buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sublet.analysis.control_flow import ControlFlowGraph, FlowPoint
from sublet.analysis.liveness import LiveRanges
from sublet.analysis.sharing import SharedBuffer
from sublet.ir.graph import Value


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
    def copied_bytes(self) -> int:
        """The bytes copied by moves, slices and rows; body versions of the same move count once."""
        bases = self.flow.unrolling.versions
        once = {(point.kind, bases[to].base): to.nbytes for point, _, to in self.residual_copies}
        return sum(once.values()) + sum(self.copied_loop_views.values())

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
