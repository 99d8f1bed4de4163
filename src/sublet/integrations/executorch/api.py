"""Memory planning for ExecuTorch programs, including control flow (`sublet.executorch`).

config = ExecutorchBackendConfig(memory_planning_pass=sublet.executorch.planning_pass())
program = to_edge(torch.export.export(model, inputs)).to_executorch(config)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sublet.base.errors import PlanError, PlanViolation
from sublet.base.ranges import Ranges, merge
from sublet.integrations.executorch.graph_program import (
    ControlFlow,
    ControlKind,
    GraphModule,
    PlannedModule,
    Spec,
    base_of,
    control_of,
    exir_module,
    planned_module,
    program_of,
    tensor_names_of,
)
from sublet.integrations.executorch.replay import replay
from sublet.packing import Buffer, PackingReport, Problem, pack
from sublet.packing.portfolio import AUTO

# Live ranges of tensors on one clock over a program and all inner modules.
#
#     node 3      time 3
#     cond        time 4             reads the predicate
#       true      times 5 to 9
#       false     times 10 to 12
#       after     time 13            defines the branch results
#     node 5      time 14
#
# A tensor of the outer module read by a branch is live during the reads of the branch; a tensor returned by a branch is
# live until the last read of the result. A loop keeps the outer tensors read by the body, and the results, live during
# the whole loop.


@dataclass(frozen=True)
class BranchResult:
    """A result of a branch, and the tensor returned by each arm for the result."""

    result: Spec
    returned_tensors: tuple[Spec | None, ...]


@dataclass
class ProgramClock:
    """The live range of each tensor by direct uses, without uses through placeholders and storage bases.

    pieces    half-open ranges of time
    readers   (argument, placeholder): the argument is live whenever the placeholder is live
    outcomes  results of branches, innermost first
    bound     placeholders bound to outer tensors, without bytes
    order     the modules in clock order, each with the prefix of the module's node names
    """

    known: Mapping[GraphModule, PlannedModule]
    pieces: dict[Spec, list[tuple[int, int]]] = field(default_factory=dict)
    readers: list[tuple[Spec, Spec]] = field(default_factory=list)
    outcomes: list[BranchResult] = field(default_factory=list)
    bound: set[Spec] = field(default_factory=set)
    order: list[tuple[str, PlannedModule]] = field(default_factory=list)
    now: int = 0

    def run_module(self, module: GraphModule, name: str = "") -> None:
        """Advance the clock over a module and all inner modules.

        Raises PlanError for an inner module planned by another algorithm.
        """
        if module not in self.known:
            raise PlanError(
                "ExecuTorch: another algorithm planned a module that control flow runs: pass only Sublet's algorithm "
                "to MemoryPlanningAlgorithmSuite"
            )
        planned = self.known[module]
        self.order.append((name, planned))
        begins, ends, controls = [], [], {}
        for i, node in enumerate(planned.nodes):
            begins.append(self.now)
            self.now += 1
            control = control_of(module, node)
            if control is not None:
                controls[i] = control
                self._run_inner_modules(control, name)
                self.now += 1
            ends.append(self.now)
        for spec, (first, last) in planned.node_ranges.items():
            begin = begins[first]
            if first in controls and controls[first].runs is ControlKind.ONE_OF and spec in controls[first].results:
                begin = ends[first] - 1
            end = ends[last]
            if last in controls and controls[last].runs is ControlKind.ONE_OF and spec not in controls[last].results:
                end = begins[last] + 1
            self.pieces.setdefault(spec, []).append((begin, end))

    def _run_inner_modules(self, control: ControlFlow, name: str) -> None:
        """Advance the clock over the modules run by a control-flow node."""
        returned = []
        for inner in control.inner:
            self.run_module(inner.module, f"{name}{inner.name}.")
            planned = self.known[inner.module]
            for argument, placeholder in zip(inner.arguments, planned.placeholders, strict=True):
                if argument is not None and placeholder is not None:
                    self.readers.append((argument, placeholder))
                    self.bound.add(placeholder)
            returned.append(planned.returned_tensors)
        if control.runs is ControlKind.ONE_OF:
            for result, *returned_tensors in zip(control.results, *returned, strict=True):
                if result is not None:
                    self.outcomes.append(BranchResult(result, tuple(returned_tensors)))


def live_ranges_of(clock: ProgramClock, readers: Iterable[tuple[Spec, Spec]]) -> dict[Spec, Ranges]:
    """Return the live range of each tensor, including uses by tensors bound to the tensor.

    `readers` are added to the clock's (argument, placeholder) pairs. The computation is a fixpoint.
    """
    pieces = {spec: merge(ranges) for spec, ranges in clock.pieces.items()}
    edges = [*clock.readers, *readers]
    changed = True
    while changed:
        changed = False
        for argument, reader in edges:
            if argument in pieces and reader in pieces:
                more = merge((*pieces[argument], *pieces[reader]))
                changed = changed or more != pieces[argument]
                pieces[argument] = more
    return pieces


# Assignment of tensors to shared places, and the live range of each place.
#
# A tensor placed by ExecuTorch inside another tensor (the storage base) lies in the base's place. The result of a
# branch is, in a run, the very tensor returned by the executed arm. All tensors of a result are coalesced into one
# place, so the bytes count once, and a view of the result, which ExecuTorch reads at the result's place, finds the
# returned content.
#
#     a = cond(p, t, f)    t and f are never live together, nor with a: three names of one place
#
# Where coalescing is illegal (a tensor returned twice, or a tensor of the outer module), the returned tensors stay live
# as long as the result is read, and the result gets no place.

DEFAULT_MEMORY = 1
"""The memory of a tensor without a memory number from an earlier pass."""


@dataclass(frozen=True)
class SharedPlace:
    """The bytes shared by several tensors: the offset of each tensor from the lowest, and the common live range."""

    memory: int
    members: tuple[tuple[Spec, int], ...]
    live: Ranges

    @property
    def nbytes(self) -> int:
        """The bytes of the place, with sizes rounded up by ExecuTorch."""
        return max(distance + int(spec.allocated_memory) for spec, distance in self.members)


@dataclass(frozen=True)
class PlaceAssignment:
    """The places of a program; `unplaced` are branch results that only name the returned tensors."""

    places: tuple[SharedPlace, ...]
    unplaced: frozenset[Spec]


def assign_places(clock: ProgramClock, placed: Sequence[Spec]) -> PlaceAssignment:
    """Assign the tensors to places. Raises PlanError for an invalid storage base."""
    specs_to_place = set(placed)
    inside = {spec: _storage_root_of(spec, specs_to_place) for spec in placed if spec.storage_base is not None}
    based = [(root, spec) for spec, (root, _) in inside.items()]
    separate = {o.result for o in clock.outcomes if not _can_share_place(o, clock, specs_to_place, inside)}
    while True:
        names = [
            (returned, o.result)
            for o in clock.outcomes
            if o.result in separate
            for returned in o.returned_tensors
            if returned is not None
        ]
        pieces = live_ranges_of(clock, [*based, *names])
        groups = _result_groups([o for o in clock.outcomes if o.result not in separate])
        clashing = {
            o.result for o in clock.outcomes if o.result not in separate and _is_live_together(groups[o.result], pieces)
        }
        if not clashing:
            break
        separate |= clashing
    unplaced = frozenset(separate & specs_to_place)
    members: dict[Spec, list[tuple[Spec, int]]] = {}
    for spec in placed:
        if spec not in unplaced:
            root, distance = inside.get(spec, (spec, 0))
            members.setdefault(groups.get(root, [root])[0], []).append((spec, distance))
    return PlaceAssignment(tuple(_places_of(members, groups, pieces)), unplaced)


def memory_of(spec: Spec) -> int:
    """Return the number of a tensor's memory."""
    return DEFAULT_MEMORY if spec.mem_id is None else int(spec.mem_id)


def _places_of(
    members: Mapping[Spec, list[tuple[Spec, int]]], groups: Mapping[Spec, list[Spec]], pieces: Mapping[Spec, Ranges]
) -> Iterator[SharedPlace]:
    """Yield the places, with the union of the members' live ranges."""
    for first, place_members in members.items():
        live = merge(piece for spec in groups.get(first, [first]) for piece in pieces[spec])
        yield SharedPlace(memory_of(place_members[0][0]), tuple(place_members), live)


def _storage_root_of(spec: Spec, specs_to_place: set[Spec]) -> tuple[Spec, int]:
    """Return the outermost storage base of a tensor, and the tensor's offset in the base in bytes.

    Raises PlanError for a cyclic, unaligned, too small or unplaced storage base.
    """
    root, distance, seen = spec, 0, set()
    while root.storage_base is not None:
        if root in seen:
            raise PlanError(f"ExecuTorch: the storage bases of {spec} form a cycle")
        seen.add(root)
        base, step = root.storage_base, root.storage_base_offset
        if not 0 <= step <= base.allocated_memory - root.allocated_memory:
            raise PlanError(f"ExecuTorch: {root} at byte {step} lies outside its storage base {base}")
        if step % root.alignment:
            raise PlanError(
                f"ExecuTorch: {root} lies at byte {step} of its storage base, not a multiple of {root.alignment}"
            )
        root, distance = base, distance + step
    if root not in specs_to_place:
        raise PlanError(f"ExecuTorch: the storage base {root} of {spec} has no place: plan graph inputs too")
    return root, distance


def _can_share_place(
    outcome: BranchResult, clock: ProgramClock, specs_to_place: set[Spec], inside: Mapping[Spec, object]
) -> bool:
    """True if a result and all tensors returned for the result can share a place, regardless of live ranges."""
    tensors = [outcome.result, *outcome.returned_tensors]
    return all(
        spec is not None
        and (spec in specs_to_place or spec is outcome.result)
        and spec not in clock.bound
        and spec not in inside
        and memory_of(spec) == memory_of(outcome.result)
        for spec in tensors
    )


def _result_groups(outcomes: Sequence[BranchResult]) -> dict[Spec, list[Spec]]:
    """Return, for each tensor of a result, all tensors sharing the tensor's place, in a fixed order."""
    groups: dict[Spec, list[Spec]] = {}
    for outcome in outcomes:
        joined = list(
            dict.fromkeys(
                member for spec in (outcome.result, *outcome.returned_tensors) for member in groups.get(spec, [spec])
            )
        )
        for member in joined:
            groups[member] = joined
    return groups


def _is_live_together(group: Sequence[Spec], pieces: Mapping[Spec, Ranges]) -> bool:
    """True if two tensors of the group are live at the same time."""
    return any(a[1] > b[0] for a, b in pairwise(sorted(piece for spec in group for piece in pieces[spec])))


ONE_OBJECT = 0
"""ExecuTorch numbers the shared objects of a memory. Sublet declares one object for all tensors."""


@dataclass(frozen=True)
class Memory:
    """The packing of one memory of a plan.

    number    ExecuTorch's number of the memory
    problem   the packing problem
    packed    the packing result
    padding   bytes required by ExecuTorch behind the last tensor
    """

    number: int
    problem: Problem
    packed: PackingReport
    padding: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the memory, including the padding."""
        return self.packed.packing.arena_bytes + self.padding

    @property
    def lower_bound_bytes(self) -> int:
        """The lower bound over all plans with the same live ranges and shared places, including the padding."""
        return self.packed.bound.bytes + self.padding

    def __str__(self) -> str:
        gap = f"{self.packed.gap:.1%} above" if self.packed.gap else "which is"
        bound = f"the lower bound of {self.lower_bound_bytes:,}"
        return f"memory {self.number}: {self.nbytes:,} bytes for {len(self.problem.buffers)} tensors, {gap} {bound}"


@dataclass(frozen=True)
class Planned:
    """The plan of one method: packed memories, already replayed over all nodes."""

    memories: tuple[Memory, ...]

    @property
    def nbytes(self) -> int:
        """The total bytes of all memories."""
        return sum(memory.nbytes for memory in self.memories)

    @property
    def lower_bound_bytes(self) -> int:
        """The sum of the lower bounds of all memories."""
        return sum(memory.lower_bound_bytes for memory in self.memories)

    def __str__(self) -> str:
        return "\n".join(str(memory) for memory in self.memories) or "nothing to place"


class Algorithm:
    """The algorithm called by `MemoryPlanningAlgorithmSuite` for every module.

    Records of inner modules are kept for the plans of outer modules. The object keeps references to all planned
    modules: create a new object for each program.
    """

    __name__ = "sublet"

    def __init__(self, strategy: str = AUTO, effort: int | None = None, timeout: float | None = None) -> None:
        self._strategy, self._effort, self._timeout = strategy, effort, timeout
        self._known: dict[GraphModule, PlannedModule] = {}
        self._planned: dict[GraphModule, Planned] = {}

    @property
    def reports(self) -> tuple[Planned, ...]:
        """The plans, one per method, in ExecuTorch's order."""
        return tuple(self._planned.values())

    def __call__(
        self,
        alignment: int,
        specs: Sequence[Spec],
        graph_module: GraphModule,
        graph_signature: Any,
        extra_padding: int = 0,
    ) -> Any:
        """Return the places of the tensors of a module and of all inner modules, as ExecuTorch's MemoryAlgoResult.

        Raises PlanError for a program that cannot be planned correctly, ProblemError for an unknown strategy.
        """
        specs = list(dict.fromkeys(base_of(spec) for spec in specs))
        for spec in specs:
            spec.realign(alignment)
        self._known[graph_module] = planned_module(graph_module, specs, extra_padding)
        clock = ProgramClock(self._known)
        clock.run_module(graph_module)
        # ExecuTorch plans tensors of another device in a separate call, without sizes of inner modules.
        modules = clock.order if getattr(graph_module, "input_mem_buffer_sizes", None) else clock.order[:1]
        placed = [spec for _, module in modules for spec in module.placed if spec not in clock.bound]
        assignment, names = assign_places(clock, placed), tensor_names_of(clock.order)
        memories = dict(self._pack_memories(assignment, names, alignment, max(m.padding for _, m in modules)))
        result = _as_result(assignment, memories)
        for _, module in clock.order:
            self._planned.pop(module.module, None)
        self._planned[graph_module] = Planned(tuple(memories.values()))
        for spec in (spec for _, module in modules for spec in module.placed if spec not in result.spec_dict):
            spec.mem_offset = None  # the earlier plan of the inner module alone gave the tensor a place
        _require_replay(graph_module, graph_signature, names, result)
        return result

    def _pack_memories(
        self, assignment: PlaceAssignment, names: Mapping[Spec, str], alignment: int, padding: int
    ) -> Iterator[tuple[int, Memory]]:
        """Yield (number, packing) of each memory; the packed buffers are the memory's places, in order."""
        for number in sorted({place.memory for place in assignment.places}):
            places = [place for place in assignment.places if place.memory == number]
            buffers = tuple(_buffer_of(k, place, names, alignment) for k, place in enumerate(places))
            problem = Problem(buffers, name=f"memory {number}")
            packed = pack(problem, self._strategy, self._timeout, effort=self._effort)
            yield number, Memory(number, problem, packed, padding)


def _buffer_of(number: int, place: SharedPlace, names: Mapping[Spec, str], alignment: int) -> Buffer:
    label = names[place.members[0][0]]
    return Buffer.alive_in(f"{number} {label}", place.nbytes, place.live, alignment, label)


def _as_result(assignment: PlaceAssignment, memories: Mapping[int, Memory]) -> Any:
    """Return the plan as ExecuTorch's MemoryAlgoResult. Memory 0 is for constants."""
    planning = exir_module("memory_planning")
    sizes = [0] * (max(memories, default=1) + 1)
    result = planning.MemoryAlgoResult({}, sizes)
    for number, memory in memories.items():
        sizes[number] = memory.nbytes
        places = [place for place in assignment.places if place.memory == number]
        for place, offset in zip(places, memory.packed.packing.offsets, strict=True):
            for spec, distance in place.members:
                result.spec_dict[spec] = planning.SpecAllocResult(number, ONE_OBJECT, offset + distance)
    return result


def _require_replay(module: GraphModule, signature: Any, names: Mapping[Spec, str], result: Any) -> None:
    """Replay the plan over the nodes. Raises PlanViolation if a node would read an overwritten tensor."""

    def place(spec: Spec) -> tuple[int, int] | None:
        allocation = result.spec_dict.get(spec)
        return None if allocation is None else (allocation.mem_id, allocation.mem_offset)

    findings = replay(program_of(module, names, place, signature, result.bufsizes))
    if findings:
        raise PlanViolation(findings)


__all__ = ["Algorithm", "Memory", "Planned", "algorithm", "planning_pass"]


def algorithm(strategy: str = AUTO, *, effort: int | None = None, timeout: float | None = None) -> Algorithm:
    """Return a memory planning algorithm for ExecuTorch, to be the only one of a `MemoryPlanningAlgorithmSuite`.

    strategy  the packing strategy, see `sublet.pack`
    effort    the maximum number of search steps
    timeout   the maximum seconds of the search

    After planning, `reports` of the result lists the bytes, the lower bound and the gap of each planned method.
    """
    return Algorithm(strategy, effort, timeout)


def planning_pass(
    strategy: str = AUTO, *, effort: int | None = None, timeout: float | None = None, **options: Any
) -> Any:
    """Return ExecuTorch's MemoryPlanningPass with Sublet's algorithm.

    The parameters `strategy`, `effort` and `timeout` are as for `algorithm`. `options` are the parameters of
    MemoryPlanningPass: alloc_graph_input, alloc_graph_output, alloc_mutable_buffers and more. The algorithm, with its
    reports, is `memory_planning_algo.algo_list[0]` of the result.

    Raises MissingExtraError if ExecuTorch is not installed.
    """
    suite = exir_module("memory_planning").MemoryPlanningAlgorithmSuite(
        [algorithm(strategy, effort=effort, timeout=timeout)]
    )
    # ExecuTorch's check at log level DEBUG extends the live range of every value read in a branch to the branch's end.
    options = {"allow_lifetime_and_storage_overlap": True, **options}
    return exir_module("passes.memory_planning_pass").MemoryPlanningPass(memory_planning_algo=suite, **options)
