"""Loops at run time: the copies of a body, bound, and which comes after which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.errors import RunError
from sublet.ir.graph import While
from sublet.runtime.kernel import Call, Cell, Operand
from sublet.runtime.memory import Places
from sublet.runtime.moves import Moved, bytes_a_round, close_rows, nothing, round_limit


@dataclass
class Round:
    """One copy of the body of a loop, bound; what is told `k` gets the number of the round."""

    begin: Callable[[int], None] | None
    before: tuple[Call, ...]
    goes_on: Call
    fetch: Callable[[int], None] | None
    rest: tuple[Call, ...]
    end: Callable[[int], None] | None
    leave: Call = nothing


class Loop:
    """Runs the rounds of a loop: copy `following[c]` of its body after copy c."""

    def __init__(
        self,
        node: While,
        enter: Call,
        rounds: Sequence[Round],
        following: Sequence[int],
        collecting: Sequence[Cell],
        places: Places,
        moved: Moved,
    ) -> None:
        self._node = node
        self._enter = enter
        self._rounds = rounds
        self._following = following
        self._collecting = collecting
        self._places = places
        self._moved = moved
        self._limit = round_limit(node)
        self._bytes_a_round = bytes_a_round(node)

    def run(self) -> None:
        for cell in self._collecting:
            cell.content = []
        self._enter()
        rounds, following, limit = self._rounds, self._following, self._limit
        k = copy = 0
        while True:
            current = rounds[copy]
            if current.begin:
                current.begin(k)
            for call in current.before:
                call()
            if not current.goes_on():
                break
            if k == limit:
                name = self._node.name
                raise RunError(f"loop {name}: goes on beyond the {limit} rounds its memory was planned for")
            if current.fetch:
                current.fetch(k)
            for call in current.rest:
                call()
            if current.end:
                current.end(k)
            copy = following[copy]
            k += 1
        self._moved.add(k * self._bytes_a_round)
        current.leave()
        if self._collecting:
            close_rows(self._node, self._places.operand)


def both(store: Callable[[int], None] | None, carry: Call) -> Callable[[int], None] | None:
    """First the rows are stored, then the carried values move."""
    if carry is nothing:
        return store
    if store is None:
        return lambda k: carry()

    def end_round(k: int) -> None:
        store(k)
        carry()

    return end_round


def counter(operand: Operand) -> Callable[[int], None]:
    if isinstance(operand, Cell):
        cell = operand

        def count_cell(k: int) -> None:
            cell.content = k

        return count_cell
    array = operand.reshape(())

    def count(k: int) -> None:
        array[()] = k

    return count


def reader(operand: Operand) -> Callable[[], Any]:
    """A call that gives the one element of an operand."""
    if isinstance(operand, Cell):
        cell = operand
        return lambda: cell.content.item()
    return operand.item
