"""Simulated run of a program, operator by operator, as Paddle runs blocks: iterations, scopes, arms of branches.

Subclasses define the effect of each operator: `executor_memory_model.py` counts Paddle's allocations, `live_bytes.py`
live values. A scope has a content for each name. A training loop keeps the scopes of its iterations.
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
"""Limit of simulated operators, counted in every iteration. Beyond, the simulation raises PlanError."""

NO_BYTES = {
    ("batch_norm", "ReserveSpace"),
    ("sequence_pool", "MaxIndex"),
    ("feed", "Out"),
    ("fetch", "Out"),
    ("view_slice", "out"),
    ("share_data", "Out"),
}
"""Outputs without bytes on a CPU, or without bytes of their own."""

T = TypeVar("T")


class Bytes(Protocol):
    """Provider of the bytes of variables: over all assignments (`declared_bytes`), and as written by an operator
    (`written_bytes`).
    """

    def declared(self, place: Place) -> int: ...

    def written(self, block: int, op: int, place: Place) -> int: ...


@dataclass(frozen=True)
class Asked:
    """A run to simulate.

    sizes    the bytes of variables
    keep     the variables fetched after the run
    trips    the iterations of each loop, by the name of its condition, "" for every loop; a count known from the
             program has precedence
    met      the values of conditions of branches
    in_trip  the bytes of variables in each iteration of a loop, if different: sequences end at different iterations
    scratch  the scratch bytes of kernels, by (block, operator), where measured
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
    """The contents of a block's variables in a scope, and the scopes kept by each variable."""

    held: dict[str, T] = field(default_factory=dict)
    kept: dict[str, list[Scope[T]]] = field(default_factory=dict)

    def everything(self) -> list[T]:
        """Return all contents, including those of kept scopes."""
        inner = (each for scopes in self.kept.values() for scope in scopes for each in scope.everything())
        return [*self.held.values(), *inner]


class Walk(Generic[T]):
    """A simulated run with contents of type T."""

    def __init__(self, asked: Asked, scopes: Scopes) -> None:
        self.asked = asked
        self.program = asked.program
        self.scopes = scopes
        self.now: dict[int, Scope[T]] = {}  # the current scope of each block
        self.known: dict[Place, Number] = {}
        self.steps = 0
        self.where = (0, 0)
        self.trips: dict[int, int] = {}
        self.sizes = asked.sizes  # the bytes of variables in the current iteration
        self._written: dict[tuple[int, int], list[tuple[str, Place]]] = {}

    # Hooks for subclasses.

    def operator(self, block: int, index: int, op: Op) -> None:
        """Handle an operator without a block."""

    def after(self, block: int, index: int) -> None:
        """Handle the end of any operator."""

    def copied(self, outer: Place, inner: Place) -> None:
        """Handle the copy of an input into an iteration's scope."""

    def shared(self, outer: Place, inner: Place) -> None:
        """Handle the second name of an output's gradient in a gradient block."""

    def zeros(self, place: Place) -> None:
        """Handle a missing gradient: Paddle fills it with zeros."""

    def added(self, outer: Place, inner: Place, carried: bool) -> None:
        """Handle the gradient of an input after an iteration: add to the outer gradient, or replace it if `carried`."""

    def deleted(self, scope: Scope[T]) -> None:
        """Handle the deletion of a scope."""

    # Traversal of the program.

    def run(self) -> None:
        """Run the program."""
        self.now[0] = Scope()
        self.block(0)

    def block(self, block: int) -> None:
        """Run a block."""
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
        """Run an operator without a block. Raises PlanError beyond MAX_STEPS operators."""
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
        """Return the slots and variables written by an operator; a `select_output` writes a single output."""
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
        """Run a loop."""
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
        """Run an iteration of a loop or of its gradient."""
        around = self.sizes
        self.sizes = self.asked.in_trip[trip] if trip < len(self.asked.in_trip) else around
        self.block(inner)
        self.sizes = around

    def goes_on(self, owner: Owner, inner: int, trip: int) -> bool:
        """Return True if the loop runs another iteration: by the condition if known, else by the requested trip count.

        Raises PlanError if both are unknown.
        """
        name = owner.op.inputs["Condition"][0]
        condition = self.known.get(self.scopes.place(owner.block, name))
        if condition is not None:
            return bool(condition)
        requested = self.asked.trips.get(name, self.asked.trips.get(""))
        if requested is None:
            raise PlanError(
                f"block {inner} is a loop on {name!r}, and the program does not say how often it runs: "
                f"tell it, as --max-trips {name}=N"
            )
        return trip < requested

    def while_grad(self, owner: Owner, inner: int) -> None:
        """Run the gradient of a loop, the last iteration first."""
        given = there(owner.op.inputs.get(f"Out{GRAD}", ()))
        for name in given:
            self.zeros(self.scopes.place(owner.block, name))
        scopes = self.take(owner, "StepScopes")
        for trip, scope in reversed([*enumerate(scopes)]):
            self.backwards(owner, inner, scope, dict(zip(linked(owner.op), given, strict=False)), trip)

    def conditional(self, owner: Owner, inner: int) -> None:
        """Run a conditional block if its condition holds, or is unknown."""
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
        """Run the gradient of a conditional block."""
        for scope in self.take(owner, "Scope"):
            self.backwards(owner, inner, scope, {})
        for name in there(owner.op.writes):
            self.zeros(self.scopes.place(owner.block, name))

    def backwards(
        self, owner: Owner, inner: int, scope: Scope[T], linked: Mapping[str, str], trip: int | None = None
    ) -> None:
        """Run a gradient block in the scope kept by its forward block, then delete the scope.

        `linked` maps the names of output gradients in the block to the outer names; `trip` is the iteration of a loop.
        """
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
        """Run the block of an unknown operator once."""
        self.now[inner] = Scope()
        self.block(inner)
        self.deleted(self.now.pop(inner))

    def keep(self, owner: Owner, slot: str, scopes: list[Scope[T]]) -> None:
        """Keep scopes for the gradient of an operator."""
        place = self.scopes.place(owner.block, owner.op.outputs[slot][0])
        self.now[place.block].kept[place.name] = scopes

    def take(self, owner: Owner, slot: str) -> list[Scope[T]]:
        """Return the scopes kept by a forward operator, and stop keeping the scopes."""
        place = self.scopes.place(owner.block, owner.op.inputs[slot][0])
        return self.now[place.block].kept.pop(place.name, [])

    def held(self, place: Place) -> T | None:
        """Return the content of a variable, or None."""
        scope = self.now.get(place.block)
        return None if scope is None else scope.held.get(place.name)

    def persistable(self, place: Place) -> bool:
        """Return True if the variable is persistable."""
        var = self.program.blocks[place.block].vars.get(place.name)
        return var is not None and var.persistable


RUN = {
    "while": Walk.while_,
    "while_grad": Walk.while_grad,
    "conditional_block": Walk.conditional,
    "conditional_block_grad": Walk.conditional_grad,
}
"""The method that runs an operator with a block, by operator type."""
