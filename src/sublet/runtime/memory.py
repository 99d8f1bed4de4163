"""The memory of one executable: an array for each storage of its plan, and a cell for each value outside."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import RunError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Value, While
from sublet.plan import OPEN, POINTER, Context, MemoryPlan, Placement, Region, Storage, Stride, bound_to
from sublet.plan.exchange import followers
from sublet.runtime.dtypes import array_over
from sublet.runtime.kernel import Array, Cell, Operand
from sublet.runtime.turns import Turn

Raw = NDArray[np.uint8]

READ_ONLY = ("weight", "input")
"""Kinds of storages that a run never writes, but for those of updated values."""


NOWHERE = (0, 0)
"""Where a storage lies that is not allocated yet."""


def aligned_bytes(nbytes: int, alignment: int) -> Raw:
    """Fresh bytes, not initialised, at an address that is a multiple of `alignment`.

    Raises RunError when the machine has not that much memory.
    """
    try:
        whole = np.empty(nbytes + alignment - 1, np.uint8)
    except (MemoryError, ValueError) as error:
        raise RunError(f"{nbytes:,} bytes cannot be allocated: {error}") from None
    begin = -whole.ctypes.data % alignment
    return whole[begin : begin + nbytes]


def raw_bytes(array: NDArray[Any]) -> Raw:
    """The bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


class Spans:
    """Where storages lie, those that a run writes apart: what other memory must not meet."""

    def __init__(self, written: Collection[str]) -> None:
        self._written = dict.fromkeys(written, NOWHERE)
        self._read: dict[str, tuple[int, int]] = {}

    def put(self, storage: str, begin: int, end: int) -> None:
        """A storage is the bytes [begin, end) from now on."""
        (self._written if storage in self._written else self._read)[storage] = (begin, end)

    def meets(self, storage: str, begin: int, end: int) -> str:
        """Another storage that shares bytes with [begin, end), where a run writes to one of the two; "" for none."""
        for spans in (self._written, self._read) if storage in self._written else (self._written,):
            for other, (first, last) in spans.items():
                if first < end and begin < last and other != storage:
                    return other
        return ""


class Memory:
    """Allocates the storages of a plan, unless the caller brings them, and knows where every value lies.

    Invariant: an array handed out by `operand` stays valid until `bring` changes its storage, or `turn` its name.
    """

    def __init__(self, graph: Graph, plan: MemoryPlan) -> None:
        self.plan = plan
        self.storages: dict[str, Storage] = {storage.name: storage for storage in plan.storages}
        self.rolled = {(record.loop, record.within): record for record in plan.rolled}
        self.pointers = frozenset(placement.value for placement in plan.placements if placement.how == POINTER)
        self.pointed: dict[str, Region] = {}  # what pointers stand for since the run assigned them
        self._heads = _heads(graph, plan, self.pointers)
        self.rounds: dict[str, int] = {}  # how many each loop made when it ran last
        self.current: dict[str, int] = {}  # the round that each loop makes, where values move from round to round
        self.moving = {stride.loop for placement in plan.placements for stride in placement.strides}
        self.ways: dict[str, int] = {}  # by which way the loops and branches that decide were left
        self.deciding = {name for record in plan.rolled for jump in record.jumps for name, _ in jump.ways}
        self._placed: dict[str, list[Placement]] = {}
        for placement in plan.placements:
            self._placed.setdefault(placement.value, []).append(placement)
        self.cells = {value.name: Cell(value.name) for value in graph.outside}
        self._raw: dict[str, Raw] = {}
        self.arenas = tuple(storage.name for storage in plan.arenas)
        self.callers: set[str] = set()  # storages of values that the caller bound
        updated = {bound_to(value.name) for value in graph.updated}
        self._written = {s.name: None for s in plan.storages if s.kind not in READ_ONLY or s.name in updated}
        self._spans = Spans(self._written)
        self.turns = Turn()
        self._claimed = {s.name for s in plan.storages if s.kind == "weight"}.union(self.arenas, updated)

    def raw(self, storage: str) -> Raw:
        """The bytes of a storage; allocated when they are first asked for."""
        if storage not in self._raw:
            self._raw[storage] = aligned_bytes(self.storages[storage].nbytes, self.plan.alignment)
            self._spanned({storage: self._raw[storage]})
        return self._raw[storage]

    @property
    def present_bytes(self) -> int:
        """Bytes of the storages there are: allocated or brought."""
        return sum(raw.nbytes for raw in self._raw.values())

    def written(self) -> list[Raw]:
        """The storages a run writes to."""
        return [self.raw(name) for name in self._written]

    def bring(self, storage: str, raw: Raw, what: str, alignment: int) -> None:
        """Let a storage be the caller's bytes.

        Raises RunError when they are too few, lie at a bad address, are read-only but written to, or are also
        those of another storage although the network writes to one of the two.
        """
        needed = self.storages[storage].nbytes
        if raw.size < needed:
            raise RunError(f"{what}: needs {needed:,} bytes, but has {raw.size:,}")
        address = raw.ctypes.data
        if needed and address % alignment:
            raise RunError(f"{what}: its address must be a multiple of {alignment}; see sublet.aligned_bytes")
        if storage in self._written and not raw.flags.writeable:
            raise RunError(f"{what}: is read-only, but the network writes to it")
        other = self._spans.meets(storage, address, address + needed)
        if other:
            raise RunError(f"{what}: shares memory with {other!r}, and the network writes to one of them")
        self._raw[storage] = raw[:needed]
        self._spans.put(storage, address, address + needed)
        if storage in self._claimed:
            self.turns.claim(storage, address, address + needed, storage in self._written)

    def lend(self, storage: str) -> None:
        """Note that other executables may have the bytes of a storage too."""
        address = self.raw(storage).ctypes.data
        self.turns.claim(storage, address, address + self.raw(storage).size, storage in self._written)

    @property
    def stay(self) -> dict[str, str]:
        """For each value of a cycle in which the caller bound one the value whose memory it would get."""
        return followers([cycle for cycle in self.plan.exchanged if not self.callers.isdisjoint(map(bound_to, cycle))])

    def turn(self) -> None:
        """Let all other values of cycles get each other's memory: what lies there is theirs from now on."""
        gets, stay = followers(self.plan.exchanged), self.stay
        turned = {bound_to(name): self.raw(bound_to(other)) for name, other in gets.items() if name not in stay}
        self._put(turned)  # at one go: an interrupt comes before or after

    @contextmanager
    def put_back(self) -> Iterator[None]:
        """Afterwards all memory has the names that it had before."""
        before = dict(self._raw)
        try:
            yield
        finally:
            self._put(before)

    def _put(self, raws: Mapping[str, Raw]) -> None:
        self._raw.update(raws)
        self._spanned(raws)

    def _spanned(self, raws: Mapping[str, Raw]) -> None:
        for name, raw in raws.items():
            self._spans.put(name, raw.ctypes.data, raw.ctypes.data + raw.size)

    @property
    def arrangement(self) -> tuple[int, ...]:
        """Where the memory of the values in cycles is now."""
        return tuple(self.raw(bound_to(name)).ctypes.data for cycle in self.plan.exchanged for name in cycle)

    def region(
        self,
        value: Value,
        context: Context = (),
        pointed: Mapping[str, Region] | None = None,
        rounds: Mapping[str, int] | None = None,
    ) -> Region:
        """Where a value lies in copies of the bodies around it, when pointers stand for `pointed`, in `rounds`.

        Without `rounds` it is those that the loops make now.
        """
        if value.name in self.pointers:
            return self.head(value, context) or (self.pointed if pointed is None else pointed)[value.name]
        placement = self.placement(value, context)
        if not placement.strides:
            return placement.region
        rounds = self.current if rounds is None else rounds
        further = sum(rounds.get(stride.loop, 0) * stride.step for stride in placement.strides)
        return replace(placement.region, offset=placement.region.offset + further)

    def head(self, pointer: Value, context: Context) -> Region | None:
        """What a pointer that is a parameter stands for in a copy of the body; None if only the run knows."""
        copies = (context[:depth] for depth in range(len(context), 0, -1))
        return next((self._heads[pointer.name, here] for here in copies if (pointer.name, here) in self._heads), None)

    def placement(self, value: Value, context: Context) -> Placement:
        """Where the plan puts a value that is no pointer, in copies of the bodies around it."""
        for placement in self._placed[value.name]:
            if any(context[: len(copies)] == copies for copies in placement.copies or ((),)):
                return placement
        raise RunError(f"value {value} has no place in the copy {context} of the loops around it")

    def strides(self, value: Value, context: Context) -> tuple[Stride, ...]:
        """How a value moves from round to round of the loops around it."""
        fixed = not self.moving or not value.nbytes or value.name in self.pointers
        return () if fixed else self.placement(value, context).strides

    def steps_through(self, part: Value, whole: Value, stride: Stride, context: Context) -> bool:
        """Whether a slice or row lies in its whole in every round."""
        strides = self.strides(part, context)
        if not strides or whole.name in self.pointers:
            return False
        own, around = self.placement(part, context), self.placement(whole, context)
        start = around.region.offset + (whole.nbytes - part.nbytes if stride.backwards else 0)
        there = (around.region.storage, start, (*around.strides, stride))
        return (own.region.storage, own.region.offset, strides) == there

    def bytes_at(self, region: Region) -> Raw:
        """The bytes of a region."""
        return self.raw(region.storage)[region.offset : region.end]

    def array(self, region: Region | None, spec: TensorSpec) -> Array:
        """The array of a value in a region, None for a value without bytes."""
        return array_over(_EMPTY if region is None else self.bytes_at(region), spec)

    def ended(self) -> Places:
        """Where values lie when a run has ended: what is in exchanged memory, under another name."""
        becomes = {bound_to(other): bound_to(name) for name, other in followers(self.plan.exchanged).items()}
        return Places(self, becomes=becomes)

    def here(self, context: Context = (), pointed: Mapping[str, Region] | None = None) -> Places:
        """Where values lie in copies of the bodies around, when pointers stand for `pointed`."""
        return Places(self, context, pointed)


def _heads(graph: Graph, plan: MemoryPlan, pointers: frozenset[str]) -> dict[tuple[str, Context], Region]:
    """What the parameters that are pointers stand for in copies of bodies, where no run and no round decides."""
    loops = {node.name: node for node in graph.walk() if isinstance(node, While)} if plan.rolled else {}
    found: dict[tuple[str, Context], Region] = {}
    for record in plan.rolled:
        own = [parameter.name for parameter in loops[record.loop].parameters if parameter.name in pointers]
        for copy, heads in enumerate(record.heads):
            for name, number in zip(own, heads, strict=True):
                if number != OPEN and not plan.placements[number].strides:
                    found[name, (*record.within, (record.loop, copy))] = plan.placements[number].region
    return found


@dataclass(frozen=True)
class Places:
    """Where values lie at one moment; without `pointed` or `rounds`, as it is in the run.

    `becomes` gives the names that storages have got since.
    """

    memory: Memory
    context: Context = ()
    pointed: Mapping[str, Region] | None = None
    rounds: Mapping[str, int] | None = None
    becomes: Mapping[str, str] = field(default_factory=dict)

    def region(self, value: Value) -> Region:
        """The region of a planned value."""
        region = self.memory.region(value, self.context, self.pointed, self.rounds)
        return replace(region, storage=self.becomes[region.storage]) if region.storage in self.becomes else region

    def bytes_of(self, value: Value) -> Raw:
        """The bytes of a planned value."""
        return self.memory.bytes_at(self.region(value))

    def operand(self, value: Value) -> Operand:
        """The array or cell of a value."""
        if not isinstance(value.spec, TensorSpec):
            return self.memory.cells[value.name]
        return self.memory.array(self.region(value) if value.nbytes else None, value.spec)

    def array(self, value: Value) -> Array:
        """The array of a planned value."""
        operand = self.operand(value)
        assert not isinstance(operand, Cell)
        return operand


_EMPTY = np.empty(0, np.uint8)
