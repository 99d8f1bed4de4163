"""Loop slices: values with a different region in each iteration, as views of a sequence or stacked output.

A value with strides must lie within the slice of iteration k of a sequence read by the loop, or of an output stacked
by the loop. Such a value stays inside the sequence, and different iterations use different bytes. The bytes of the
current slice are a *slice storage*; the replay treats a slice storage like a separate storage. No iteration reads the
content left by an earlier iteration: bytes in a slice storage are always written in the iteration of the read.

A write to a slice invalidates the enclosing sequence, but not a stacked output, as the loop stores rows one by one.
A write to any region invalidates the slices of sequences in this region.

A stored row stays in place. Each slice storage of a stacked output therefore has a companion, the *latest* row: the
row stored at the end of the latest iteration. A parameter of the loop, or an output, may be a pointer to the latest
row. Rows of different iterations are different bytes: a write to the current slice does not invalidate the latest row.

Rules: bad-stride, misaligned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sublet.base.errors import Finding
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Value, While
from sublet.plan import Context, Placement, Region, Stride


@dataclass(frozen=True, slots=True)
class SliceStorage:
    """The slice of `whole` in an iteration of `loop`; with `loop` "" the latest row of the slice storage `latest_of`.

    `stacked`: the loop writes `whole` row by row.
    """

    loop: str
    whole: Region
    nbytes: int
    stacked: bool
    latest_of: str = ""


@dataclass
class SliceStorages:
    """The slice storages of a plan, by name; no storage of the plan may have the name of a slice storage.

    `latest` maps the name of a stacked slice storage to the name of its latest row.
    """

    by_name: dict[str, SliceStorage] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, cell: SliceStorage) -> None:
        """Add a slice storage, and its latest row if stacked."""
        self.by_name[name] = cell
        if cell.stacked:
            latest = self.latest[name] = f"{name} (latest row)"
            self.by_name[latest] = replace(cell, loop="", latest_of=name)

    def current_slice_of(self, storage: str) -> str:
        """Return the current slice of a latest row; any other storage unchanged."""
        return (storage in self.by_name and self.by_name[storage].latest_of) or storage

    def root_storage(self, storage: str) -> str:
        """Return the storage of the plan enclosing a slice storage."""
        while storage in self.by_name:
            storage = self.by_name[storage].whole.storage
        return storage

    def invalidated_regions(self, region: Region) -> Iterator[Region]:
        """Yield all other regions invalidated by a write to a region."""
        around = dict(self.enclosing_regions(region))
        yield from self._enclosing_sequences(region)
        for name, cell in self.by_name.items():
            if self.current_slice_of(name) in around:
                continue
            for storage, other in self.enclosing_regions(cell.whole):
                if storage in around:
                    if other.offset < around[storage].end and around[storage].offset < other.end:
                        yield Region(name, 0, cell.nbytes)
                    break

    def latest_row_of(self, region: Region, loop: str) -> Region | None:
        """Return the latest row that a slice stored by `loop` becomes at the end of the iteration.

        Returns None for a region outside of a stacked slice of `loop`.
        """
        cell = self.by_name.get(region.storage)
        if cell is None or cell.loop != loop or region.storage not in self.latest:
            return None
        return Region(self.latest[region.storage], region.offset, region.nbytes)

    def enclosing_regions(self, region: Region) -> Iterator[tuple[str, Region]]:
        """Yield a region and all enclosing regions, each with its storage."""
        yield region.storage, region
        while region.storage in self.by_name:
            region = self.by_name[region.storage].whole
            yield region.storage, region

    def _enclosing_sequences(self, region: Region) -> Iterator[Region]:
        """Yield the enclosing sequences of a region, up to a stacked output."""
        while region.storage in self.by_name and not self.by_name[region.storage].stacked:
            region = self.by_name[region.storage].whole
            yield region


def slice_region(loop: str, whole: Value, place: Region | None, axis: int, backwards: bool) -> Region | None:
    """Return the region of the current slice of a sequence at `place`; None if a slice is not contiguous."""
    if place is None or not isinstance(whole.spec, TensorSpec):
        return None
    extent = whole.spec.shape[axis]
    if any(other != 1 for other in whole.spec.shape[:axis]) or not extent or whole.nbytes % extent:
        return None
    nbytes = whole.nbytes // extent
    way = "backwards " if backwards else ""
    name = f"{place.storage}[{place.offset}, {place.end}) {way}by {nbytes} an iteration of {loop}: "
    return Region(name, 0, nbytes)


class StrideResolver:
    """A resolver from placements with strides to slice storages."""

    def __init__(self, graph: Graph, placements: Mapping[str, list[Placement]], alignment: int) -> None:
        self.cells = SliceStorages()
        self._placements = placements
        self._alignment = alignment
        self._values = {value.name: value for value in graph.values()}
        self._loops = {node.name: node for node in graph.walk() if isinstance(node, While)}
        self._inside = {name: frozenset(_names_after_test(loop)) for name, loop in self._loops.items()}

    def slice_region_of(self, placement: Placement, context: Context) -> Region | None:
        """Return the region of a placement in its slice storage; None if the placement does not lie within a slice."""
        value, (*outer, stride) = self._values[placement.value], placement.strides
        loop = self._loops.get(stride.loop)
        if loop is None or value.name not in self._inside[loop.name]:
            return None
        for stacked, whole, axis, backwards in _stacked_and_sequences(loop):
            around = self._placement_of(whole, context)
            if around is None or around.strides != tuple(outer) or around.region.storage != placement.region.storage:
                continue
            place = self._region_of_sequence(whole, around, context)
            cell = slice_region(loop.name, whole, place, axis, backwards)
            if place is None or cell is None or stride != Stride(loop.name, cell.nbytes, backwards):
                continue
            first = around.region.offset + (whole.nbytes - cell.nbytes if backwards else 0)
            offset = placement.region.offset - first
            if 0 <= offset <= cell.nbytes - value.nbytes:
                known = self.cells.by_name.get(cell.storage)
                stacked = stacked or (known is not None and known.stacked)
                self.cells.add(cell.storage, SliceStorage(loop.name, place, cell.nbytes, stacked))
                return Region(cell.storage, offset, value.nbytes)
        return None

    def stride_findings(self, placement: Placement, within_slice: bool) -> Iterator[Finding]:
        """Yield findings for the strides of a placement; `within_slice`: the placement lies within a slice."""
        where = f"value %{placement.value}"
        if not within_slice:
            what = f"moves from iteration to iteration of {', '.join(stride.loop for stride in placement.strides)}"
            fix = "place it in the current slice of a sequence or the current row of a stacked output"
            yield Finding("bad-stride", where, what, fix)
        for stride in placement.strides:
            if self._alignment > 1 and stride.nbytes % self._alignment:
                what = f"moves by {stride.nbytes} bytes, which is no multiple of the alignment {self._alignment}"
                yield Finding("misaligned", where, what)

    def _placement_of(self, value: Value, context: Context) -> Placement | None:
        """Return the placement of a value in a context; None for a value without a placement."""
        for placement in self._placements.get(value.name, ()):
            if any(context[: len(copies)] == copies for copies in placement.copies or ((),)):
                return placement
        return None

    def _region_of_sequence(self, whole: Value, placement: Placement, context: Context) -> Region | None:
        """Return the region of a sequence or stacked output in a context."""
        if placement.strides:
            return self.slice_region_of(placement, context)
        return Region(placement.region.storage, placement.region.offset, whole.nbytes)


def _stacked_and_sequences(loop: While) -> Iterator[tuple[bool, Value, int, bool]]:
    """Yield the stacked outputs (True) and sequences (False) of a loop, each as (stacked, value, axis, reversed)."""
    for whole, axis, backwards in zip(loop.stacked_outputs, loop.row_axes, loop.row_reversed, strict=True):
        if whole is not None:
            yield True, whole, axis, backwards
    for sequence, axis, backwards in zip(loop.sequences, loop.slice_axes, loop.slice_reversed, strict=True):
        yield False, sequence, axis, backwards


def _names_after_test(loop: While) -> Iterator[str]:
    """Yield the names of slices and of values defined after the exit test of an iteration."""
    yield from (value.name for value in loop.slices)
    late = Graph(loop.name, (), loop.body.nodes[loop.check :], ())
    yield from (value.name for value in late.values())
