"""The buffer assignment of a program: control flow with live ranges and shared buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sublet.analysis.flow import Flow, Point
from sublet.analysis.liveness import LiveRanges
from sublet.analysis.sharing import SharedBuffer
from sublet.ir.graph import Value


@dataclass(frozen=True)
class Layout:
    """Control flow of a program with live ranges and shared buffers.

    residual_copies     the moves still copying bytes: (point, source, destination)
    renaming_obstacles  the values excluded from renaming, each with the reason, "" where the reason is unknown
    """

    flow: Flow
    ranges: LiveRanges[Value]
    buffers: tuple[SharedBuffer, ...]
    copied: tuple[tuple[Point, Value, Value], ...]
    refused: Mapping[Value, str] = field(default_factory=dict)

    @property
    def packed(self) -> tuple[SharedBuffer, ...]:
        """The buffers with bytes in an arena."""
        return tuple(buffer for buffer in self.buffers if buffer.packed)

    @cached_property
    def moved(self) -> int:
        """The bytes copied by moves, slices and rows; body versions of the same move count once."""
        bases = self.flow.unrolling.instances
        once = {(point.kind, bases[to].base): to.nbytes for point, _, to in self.copied}
        return sum(once.values()) + sum(self.copied_windows.values())

    @cached_property
    def laid(self) -> frozenset[tuple[Value, Value]]:
        """The slices and rows placed as views of their wholes: (slice or row, whole)."""
        return frozenset((buffer.window.value, buffer.window.whole) for buffer in self.buffers if buffer.window)

    @cached_property
    def copied_windows(self) -> Mapping[tuple[str, Value, Value], int]:
        """The bytes of every slice and row still copied, by (kind, slice or row, whole)."""
        base = self.flow.unrolling.instances
        return {
            (window.kind, base[window.value].base, base[window.whole].base): window.value.nbytes
            for window in self.flow.unrolling.windows
            if (window.value, window.whole) not in self.laid
        }
