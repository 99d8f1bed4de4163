"""Values that lie elsewhere every round: what a round of a loop sees of a sequence or stacked output.

A value with strides must lie within the step of round k of a sequence that the loop takes apart, or of an output
that it stacks: then it stays inside, and different rounds use different bytes. These bytes of the current round are
a *cell*, and the replay treats it like a storage of its own. What it held in a round before is not read:
whatever lies in a cell is written in the round that reads it.

Writing to a cell spoils the whole around it; but not an output that is stacked, whose steps are stored one by one.
Writing anywhere spoils the cells whose wholes lie there.

A row stays where it is. So with each cell of a stacked output there is one more, the *latest*: the step that was stored
when the latest round ended. A parameter of the loop, or an output, may be a pointer to that. The steps of
different rounds are different bytes, so that writing to a cell does not spoil the latest.

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
class Cell:
    """One step of `whole` in a round of `loop`, or the latest `of` another cell, when `loop` is "".

    `stacked`: the loop makes the whole of them.
    """

    loop: str
    whole: Region
    nbytes: int
    stacked: bool
    of: str = ""


@dataclass
class Cells:
    """The cells that the values of a plan lie in, by the name of their storage, which no storage of a plan may have.

    `latest` gives for those that are stacked the name of the cell that is the latest of them.
    """

    known: dict[str, Cell] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, cell: Cell) -> None:
        """One more cell, and the latest of it."""
        self.known[name] = cell
        if cell.stacked:
            latest = self.latest[name] = f"{name} (the latest)"
            self.known[latest] = replace(cell, loop="", of=name)

    def this_round(self, storage: str) -> str:
        """The cell of which a storage is the latest; any other storage is itself."""
        return (storage in self.known and self.known[storage].of) or storage

    def root(self, storage: str) -> str:
        """The storage of the plan that a cell lies in."""
        while storage in self.known:
            storage = self.known[storage].whole.storage
        return storage

    def spoilt(self, region: Region) -> Iterator[Region]:
        """The other bytes that are not what they were once something is written to a region."""
        around = dict(self.around(region))
        yield from self._wholes(region)
        for name, cell in self.known.items():
            if self.this_round(name) in around:
                continue
            for storage, other in self.around(cell.whole):
                if storage in around:
                    if other.offset < around[storage].end and around[storage].offset < other.end:
                        yield Region(name, 0, cell.nbytes)
                    break

    def kept(self, region: Region, loop: str) -> Region | None:
        """What a step stored in a round of a loop is once the round has ended; None when it is no such step."""
        cell = self.known.get(region.storage)
        if cell is None or cell.loop != loop or region.storage not in self.latest:
            return None
        return Region(self.latest[region.storage], region.offset, region.nbytes)

    def around(self, region: Region) -> Iterator[tuple[str, Region]]:
        """A region, and those it lies in, each with its storage."""
        yield region.storage, region
        while region.storage in self.known:
            region = self.known[region.storage].whole
            yield region.storage, region

    def _wholes(self, region: Region) -> Iterator[Region]:
        while region.storage in self.known and not self.known[region.storage].stacked:
            region = self.known[region.storage].whole
            yield region


def step_of(loop: str, whole: Value, place: Region | None, axis: int, backwards: bool) -> Region | None:
    """Where the step of a round lies when its whole lies at `place`; None when its bytes are not one run."""
    if place is None or not isinstance(whole.spec, TensorSpec):
        return None
    extent = whole.spec.shape[axis]
    if any(other != 1 for other in whole.spec.shape[:axis]) or not extent or whole.nbytes % extent:
        return None
    nbytes = whole.nbytes // extent
    way = "backwards " if backwards else ""
    name = f"{place.storage}[{place.offset}, {place.end}) {way}by {nbytes} in a round of {loop}: "
    return Region(name, 0, nbytes)


class Strides:
    """Finds the cells of the values that have strides."""

    def __init__(self, graph: Graph, placements: Mapping[str, list[Placement]], alignment: int) -> None:
        self.cells = Cells()
        self._placements = placements
        self._alignment = alignment
        self._values = {value.name: value for value in graph.values()}
        self._loops = {node.name: node for node in graph.walk() if isinstance(node, While)}
        self._inside = {name: frozenset(_of_a_round(loop)) for name, loop in self._loops.items()}

    def region(self, placement: Placement, context: Context) -> Region | None:
        """The region in its cell; None when it does not lie within one."""
        value, (*outer, stride) = self._values[placement.value], placement.strides
        loop = self._loops.get(stride.loop)
        if loop is None or value.name not in self._inside[loop.name]:
            return None
        for stacked, whole, axis, backwards in _wholes(loop):
            around = self._placed(whole, context)
            if around is None or around.strides != tuple(outer) or around.region.storage != placement.region.storage:
                continue
            place = self._place(whole, around, context)
            cell = step_of(loop.name, whole, place, axis, backwards)
            if place is None or cell is None or stride != Stride(loop.name, cell.nbytes, backwards):
                continue
            first = around.region.offset + (whole.nbytes - cell.nbytes if backwards else 0)
            offset = placement.region.offset - first
            if 0 <= offset <= cell.nbytes - value.nbytes:
                known = self.cells.known.get(cell.storage)
                stacked = stacked or (known is not None and known.stacked)
                self.cells.add(cell.storage, Cell(loop.name, place, cell.nbytes, stacked))
                return Region(cell.storage, offset, value.nbytes)
        return None

    def findings(self, placement: Placement, found: bool) -> Iterator[Finding]:
        """What is wrong with the strides of a placement."""
        where = f"value %{placement.value}"
        if not found:
            what = f"moves from round to round of {', '.join(stride.loop for stride in placement.strides)}"
            fix = "it may only lie in the step that a round takes of a sequence or adds to a stacked output"
            yield Finding("bad-stride", where, what, fix)
        for stride in placement.strides:
            if self._alignment > 1 and stride.nbytes % self._alignment:
                what = f"moves by {stride.nbytes} bytes, which is no multiple of the alignment {self._alignment}"
                yield Finding("misaligned", where, what)

    def _placed(self, value: Value, context: Context) -> Placement | None:
        """Where the plan puts a value in a copy of the bodies around: of a pointer, nowhere that anything lies in."""
        for placement in self._placements.get(value.name, ()):
            if any(context[: len(copies)] == copies for copies in placement.copies or ((),)):
                return placement
        return None

    def _place(self, whole: Value, placement: Placement, context: Context) -> Region | None:
        if placement.strides:
            return self.region(placement, context)
        return Region(placement.region.storage, placement.region.offset, whole.nbytes)


def _wholes(loop: While) -> Iterator[tuple[bool, Value, int, bool]]:
    """What a loop takes apart, and what it makes step by step: (whether it makes it, the value, axis, direction)."""
    for whole, axis, backwards in zip(loop.stacked, loop.row_axes, loop.row_reversed, strict=True):
        if whole is not None:
            yield True, whole, axis, backwards
    for sequence, axis, backwards in zip(loop.sequences, loop.slice_axes, loop.slice_reversed, strict=True):
        yield False, sequence, axis, backwards


def _of_a_round(loop: While) -> Iterator[str]:
    """The values that come to be in a round that the loop has decided to make."""
    yield from (value.name for value in loop.slices)
    late = Graph(loop.name, (), loop.body.nodes[loop.check :], ())
    yield from (value.name for value in late.values())
