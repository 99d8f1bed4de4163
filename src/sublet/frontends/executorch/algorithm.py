"""Sublet as a memory planning algorithm of ExecuTorch.

ExecuTorch requests a plan of every module, innermost first, and would place outer tensors above inner tensors. Each
request here plans the tensors of the module and of all inner modules together, so the last result is the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.base.errors import PlanViolation
from sublet.frontends.executorch.graph_modules import (
    GraphModule,
    PlannedModule,
    Spec,
    base_of,
    exir_module,
    planned_module,
    tensor_names_of,
)
from sublet.frontends.executorch.graph_program import program_of
from sublet.frontends.executorch.live_ranges import ProgramClock
from sublet.frontends.executorch.replay import replay
from sublet.frontends.executorch.shared_places import PlaceAssignment, SharedPlace, assign_places
from sublet.packing import Buffer, PackingReport, Problem, pack
from sublet.packing.portfolio import AUTO

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
