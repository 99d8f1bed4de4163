"""Memory of a program: prediction for Paddle's executor, and a lower bound for any plan in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from sublet.frontends.paddle.format.program import PaddleProgram
from sublet.frontends.paddle.lives.scopes import PaddleScopes, ScopedVariable
from sublet.frontends.paddle.operators.effects import nonempty_names
from sublet.frontends.paddle.operators.shapes import VariableSizes, tensor_bytes
from sublet.frontends.paddle.peaks.executor_memory_model import GarbageCollection, SimulatedMemory, simulate_run
from sublet.frontends.paddle.peaks.live_bytes import peak_live_bytes
from sublet.frontends.paddle.peaks.simulated_run import RunRequest, VariableBytes

MAX_CONDITION_COMBINATIONS = 64
"""Limit of tried combinations, enough for 6 independent conditions. Beyond, the rest of the combinations is skipped."""


@dataclass(frozen=True)
class PredictedMemory:
    """Predicted memory of a program beyond feeds and persistable variables, without the scratch memory of kernels.

    `collected` is Paddle's run with garbage collection (the default), `uncollected` the peak without; `bound` is the
    least for any plan in the same order. If branches depend on fed data, each figure is that of the worst combination
    of arms.
    """

    collected: SimulatedMemory
    uncollected: int
    bound: int


@dataclass(frozen=True)
class BytesFromSizes:
    """Bytes of variables, computed from their extents."""

    sizes: VariableSizes

    def declared_bytes(self, place: ScopedVariable) -> int:
        """Return the bytes of a variable's largest assignment; 0 for an undeclared name, such as a copy of an input."""
        name = place.name
        if (
            self.sizes.program.declaring_block(place.block, name) is None
        ):  # a copy in the scope of an iteration, or undeclared
            return 0
        return self.sizes.nbytes(place.block, name)

    def written_bytes(self, block: int, op: int, place: ScopedVariable) -> int:
        """Return the bytes of a variable as written by an operator."""
        dims, dtype = self.sizes.dims_at_writes.get((block, op, place.name)), self.sizes.dtype(place.block, place.name)
        if dims is None or None in dims or dtype is None:
            return self.declared_bytes(place)
        return tensor_bytes(dims, dtype)


@dataclass(frozen=True)
class BytesOfRenamed(BytesFromSizes):
    """Bytes of variables in a program with exchanged names and no further change: each write keeps its size."""

    renamed: PaddleProgram

    def written_bytes(self, block: int, op: int, place: ScopedVariable) -> int:
        """Return the bytes of the original output at the same position of the operator."""
        before, after = (program.blocks[block].ops[op] for program in (self.sizes.program, self.renamed))
        name = dict(zip(after.writes, before.writes, strict=True))[place.name]
        return super().written_bytes(block, op, ScopedVariable(place.block, name))


@dataclass(frozen=True)
class BytesInArena(BytesFromSizes):
    """Bytes of variables in the arena form: variables in the arena have no bytes of their own."""

    placed: frozenset[ScopedVariable]

    def written_bytes(self, block: int, op: int, place: ScopedVariable) -> int:
        """Return 0 for a variable in the arena, else the bytes as written by the operator."""
        return 0 if place in self.placed else super().written_bytes(block, op, place)


def predict_memory(
    sizes: VariableSizes,
    keep: frozenset[ScopedVariable] = frozenset(),
    trips: Mapping[str, int] | None = None,
    in_trip: Sequence[VariableSizes] = (),
) -> PredictedMemory:
    """Return the predicted memory of the program of `sizes`, run in program order.

    For a loop over sequences of several lengths, `in_trip` has the sizes of each iteration, inferred with the number of
    sequences not yet ended. Raises ModelError for unknown sizes, PlanError for unknown trip counts.
    """
    return predict_memory_of(
        sizes.program, BytesFromSizes(sizes), keep, trips, in_trip=[BytesFromSizes(each) for each in in_trip]
    )


def predict_memory_of(
    program: PaddleProgram,
    sizes: VariableBytes,
    keep: frozenset[ScopedVariable] = frozenset(),
    trips: Mapping[str, int] | None = None,
    scratch: Mapping[tuple[int, int], int] | None = None,
    in_trip: Sequence[VariableBytes] = (),
) -> PredictedMemory:
    """Return the predicted memory of a program, given the bytes of variables and the scratch bytes of kernels."""
    scopes = PaddleScopes(program)
    request = RunRequest(program, sizes, keep, trips or {}, in_trip=in_trip, scratch=scratch or {})
    kinds = [GarbageCollection(scopes, keep, collects) for collects in (True, False)]
    runs = [replace(request, met=met) for met in _condition_combinations(scopes)]
    collected, uncollected = (
        max((simulate_run(run, kind) for run in runs), key=lambda seen: seen.peak) for kind in kinds
    )
    return PredictedMemory(collected, uncollected.peak, max(peak_live_bytes(run, scopes) for run in runs))


def _condition_combinations(scopes: PaddleScopes) -> Iterator[Mapping[ScopedVariable, bool]]:
    """Yield combinations of condition values, at most MAX_CONDITION_COMBINATIONS."""
    free = sorted(_independent_conditions(scopes))
    every = (dict(zip(free, met, strict=True)) for met in product((True, False), repeat=len(free)))
    return islice(every, MAX_CONDITION_COMBINATIONS)


def _independent_conditions(scopes: PaddleScopes) -> set[ScopedVariable]:
    """Return the independent conditions of branches: a negation counts as its operand."""
    roots = set()
    for owner in scopes.owners.values():
        if owner.op.type == "conditional_block":
            for name in nonempty_names(owner.op.inputs.get("Cond", ())):
                roots.add(_origin_of_condition(scopes, scopes.resolve(owner.block, name)))
    return roots


def _origin_of_condition(scopes: PaddleScopes, place: ScopedVariable) -> ScopedVariable:
    """Return the origin of a condition through negations, copies and casts."""
    seen = set()
    while place not in seen:
        seen.add(place)
        writers = scopes.writers.get(place, ())
        if len(writers) == 1:
            block, index = writers[0]
            op = scopes.program.blocks[block].ops[index]
            source = op.first_input("X")
            if op.type in ("logical_not", "assign", "cast") and source is not None:
                place = scopes.resolve(block, source)
    return place
