"""Copies made by loops, branches and updates: parallel moves, slices in, rows out. The copied bytes are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.base.arrays import is_packed
from sublet.base.errors import RunError
from sublet.base.interrupts import fork_lock
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.ir.graph import CaseOf, Node, Value, While
from sublet.ops.op import lookup, present_shares
from sublet.plan import bound_storage_name
from sublet.runtime.kernel import Array, Call, Operand, UnplannedCell, no_op, store
from sublet.runtime.memory import ExecutableMemory, Raw, ValuePlaces

# Array operations shared by NumPy arrays and PyTorch tensors, also tensors on a device.


def address_of(array: Array) -> int:
    """Return the address of the first byte."""
    return array.ctypes.data if isinstance(array, np.ndarray) else _tensor_address(array)


def _tensor_address(tensor: Any) -> int:
    return int(tensor.data_ptr())


def arrays_overlap(a: Array, b: Array) -> bool:
    """True if two arrays share bytes; the elements of a tensor are taken as contiguous."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return bool(np.may_share_memory(a, b))
    return address_of(a) < address_of(b) + b.nbytes and address_of(b) < address_of(a) + a.nbytes


def copy_of(array: Array) -> Any:
    """Return a copy of the array in new memory."""
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def copy_elements(source: Array, to: Array) -> None:
    """Copy elements from `source` to `to`; the two may overlap, which PyTorch alone does not allow."""
    if not isinstance(to, np.ndarray) and arrays_overlap(source, to):
        source = copy_of(source)
    to[...] = source


def axis_first(array: Array, axis: int) -> Array:
    """Return a view of the array with `axis` moved to the front."""
    if isinstance(array, np.ndarray):
        return np.moveaxis(array, axis, 0)
    moved: Array = array.movedim(axis, 0)
    return moved


Pair = tuple[Operand, Operand]


class CopyCounter:
    """A thread-safe counter of the bytes copied by loops and branches during a run."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = fork_lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes


def parallel_move(pairs: Sequence[Pair], moved: CopyCounter) -> Call:
    """Return a call assigning every source to its destination, as if all at once.

    Pairs with equal addresses cost nothing. If a destination overlaps a source still to read, the copies are ordered
    around the overlap; for a cyclic overlap, all sources are read first.
    """
    work = [(source, to) for source, to in pairs if not _same_place(source, to)]
    if not work:
        return no_op
    ordered, clash = _order_moves(work)
    nbytes = sum(to.nbytes for _, to in work if not isinstance(to, UnplannedCell))

    def in_order() -> None:
        for source, to in ordered:
            assign(source, to)
        moved.add(nbytes)

    def all_read_first() -> None:
        contents = [_content_of(source) for source, _ in ordered]
        for content, (_, to) in zip(contents, ordered, strict=True):
            store(content, to)
        moved.add(nbytes)

    return all_read_first if clash else in_order


def bind_storage_swap(memory: ExecutableMemory, moved: CopyCounter) -> Call:
    """Return a call swapping the storages of updated values after a run, as planned.

    Storages bound by the caller keep their value: cycles with a bound storage are copied.
    """
    pairs = [
        (memory.raw(bound_storage_name(other)), memory.raw(bound_storage_name(name)))
        for name, other in memory.swaps_by_copy.items()
    ]
    copy = parallel_move(pairs, moved)

    def exchange() -> None:
        copy()
        memory.swap_storages()

    return exchange


def _same_place(a: Operand, b: Operand) -> bool:
    """True if two operands are the same bytes, the same cell, or empty."""
    if isinstance(a, UnplannedCell) or isinstance(b, UnplannedCell):
        return a is b
    return a.nbytes == 0 or (address_of(a) == address_of(b) and a.nbytes == b.nbytes)


def _order_moves(work: list[Pair]) -> tuple[list[Pair], bool]:
    """Return (pairs ordered so that no copy destroys a later source, False); for a cycle (`work`, True)."""
    remaining, ordered = list(work), list[Pair]()
    while remaining:
        free = [
            pair
            for pair in remaining
            if not any(_overlap(pair[1], other[0]) for other in remaining if other is not pair)
        ]
        if not free:
            return work, True
        ordered += free[:1]
        remaining = [pair for pair in remaining if pair is not free[0]]
    return ordered, False


def _overlap(a: Operand, b: Operand) -> bool:
    if isinstance(a, UnplannedCell) or isinstance(b, UnplannedCell):
        return a is b
    return arrays_overlap(a, b)


def _content_of(source: Operand) -> Any:
    return source.content if isinstance(source, UnplannedCell) else copy_of(source)


def assign(source: Operand, to: Operand) -> None:
    """Copy the content of one operand to another."""
    if isinstance(source, UnplannedCell) or isinstance(to, UnplannedCell):
        store(_content_of(source), to)
    else:
        copy_elements(source, to)


IterationAction = Callable[[int], None]
Operands = Callable[[Value], Operand]
LoopStep = tuple[Value, Value, int, bool]
"""(slice or row, sequence or stacked output, axis, True if iteration 0 is at the far end)."""


def bind_fetch(slices: Sequence[LoopStep], at: Operands) -> IterationAction | None:
    """Return a function of the iteration copying slices out of their sequences; None without slices."""
    return _run_all([_slice_copy(at(value), at(sequence), axis, back) for value, sequence, axis, back in slices])


def bind_row_store(rows: Sequence[LoopStep], at: Operands) -> IterationAction | None:
    """Return a function of the iteration copying rows into the stacked outputs; None without rows."""
    return _run_all([_row_copy(at(row), at(whole), axis, back) for row, whole, axis, back in rows])


def _run_all(copies: list[IterationAction]) -> IterationAction | None:
    if len(copies) < 2:
        return copies[0] if copies else None

    def all_of_them(k: int) -> None:
        for copy in copies:
            copy(k)

    return all_of_them


def _slice_copy(value: Operand, sequence: Operand, axis: int, backwards: bool) -> IterationAction:
    """Return a function of the iteration copying a slice out of a sequence."""

    def take(k: int) -> None:
        whole = np.asarray(sequence.content if isinstance(sequence, UnplannedCell) else sequence)
        if k >= whole.shape[axis]:
            raise RunError(f"the loop runs more iterations than the {whole.shape[axis]} slices of its input")
        index = whole.shape[axis] - 1 - k if backwards else k
        store(np.take(whole, index, axis), value)

    if isinstance(sequence, UnplannedCell) or isinstance(value, UnplannedCell):
        return take
    return _lane_copy(axis_first(sequence, axis), value, backwards, store=False)


def _row_copy(row: Operand, whole: Operand, axis: int, backwards: bool) -> IterationAction:
    """Return a function of the iteration copying a row into a stacked output."""
    if not isinstance(whole, UnplannedCell) and not isinstance(row, UnplannedCell):
        return _lane_copy(axis_first(whole, axis), row, backwards, store=True)

    def place(k: int) -> None:
        if isinstance(whole, UnplannedCell):
            whole.content.append(_content_of(row))
        else:
            index = whole.shape[axis] - 1 - k if backwards else k
            store(_content_of(row), np.moveaxis(whole, axis, 0)[index])

    return place


def _lane_copy(lanes: Array, item: Array, backwards: bool, *, store: bool) -> IterationAction:
    """Return a function of the iteration copying between `item` and one lane of `lanes`."""
    if backwards:
        lanes = lanes[::-1]

    def store_lane(k: int) -> None:
        lanes[k, ...] = item

    def take_lane(k: int) -> None:
        item[...] = lanes[k]

    return store_lane if store else take_lane


def open_rows(node: While, at: Operands) -> list[UnplannedCell]:
    """Return the cells of stacked outputs with an unknown number of rows; the cells collect lists of rows."""
    return [
        cell for value in node.stacked_outputs if value is not None and isinstance(cell := at(value), UnplannedCell)
    ]


def close_rows(node: While, at: Operands) -> None:
    """Turn the collected lists of rows into arrays."""
    for row, value, axis, backwards in zip(
        node.rows, node.stacked_outputs, node.row_axes, node.row_reversed, strict=True
    ):
        cell = at(value) if value is not None else None
        if isinstance(cell, UnplannedCell):
            rows = cell.content[::-1] if backwards else cell.content
            cell.content = np.stack(rows, axis) if rows else _empty_stack(row, axis)


_ELEMENTS = {"str": np.dtype(object), **{dtype.text: kind for dtype, kind in NUMPY.items()}}


def _empty_stack(row: Value, axis: int) -> Array:
    """Return the result of stacking zero rows: element type of `row`, unknown extents 0."""
    if isinstance(row.spec, TensorSpec):
        shape, dtype = row.spec.shape, NUMPY[row.spec.dtype]
    else:
        shape = tuple(extent or 0 for extent in row.spec.dims or ())
        dtype = _ELEMENTS.get(row.spec.element, np.dtype(np.float32))
    return np.empty((*shape[:axis], 0, *shape[axis:]), dtype)


def check_moves(node: While | CaseOf) -> None:
    """Raise RunError if elements smaller than a byte would move as slices or rows, or to or from a cell."""
    what = f"{'loop' if isinstance(node, While) else 'branch'} {node.name}"
    for value in (*node.slices, *node.rows) if isinstance(node, While) else ():
        if isinstance(value.spec, TensorSpec) and is_packed(value.spec):
            raise RunError(f"{what}: slices and rows of {value.spec.dtype} elements cannot be run yet")
    for a, b in _assignments_of(node):
        for spec, other in ((a.spec, b), (b.spec, a)):
            if isinstance(spec, TensorSpec) and is_packed(spec) and not other.plannable:
                raise RunError(f"{what}: {spec.dtype} elements of a shape that depends on data cannot be run yet")


def _assignments_of(node: While | CaseOf) -> list[tuple[Value, Value]]:
    """Return the (source, target) assignments of a loop (entry, carry, exit) or of all arms of a branch."""
    if isinstance(node, While):
        ends = (*node.inits, *node.updates, *node.parameters), (*node.parameters, *node.parameters, *node.finals)
    else:
        sources = [arm.outputs for arm in node.arms] + ([node.fallbacks] if node.fallbacks else [])
        ends = tuple(value for outputs in sources for value in outputs), node.outputs * len(sources)
    return [(source, to) for source, to in zip(*ends, strict=True) if to is not None]


# Execution of nodes that only copy bytes, from the facts of their ops; views and operands in place are free.

Copy = tuple[Value, int, Value, int, int]
"""Bytes [b, b + n) of the first value become bytes [d, d + n) of the second: (first, b, second, d, n)."""


def byte_copies(node: Node) -> list[Copy] | None:
    """Return the copies computing the node, if views or parts cover every byte of the outputs; else None."""
    if not node.plannable:
        return None
    op = lookup(node.op)
    views = present_shares(node, op.views(node))
    copies: list[Copy] = [(base, offset, output, 0, output.nbytes) for output, base, offset in views]
    if not copies:
        parts = present_shares(node, op.parts(node))
        copies = [(part, 0, output, offset, part.nbytes) for output, part, offset in parts]
    if not copies and not op.pure:
        return None  # the op has side effects
    return copies if _covers_outputs([value for value in node.outputs if value is not None], copies) else None


def _covers_outputs(outputs: Sequence[Value], copies: list[Copy]) -> bool:
    """True if the copies write every byte of every output exactly once."""
    for output in outputs:
        end = 0
        for _, _, _, begin, nbytes in sorted((c for c in copies if c[2] == output), key=lambda copy: copy[3]):
            if begin != end:
                return False
            end += nbytes
        if end != output.nbytes:
            return False
    return True


def bind_copies(work: Sequence[tuple[Sequence[Copy], ValuePlaces]]) -> Call:
    """Return a call for the copies not already in place; each list of copies has places of its own."""
    pairs: list[tuple[Raw, Raw]] = []
    values: list[tuple[str, str]] = []
    for (source, begin, output, at, nbytes), places in ((copy, places) for copies, places in work for copy in copies):
        read = places.bytes_of(source)[begin : begin + nbytes]
        write = places.bytes_of(output)[at : at + nbytes]
        if nbytes and address_of(read) != address_of(write):
            pairs.append((read, write))
            values.append((source.name, output.name))
    return ByteCopies(tuple(pairs), tuple(values)) if pairs else no_op


@dataclass(frozen=True)
class ByteCopies:
    """A call copying bytes. `pairs` are (source, target) arrays; `values` the (source, target) names."""

    pairs: tuple[tuple[Raw, Raw], ...]
    values: tuple[tuple[str, str], ...]

    @property
    def addresses(self) -> list[int]:
        """The source and target addresses of each copy."""
        return [raw.ctypes.data for pair in self.pairs for raw in pair]

    def __call__(self) -> None:
        for read, write in self.pairs:
            copy_elements(read, write)
