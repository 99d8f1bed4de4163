"""An executable for a smaller batch, in the memory of a larger one [NNC: re-init for smaller shapes]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.api.binding import CompileRequest, model_with_kernels
from sublet.base.errors import PlanError
from sublet.base.ranges import holds
from sublet.base.tensor import NUMPY, TensorSpec
from sublet.checker import require_valid
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model
from sublet.ir.recipe import without_scratch
from sublet.passes.splitting.smaller_batch import with_fewer_rows
from sublet.plan import ARENA, MemoryPlan, Placement, Storage, bound_storage_name
from sublet.plan.file import fingerprint
from sublet.plan.statistics import find_peak, planned_buffers
from sublet.planning.assemble_plan import byte_totals
from sublet.runtime.backends import AUTO
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Backend


def fewer_rows(
    executable: Executable, rows: int, *, backend: str | Backend | Sequence[str | Backend] = AUTO
) -> Executable:
    """Return an Executable computing only the first `rows` rows, in the arena and with the weights of `executable`.

    Rows are the extents of axis 0 of all inputs, as the samples of a batch. Nothing is planned: every value keeps the
    offset from the original plan with fewer bytes, and the checker checks the shortened plan. A run of either
    executable overwrites the `views` results of the other, so the two must not run at the same time; the caller must
    synchronise threads.

    executable  the executable for the whole batch
    rows        the number of rows, from 1 to the batch size
    backend     the sources of kernels, see `compile`

    Raises SpecError for a node not known to compute row by row and for a graph with updates; PlanError if kernels need
    more scratch memory than reserved for all rows.
    """
    graph = with_fewer_rows(without_scratch(executable.graph), rows)
    held = {
        value.name: _WeightInPlace(executable, value) for value in graph.weights if isinstance(value.spec, TensorSpec)
    }
    model = Model(
        graph,
        weights=held,
        inputs=tuple(executable.inputs),
        outputs=tuple(executable.outputs),
        constants=frozenset(value.name for value in graph.weights if value.name not in executable.weights),
    )
    ready = model_with_kernels(CompileRequest(model, backend=backend, weights=executable.weights))
    plan = _plan_for_fewer_rows(executable.plan, ready.model.graph)
    require_valid(ready.model.graph, plan.schedule, plan)
    smaller = ready.to_executable(plan)
    for arena in plan.arenas:
        smaller.bind(arena.name, executable.planned_memory.raw(arena.name))
    return smaller


@dataclass(frozen=True)
class _WeightInPlace:
    """The content of a weight of an executable, without a copy."""

    executable: Executable
    value: Value

    def array(self) -> Array:
        """Return the content as an array over the memory of the executable."""
        spec = self.value.spec
        assert isinstance(spec, TensorSpec)
        return self.executable.bytes_of(self.value).view(NUMPY[spec.dtype]).reshape(spec.shape)


def _plan_for_fewer_rows(plan: MemoryPlan, graph: Graph) -> MemoryPlan:
    """Return the plan for the values of `graph`, each at its offset in `plan`.

    Raises PlanError if a value of `graph` has no place in the plan, as scratch memory of another kernel.
    """
    values = {value.name: value for value in graph.values()}
    placements = tuple(
        _shorten_placement(place, values[place.value]) for place in plan.placements if place.value in values
    )
    placed = {place.value for place in placements}
    unplaced = next((value for value in values.values() if value.plannable and value.name not in placed), None)
    if unplaced is not None:
        raise PlanError(
            f"%{unplaced.name} needs {unplaced.nbytes:,} bytes; the plan reserves none. Compile for these rows"
        )
    arenas = {storage.name for storage in plan.arenas}
    bound = {bound_storage_name(name): value.nbytes for name, value in values.items()}
    storages = tuple(_shorten_storage(each, placements, bound) for each in plan.storages)
    shorter = replace(
        plan,
        fingerprint=fingerprint(graph, plan.schedule),
        arena_bytes=sum(storage.nbytes for storage in storages if storage.kind == ARENA),
        storages=storages,
        placements=placements,
        **byte_totals(placements, arenas),
    )
    highest = find_peak(shorter)
    proof = tuple(block.buffer for block in planned_buffers(shorter) if holds(block.live, highest.point))
    return replace(shorter, peak=highest, lower_bound_bytes=highest.nbytes, bound="peak", proof=proof)


def _shorten_placement(place: Placement, value: Value) -> Placement:
    """Return the placement of a shortened value. Raises PlanError for a value with more bytes than in the plan."""
    if value.nbytes > place.region.nbytes:
        raise PlanError(
            f"%{value.name} needs {value.nbytes:,} bytes; the plan reserves {place.region.nbytes:,}. "
            "Compile for these rows"
        )
    return replace(place, spec=str(value.spec), region=replace(place.region, nbytes=value.nbytes))


def _shorten_storage(storage: Storage, placements: Sequence[Placement], bound: Mapping[str, int]) -> Storage:
    """Return a storage as large as its content.

    An arena ends with the last value; bound memory has the size of the bound value.
    """
    if storage.kind == ARENA:
        ends = (place.region.end for place in placements if place.region.storage == storage.name)
        return replace(storage, nbytes=max(ends, default=0))
    return replace(storage, nbytes=bound.get(storage.name, storage.nbytes))
