"""A pool of arenas for one captured program: each call in flight leases an arena until its backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from sublet.analysis.options import Options
from sublet.api.binding import CompileRequest, ModelWithKernels, model_with_kernels
from sublet.base.errors import CapacityError, KernelError
from sublet.base.interrupts import fork_lock
from sublet.integrations.torch.compile.caller_outputs import CallerOutputs
from sublet.integrations.torch.compile.joint_graph import CallResult, CapturedProgram, PassValue
from sublet.integrations.torch.compile.shared_scratch import (
    SCRATCH_REGISTRY,
    ArenaLease,
    ArenaStack,
    ProgramSizes,
    SharedScratch,
    StackRegion,
    program_sizes_of,
)
from sublet.integrations.torch.dialect import COLLECTIVES, PREFIX, StridedLayout
from sublet.integrations.torch.kernels.backend import AtenKernel, operand_tensor, strided_tensor
from sublet.integrations.torch.reader.exported_program import TorchContent, torch_contents
from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.plan import ARENA, KEPT, MemoryPlan
from sublet.planning.budget.result import SearchOutcome
from sublet.planning.budget.search import BudgetSearch, ModelPreparation
from sublet.planning.pipeline import plan_memory
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Backend
from sublet.runtime.memory import Raw, aligned_bytes
from sublet.runtime.resumable import ResumableExecutable, SuspensionBackend

if TYPE_CHECKING:
    from torch import Tensor

MAX_BOUND_PROGRAMS = 64
"""Maximum weight sets bound for one inference graph. A further set rebinds the program unused for longest."""

MAX_FREE_ARENAS = 8
"""Maximum free arenas on the stack for one graph, in places for different orders of calls. The oldest is dropped."""


@dataclass(eq=False)
class BoundArena:
    """An arena with a program bound to the arena.

    plan              the plan of the program
    scratch           the shared bytes, used by one arena after another; None if the arena shares no bytes
    caller_outputs    receives the results of a run, and holds the arguments of the backward pass
    argument_places   tensors in the arena for the copied arguments of the forward pass, by position
    weight_addresses  the address of each weight bound to the program, by position
    region            the bytes on the stack of arenas; None for an arena elsewhere
    owners            weak references to the weight tensors at the time of the binding
    """

    executable: Executable
    plan: MemoryPlan
    scratch: SharedScratch | None
    caller_outputs: CallerOutputs
    resumable: ResumableExecutable
    argument_places: dict[int, Tensor]
    weight_addresses: dict[int, int]
    region: StackRegion | None = None
    owners: tuple[weakref.ref[Tensor], ...] = ()

    def __post_init__(self) -> None:
        self.scratch_raw = self.scratch.raw if self.scratch is not None else None

    def preserve_other_calls(self) -> AbstractContextManager[object]:
        """Return a context manager that keeps the bytes saved by other calls in the scratch bytes of the arena.

        Only calls with backward passes in another order than the reverse order of the forward passes need copies.
        """
        if self.region is None or not isinstance(self.scratch, ArenaStack):
            return nullcontext()
        places = self.scratch.saved_above(self, self.region)
        return _preserve_bytes(self.region.raw, places) if places else nullcontext()

    @property
    def exclusive_scratch(self) -> AbstractContextManager[object]:
        """A context manager with exclusive use of the scratch bytes."""
        return self.scratch.lock if self.scratch is not None else nullcontext()

    def is_bound_to(self, args: Sequence[PassValue]) -> bool:
        """True if the program reads each weight of `args` at the current address."""
        return all(args[position].data_ptr() == address for position, address in self.weight_addresses.items())

    def belongs_to(self, args: Sequence[PassValue]) -> bool:
        """True if the program was bound to exactly the weight tensors in `args`; the tensors may have moved since."""
        same = (ref() is args[position] for ref, position in zip(self.owners, self.weight_addresses, strict=False))
        return len(self.owners) == len(self.weight_addresses) and all(same)

    def remember_owners(self, args: Sequence[PassValue]) -> None:
        """Record the weight tensors bound to the program, as weak references."""
        self.owners = tuple(weakref.ref(args[position]) for position in self.weight_addresses)

    @property
    def has_lost_owner(self) -> bool:
        """True if a weight tensor bound to the program no longer exists."""
        return any(ref() is None for ref in self.owners)

    @property
    def is_free(self) -> bool:
        """True if no call runs in the arena's bytes, and no call has reserved the bytes."""
        return self.scratch is None or not (self.scratch.lock.locked() or self.scratch.reserved)

    @property
    def results(self) -> dict[int, Tensor]:
        """The results of the latest run by position."""
        return self.caller_outputs.results


@contextmanager
def _preserve_bytes(raw: Raw, places: Sequence[slice]) -> Iterator[None]:
    """Copy the bytes at `places`, and restore the bytes afterwards."""
    copies = [(place, raw[place].copy()) for place in places]
    try:
        yield
    finally:
        for place, saved in copies:
            raw[place] = saved


def prepare_captured(captured: CapturedProgram) -> tuple[CallerOutputs, ModelWithKernels]:
    """Return a captured program with kernels for planning, and the backend receiving the results."""
    taking = CallerOutputs(captured.computed)
    backends: list[str | Backend] = [taking, SuspensionBackend(), "torch", "numpy", "reference"]
    return taking, model_with_kernels(CompileRequest(captured.model, backend=backends, optimize="none"))


Prepare = Callable[[CapturedProgram], Model]
"""Returns the model of a captured program as planned: with scratch memory of the kernels."""


def plan_within(
    captured: CapturedProgram, options: Options, budget: int | None, prepare: Prepare
) -> tuple[CapturedProgram, MemoryPlan]:
    """Return a captured program and its plan; the backward pass recomputes values if the budget requires it.

    Each pass reads the arguments as captured, so a program with recomputed values must hold arguments that change
    between the passes in the arena.

    Raises CapacityError if no plan within `budget` bytes was found.
    """
    prepared = prepare(captured)
    plain = plan_memory(prepared, options)
    if budget is None or plain.arena_bytes <= budget:
        return captured, plain
    programs: dict[object, CapturedProgram] = {}

    def prepare_changed(model: Model) -> Model:
        changed = programs[model.recipe.split, model.recipe.again] = replace(captured, model=model)
        return prepare(changed)

    preparation = ModelPreparation(captured.model, prepare_changed)
    saved = {each.tensor.value.name for each in captured.passes[0].saved_results.values() if each.tensor is not None}
    needed = frozenset(saved & {placement.value for placement in plain.placements})  # PyTorch takes them whole
    search = BudgetSearch(prepared, options, preparation=preparation, known_plan=plain, needed=needed)
    answer = search.best_within(budget)
    if answer.outcome is not SearchOutcome.FITS:
        raise CapacityError(answer.words)
    recipe = answer.program.model.recipe
    return programs[recipe.split, recipe.again], answer.program.plan


def allocating_operators(captured: CapturedProgram) -> tuple[tuple[str, int], ...]:
    """Return the operators whose results PyTorch allocates: (name, bytes allocated at the same time)."""
    calls = (node for node in captured.model.graph.walk() if node.op.startswith(PREFIX))
    return tuple((node.op, nbytes) for node in calls if (nbytes := AtenKernel(node).allocates))


class ArenaPool:
    """Pool of arenas for one captured program: one arena a call; or, when sharing lowers the memory of all programs
    together, arenas on a stack of all calls in flight, and for inference scratch bytes used in turn.

    A program with collectives shares no memory: a thread waiting for the memory would block the ranks of other threads.
    A training program with a budget shares its whole arena on the stack, because the budget holds for the unsplit plan.

    plan            the plan of all arenas
    allocations     see `allocating_operators`
    sizes           bytes of a call, unsplit and split
    max_in_flight   the most calls in flight at once
    shares_in_turn  True for inference: scratch bytes are shared in turn, and no bytes are saved
    """

    def __init__(
        self,
        captured: CapturedProgram,
        args: Sequence[PassValue],
        options: Options,
        budget: int | None = None,
    ) -> None:
        # Detached, so `owners` can detect the end of the caller's tensors, see `BoundArena.has_lost_owner`.
        contents = torch_contents({value: args[position].detach() for position, value in captured.weights.items()})
        captured = replace(captured, model=replace(captured.model, weights={**captured.model.weights, **contents}))
        self._lock = fork_lock()
        self._free: list[BoundArena] = []
        self._all: WeakSet[BoundArena] = WeakSet()
        self._options = options
        self.captured, self.plan = plan_within(
            captured, options, budget, lambda program: prepare_captured(program)[1].model
        )
        self.allocations = allocating_operators(captured)
        self.sizes = program_sizes_of(self.plan)
        if budget is not None:
            self.sizes = ProgramSizes(self.plan.arena_bytes, self.plan.arena_bytes, 0)  # never split
        waits = any(node.op.startswith(COLLECTIVES) for node in captured.model.graph.walk())
        self._is_inference = self.shares_in_turn = len(captured.passes) == 1
        self._shares = not waits and (budget is None or not self._is_inference)
        self.max_in_flight = 1
        self._stack: ArenaStack | None = None
        if self._shares:
            SCRATCH_REGISTRY.register(self)
        self._free.append(self._new_arena())
        self._free[0].remember_owners(args)

    @property
    def arena_count(self) -> int:
        """The number of arenas. Inference programs in the same bytes count as one arena."""
        return len({id(each.scratch if self._is_inference else each) for each in self._all})

    @property
    def is_split(self) -> bool:
        """True if saved tensors lie in an arena apart from the scratch arena."""
        return len(self.plan.arenas) > 1

    def lease(self, args: Sequence[PassValue] = ()) -> ArenaLease:
        """Return the lease of an arena without another call, preferably of an arena bound to the weights in `args`.

        A graph shared by several modules is bound once for each set of weights. In training each bound program has an
        arena. In inference all bound programs run in the same bytes, one call after another.
        """
        with self._lock:
            self._share_if_smaller()
            self._free[:] = [each for each in self._free if self._is_current(each)]
            arena = self._take_or_create(args) if self._stack is None else self._take_on_stack(self._stack, args)
            if self._is_inference and args:
                arena.remember_owners(args)
            if arena.scratch is not None and self._is_inference and not self.is_split:
                arena.scratch.reserved = True
            lease = ArenaLease(self, arena)
            if self._shares and not self._is_inference:
                self.max_in_flight = max(self.max_in_flight, SCRATCH_REGISTRY.record_lease(arena, self))
        return lease

    def _take_on_stack(self, stack: ArenaStack, args: Sequence[PassValue]) -> BoundArena:
        """Claim a free arena in conflict with no call in flight, or create an arena above all calls in flight."""
        with stack.guard:
            free = [(each, each.region) for each in self._free if each.region is not None]
            if len(free) > 1:
                free.sort(key=lambda each: (not (args and each[0].is_bound_to(args)), each[1].begin))
            for arena, place in free:
                if stack.claim(arena, place):
                    self._free.remove(arena)
                    return arena
            del self._free[: max(0, len(self._free) - MAX_FREE_ARENAS)]
            is_split = self.is_split
            saved = self.sizes.saved if is_split else self.plan.arena_bytes
            region = stack.new_region(saved, self.sizes.scratch if is_split else 0)
            arena = self._new_arena(stack, region)
            claimed = stack.claim(arena, region)
            assert claimed
            return arena

    def _take_or_create(self, args: Sequence[PassValue]) -> BoundArena:
        """Remove an arena from the free arenas, or create an arena."""
        free = [each for each in self._free if each.is_free]
        chosen = next((each for each in free if args and each.is_bound_to(args)), None)
        if chosen is None and free and self._is_inference and args:
            chosen = self._program_to_rebind(free, args)
        elif chosen is None:
            chosen = free[0] if free else self._new_arena()
        if chosen in self._free:
            self._free.remove(chosen)
        return chosen

    def _program_to_rebind(self, free: Sequence[BoundArena], args: Sequence[PassValue]) -> BoundArena:
        """Return a program to bind to the weights in `args`.

        The order of preference: the program last bound to the same tensors; a program with lost weight tensors; a new
        program over the bytes of a free arena, up to `MAX_BOUND_PROGRAMS`; the program unused for longest.
        """
        left = [each for each in free if each.has_lost_owner]
        self._free[:] = [each for each in self._free if each not in left[1:]]  # their weights keep dead memory
        moved = next((each for each in free if each.belongs_to(args)), None)
        if moved is not None or left:
            return moved or left[0]
        return self._new_arena(free[0].scratch) if len(self._free) < MAX_BOUND_PROGRAMS else free[0]

    def release(self, arena: BoundArena) -> None:
        """Return an arena to the free arenas."""
        SCRATCH_REGISTRY.end_lease(arena)
        if isinstance(arena.scratch, ArenaStack):
            arena.scratch.release(arena)
        elif arena.scratch is not None:
            arena.scratch.reserved = False
        if self._is_current(arena):
            self._free.append(arena)

    def discard_free_arenas(self) -> None:
        """Free the memory of the free arenas, unless a call is taking an arena at the same time."""
        if self._lock.acquire(blocking=False):
            try:
                self._free.clear()
            finally:
                self._lock.release()

    def _share_if_smaller(self) -> None:
        """Share memory, and split the program if that lowers the total of all programs."""
        if not self._shares:
            return
        if self._is_inference:
            splits = SCRATCH_REGISTRY.should_split(self)
        else:
            self._stack, splits = SCRATCH_REGISTRY.stack_for(self, self.plan.alignment)
        if splits and not self.is_split:
            self._split()

    def _split(self) -> None:
        """Plan the program again in the same order, with saved tensors in an arena apart."""
        options = replace(self._options, at_cuts="apart", order="given")
        self.plan = plan_memory(self._prepare()[1].model, options, schedule=self.plan.schedule)
        own = {storage.name: storage.nbytes for storage in self.plan.arenas}
        self.sizes = ProgramSizes(self.sizes.single_arena, own[KEPT], own[ARENA])

    def _is_current(self, arena: BoundArena) -> bool:
        """True if an arena has the current plan, and lies in the current shared bytes."""
        if arena.plan is not self.plan or (not self._is_inference and arena.scratch is not self._stack):
            return False
        return arena.scratch is None or arena.scratch_raw is arena.scratch.raw

    def _prepare(self) -> tuple[CallerOutputs, ModelWithKernels]:
        """Return the program with kernels, and the backend receiving the results, both new for each arena."""
        return prepare_captured(self.captured)

    def _new_arena(self, beside: SharedScratch | None = None, region: StackRegion | None = None) -> BoundArena:
        """Return a new arena, in a region of the stack or, for inference, in the scratch bytes `beside` if given."""
        if self._is_inference:
            self._share_if_smaller()
        taking, ready = self._prepare()
        run, common = ready.to_executable(self.plan), None
        if region is not None:
            common = beside
            places = {ARENA: slice(region.begin, region.saved_end)}
            if self.is_split:
                places = {KEPT: places[ARENA], ARENA: slice(region.saved_end, region.end)}
            for name, place in places.items():
                if place.start < place.stop:
                    run.bind(name, region.raw[place])
        elif self.is_split:
            common = SCRATCH_REGISTRY.idle_scratch(self.sizes.scratch, self.plan.alignment)
        elif self._is_inference and self.plan.arenas:
            common = beside or SharedScratch(aligned_bytes(self.plan.arena_bytes, self.plan.alignment))
        if common is not None and region is None:
            run.bind(ARENA, common.raw)
        addresses = {at: self._weight_content(value).tensor.data_ptr() for at, value in self.captured.weights.items()}
        arena = BoundArena(run, self.plan, common, taking, *self._resumable_and_places(run), addresses, region)
        self._all.add(arena)
        return arena

    def _weight_content(self, value: Value) -> TorchContent:
        """Return the content of a weight."""
        content = self.captured.model.weights[value.name]
        assert isinstance(content, TorchContent)
        return content

    def _resumable_and_places(self, run: Executable) -> tuple[ResumableExecutable, dict[int, Tensor]]:
        """Return an executable resumable after each pass, and tensors for the copied arguments of the forward pass."""
        pieces = ResumableExecutable(run)
        return pieces, {
            at: _tensor_in_arena(pieces, each.value, each.layout_or_none)
            for at, each in self.captured.passes[0].arguments.items()
        }

    def run_pass(
        self, arena: BoundArena, number: int, args: Sequence[PassValue], into: Mapping[int, Tensor] | None = None
    ) -> list[PassValue]:
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
        with arena.exclusive_scratch, arena.preserve_other_calls():
            return self._run_in_arena(arena, number, args)

    def _run_in_arena(self, arena: BoundArena, number: int, args: Sequence[PassValue]) -> list[PassValue]:
        """Bind weights and copy arguments, run a pass, and return the results."""
        if number == 0:
            self._rebind_weights(arena, args)
            for position, place in arena.argument_places.items():
                place.copy_(args[position])
        else:
            arena.caller_outputs.arguments.update(enumerate(args))
        try:
            arena.resumable.run(number)
            return self.results_of_pass(arena, number, args)
        except KernelError as error:  # raise the error of the eager operator
            raise (error.__cause__ or error) from None
        finally:
            arena.caller_outputs.arguments.clear()
            arena.results.clear()

    def results_of_pass(self, arena: BoundArena, number: int, args: Sequence[PassValue]) -> list[PassValue]:
        """Return the results of a finished pass, None for tensors in the arena."""
        return self.captured.passes[number].resolve_results(args, arena.results)

    def _rebind_weights(self, arena: BoundArena, args: Sequence[PassValue]) -> None:
        """Bind each weight with a new address."""
        given = {at: self.captured.weight_as_traced(at, args[at]) for at in arena.weight_addresses}
        moved = {at: given[at] for at, address in arena.weight_addresses.items() if given[at].data_ptr() != address}
        for position, tensor in moved.items():
            name = self.captured.weights[position].name
            arena.executable.bind(
                name, replace(self._weight_content(self.captured.weights[position]), tensor=tensor).array()
            )
            arena.weight_addresses[position] = tensor.data_ptr()
        if moved:
            arena.resumable, arena.argument_places = self._resumable_and_places(arena.executable)

    def saved_tensor(self, arena: BoundArena, result: CallResult, flight: ArenaLease) -> Tensor:
        """Return a PyTorch tensor over a saved result in the arena, with a reference to the lease."""
        assert result.tensor is not None
        return _tensor_in_arena(arena.resumable, result.tensor.value, result.layout, flight)


class _LeaseArray(np.ndarray):
    """An array with a reference to a lease."""

    lease: ArenaLease | None = None


def _tensor_in_arena(
    pieces: ResumableExecutable, value: Value, layout: StridedLayout | None, flight: ArenaLease | None = None
) -> Tensor:
    """Return a PyTorch tensor over the bytes of a value in the arena, with a reference to the lease if given."""
    array = pieces.array(value).view(_LeaseArray)
    array.lease = flight
    tensor: Tensor = strided_tensor(operand_tensor(array), layout)
    return tensor
