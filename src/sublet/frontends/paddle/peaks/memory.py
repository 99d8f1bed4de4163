"""Memory of a program: prediction for Paddle's executor, and a lower bound for any plan in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from sublet.frontends.paddle.format.program import Program
from sublet.frontends.paddle.lives.scopes import Place, Scopes
from sublet.frontends.paddle.operators.effects import there
from sublet.frontends.paddle.operators.shapes import Sizes, bytes_of
from sublet.frontends.paddle.peaks.execution import Collection, Executed, executed
from sublet.frontends.paddle.peaks.live_bytes import live_bytes
from sublet.frontends.paddle.peaks.walk import Asked, Bytes

MOST_RUNS = 64
"""Limit of tried combinations, enough for 6 independent conditions. Beyond, the rest of the combinations is skipped."""


@dataclass(frozen=True)
class Memory:
    """Predicted memory of a program beyond feeds and persistable variables, without the scratch memory of kernels.

    `collected` is Paddle's run with garbage collection (the default), `uncollected` the peak without; `bound` is the
    least for any plan in the same order. If branches depend on fed data, each figure is that of the worst combination
    of arms.
    """

    collected: Executed
    uncollected: int
    bound: int


@dataclass(frozen=True)
class SizesOf:
    """Bytes of variables, computed from their extents."""

    sizes: Sizes

    def declared(self, place: Place) -> int:
        """Return the bytes of a variable's largest assignment; 0 for an undeclared name, such as a copy of an input."""
        name = place.name
        if self.sizes.program.home(place.block, name) is None:  # a copy in the scope of an iteration, or undeclared
            return 0
        return self.sizes.nbytes(place.block, name)

    def written(self, block: int, op: int, place: Place) -> int:
        """Return the bytes of a variable as written by an operator."""
        dims, dtype = self.sizes.written.get((block, op, place.name)), self.sizes.dtype(place.block, place.name)
        if dims is None or None in dims or dtype is None:
            return self.declared(place)
        return bytes_of(dims, dtype)


@dataclass(frozen=True)
class SizesOfRenamed(SizesOf):
    """Bytes of variables in a program with exchanged names and no further change: each write keeps its size."""

    renamed: Program

    def written(self, block: int, op: int, place: Place) -> int:
        """Return the bytes of the original output at the same position of the operator."""
        before, after = (program.blocks[block].ops[op] for program in (self.sizes.program, self.renamed))
        name = dict(zip(after.writes, before.writes, strict=True))[place.name]
        return super().written(block, op, Place(place.block, name))


@dataclass(frozen=True)
class SizesInArena(SizesOf):
    """Bytes of variables in the arena form: variables in the arena have no bytes of their own."""

    placed: frozenset[Place]

    def written(self, block: int, op: int, place: Place) -> int:
        """Return 0 for a variable in the arena, else the bytes as written by the operator."""
        return 0 if place in self.placed else super().written(block, op, place)


def memory(
    sizes: Sizes,
    keep: frozenset[Place] = frozenset(),
    trips: Mapping[str, int] | None = None,
    in_trip: Sequence[Sizes] = (),
) -> Memory:
    """Return the predicted memory of the program of `sizes`, run in program order.

    For a loop over sequences of several lengths, `in_trip` has the sizes of each iteration, inferred with the number of
    sequences not yet ended. Raises ModelError for unknown sizes, PlanError for unknown trip counts.
    """
    return memory_of(sizes.program, SizesOf(sizes), keep, trips, in_trip=[SizesOf(each) for each in in_trip])


def memory_of(
    program: Program,
    sizes: Bytes,
    keep: frozenset[Place] = frozenset(),
    trips: Mapping[str, int] | None = None,
    scratch: Mapping[tuple[int, int], int] | None = None,
    in_trip: Sequence[Bytes] = (),
) -> Memory:
    """Return the predicted memory of a program, given the bytes of variables and the scratch bytes of kernels."""
    scopes = Scopes(program)
    asked = Asked(program, sizes, keep, trips or {}, in_trip=in_trip, scratch=scratch or {})
    kinds = [Collection(scopes, keep, collects) for collects in (True, False)]
    runs = [replace(asked, met=met) for met in _arms(scopes)]
    collected, uncollected = (max((executed(run, kind) for run in runs), key=lambda seen: seen.peak) for kind in kinds)
    return Memory(collected, uncollected.peak, max(live_bytes(run, scopes) for run in runs))


def _arms(scopes: Scopes) -> Iterator[Mapping[Place, bool]]:
    """Yield combinations of condition values, at most MAX_CONDITION_COMBINATIONS."""
    free = sorted(_conditions(scopes))
    every = (dict(zip(free, met, strict=True)) for met in product((True, False), repeat=len(free)))
    return islice(every, MOST_RUNS)


def _conditions(scopes: Scopes) -> set[Place]:
    """Return the independent conditions of branches: a negation counts as its operand."""
    roots = set()
    for owner in scopes.owners.values():
        if owner.op.type == "conditional_block":
            for name in there(owner.op.inputs.get("Cond", ())):
                roots.add(_root(scopes, scopes.place(owner.block, name)))
    return roots


def _root(scopes: Scopes, place: Place) -> Place:
    """Return the origin of a condition through negations, copies and casts."""
    seen = set()
    while place not in seen:
        seen.add(place)
        writers = scopes.writers.get(place, ())
        if len(writers) == 1:
            block, index = writers[0]
            op = scopes.program.blocks[block].ops[index]
            source = op.input("X")
            if op.type in ("logical_not", "assign", "cast") and source is not None:
                place = scopes.place(block, source)
    return place
