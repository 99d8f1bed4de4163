"""A pool of arenas for one captured program: each call in flight leases an arena until its backward pass."""

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
from sublet.runtime.memory import aligned_bytes
from sublet.runtime.pieces import Pieces

MOST_BINDINGS = 64
"""Maximum weight sets bound for one inference graph. A further set rebinds the program unused for longest."""


@dataclass(eq=False)
class Arena:
    """An arena with a program bound to the arena.

    plan              the plan of the program
    scratch           the shared scratch bytes, used by one arena after another; None if the arena shares no bytes
    caller_outputs    receives the results of a run, and holds the arguments of the backward pass
    argument_places   tensors in the arena for the copied arguments of the forward pass, by position
    weight_addresses  the address of each weight bound to the program, by position
    owners            weak references to the weight tensors at the time of the binding
    """

    run: Executable
    plan: MemoryPlan
    common: Common | None
    taking: Taking
    pieces: Pieces
    places: dict[int, Any]
    bound: dict[int, int]
    owners: tuple[weakref.ref[Any], ...] = ()

    def __post_init__(self) -> None:
        self.raw = self.common.raw if self.common is not None else None

    @property
    def turn(self) -> AbstractContextManager[Any]:
        """A context manager with exclusive use of the scratch bytes."""
        return self.common.lock if self.common is not None else nullcontext()

    def is_bound_to(self, args: Sequence[Any]) -> bool:
        """True if the program reads each weight of `args` at the current address."""
        return all(args[position].data_ptr() == address for position, address in self.bound.items())

    def belongs_to(self, args: Sequence[Any]) -> bool:
        """True if the program was bound to exactly the weight tensors in `args`; the tensors may have moved since."""
        same = (ref() is args[position] for ref, position in zip(self.owners, self.bound, strict=False))
        return len(self.owners) == len(self.bound) and all(same)

    def own(self, args: Sequence[Any]) -> None:
        """Record the weight tensors bound to the program, as weak references."""
        self.owners = tuple(weakref.ref(args[position]) for position in self.bound)

    @property
    def is_left(self) -> bool:
        """True if a weight tensor bound to the program no longer exists."""
        return any(ref() is None for ref in self.owners)

    @property
    def is_free(self) -> bool:
        """True if no call runs in the arena's bytes, and no call has reserved the bytes."""
        return self.common is None or not (self.common.lock.locked() or self.common.reserved)

    @property
    def results(self) -> dict[int, Any]:
        """The results of the latest run by position."""
        return self.taking.taken


class Flight:
    """The lease of an arena by one call.

    `release` returns the arena to the pool. A lease without references is released too: every saved tensor in the arena
    holds a reference to the lease.
    """

    def __init__(self, pool: Any, arena: Any) -> None:
        self.pool, self.arena = pool, arena
        self.land = weakref.finalize(self, pool.release, arena)
        self.land.atexit = False


def ready_to_plan(captured: Captured) -> tuple[Taking, Equipped]:
    """Return a captured program with kernels for planning, and the backend receiving the results."""
    taking = Taking(captured.computed)
    backends: list[str | Backend] = [taking, Cuts(), "torch", "numpy", "reference"]
    return taking, equipped(captured.model, backend=backends, optimize="none")


def copied_through(captured: Captured) -> tuple[tuple[str, int], ...]:
    """Return the operators whose results PyTorch allocates: (name, bytes allocated at the same time)."""
    calls = (node for node in captured.model.graph.walk() if node.op.startswith(PREFIX))
    return tuple((node.op, nbytes) for node in calls if (nbytes := AtenKernel(node).allocates))


class Pool:
    """Pool of arenas for one captured program: one arena a call; or, when splitting lowers the memory of all programs
    together, one arena of saved tensors a call plus one shared scratch arena.

    A program is never split with `shares` False, or with collectives: a thread waiting for the scratch arena would
    block the ranks of other threads.

    plan         the plan of all arenas
    allocations  see `allocating_operators`
    sizes        bytes of a call, unsplit and split
    """

    def __init__(self, captured: Captured, args: Sequence[Any], options: Options, shares: bool = True) -> None:
        # Detached, so `owners` can detect the end of the caller's tensors, see `BoundArena.has_lost_owner`.
        contents = held({value: args[position].detach() for position, value in captured.weights.items()})
        self.captured = replace(captured, model=replace(captured.model, weights={**captured.model.weights, **contents}))
        self._lock = fork_lock()
        self._free: list[Arena] = []
        self._all: WeakSet[Arena] = WeakSet()
        self._options = options
        self.plan: MemoryPlan = plan_memory(self._equipped()[1].model, options)
        self.copied = copied_through(captured)
        self.sizes = sizes_of(self.plan)
        waits = any(node.op.startswith(COLLECTIVES) for node in captured.model.graph.walk())
        self._shares = shares and not waits  # a rank in another thread would wait for the scratch
        self._is_inference = len(captured.pieces) == 1
        if self._shares:
            PROGRAMS.add(self)
        self._free.append(self._made())
        self._free[0].own(args)

    @property
    def arenas(self) -> int:
        """The number of arenas. Inference programs in the same bytes count as one arena."""
        return len({id(each.common if self._is_inference else each) for each in self._all})

    @property
    def is_apart(self) -> bool:
        """True if saved tensors lie in an arena apart from the scratch arena."""
        return len(self.plan.arenas) > 1

    def take(self, args: Sequence[Any] = ()) -> Flight:
        """Return the lease of an arena without another call, preferably of an arena bound to the weights in `args`.

        A graph shared by several modules is bound once for each set of weights. In training each bound program has an
        arena. In inference all bound programs run in the same bytes, one call after another.
        """
        with self._lock:
            self._decide()
            self._free[:] = [each for each in self._free if self._is_current(each)]
            arena = self._chosen(args)
            if self._is_inference and args:
                arena.own(args)
            if arena.common is not None and not self.is_apart:
                arena.common.reserved = True
        return Flight(self, arena)

    def _chosen(self, args: Sequence[Any]) -> Arena:
        """Remove an arena from the free arenas, or create an arena."""
        free = [each for each in self._free if each.is_free]
        chosen = next((each for each in free if args and each.is_bound_to(args)), None)
        if chosen is None and free and self._is_inference and args:
            chosen = self._binding(free, args)
        elif chosen is None:
            chosen = free[0] if free else self._made()
        if chosen in self._free:
            self._free.remove(chosen)
        return chosen

    def _binding(self, free: Sequence[Arena], args: Sequence[Any]) -> Arena:
        """Return a program to bind to the weights in `args`.

        The order of preference: the program last bound to the same tensors; a program with lost weight tensors; a new
        program over the bytes of a free arena, up to `MAX_BOUND_PROGRAMS`; the program unused for longest.
        """
        left = [each for each in free if each.is_left]
        self._free[:] = [each for each in self._free if each not in left[1:]]  # their weights keep dead memory
        moved = next((each for each in free if each.belongs_to(args)), None)
        if moved is not None or left:
            return moved or left[0]
        return self._made(free[0].common) if len(self._free) < MOST_BINDINGS else free[0]

    def release(self, arena: Arena) -> None:
        """Return an arena to the free arenas."""
        if arena.common is not None:
            arena.common.reserved = False
        self._free.append(arena)

    def _decide(self) -> None:
        """Plan the program again, split and in the same order, if splitting lowers the total of all programs."""
        if self._shares and not self.is_apart and PROGRAMS.should_be_apart(self):
            options = replace(self._options, at_cuts="apart", order="given")
            self.plan = plan_memory(self._equipped()[1].model, options, schedule=self.plan.schedule)
            own = {storage.name: storage.nbytes for storage in self.plan.arenas}
            self.sizes = Sizes(self.sizes.alone, own[KEPT], own[ARENA])

    def _is_current(self, arena: Arena) -> bool:
        """True if an arena has the current plan and the current scratch bytes."""
        return arena.plan is self.plan and (arena.common is None or arena.raw is arena.common.raw)

    def _equipped(self) -> tuple[Taking, Equipped]:
        """Return the program with kernels, and the backend receiving the results, both new for each arena."""
        return ready_to_plan(self.captured)

    def _made(self, beside: Common | None = None) -> Arena:
        """Return a new arena; for inference in the scratch bytes `beside`, if given."""
        self._decide()
        taking, ready = self._equipped()
        run, common = ready.bound(self.plan), None
        if self.is_apart:
            common = PROGRAMS.common(self.sizes.passing, self.plan.alignment)
        elif self._is_inference and self.plan.arenas:
            common = beside or Common(aligned_bytes(self.plan.arena_bytes, self.plan.alignment))
        if common is not None:
            run.bind(ARENA, common.raw)
        addresses = {at: self._held(value).tensor.data_ptr() for at, value in self.captured.weights.items()}
        arena = Arena(run, self.plan, common, taking, *self._tied(run), addresses)
        self._all.add(arena)
        return arena

    def _held(self, value: Value) -> Held:
        """Return the content of a weight."""
        content = self.captured.model.weights[value.name]
        assert isinstance(content, Held)
        return content

    def _tied(self, run: Executable) -> tuple[Pieces, dict[int, Any]]:
        """Return an executable resumable after each pass, and tensors for the copied arguments of the forward pass."""
        pieces = Pieces(run)
        return pieces, {at: _over(pieces, each) for at, each in self.captured.pieces[0].given.items()}

    def run(self, arena: Arena, number: int, args: Sequence[Any], into: Mapping[int, Any] | None = None) -> list[Any]:
        """Run a pass and return the results by position, None for tensors in the arena.

        Args:
            arena: a leased arena.
            number: 0 for the forward pass, 1 for the backward pass.
            args: arguments of the pass.
            into: tensors to receive results, by position.

        Raises:
            The error of PyTorch's operator, if an operator fails.
        """
        arena.results.update(into or {})
        with arena.turn:
            return self._run(arena, number, args)

    def _run(self, arena: Arena, number: int, args: Sequence[Any]) -> list[Any]:
        """Bind weights and copy arguments, run a pass, and return the results."""
        if number == 0:
            self._bind(arena, args)
            for position, place in arena.places.items():
                place.copy_(args[position])
        else:
            arena.taking.given.update(enumerate(args))
        try:
            arena.pieces.run(number)
            return self.given_back(arena, number, args)
        except KernelError as error:  # raise the error of the eager operator
            raise (error.__cause__ or error) from None
        finally:
            arena.taking.given.clear()
            arena.results.clear()

    def given_back(self, arena: Arena, number: int, args: Sequence[Any]) -> list[Any]:
        """Return the results of a finished pass, None for tensors in the arena."""
        results = self.captured.pieces[number].results
        return [_result(result, position, args, arena) for position, result in enumerate(results)]

    def _bind(self, arena: Arena, args: Sequence[Any]) -> None:
        """Bind each weight with a new address."""
        given = {at: self.captured.laid_as_traced(at, args[at]) for at in arena.bound}
        moved = {at: given[at] for at, address in arena.bound.items() if given[at].data_ptr() != address}
        for position, tensor in moved.items():
            name = self.captured.weights[position].name
            arena.run.bind(name, replace(self._held(self.captured.weights[position]), tensor=tensor).array())
            arena.bound[position] = tensor.data_ptr()
        if moved:
            arena.pieces, arena.places = self._tied(arena.run)

    def kept(self, flight: Flight) -> list[tuple[int, Any]]:
        """Return tensors over the saved tensors in the arena, by position, each with a reference to the lease."""
        return [
            (position, _over(flight.arena.pieces, result.tensor, flight))
            for position, result in enumerate(self.captured.pieces[0].results)
            if result.tensor is not None and result.argument is None and not result.taken
        ]


class _Holding(np.ndarray):
    """An array with a reference to a lease."""

    flight: Flight | None = None


def _over(pieces: Pieces, tensor: Tensor, flight: Flight | None = None) -> Any:
    """Return a PyTorch tensor over the bytes of `tensor` in the arena, with a reference to the lease if given."""
    array = pieces.array(tensor.value).view(_Holding)
    array.flight = flight
    return seen(over(array), tensor.strides)


def _result(result: Result, position: int, args: Sequence[Any], arena: Arena) -> Any:
    """Return one result: a view of a shared result, a result in the caller's memory, or an argument."""
    if result.shared is not None and result.tensor is not None:
        # Detached from the shared result: for autograd, one of both results may have no gradient.
        return seen(arena.results[result.shared].detach(), result.tensor.strides)
    if result.taken:
        return arena.results[position]
    return result.of(args)
