"""What a program holds: predicted as Paddle's executor frees it, and the least that any plan in its order must hold."""

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
"""Combinations of conditions that are tried."""


@dataclass(frozen=True)
class Memory:
    """What a program holds beyond feeds and persistable variables, kernels' scratch apart.

    `collected` is Paddle's peak with garbage collection (the default), `uncollected` without; `bound` the least that
    a plan in this order must hold. Where branches depend on what is fed, each is that of the arms that need most.
    """

    collected: Executed
    uncollected: int
    bound: int


@dataclass(frozen=True)
class SizesOf:
    """The bytes of variables, from their extents."""

    sizes: Sizes

    def declared(self, place: Place) -> int:
        name = place.name
        if self.sizes.program.home(place.block, name) is None:  # a copy in the scope of a trip, or undeclared
            return 0
        return self.sizes.nbytes(place.block, name)

    def written(self, block: int, op: int, place: Place) -> int:
        dims, dtype = self.sizes.written.get((block, op, place.name)), self.sizes.dtype(place.block, place.name)
        if dims is None or None in dims or dtype is None:
            return self.declared(place)
        return bytes_of(dims, dtype)


@dataclass(frozen=True)
class SizesOfRenamed(SizesOf):
    """The bytes of variables of a program in which names were exchanged, and nothing else: as operators have them."""

    renamed: Program

    def written(self, block: int, op: int, place: Place) -> int:
        before, after = (program.blocks[block].ops[op] for program in (self.sizes.program, self.renamed))
        name = dict(zip(after.writes, before.writes, strict=True))[place.name]
        return super().written(block, op, Place(place.block, name))


@dataclass(frozen=True)
class SizesInArena(SizesOf):
    """The bytes of variables of a program in the arena form: those that lie in the arena have none of their own."""

    placed: frozenset[Place]

    def written(self, block: int, op: int, place: Place) -> int:
        return 0 if place in self.placed else super().written(block, op, place)


def memory(
    sizes: Sizes,
    keep: frozenset[Place] = frozenset(),
    trips: Mapping[str, int] | None = None,
    in_trip: Sequence[Sizes] = (),
) -> Memory:
    """What the program of `sizes` holds when it is run in the order it is written.

    Where a loop goes over sequences of several lengths, `in_trip` are the sizes in each of its trips: bound with as
    many sequences as are not at their end yet.
    Raises ModelError for sizes that nobody told, PlanError for trips that nobody told.
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
    """The same of any program, by whoever knows its bytes, those of kernels' scratch as well (`Asked.scratch`)."""
    scopes = Scopes(program)
    asked = Asked(program, sizes, keep, trips or {}, in_trip=in_trip, scratch=scratch or {})
    kinds = [Collection(scopes, keep, collects) for collects in (True, False)]
    runs = [replace(asked, met=met) for met in _arms(scopes)]
    collected, uncollected = (max((executed(run, kind) for run in runs), key=lambda seen: seen.peak) for kind in kinds)
    return Memory(collected, uncollected.peak, max(live_bytes(run, scopes) for run in runs))


def _arms(scopes: Scopes) -> Iterator[Mapping[Place, bool]]:
    """Which conditions are met, in every combination; of too many some."""
    free = sorted(_conditions(scopes))
    every = (dict(zip(free, met, strict=True)) for met in product((True, False), repeat=len(free)))
    return islice(every, MOST_RUNS)


def _conditions(scopes: Scopes) -> set[Place]:
    """The conditions of branches that are not the opposite of others."""
    found = set()
    for owner in scopes.owners.values():
        if owner.op.type == "conditional_block":
            for name in there(owner.op.inputs.get("Cond", ())):
                found.add(_root(scopes, scopes.place(owner.block, name)))
    return found


def _root(scopes: Scopes, place: Place) -> Place:
    """What a condition is computed from by negation alone."""
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
