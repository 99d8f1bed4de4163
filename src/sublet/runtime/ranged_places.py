"""A program over ranges: shapes and addresses are expressions, evaluated together at each point.

A program is bound to a point and to memory of the caller. From token to token of a decoder only lengths change, and
addresses behind lengths. An operand is bound again only if its shape or address changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import memmove
from dataclasses import dataclass
from math import prod
from mmap import PAGESIZE
from typing import Any

import numpy as np

from sublet.base.errors import KernelError, RunError
from sublet.base.extents import Extent, Undecided, bounds_at, extent_at
from sublet.base.tensor import CACHE_LINE_BYTES
from sublet.ir.graph import Graph, Node, Value
from sublet.plan.ranges import RangedPlan
from sublet.runtime.call_merging import ErrorContext
from sublet.runtime.kernel import Array, BindAtPoint, PlaceNumbers
from sublet.runtime.memory import ExecutableMemory, Raw, aligned_bytes
from sublet.runtime.moves import Copy, byte_copies
from sublet.runtime.ranged_inputs import Window

MANY_PAGES = 16
"""Pages of a state from which on a page lost by the alignment is little: at most one in 16."""


@dataclass(frozen=True)
class Block:
    """Bytes with the address of the first: asking an array for its address takes a microsecond."""

    raw: Raw
    address: int


def block_of(raw: Raw) -> Block:
    """Return bytes with their address."""
    return Block(raw, int(raw.ctypes.data))


def new_block(nbytes: int, alignment: int) -> Block:
    """Return new bytes, see `aligned_bytes`."""
    return block_of(aligned_bytes(nbytes, alignment))


def state_block(nbytes: int) -> Block:
    """Return new bytes for a state. A large state begins with a page: a list of rows in whole pages touches no more."""
    return new_block(nbytes, PAGESIZE if nbytes >= MANY_PAGES * PAGESIZE else CACHE_LINE_BYTES)


Literal = tuple[PlaceNumbers, np.dtype[Any], Sequence[Any]]
"""A value with known contents: its place, type and elements, which are numbers or extents."""


@dataclass(frozen=True)
class ArrayPlace:
    """The place of an input or output: type, storage with its address, and the numbers of shape and address.

    `storage` names a storage in memory of the caller; it is empty for a place in the arena. With a `window` the array
    is the first rows of a buffer.
    """

    dtype: np.dtype[Any]
    block: Block
    shape: int
    address: int
    storage: str
    window: Window | None = None

    def array_at(self, program: RangedProgram) -> Array:
        """Return the array of a program, in the arena."""
        offset = program.addresses[self.address] - self.block.address
        return np.ndarray(program.shapes[self.shape], self.dtype, self.block.raw, offset)

    def array_in(self, block: Block, shape: tuple[int, ...]) -> Array:
        """Return the array of a shape at the begin of other memory."""
        if self.window is None:
            return np.ndarray(shape, self.dtype, block.raw)
        return self.window.rows_of(np.ndarray(self.window.whole(shape), self.dtype, block.raw), shape)

    def block_with(self, content: Array, block: Block | None, alignment: int) -> Block:
        """Return `block`, or new memory, with a copy of a content."""
        whole = content.shape if self.window is None else self.window.whole(content.shape)
        found = block or new_block(prod(whole) * content.itemsize, alignment)
        self.array_in(found, content.shape)[...] = content
        return found


class PointCopies:
    """Copies of bytes at a point: `places` are the source and target of each copy."""

    def __init__(
        self, places: Sequence[PlaceNumbers], shapes: Sequence[tuple[int, ...]], addresses: Sequence[int]
    ) -> None:
        self._places = places
        self.move(shapes, addresses)

    def __call__(self) -> None:
        for (source, nbytes), (target, _) in zip(self._spans[::2], self._spans[1::2], strict=True):
            memmove(target, source, nbytes)

    def move(self, shapes: Sequence[tuple[int, ...]], addresses: Sequence[int]) -> None:
        """See `kernel.PointCall`."""
        self._spans = [(addresses[address], shapes[shape][0]) for shape, address in self._places]


class Places:
    """All shapes and addresses of a program, each once: expressions, evaluated together at a point.

    outside  the storages of bound inputs and outputs
    """

    def __init__(self, memory: ExecutableMemory, outside: Collection[str]) -> None:
        self._memory = memory
        self.outside = outside
        self._shapes: dict[tuple[Extent | int, ...], int] = {}
        self._addresses: dict[tuple[str, Extent | int], int] = {}

    def number(self, shape: tuple[Extent | int, ...], storage: str, offset: Extent | int) -> PlaceNumbers:
        """Return the numbers of a shape and of an offset in a storage."""
        address = self._addresses.setdefault((storage, offset), len(self._addresses))
        return self._shapes.setdefault(shape, len(self._shapes)), address

    def tabulate(self) -> PlaceTable:
        """Return the table of all places numbered so far."""
        extents: dict[Extent, int] = {}

        def entry(extent: Extent | int) -> tuple[int, int | None]:
            if isinstance(extent, Extent):
                return 0, extents.setdefault(extent, len(extents))
            return extent, None

        begins = {storage: block_of(self._memory.raw(storage)).address for storage, _ in self._addresses}
        shapes = [[entry(axis) for axis in shape] for shape in self._shapes]
        offsets = [(storage, *entry(offset)) for storage, offset in self._addresses]
        return PlaceTable(
            shapes=[tuple(axis for axis, _ in shape) for shape in shapes],
            addresses=[offset + (0 if name in self.outside else begins[name]) for name, offset, _ in offsets],
            extents=list(extents),
            varying_shapes=[
                (i, axes) for i, axes in enumerate(shapes) if any(number is not None for _, number in axes)
            ],
            varying_addresses=[(i, number) for i, (_, _, number) in enumerate(offsets) if number is not None],
            moving_addresses=[
                (i, storage)
                for i, (storage, _, number) in enumerate(offsets)
                if number is not None or storage in self.outside
            ],
            begins={storage: begin for storage, begin in begins.items() if storage in self.outside},
        )


@dataclass(frozen=True)
class PlaceTable:
    """The shapes and addresses of a program, constant ones apart from those that depend on the point.

    extents            the distinct expressions
    shapes             all shapes, with 0 for each expression
    addresses          all addresses, without the expressions of offsets and without the begins of storages outside
    varying_shapes     the number of a shape with expressions; for each axis the constant, or the number of its extent
    varying_addresses  the number of an address, and the number of the extent of the offset
    moving_addresses   the number of an address that depends on the point or lies outside, and the storage
    begins             the addresses of the storages outside, before the first run
    """

    extents: list[Extent]
    shapes: list[tuple[int, ...]]
    addresses: list[int]
    varying_shapes: list[tuple[int, list[tuple[int, int | None]]]]
    varying_addresses: list[tuple[int, int]]
    moving_addresses: list[tuple[int, str]]
    begins: dict[str, int]


def copies_over_box(node: Node) -> list[Copy] | None:
    """Return the copies computing a node at every point; None for control flow, or if some point needs a kernel."""
    try:
        return None if node.subgraphs else byte_copies(node)
    except Undecided:
        return None


def is_base_point(ranged: RangedPlan, graph: Graph, point: Mapping[str, int]) -> bool:
    """True if the nodes of `graph`, the graph at a point, copy bytes exactly as at every point of the box."""
    for node, here in zip(ranged.graph.walk(), graph.walk(), strict=True):
        everywhere, now = copies_over_box(node), copies_over_box(here)
        if (everywhere is None) != (now is None):
            return False
        for one, other in zip(everywhere or (), now or (), strict=False):
            if tuple(extent_at(each, point) for each in (one[1], *one[3:])) != (other[1], *other[3:]):
                return False
        if len(everywhere or ()) != len(now or ()):
            return False
    return True


class RangedProgram:
    """The calls of a program at a point.

    trip_counts        the iterations of each loop in its latest run
    measured           the nodes that measured a dimension in the current run, by name of the dimension
    shapes, addresses  all shapes and addresses; an element stays the same object as long as its number stays
    calls              all calls, each bound before its first run; None before
    """

    def __init__(
        self,
        table: PlaceTable,
        steps: Sequence[Step],
        base: Sequence[ErrorContext],
        binders: Sequence[BindAtPoint],
        ends: Sequence[int],
    ) -> None:
        """Create the program, at no point yet.

        steps    run the calls, loops and branches
        base     the calls of the base program, with a binder for each in `binders`
        ends     the number of calls up to each measurement of extents, and of all calls: the ends of segments. The
                 calls of a segment are bound when the segment begins
        """
        self._table = table
        self._steps = steps
        self._base = base
        self._binders = binders
        self._offsets = table.addresses.copy()
        self._ends = ends
        self._segment = 0
        self._version = 0  # of shapes and addresses
        self._bound_versions = [-1] * len(ends)
        self._point: dict[str, int] = {}
        self._begins: Mapping[str, int] = {}
        self.trip_counts: dict[str, int] = {}
        self.measured: dict[str, str] = {}
        self._contents: dict[int, list[tuple[int, bytes]]] = {}
        self.shapes = table.shapes.copy()
        self.addresses = table.addresses.copy()
        self.calls: list[ErrorContext | None] = [None] * len(base)

    def move_to(self, point: Mapping[str, int]) -> None:
        """Evaluate the shapes, and the addresses up to the begins of storages in memory of the caller."""
        table, self._point = self._table, dict(point)
        self._version += 1
        self._contents.clear()
        numbers = [extent.at(point) for extent in table.extents]
        for i, axes in table.varying_shapes:
            shape = tuple([axis if number is None else numbers[number] for axis, number in axes])
            if shape != self.shapes[i]:
                self.shapes[i] = shape
        for i, number in table.varying_addresses:
            self._offsets[i] = table.addresses[i] + numbers[number]

    def bind(self, begins: Mapping[str, int]) -> None:
        """Bind the calls of the first segment to the point, and to memory of the caller.

        `begins` are the addresses of the storages there, by name.
        """
        self._begins = begins
        self._find_addresses()
        self.begin_segment(0)

    def _find_addresses(self) -> None:
        """Evaluate the addresses."""
        for i, storage in self._table.moving_addresses:
            address = self._offsets[i] + self._begins.get(storage, 0)
            if address != self.addresses[i]:
                self.addresses[i] = address
                self._version += 1

    def begin_segment(self, number: int) -> None:
        """Bind the calls of a segment, unless bound to the current shapes and addresses."""
        self._segment = number
        if self._bound_versions[number] == self._version:
            return
        for i in range(self._ends[number - 1] if number else 0, self._ends[number]):
            call = self.calls[i]
            if call is None:
                bound = self._binders[i](self.shapes, self.addresses)
                self.calls[i] = ErrorContext(self._base[i].nodes, bound)
            else:
                call.call.move(self.shapes, self.addresses)  # type: ignore[attr-defined]
        self._bound_versions[number] = self._version

    def most_bytes_of(self, value: Value, free: Collection[str]) -> int:
        """Return the most bytes of a value at the current point, for any numbers of the `free` dimensions."""
        return bounds_at(value.nbytes, {name: number for name, number in self._point.items() if name not in free})[1]

    def contents_of(self, step: int, literals: Sequence[Literal]) -> list[tuple[int, bytes]]:
        """Return the number of the address and the bytes of each literal at the current point.

        `step` is the number of the step with these literals: its bytes are kept until the program moves.
        """
        found = self._contents.get(step)
        if found is None:
            found = [
                (place[1], np.array([extent_at(each, self._point) for each in elements], dtype).tobytes())
                for place, dtype, elements in literals
            ]
            self._contents[step] = found
        return found

    def number_of(self, dimension: str) -> int:
        """Return the number of a dimension at the current point."""
        return self._point[dimension]

    def move_dimension(self, name: str, number: int) -> None:
        """Move to another number of a dimension: an iteration of a loop, or a measured extent. No call is bound."""
        if self._point[name] != number:
            self.move_to({**self._point, name: number})
            self._find_addresses()

    def move_to_iteration(self, loop: str, number: int) -> None:
        """Bind the calls to an iteration; `loop` is the name of the dimension of its iterations."""
        self.move_dimension(loop, number)
        self.begin_segment(self._segment)

    def run(self) -> None:
        """Run all steps. Raises KernelError for any error: a state in the memory of the caller may then be changed."""
        self.measured.clear()
        try:
            for step in self._steps:
                step(self)
        except KernelError:
            raise
        except RunError as error:
            raise KernelError(str(error)) from error.__cause__


Step = Callable[[RangedProgram], None]
"""A call, a loop or a branch, run with the shapes and addresses of a program."""
