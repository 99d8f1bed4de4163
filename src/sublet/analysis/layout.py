"""A flow with its lives and buffers: what a program needs when it runs in one order with some pointers."""

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
    """A flow with its lives and buffers.

    copied   the moves that copy bytes all the same: (point, source, destination)
    refused  what could not be a pointer, and why as far as that was looked for
    """

    flow: Flow
    ranges: LiveRanges[Value]
    buffers: tuple[SharedBuffer, ...]
    copied: tuple[tuple[Point, Value, Value], ...]
    refused: Mapping[Value, str] = field(default_factory=dict)

    @property
    def packed(self) -> tuple[SharedBuffer, ...]:
        """The buffers that need bytes of an arena."""
        return tuple(buffer for buffer in self.buffers if buffer.packed)

    @cached_property
    def moved(self) -> int:
        """The bytes that are copied, each move of the program counted once; slices and rows too."""
        bases = self.flow.unrolling.instances
        once = {(point.kind, bases[to].base): to.nbytes for point, _, to in self.copied}
        return sum(once.values()) + sum(self.copied_windows.values())

    @cached_property
    def laid(self) -> frozenset[tuple[Value, Value]]:
        """The slices and rows that are bytes of their wholes: (slice or row, whole)."""
        return frozenset((buffer.window.value, buffer.window.whole) for buffer in self.buffers if buffer.window)

    @cached_property
    def copied_windows(self) -> Mapping[tuple[str, Value, Value], int]:
        """The bytes of each slice and row that could be bytes of a whole, and is not."""
        base = self.flow.unrolling.instances
        return {
            (window.kind, base[window.value].base, base[window.whole].base): window.value.nbytes
            for window in self.flow.unrolling.windows
            if (window.value, window.whole) not in self.laid
        }
