"""A program over ranges, bound to a point and to memory of the caller: both change, and most operands stay.

From token to token of a decoder only lengths change, and addresses behind lengths. An operand is bound again only if
its shape or address changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.runtime.call_merging import ErrorContext
from sublet.runtime.kernel import BindAtPoint
from sublet.runtime.ranged_places import PlaceTable


class RangedProgram:
    """The calls of a program at a point.

    shapes, addresses  all shapes and addresses; an element stays the same object as long as its number stays
    calls              all calls, bound at the first `bind`
    """

    def __init__(self, table: PlaceTable, base: Sequence[ErrorContext], binders: Sequence[BindAtPoint]) -> None:
        """Create the program, at no point yet. `base` are the calls of the base program, each with its binder."""
        self._table = table
        self._base = base
        self._binders = binders
        self._offsets = table.addresses.copy()
        self._is_bound = False
        self.shapes = table.shapes.copy()
        self.addresses = table.addresses.copy()
        self.calls: list[ErrorContext] = []

    def move_to(self, point: Mapping[str, int]) -> None:
        """Evaluate the shapes, and the addresses up to the begins of storages in memory of the caller."""
        table, self._is_bound = self._table, False
        numbers = [extent.at(point) for extent in table.extents]
        for i, axes in table.varying_shapes:
            shape = tuple([axis if number is None else numbers[number] for axis, number in axes])
            if shape != self.shapes[i]:
                self.shapes[i] = shape
        for i, number in table.varying_addresses:
            self._offsets[i] = table.addresses[i] + numbers[number]

    def bind(self, begins: Mapping[str, int]) -> None:
        """Bind the calls to the point, and to memory of the caller: the address of each storage there, by name."""
        for i, storage in self._table.moving_addresses:
            address = self._offsets[i] + begins.get(storage, 0)
            if address != self.addresses[i]:
                self.addresses[i], self._is_bound = address, False
        if self._is_bound:
            return
        if self.calls:
            for call in self.calls:
                call.call.move(self.shapes, self.addresses)  # type: ignore[attr-defined]
        else:
            bound = [bind(self.shapes, self.addresses) for bind in self._binders]
            self.calls = [ErrorContext(call.nodes, each) for call, each in zip(self._base, bound, strict=True)]
        self._is_bound = True

    def run(self) -> None:
        """Run all calls."""
        for call in self.calls:
            call()
