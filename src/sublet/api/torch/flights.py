"""Arenas for calls in flight: between a forward and its backward an arena is taken; another call gets another one."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import numpy as np

from sublet.analysis.options import Options
from sublet.api.binding import Equipped, equipped
from sublet.api.torch.captured import Captured, Result
from sublet.api.torch.common import PROGRAMS, Common, Sizes, sizes_of
from sublet.api.torch.taking import Taking
from sublet.base.errors import KernelError
from sublet.base.forks import fork_lock
from sublet.frontends.torch.exported import Held, held
from sublet.frontends.torch.tensors import Tensor
from sublet.ir.graph import Value
from sublet.ops.aten import COLLECTIVES, PREFIX
from sublet.plan import ARENA, KEPT, MemoryPlan
from sublet.planning.pipeline import plan_memory
from sublet.runtime.backends.torch.backend import AtenKernel, over, seen
from sublet.runtime.cuts import Cuts
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Backend
from sublet.runtime.pieces import Pieces


@dataclass(eq=False)
class Arena:
    """One arena with the program bound to it.

    plan     its own
    common   holds what it does not keep, and runs of other arenas after it; None where all is its own
    taking   what a run gives, and what its second piece is given, by position
    places   where what the first piece is given goes, by position
    bound    where the weights are, by position
    """

    run: Executable
    plan: MemoryPlan
    common: Common | None
    taking: Taking
    pieces: Pieces
    places: dict[int, Any]
    bound: dict[int, int]

    def __post_init__(self) -> None:
        self.raw = self.common.raw if self.common is not None else None

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """While nobody else runs in the same bytes."""
        return self.common.lock if self.common is not None else nullcontext()

    def is_bound_to(self, args: Sequence[Any]) -> bool:
        """True if the program reads the weights where they are in these arguments."""
        return all(args[position].data_ptr() == address for position, address in self.bound.items())

    @property
    def is_free(self) -> bool:
        """Whether nobody runs in its bytes now."""
        return self.common is None or not self.common.lock.locked()

    @property
    def results(self) -> dict[int, Any]:
        """What the latest run gave."""
        return self.taking.taken


class Flight:
    """A call under way in an arena, which is no other call's until this one has landed.

    It lands by `land`, and when nobody holds it any more: what stays in the arena for a backward holds it.
    """

    def __init__(self, pool: Any, arena: Any) -> None:
        self.pool, self.arena = pool, arena
        self.land = weakref.finalize(self, pool.release, arena)
        self.land.atexit = False


def ready_to_plan(captured: Captured) -> tuple[Taking, Equipped]:
    """A captured program with kernels, and who takes its results."""
    taking = Taking(captured.computed)
    backends: list[str | Backend] = [taking, Cuts(), "torch", "numpy", "reference"]
    return taking, equipped(captured.model, backend=backends, optimize="none")


def copied_through(captured: Captured) -> tuple[tuple[str, int], ...]:
    """The operators whose results PyTorch allocates, with the bytes of these that are there at once."""
    calls = (node for node in captured.model.graph.walk() if node.op.startswith(PREFIX))
    return tuple((node.op, nbytes) for node in calls if (nbytes := AtenKernel(node).allocates))


class Pool:
    """The arenas of one captured program, all of one plan: the one in one arena, until it is less for all programs
    together that what it keeps lies apart, unless it never shares."""

    def __init__(self, captured: Captured, args: Sequence[Any], options: Options, shares: bool = True) -> None:
        contents = held({value: args[position] for position, value in captured.weights.items()})
        self.captured = replace(captured, model=replace(captured.model, weights={**captured.model.weights, **contents}))
        self._lock = fork_lock()
        self._free: list[Arena] = []
        self._all: WeakSet[Arena] = WeakSet()
        self._options = options
        self.plan: MemoryPlan = plan_memory(self._equipped()[1].model, options)
        self.copied = copied_through(captured)
        self.sizes = sizes_of(self.plan)
        waits = any(node.op.startswith(COLLECTIVES) for node in captured.model.graph.walk())
        self._shares = shares and not waits  # for another thread of this process, which would wait for its turn
        if self._shares:
            PROGRAMS.add(self)
        self._free.append(self._made())

    @property
    def arenas(self) -> int:
        """How many it has."""
        return len(self._all)

    @property
    def is_apart(self) -> bool:
        """Whether what it keeps lies apart."""
        return len(self.plan.arenas) > 1

    def take(self, args: Sequence[Any] = ()) -> Flight:
        """Return a call in an arena that no other call is in: if there is one, in an arena that is bound to the weights
        among `args`. A graph that several modules share, each with weights of its own, is bound once for each."""
        with self._lock:
            self._decide()
            self._free[:] = [each for each in self._free if self._is_current(each)]
            free = [i for i, each in enumerate(self._free) if each.is_free]
            bound = (i for i in free if args and self._free[i].is_bound_to(args))
            chosen = next(bound, free[0] if free else None)
            arena = self._made() if chosen is None else self._free.pop(chosen)
        return Flight(self, arena)

    def release(self, arena: Arena) -> None:
        """The arena is free for another call."""
        self._free.append(arena)

    def _decide(self) -> None:
        """Plan it apart, in the same order, where that is less for all programs."""
        if self._shares and not self.is_apart and PROGRAMS.should_be_apart(self):
            options = replace(self._options, at_cuts="apart", order="given")
            self.plan = plan_memory(self._equipped()[1].model, options, schedule=self.plan.schedule)
            own = {storage.name: storage.nbytes for storage in self.plan.arenas}
            self.sizes = Sizes(self.sizes.alone, own[KEPT], own[ARENA])

    def _is_current(self, arena: Arena) -> bool:
        """Whether one made now would be as it is: of this plan, in the bytes that all share now."""
        return arena.plan is self.plan and (arena.common is None or arena.raw is arena.common.raw)

    def _equipped(self) -> tuple[Taking, Equipped]:
        return ready_to_plan(self.captured)

    def _made(self) -> Arena:
        self._decide()
        taking, ready = self._equipped()
        run, common = ready.bound(self.plan), None
        if self.is_apart:
            common = PROGRAMS.common(self.sizes.passing, self.plan.alignment)
            run.bind(ARENA, common.raw)
        addresses = {at: self._held(value).tensor.data_ptr() for at, value in self.captured.weights.items()}
        arena = Arena(run, self.plan, common, taking, *self._tied(run), addresses)
        self._all.add(arena)
        return arena

    def _held(self, value: Value) -> Held:
        found = self.captured.model.weights[value.name]
        assert isinstance(found, Held)
        return found

    def _tied(self, run: Executable) -> tuple[Pieces, dict[int, Any]]:
        """The program of an executable as pieces, and where the first takes what it is given from."""
        pieces = Pieces(run)
        return pieces, {at: _over(pieces, each) for at, each in self.captured.pieces[0].given.items()}

    def run(self, arena: Arena, number: int, args: Sequence[Any], into: Mapping[int, Any] | None = None) -> list[Any]:
        """Run one piece with these arguments; what it gives, None for what stays in the arena.

        into   tensors that results are to be, by position
        """
        arena.results.update(into or {})
        with arena.turn:
            return self._run(arena, number, args)

    def _run(self, arena: Arena, number: int, args: Sequence[Any]) -> list[Any]:
        if number == 0:
            self._bind(arena, args)
            for position, place in arena.places.items():
                place.copy_(args[position])
        else:
            arena.taking.given.update(enumerate(args))
        try:
            arena.pieces.run(number)
            return self.given_back(arena, number, args)
        except KernelError as error:  # who calls knows what PyTorch's operators raise
            raise (error.__cause__ or error) from None
        finally:
            arena.taking.given.clear()
            arena.results.clear()

    def given_back(self, arena: Arena, number: int, args: Sequence[Any]) -> list[Any]:
        """What a piece that has run gives, None for what stays in the arena."""
        results = self.captured.pieces[number].results
        return [_result(result, position, args, arena) for position, result in enumerate(results)]

    def _bind(self, arena: Arena, args: Sequence[Any]) -> None:
        """Use weights where they are now, if that is elsewhere than at the last call."""
        given = {at: self.captured.laid_as_traced(at, args[at]) for at in arena.bound}
        moved = {at: given[at] for at, address in arena.bound.items() if given[at].data_ptr() != address}
        for position, tensor in moved.items():
            name = self.captured.weights[position].name
            arena.run.bind(name, replace(self._held(self.captured.weights[position]), tensor=tensor).array())
            arena.bound[position] = tensor.data_ptr()
        if moved:
            arena.pieces, arena.places = self._tied(arena.run)

    def kept(self, flight: Flight) -> list[tuple[int, Any]]:
        """Tensors over what stays in the arena after the first piece, by position; they hold the flight."""
        return [
            (position, _over(flight.arena.pieces, result.tensor, flight))
            for position, result in enumerate(self.captured.pieces[0].results)
            if result.tensor is not None and result.argument is None and not result.taken
        ]


class _Holding(np.ndarray):
    """An array that holds a flight."""

    flight: Flight | None = None


def _over(pieces: Pieces, tensor: Tensor, flight: Flight | None = None) -> Any:
    """A tensor of PyTorch's over its bytes in the arena."""
    array = pieces.array(tensor.value).view(_Holding)
    array.flight = flight
    return seen(over(array), tensor.strides)


def _result(result: Result, position: int, args: Sequence[Any], arena: Arena) -> Any:
    if result.shared is not None and result.tensor is not None:
        # Not as a view of the other result for autograd: one of the two may be without a gradient.
        return seen(arena.results[result.shared].detach(), result.tensor.strides)
    if result.taken:
        return arena.results[position]
    return result.of(args)
