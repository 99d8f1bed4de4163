"""An executable for fewer rows than were planned, in the same memory [NNC: re-init for smaller shapes]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.api.binding import equipped
from sublet.base.errors import PlanError
from sublet.base.numpy_types import NUMPY
from sublet.base.ranges import holds
from sublet.base.tensor import TensorSpec
from sublet.checker import require_valid
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.ir.scratch import without_scratch
from sublet.passes.splitting.fewer import with_fewer_rows
from sublet.plan import ARENA, MemoryPlan, Placement, Storage, bound_to
from sublet.plan.file import fingerprint
from sublet.plan.slots import peak, slots
from sublet.planning.assemble import sums
from sublet.runtime.backends.by_name import AUTO
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Backend


def fewer_rows(
    executable: Executable, rows: int, *, backend: str | Backend | Sequence[str | Backend] = AUTO
) -> Executable:
    """An Executable that computes what `executable` does for the first so many rows alone, in its arena and weights.

    The rows are those of the first axis of all inputs, as the samples of a batch. Nothing is planned: what has rows
    lies where it lay, and is shorter, and the checker proves that plan too. A run of either writes over the results of
    `views` of the other, so they run one after another; with several threads that is for the caller to see to.
    Raises SpecError where rows are not computed one by one, or something is updated, PlanError when kernels ask for
    more scratch memory than for all rows.
    """
    graph = with_fewer_rows(without_scratch(executable.graph), rows)
    held = {value.name: _Held(executable, value) for value in graph.weights if isinstance(value.spec, TensorSpec)}
    model = Model(
        graph,
        weights=held,
        inputs=tuple(executable.inputs),
        outputs=tuple(executable.outputs),
        constants=frozenset(value.name for value in graph.weights if value.name not in executable.weights),
    )
    ready = equipped(model, backend=backend, weights=executable.weights)
    plan = _shorter(executable.plan, ready.model.graph)
    require_valid(ready.model.graph, plan.schedule, plan)
    made = ready.bound(plan)
    for arena in plan.arenas:
        made.bind(arena.name, executable._memory.raw(arena.name))
    return made


@dataclass(frozen=True)
class _Held:
    """What a weight of an executable holds, where it lies."""

    executable: Executable
    value: Value

    def array(self) -> Array:
        spec = self.value.spec
        assert isinstance(spec, TensorSpec)
        return self.executable.bytes_of(self.value).view(NUMPY[spec.dtype]).reshape(spec.shape)


def _shorter(plan: MemoryPlan, graph: Graph) -> MemoryPlan:
    """The plan with the values of the graph, each where it lay."""
    values = {value.name: value for value in graph.values()}
    placements = tuple(_placed(place, values[place.value]) for place in plan.placements if place.value in values)
    if len({place.value for place in placements}) < sum(value.plannable for value in values.values()):
        raise PlanError("kernels ask for scratch memory that they did not ask for with all rows: compile for so many")
    arenas = {storage.name for storage in plan.arenas}
    bound = {bound_to(name): value.nbytes for name, value in values.items()}
    storages = tuple(_storage(each, placements, bound) for each in plan.storages)
    shorter = replace(
        plan,
        fingerprint=fingerprint(graph, plan.schedule),
        arena_bytes=sum(storage.nbytes for storage in storages if storage.kind == ARENA),
        storages=storages,
        placements=placements,
        **sums(placements, arenas),
    )
    most = peak(shorter)
    proof = tuple(block.buffer for block in slots(shorter) if holds(block.live, most.point))
    return replace(shorter, peak=most, lower_bound_bytes=most.nbytes, bound="peak", proof=proof)


def _placed(place: Placement, value: Value) -> Placement:
    if value.nbytes > place.region.nbytes:
        raise PlanError(f"%{value.name} needs {value.nbytes:,} bytes, more than with all rows: compile for so many")
    return replace(place, spec=str(value.spec), region=replace(place.region, nbytes=value.nbytes))


def _storage(storage: Storage, placements: Sequence[Placement], bound: Mapping[str, int]) -> Storage:
    """A storage as large as what lies in it: in an arena, or, by its name, in memory of the caller."""
    if storage.kind == ARENA:
        ends = (place.region.end for place in placements if place.region.storage == storage.name)
        return replace(storage, nbytes=max(ends, default=0))
    return replace(storage, nbytes=bound.get(storage.name, storage.nbytes))
