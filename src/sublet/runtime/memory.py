"""The memory of one executable: an array per storage of the plan, and a cell per value outside the plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sublet.base.arrays import array_over
from sublet.base.errors import RunError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Value, While
from sublet.plan import OPEN, POINTER, Context, MemoryPlan, Placement, Region, Storage, Stride, bound_storage_name
from sublet.plan.schedule import next_storages
from sublet.runtime.kernel import Array, Operand, UnplannedCell
from sublet.runtime.run_locks import RunLocks

Raw = NDArray[np.uint8]

READ_ONLY = ("weight", "input")
"""Kinds of storages never written by a run, except storages of updated values."""


NO_RANGE = (0, 0)
"""The address range of a storage not allocated yet."""


def aligned_bytes(nbytes: int, alignment: int) -> Raw:
    """Return new bytes, uninitialized, at an address divisible by `alignment`.

    Raises RunError when the machine lacks the memory.
    """
    try:
        whole = np.empty(nbytes + alignment - 1, np.uint8)
    except (MemoryError, ValueError) as error:
        raise RunError(f"{nbytes:,} bytes cannot be allocated: {error}") from None
    begin = -whole.ctypes.data % alignment
    return whole[begin : begin + nbytes]


def raw_bytes(array: NDArray[Any]) -> Raw:
    """Return the bytes of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


class StorageSpans:
    """Address ranges of storages, written ones separate, to detect overlap with other memory."""

    def __init__(self, written: Collection[str]) -> None:
        self._written = dict.fromkeys(written, NO_RANGE)
        self._read: dict[str, tuple[int, int]] = {}

    def set_span(self, storage: str, begin: int, end: int) -> None:
        """Set the address range [begin, end) of a storage."""
        (self._written if storage in self._written else self._read)[storage] = (begin, end)

    def conflicting_storage(self, storage: str, begin: int, end: int) -> str:
        """Return another storage overlapping [begin, end) if a run writes to either of the two; "" for none."""
        for spans in (self._written, self._read) if storage in self._written else (self._written,):
            for other, (first, last) in spans.items():
                if first < end and begin < last and other != storage:
                    return other
        return ""


class ExecutableMemory:
    """The storages of a plan, allocated or provided by the caller, and the place of every value.

    Invariant: an array returned by `operand` stays valid until its storage is replaced or swapped.

    pointers            names of the renamed values: bound to a region, without a copy
    pointed             the regions bound to renamed values during the run, by name
    trip_counts         the number of iterations of each loop in its latest execution
    current_iterations  the current iteration of each loop with moving values
    striding_loops      the loops with values moving from iteration to iteration
    exits_taken         the latest exit edge of each loop and branch that decides a transition between body versions
    deciding_nodes      the names of these loops and branches
    caller_storages     the storages bound by the caller
    in_rows             the names of the values of which only each row is contiguous
    """

    def __init__(self, graph: Graph, plan: MemoryPlan) -> None:
        self.plan = plan
        self.storages: dict[str, Storage] = {storage.name: storage for storage in plan.storages}
        self.rolled = {(record.loop, record.within): record for record in plan.rolled}
        self.pointers = frozenset(placement.value for placement in plan.placements if placement.how == POINTER)
        self.pointed: dict[str, Region] = {}
        self._entry_bindings = _static_entry_bindings(graph, plan, self.pointers)
        self.trip_counts: dict[str, int] = {}
        self.current_iterations: dict[str, int] = {}
        self.striding_loops = {stride.loop for placement in plan.placements for stride in placement.strides}
        self.exits_taken: dict[str, int] = {}
        self.deciding_nodes = {name for record in plan.rolled for jump in record.jumps for name, _ in jump.ways}
        self._placements_of: dict[str, list[Placement]] = {}
        for placement in plan.placements:
            self._placements_of.setdefault(placement.value, []).append(placement)
        self.in_rows = frozenset(placement.value for placement in plan.placements if placement.region.rows > 1)
        self.cells = {value.name: UnplannedCell(value.name) for value in graph.unplannable_values}
        self._raw: dict[str, Raw] = {}
        self._outer_operands: dict[str, Operand] = {}
        self.arenas = tuple(storage.name for storage in plan.arenas)
        self.caller_storages: set[str] = set()
        updated = {bound_storage_name(value.name) for value in graph.updated_values}
        self._written = {s.name: None for s in plan.storages if s.kind not in READ_ONLY or s.name in updated}
        self._spans = StorageSpans(self._written)
        self.locks = RunLocks()
        self._claimed = {s.name for s in plan.storages if s.kind == "weight"}.union(self.arenas, updated)
        self._kept = [
            placement.region
            for value in (*graph.weights, *graph.updated_values)
            for placement in self._placements_of.get(value.name, ())
            if placement.region.storage in self.arenas
        ]

    def raw(self, storage: str) -> Raw:
        """Return the bytes of a storage, allocated on first use."""
        if storage not in self._raw:
            self._raw[storage] = aligned_bytes(self.storages[storage].nbytes, self.plan.alignment)
            self._record_spans({storage: self._raw[storage]})
        return self._raw[storage]

    @property
    def allocated_bytes(self) -> int:
        """The bytes of all storages allocated or provided so far."""
        return sum(raw.nbytes for raw in self._raw.values())

    def written_storages(self) -> list[Raw]:
        """Return the storages written by a run."""
        return [self.raw(name) for name in self._written]

    def adopt_bytes(self, storage: str, raw: Raw, what: str, alignment: int) -> None:
        """Use bytes of the caller as a storage.

        Raises RunError when the bytes are too few, misaligned, read-only although written by the network, or shared
        with another storage while the network writes to either of the two.
        """
        needed = self.storages[storage].nbytes
        if raw.size < needed:
            raise RunError(f"{what}: needs {needed:,} bytes, but has {raw.size:,}")
        address = raw.ctypes.data
        if needed and address % alignment:
            raise RunError(f"{what}: its address must be a multiple of {alignment}; see sublet.aligned_bytes")
        if storage in self._written and not raw.flags.writeable:
            raise RunError(f"{what}: is read-only, but the network writes to it")
        other = self._spans.conflicting_storage(storage, address, address + needed)
        if other:
            raise RunError(f"{what}: shares memory with {other!r}, and the network writes to one of them")
        self._raw[storage] = raw[:needed]
        self._outer_operands.clear()
        self._spans.set_span(storage, address, address + needed)
        if storage in self._claimed:
            kept = [(region.offset, region.end) for region in self._kept if region.storage == storage]
            self.locks.claim(storage, address, address + needed, storage in self._written, kept)

    def lend(self, storage: str) -> None:
        """Record that other executables may use the bytes of a storage."""
        address = self.raw(storage).ctypes.data
        self.locks.claim(storage, address, address + self.raw(storage).size, storage in self._written)

    @property
    def swaps_by_copy(self) -> dict[str, str]:
        """The values of cycles with a storage bound by the caller: each maps to the value whose content it receives."""
        return next_storages(
            [
                cycle
                for cycle in self.plan.exchanged
                if not self.caller_storages.isdisjoint(map(bound_storage_name, cycle))
            ]
        )

    def swap_storages(self) -> None:
        """Swap the storages of all cycles without storages bound by the caller."""
        gets, stay = next_storages(self.plan.exchanged), self.swaps_by_copy
        swapped = {
            bound_storage_name(name): self.raw(bound_storage_name(other))
            for name, other in gets.items()
            if name not in stay
        }
        self._set_storages(swapped)  # in one update: an interrupt occurs before or after

    @contextmanager
    def restoring_storages(self) -> Iterator[None]:
        """Restore the names of all storages after the block."""
        before = dict(self._raw)
        try:
            yield
        finally:
            self._set_storages(before)

    def _set_storages(self, raws: Mapping[str, Raw]) -> None:
        self._raw.update(raws)
        self._outer_operands.clear()
        self._record_spans(raws)

    def _record_spans(self, raws: Mapping[str, Raw]) -> None:
        for name, raw in raws.items():
            self._spans.set_span(name, raw.ctypes.data, raw.ctypes.data + raw.size)

    @property
    def arrangement(self) -> tuple[int, ...]:
        """The current addresses of the storages of all values in swap cycles."""
        if not self.plan.exchanged:
            return ()
        return tuple(self.raw(bound_storage_name(name)).ctypes.data for cycle in self.plan.exchanged for name in cycle)

    def region(
        self,
        value: Value,
        context: Context = (),
        pointed: Mapping[str, Region] | None = None,
        rounds: Mapping[str, int] | None = None,
    ) -> Region:
        """Return the region of a value in the body versions `context`.

        `pointed` gives the bindings of renamed carries, by default the current bindings; `rounds` the iterations,
        by default the current iterations.
        """
        if value.name in self.pointers:
            return self.entry_binding(value, context) or (self.pointed if pointed is None else pointed)[value.name]
        placement = self.placement(value, context)
        if not placement.strides:
            return placement.region
        rounds = self.current_iterations if rounds is None else rounds
        further = sum(rounds.get(stride.loop, 0) * stride.step for stride in placement.strides)
        return replace(placement.region, offset=placement.region.offset + further)

    def entry_binding(self, pointer: Value, context: Context) -> Region | None:
        """Return the region bound to a renamed carry in a body version; None if known only during the run."""
        copies = (context[:depth] for depth in range(len(context), 0, -1))
        return next(
            (
                self._entry_bindings[pointer.name, here]
                for here in copies
                if (pointer.name, here) in self._entry_bindings
            ),
            None,
        )

    def placement(self, value: Value, context: Context) -> Placement:
        """Return the placement of a value in the body versions `context`; the value is no renamed carry."""
        for placement in self._placements_of[value.name]:
            if any(context[: len(copies)] == copies for copies in placement.copies or ((),)):
                return placement
        raise RunError(f"value {value} has no placement in the body versions {context}")

    def strides(self, value: Value, context: Context) -> tuple[Stride, ...]:
        """Return the strides of a value over the iterations of its enclosing loops."""
        fixed = not self.striding_loops or not value.nbytes or value.name in self.pointers
        return () if fixed else self.placement(value, context).strides

    def is_step_of(self, part: Value, whole: Value, stride: Stride, context: Context) -> bool:
        """True if a slice or row lies inside its whole in every iteration."""
        strides = self.strides(part, context)
        if not strides or whole.name in self.pointers:
            return False
        own, around = self.placement(part, context), self.placement(whole, context)
        start = around.region.offset + (whole.nbytes - part.nbytes if stride.backwards else 0)
        expected = (around.region.storage, start, (*around.strides, stride))
        return (own.region.storage, own.region.offset, strides) == expected

    def bytes_at(self, region: Region) -> Raw:
        """Return the bytes of a contiguous region."""
        assert region.rows == 1
        return self.raw(region.storage)[region.offset : region.end]

    def array(self, region: Region | None, spec: TensorSpec) -> Array:
        """Return the array of a value in a region; an empty array for None, a value without bytes."""
        if region is not None and region.rows > 1:
            first = array_over(self.bytes_at(region.row(0, region.rows)), TensorSpec(spec.dtype, (1, *spec.shape[1:])))
            return np.ndarray(
                spec.shape,
                first.dtype,
                self.raw(region.storage)[region.offset : region.end],
                strides=(region.pitch, *first.strides[1:]),
            )
        return array_over(_EMPTY if region is None else self.bytes_at(region), spec)

    def outer_operand(self, value: Value) -> Operand:
        """Return the array or cell of an input, output or weight of the network, looked up once a change of memory."""
        operand = self._outer_operands.get(value.name)
        if operand is None:
            operand = self.places_at().operand(value)
            if value.name not in self.pointers:  # the region of a renamed value may change in any run
                self._outer_operands[value.name] = operand
        return operand

    def places_after_run(self) -> ValuePlaces:
        """Return the places after a run: swapped storages have exchanged their names."""
        becomes = {
            bound_storage_name(other): bound_storage_name(name)
            for name, other in next_storages(self.plan.exchanged).items()
        }
        return ValuePlaces(self, renamed_storages=becomes)

    def places_at(self, context: Context = (), pointed: Mapping[str, Region] | None = None) -> ValuePlaces:
        """Return the places in the body versions `context`, given carry bindings `pointed`."""
        return ValuePlaces(self, context, pointed)


def _static_entry_bindings(
    graph: Graph, plan: MemoryPlan, pointers: frozenset[str]
) -> dict[tuple[str, Context], Region]:
    """Return the regions bound to renamed parameters in each body version, where independent of run and iteration."""
    loops = {node.name: node for node in graph.walk() if isinstance(node, While)} if plan.rolled else {}
    bindings: dict[tuple[str, Context], Region] = {}
    for record in plan.rolled:
        renamed = [parameter.name for parameter in loops[record.loop].parameters if parameter.name in pointers]
        for copy, heads in enumerate(record.heads):
            for name, number in zip(renamed, heads, strict=True):
                if number != OPEN and not plan.placements[number].strides:
                    bindings[name, (*record.within, (record.loop, copy))] = plan.placements[number].region
    return bindings


@dataclass(frozen=True)
class ValuePlaces:
    """The places of values at one point of the program.

    Without `pointed` or `rounds`, the current carry bindings and iterations apply. `becomes` maps old to new names of
    storages after a swap.
    """

    memory: ExecutableMemory
    context: Context = ()
    pointed: Mapping[str, Region] | None = None
    rounds: Mapping[str, int] | None = None
    renamed_storages: Mapping[str, str] = field(default_factory=dict)

    def region(self, value: Value) -> Region:
        """Return the region of a planned value."""
        region = self.memory.region(value, self.context, self.pointed, self.rounds)
        return (
            replace(region, storage=self.renamed_storages[region.storage])
            if region.storage in self.renamed_storages
            else region
        )

    def bytes_of(self, value: Value) -> Raw:
        """Return the bytes of a planned value."""
        return self.memory.bytes_at(self.region(value))

    def operand(self, value: Value) -> Operand:
        """Return the array or cell of a value."""
        if not isinstance(value.spec, TensorSpec):
            return self.memory.cells[value.name]
        return self.memory.array(self.region(value) if value.nbytes else None, value.spec)

    def array(self, value: Value) -> Array:
        """Return the array of a planned value."""
        operand = self.operand(value)
        assert not isinstance(operand, UnplannedCell)
        return operand


class RowPlaces(ValuePlaces):
    """The places of the operands of row `number` of `count` rows of a node.

    `sliced` maps the names of the operands of the row to the values with rows.
    """

    def __init__(self, places: ValuePlaces, number: int, count: int, sliced: Mapping[str, Value]) -> None:
        super().__init__(places.memory, places.context, places.pointed, places.rounds, places.renamed_storages)
        self._number, self._count, self._sliced = number, count, sliced

    def region(self, value: Value) -> Region:
        """Return the region of a row, or of an operand that every row needs whole."""
        if value.name not in self._sliced:
            return super().region(value)
        return super().region(self._sliced[value.name]).row(self._number, self._count)


_EMPTY = np.empty(0, np.uint8)
