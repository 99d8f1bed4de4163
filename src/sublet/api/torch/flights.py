"""Arenas for calls in flight: between a forward and its backward an arena is taken; another call gets another one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from sublet.analysis.options import Options
from sublet.api.binding import equipped
from sublet.api.torch.captured import Captured
from sublet.api.torch.taking import Taking
from sublet.frontends.torch.exported import held
from sublet.frontends.torch.tensors import Tensor
from sublet.ir.graph import Node
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import plan_memory
from sublet.runtime.backends.torch.backend import AtenKernel, over, seen
from sublet.runtime.cuts import Cuts
from sublet.runtime.executable import Executable
from sublet.runtime.pieces import Pieces


@dataclass
class Arena:
    """One arena with the program bound to it.

    results  what a run gives, by position
    places   for each piece where what it is given goes, by position
    bound    where the weights are, by position
    flights  how many calls began in it; `taken` says that one is under way
    """

    run: Executable
    results: dict[int, Any]
    pieces: Pieces
    places: tuple[dict[int, Any], ...]
    bound: dict[int, int]
    flights: int = 0
    taken: bool = False


class Pool:
    """The arenas of one captured program, all of one plan."""

    def __init__(self, captured: Captured, args: Sequence[Any], options: Options) -> None:
        contents = held({value: args[position] for position, value in captured.weights.items()})
        self.captured = replace(captured, model=replace(captured.model, weights={**captured.model.weights, **contents}))
        self._lock = Lock()
        self._arenas: list[Arena] = []
        ready = equipped(self.captured.model, backend=self._backends(Taking()), optimize="none")
        self.plan: MemoryPlan = plan_memory(ready.model, options)
        self.copied = _copied(captured)

    def __len__(self) -> int:
        return len(self._arenas)

    @staticmethod
    def _backends(taking: Taking) -> list[Any]:
        return [taking, Cuts(), "torch", "numpy", "reference"]

    def take(self) -> Arena:
        """An arena that no call is in."""
        with self._lock:
            for arena in self._arenas:
                if not arena.taken:
                    break
            else:
                arena = self._made()
                self._arenas.append(arena)
            arena.taken = True
            arena.flights += 1
            return arena

    def release(self, arena: Arena, flight: int) -> None:
        """Give the arena of a flight back, once."""
        if arena.flights == flight:
            arena.taken = False

    def _made(self) -> Arena:
        taking = Taking()
        ready = equipped(self.captured.model, backend=self._backends(taking), optimize="none", plan=self.plan)
        run = ready.bound(ready.proven(self.plan), None)
        addresses = {at: _address(self.captured, value) for at, value in self.captured.weights.items()}
        return Arena(run, taking.taken, *self._tied(run), addresses)

    def _tied(self, run: Executable) -> tuple[Pieces, tuple[dict[int, Any], ...]]:
        """The program of an executable as pieces, and where these take what they are given from."""
        pieces = Pieces(run)
        places = tuple({at: _over(pieces, each) for at, each in piece.given.items()} for piece in self.captured.pieces)
        return pieces, places

    def run(self, arena: Arena, number: int, args: Sequence[Any]) -> list[Any]:
        """Run one piece with these arguments; what it gives, None for what stays in the arena."""
        if number == 0:
            self._bind(arena, args)
        for position, place in arena.places[number].items():
            place.copy_(args[position])
        arena.pieces.run(number)
        results = self.captured.pieces[number].results
        found = [_result(result, position, args, arena) for position, result in enumerate(results)]
        arena.results.clear()
        return found

    def _bind(self, arena: Arena, args: Sequence[Any]) -> None:
        """Use weights where they are now, if that is elsewhere than at the last call."""
        moved = {at: args[at] for at, address in arena.bound.items() if args[at].data_ptr() != address}
        for position, tensor in moved.items():
            value = self.captured.weights[position]
            arena.run.bind(value.name, held({value: tensor})[value.name].array())
            arena.bound[position] = tensor.data_ptr()
        if moved:
            arena.pieces, arena.places = self._tied(arena.run)

    def kept(self, arena: Arena) -> list[tuple[int, Any]]:
        """Tensors over what stays in the arena after the first piece, by position.

        The arena is released when nobody holds any of them.
        """
        holder = _Holder()
        weakref.finalize(holder, self.release, arena, arena.flights)
        return [
            (position, _aliased(arena.pieces.array(result.tensor.value), result.tensor, holder))
            for position, result in enumerate(self.captured.pieces[0].results)
            if result.tensor is not None and result.argument is None and not result.taken
        ]


class _Holder:
    """Lives as long as any array that was made over an arena."""


class _Held(np.ndarray):
    """An array that holds something else too."""

    holder: Any = None


def _aliased(array: Any, tensor: Tensor, holder: _Holder) -> Any:
    held = array.view(_Held)
    held.holder = holder
    return seen(over(held), None if tensor.is_whole else tensor.layout)


def _over(pieces: Pieces, tensor: Tensor) -> Any:
    return seen(over(pieces.array(tensor.value)), None if tensor.is_whole else tensor.layout)


def _result(result: Any, position: int, args: Sequence[Any], arena: Arena) -> Any:
    if result.taken:
        return arena.results[position]
    return args[result.argument] if result.argument is not None else result.number


def _address(captured: Captured, value: Any) -> int:
    address: int = captured.model.weights[value.name].tensor.data_ptr()  # type: ignore[attr-defined]
    return address


def _copied(captured: Captured) -> tuple[tuple[str, int], ...]:
    """The operators whose results PyTorch allocates, with their bytes."""
    found = [node for node in captured.model.graph.walk() if node.op.startswith("aten.") and _allocates(node)]
    return tuple((node.op, sum(value.nbytes for value in node.defs)) for node in found)


def _allocates(node: Node) -> bool:
    return AtenKernel(node).allocates
