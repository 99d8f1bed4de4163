"""What loops, branches and updates do themselves: parallel moves, slices in, rows out. They count bytes they move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sublet.base.errors import RunError
from sublet.base.forks import fork_lock
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import CaseOf, Value, While
from sublet.plan import bound_to
from sublet.runtime.calls import nothing, store
from sublet.runtime.dtypes import packed
from sublet.runtime.kernel import Array, Call, Cell, Operand
from sublet.runtime.located import address, along, copied, overlapping, put
from sublet.runtime.memory import Memory

Pair = tuple[Operand, Operand]


class Moved:
    """Counts the bytes that loops and branches copy in one run, in whatever stream."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._lock = fork_lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self.nbytes += nbytes


def parallel_move(pairs: Sequence[Pair], moved: Moved) -> Call:
    """A call that assigns every source to its destination, all at once.

    Pairs that are the same bytes cost nothing. A destination that overlaps a source still to be read is
    taken care of: the order of the copies avoids it, or the source is read first.
    """
    work = [(source, to) for source, to in pairs if not _same_place(source, to)]
    if not work:
        return nothing
    ordered, clash = _ordered(work)
    nbytes = sum(to.nbytes for _, to in work if not isinstance(to, Cell))

    def in_order() -> None:
        for source, to in ordered:
            assign(source, to)
        moved.add(nbytes)

    def all_read_first() -> None:
        contents = [_content(source) for source, _ in ordered]
        for content, (_, to) in zip(contents, ordered, strict=True):
            store(content, to)
        moved.add(nbytes)

    return all_read_first if clash else in_order


def exchanging(memory: Memory, moved: Moved) -> Call:
    """A call that lets updated values exchange their memory, as the plan says, when a run has ended.

    Memory that the caller bound stays that of its value: through cycles with any of it contents are copied.
    """
    pairs = [(memory.raw(bound_to(other)), memory.raw(bound_to(name))) for name, other in memory.stay.items()]
    copy = parallel_move(pairs, moved)

    def exchange() -> None:
        copy()
        memory.turn()

    return exchange


def _same_place(a: Operand, b: Operand) -> bool:
    if isinstance(a, Cell) or isinstance(b, Cell):
        return a is b
    return a.nbytes == 0 or (address(a) == address(b) and a.nbytes == b.nbytes)


def _ordered(work: list[Pair]) -> tuple[list[Pair], bool]:
    """The pairs in an order in which no copy destroys a source of a later one; and whether there is none."""
    left, ordered = list(work), list[Pair]()
    while left:
        free = [pair for pair in left if not any(_overlap(pair[1], other[0]) for other in left if other is not pair)]
        if not free:
            return work, True
        ordered += free[:1]
        left = [pair for pair in left if pair is not free[0]]
    return ordered, False


def _overlap(a: Operand, b: Operand) -> bool:
    if isinstance(a, Cell) or isinstance(b, Cell):
        return a is b
    return overlapping(a, b)


def _content(source: Operand) -> Any:
    return source.content if isinstance(source, Cell) else copied(source)


def assign(source: Operand, to: Operand) -> None:
    """Copy the content of one operand to another."""
    if isinstance(source, Cell) or isinstance(to, Cell):
        store(_content(source), to)
    else:
        put(source, to)


Take = Callable[[int], None]
Operands = Callable[[Value], Operand]
Step = tuple[Value, Value, int, bool]
"""A slice or row, the whole that it is a step of, the axis, and whether the first is at the far end."""


def fetcher(slices: Sequence[Step], at: Operands) -> Take | None:
    """A function of the round that copies slices out of their sequences; None without slices."""
    return _each([_taker(at(value), at(sequence), axis, back) for value, sequence, axis, back in slices])


def storer(rows: Sequence[Step], at: Operands) -> Take | None:
    """A function of the round that copies rows to their places in the stacked outputs; None without rows."""
    return _each([_placer(at(row), at(whole), axis, back) for row, whole, axis, back in rows])


def _each(copies: list[Take]) -> Take | None:
    if len(copies) < 2:
        return copies[0] if copies else None

    def all_of_them(k: int) -> None:
        for copy in copies:
            copy(k)

    return all_of_them


def _taker(value: Operand, sequence: Operand, axis: int, backwards: bool) -> Take:
    def take(k: int) -> None:
        whole = np.asarray(sequence.content if isinstance(sequence, Cell) else sequence)
        if k >= whole.shape[axis]:
            raise RunError(f"the loop goes on beyond the {whole.shape[axis]} slices of its input")
        index = whole.shape[axis] - 1 - k if backwards else k
        store(np.take(whole, index, axis), value)

    if isinstance(sequence, Cell) or isinstance(value, Cell):
        return take
    return _between(along(sequence, axis), value, backwards, store=False)


def _placer(row: Operand, whole: Operand, axis: int, backwards: bool) -> Take:
    if not isinstance(whole, Cell) and not isinstance(row, Cell):
        return _between(along(whole, axis), row, backwards, store=True)

    def place(k: int) -> None:
        if isinstance(whole, Cell):
            whole.content.append(_content(row))
        else:
            index = whole.shape[axis] - 1 - k if backwards else k
            store(_content(row), np.moveaxis(whole, axis, 0)[index])

    return place


def _between(lanes: Array, item: Array, backwards: bool, *, store: bool) -> Take:
    if backwards:
        lanes = lanes[::-1]

    def store_lane(k: int) -> None:
        lanes[k, ...] = item

    def take_lane(k: int) -> None:
        item[...] = lanes[k]

    return store_lane if store else take_lane


def open_rows(node: While, at: Operands) -> list[Cell]:
    """The cells of stacked outputs whose number of rows nobody knows; they collect a list."""
    return [cell for value in node.stacked if value is not None and isinstance(cell := at(value), Cell)]


def close_rows(node: While, at: Operands) -> None:
    """Turn the collected lists into arrays."""
    for row, value, axis, backwards in zip(node.rows, node.stacked, node.row_axes, node.row_reversed, strict=True):
        cell = at(value) if value is not None else None
        if isinstance(cell, Cell):
            rows = cell.content[::-1] if backwards else cell.content
            cell.content = np.stack(rows, axis) if rows else _no_rows(row, axis)


_ELEMENTS = {"str": np.dtype(object), **{dtype.text: kind for dtype, kind in NUMPY.items()}}


def _no_rows(row: Value, axis: int) -> Array:
    """What is stacked in no round: of the type of a row, extents that nobody knows are 0."""
    if isinstance(row.spec, TensorSpec):
        shape, dtype = row.spec.shape, NUMPY[row.spec.dtype]
    else:
        shape = tuple(extent or 0 for extent in row.spec.dims or ())
        dtype = _ELEMENTS.get(row.spec.element, np.dtype(np.float32))
    return np.empty((*shape[:axis], 0, *shape[axis:]), dtype)


def check_moves(node: While | CaseOf) -> None:
    """Raises RunError where elements that share a byte would move as slices or rows, or to or from a cell."""
    what = f"{'loop' if isinstance(node, While) else 'branch'} {node.name}"
    for value in (*node.slices, *node.rows) if isinstance(node, While) else ():
        if isinstance(value.spec, TensorSpec) and packed(value.spec):
            raise RunError(f"{what}: slices and rows of {value.spec.dtype} elements cannot be run yet")
    for a, b in _moves(node):
        for spec, other in ((a.spec, b), (b.spec, a)):
            if isinstance(spec, TensorSpec) and packed(spec) and not other.plannable:
                raise RunError(f"{what}: {spec.dtype} elements of a shape that depends on data cannot be run yet")


def _moves(node: While | CaseOf) -> list[tuple[Value, Value]]:
    """What moves where: into the loop, from round to round and out; out of every arm."""
    if isinstance(node, While):
        ends = (*node.inits, *node.updates, *node.parameters), (*node.parameters, *node.parameters, *node.finals)
    else:
        sources = [arm.outputs for arm in node.arms] + ([node.fallbacks] if node.fallbacks else [])
        ends = tuple(value for outputs in sources for value in outputs), node.outputs * len(sources)
    return [(source, to) for source, to in zip(*ends, strict=True) if to is not None]
