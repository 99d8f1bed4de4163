"""A run of a program, operator by operator, as Paddle goes through its blocks: trips, their scopes, both arms.

What is done at each operator is left to whoever walks: `execution.py` counts what Paddle allocates, `live_bytes.py`
what must be there. A scope holds something for each name; a loop that is trained keeps the scopes of its trips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from sublet.base.errors import PlanError
from sublet.frontends.paddle.format.program import GRAD, Op, Program
from sublet.frontends.paddle.lives.scopes import Owner, Place, Scopes, linked
from sublet.frontends.paddle.operators.effects import there
from sublet.frontends.paddle.peaks.scalars import Number, follow

MOST_STEPS = 3_000_000
"""Operators that are followed, those of each trip counted anew."""

NO_BYTES = {
    ("batch_norm", "ReserveSpace"),
    ("sequence_pool", "MaxIndex"),
    ("feed", "Out"),
    ("fetch", "Out"),
    ("view_slice", "out"),
    ("share_data", "Out"),
}
"""Outputs that hold nothing on a CPU, or nothing of their own."""

T = TypeVar("T")


class Bytes(Protocol):
    """Who knows how many bytes a variable has: in all its assignments, and as an operator writes it."""

    def declared(self, place: Place) -> int: ...

    def written(self, block: int, op: int, place: Place) -> int: ...


@dataclass(frozen=True)
class Asked:
    """What is to be run: bytes, what is fetched, how often loops go round, which conditions are met.

    `trips` are by the name of a loop's condition, "" for every loop; a count that follows from the program is its own.
    `in_trip` knows the bytes in each trip of a loop where they are not the same in all: sequences end one by one.
    `scratch` are bytes that a kernel has for itself while it runs, by (block, operator), where somebody measured them.
    """

    program: Program
    sizes: Bytes
    keep: frozenset[Place] = frozenset()
    trips: Mapping[str, int] = field(default_factory=dict)
    met: Mapping[Place, bool] = field(default_factory=dict)
    in_trip: Sequence[Bytes] = ()
    scratch: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass
class Scope(Generic[T]):
    """What the variables of a block hold in one scope, and the scopes that they keep."""

    held: dict[str, T] = field(default_factory=dict)
    kept: dict[str, list[Scope[T]]] = field(default_factory=dict)

    def everything(self) -> list[T]:
        inner = (each for scopes in self.kept.values() for scope in scopes for each in scope.everything())
        return [*self.held.values(), *inner]


class Walk(Generic[T]):
    """A walk in which a variable holds a T."""

    def __init__(self, asked: Asked, scopes: Scopes) -> None:
        self.asked = asked
        self.program = asked.program
        self.scopes = scopes
        self.now: dict[int, Scope[T]] = {}  # by block, the scope it is run in
        self.known: dict[Place, Number] = {}
        self.steps = 0
        self.where = (0, 0)
        self.trips: dict[int, int] = {}
        self.sizes = asked.sizes  # those of the trip that is made
        self._written: dict[tuple[int, int], list[tuple[str, Place]]] = {}

    # What is done.

    def operator(self, block: int, index: int, op: Op) -> None:
        """An operator that runs no block."""

    def after(self, block: int, index: int) -> None:
        """An operator of any kind is done."""

    def copied(self, outer: Place, inner: Place) -> None:
        """A trip gets a copy of an input."""

    def shared(self, outer: Place, inner: Place) -> None:
        """A gradient block knows the gradient of an output by another name."""

    def zeros(self, place: Place) -> None:
        """A gradient that nothing has computed is zeros, unless it is there."""

    def added(self, outer: Place, inner: Place, carried: bool) -> None:
        """The gradient of an input inside is added to that outside, or takes its place."""

    def deleted(self, scope: Scope[T]) -> None:
        """A scope is no more."""

    # How it is gone through.

    def run(self) -> None:
        self.now[0] = Scope()
        self.block(0)

    def block(self, block: int) -> None:
        for index, op in enumerate(self.program.blocks[block].ops):
            self.where = (block, index)
            inner = op.block()
            if inner is None:
                self._operator(block, index, op)
            else:
                RUN.get(op.type, Walk.unknown)(self, Owner(block, index, op), inner)
                self.where = (block, index)
            self.after(block, index)

    def _operator(self, block: int, index: int, op: Op) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise PlanError(f"the loops of the program run more than {MOST_STEPS:,} operators: too many to follow")
        self.operator(block, index, op)

        def place(name: str) -> Place:
            return self.scopes.place(block, name)

        follow(op, place, self.known)
        for name in there(op.writes):
            if place(name) not in self.known and place(name) in self.asked.met:
                self.known[place(name)] = self.asked.met[place(name)]

    def written(self, block: int, index: int, op: Op) -> list[tuple[str, Place]]:
        """The slots and places that an operator writes in this run; of several it may write one."""
        found = self._written.get((block, index))
        if found is None:
            found = self._written[block, index] = [
                (slot, self.scopes.place(block, name))
                for slot, names in op.outputs.items()
                for name in there(names)
                if (op.type, slot) not in NO_BYTES
            ]
        mask = op.input("Mask") if op.type == "select_output" else None
        value = self.known.get(self.scopes.place(block, mask)) if mask else None
        return found if value is None else found[int(value) : int(value) + 1]

    def while_(self, owner: Owner, inner: int) -> None:
        trained = inner in self.scopes.gradients
        scopes: list[Scope[T]] = []
        trip = 0
        if not trained:
            self.now[inner] = Scope()
        while self.goes_on(owner, inner, trip):
            if trained:
                self.now[inner] = Scope()
                for name in sorted(self.scopes.copied.get(inner, ())):
                    self.copied(self.scopes.place(owner.block, name), Place(inner, name))
            self.trip(inner, trip)
            self.where = (owner.block, owner.index)
            if trained:
                scopes.append(self.now.pop(inner))
            trip += 1
        self.trips[inner] = max(trip, self.trips.get(inner, 0))
        if trained:
            self.keep(owner, "StepScopes", scopes)
        else:
            self.deleted(self.now.pop(inner))

    def trip(self, inner: int, trip: int) -> None:
        """One trip of a loop, or of its gradient."""
        around = self.sizes
        self.sizes = self.asked.in_trip[trip] if trip < len(self.asked.in_trip) else around
        self.block(inner)
        self.sizes = around

    def goes_on(self, owner: Owner, inner: int, trip: int) -> bool:
        """Whether a loop makes another trip: as its condition says, else as often as is told."""
        name = owner.op.inputs["Condition"][0]
        condition = self.known.get(self.scopes.place(owner.block, name))
        if condition is not None:
            return bool(condition)
        told = self.asked.trips.get(name, self.asked.trips.get(""))
        if told is None:
            raise PlanError(
                f"block {inner} is a loop on {name!r}, and the program does not say how often it runs: "
                f"tell it, as --max-trips {name}=N"
            )
        return trip < told

    def while_grad(self, owner: Owner, inner: int) -> None:
        given = there(owner.op.inputs.get(f"Out{GRAD}", ()))
        for name in given:
            self.zeros(self.scopes.place(owner.block, name))
        scopes = self.take(owner, "StepScopes")
        for trip, scope in reversed([*enumerate(scopes)]):
            self.backwards(owner, inner, scope, dict(zip(linked(owner.op), given, strict=False)), trip)

    def conditional(self, owner: Owner, inner: int) -> None:
        taken: list[Scope[T]] = []
        if self.known.get(self.scopes.place(owner.block, owner.op.inputs["Cond"][0]), True):
            self.now[inner] = Scope()
            self.block(inner)
            taken.append(self.now.pop(inner))
        if inner in self.scopes.gradients:
            self.keep(owner, "Scope", taken)
        else:
            for scope in taken:
                self.deleted(scope)

    def conditional_grad(self, owner: Owner, inner: int) -> None:
        for scope in self.take(owner, "Scope"):
            self.backwards(owner, inner, scope, {})
        for name in there(owner.op.writes):
            self.zeros(self.scopes.place(owner.block, name))

    def backwards(
        self, owner: Owner, inner: int, scope: Scope[T], linked: Mapping[str, str], trip: int | None = None
    ) -> None:
        """A gradient block in the scope of its forward block (of a loop: that of a trip), which is deleted then."""
        forward = self.scopes.forward(inner)
        self.now[inner] = Scope()
        if forward is not None:
            self.now[forward] = scope
        for inside, outside in linked.items():
            if self.scopes.place(inner, inside).block == inner:
                self.shared(self.scopes.place(owner.block, outside), Place(inner, inside))
        if trip is None:
            self.block(inner)
        else:
            self.trip(inner, trip)
        self.where = (owner.block, owner.index)
        slot = "X" if "X" in owner.op.inputs else "Input"
        for outer, inside_ in self.scopes.of_gradients(owner, inner, slot):
            self.added(outer, inside_, carried=outer.name in linked.values())
        self.deleted(self.now.pop(inner))
        self.deleted(scope)
        if forward is not None:
            del self.now[forward]

    def unknown(self, owner: Owner, inner: int) -> None:
        """An operator that runs a block, nobody knows how: as if once."""
        self.now[inner] = Scope()
        self.block(inner)
        self.deleted(self.now.pop(inner))

    def keep(self, owner: Owner, slot: str, scopes: list[Scope[T]]) -> None:
        """A forward operator keeps scopes for its gradient."""
        place = self.scopes.place(owner.block, owner.op.outputs[slot][0])
        self.now[place.block].kept[place.name] = scopes

    def take(self, owner: Owner, slot: str) -> list[Scope[T]]:
        """The scopes that a forward operator has kept, not kept any more."""
        place = self.scopes.place(owner.block, owner.op.inputs[slot][0])
        return self.now[place.block].kept.pop(place.name, [])

    def held(self, place: Place) -> T | None:
        scope = self.now.get(place.block)
        return None if scope is None else scope.held.get(place.name)

    def persistable(self, place: Place) -> bool:
        var = self.program.blocks[place.block].vars.get(place.name)
        return var is not None and var.persistable


RUN = {
    "while": Walk.while_,
    "while_grad": Walk.while_grad,
    "conditional_block": Walk.conditional,
    "conditional_block_grad": Walk.conditional_grad,
}
"""How the operators that run blocks are run."""
