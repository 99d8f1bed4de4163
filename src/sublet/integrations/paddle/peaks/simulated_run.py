"""Simulated run of a program, operator by operator, as Paddle runs blocks: iterations, scopes, arms of branches.

Subclasses define the effect of each operator: `executor_memory_model.py` counts Paddle's allocations, `live_bytes.py`
live values. A scope has a content for each name. A training loop keeps the scopes of its iterations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Generic, Protocol, TypeVar

from sublet.base.errors import PlanError
from sublet.integrations.paddle.format.program import GRAD, PaddleOp, PaddleProgram
from sublet.integrations.paddle.operators.dialect import nonempty_names
from sublet.integrations.paddle.peaks.scopes import BlockOwner, PaddleScopes, ScopedVariable, linked_gradient_names

# Constant propagation for scalars: loop counters, loop ends, and conditions on scalars.

Number = bool | int | float
Resolve = Callable[[str], ScopedVariable]

BINARY: Mapping[str, Callable[[Number, Number], Number]] = {
    "less_than": operator.lt,
    "less_equal": operator.le,
    "greater_than": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "elementwise_add": operator.add,
    "elementwise_sub": operator.sub,
    "elementwise_mul": operator.mul,
    "logical_and": lambda x, y: bool(x) and bool(y),
    "logical_or": lambda x, y: bool(x) or bool(y),
}


def propagate_scalars(op: PaddleOp, place: Resolve, known: dict[ScopedVariable, Number]) -> None:
    """Update the known scalars after an operator: `Out` is known if the operands are, further outputs are unknown."""
    result = _scalar_result(op, place, known)
    for name in op.writes:
        known.pop(place(name), None)
    target = op.first_output("Out")
    if result is not None and target:
        known[place(target)] = result


def _scalar_result(op: PaddleOp, place: Resolve, known: Mapping[ScopedVariable, Number]) -> Number | None:
    """Return the scalar result of an operator, or None."""
    if op.type == "fill_constant":
        return _filled_constant(op)
    x, y = (known.get(place(name)) if name else None for name in (op.first_input("X"), op.first_input("Y")))
    if op.type in BINARY:
        return None if x is None or y is None else BINARY[op.type](x, y)
    if x is None:
        return None
    match op.type:
        case "assign" | "cast" | "depend" | "reshape2":
            return x
        case "logical_not":
            return not x
        case "increment":
            return x + _real_attribute(op, "step", 1.0)
        case "scale" if not any(op.inputs.get(slot) for slot in ("ScaleTensor", "BiasTensor")):
            scale, bias, after = (
                _real_attribute(op, "scale", 1.0),
                _real_attribute(op, "bias", 0.0),
                op.attrs.get("bias_after_scale"),
            )
            return x * scale + bias if after is None or after.value else (x + bias) * scale
    return None


def _filled_constant(op: PaddleOp) -> Number | None:
    """Return the value of a `fill_constant` with a single element, or None."""
    shape = op.attrs.get("shape")
    if any(op.inputs.values()) or shape is None or not isinstance(shape.value, tuple):
        return None
    if prod(int(extent) for extent in shape.value if isinstance(extent, int)) != 1:
        return None
    text = op.attrs.get("str_value")
    if text is not None and isinstance(text.value, str) and text.value:
        try:
            return float(text.value)
        except ValueError:
            return None
    return _real_attribute(op, "value", 0.0)


def _real_attribute(op: PaddleOp, name: str, default: float) -> float:
    """Return a number attribute as a float."""
    attr = op.attrs.get(name)
    return float(attr.value) if attr is not None and isinstance(attr.value, int | float) else default


MAX_STEPS = 3_000_000
"""Limit of simulated operators, counted in every iteration. Beyond, the simulation raises PlanError."""

OUTPUTS_WITHOUT_BYTES = {
    ("batch_norm", "ReserveSpace"),
    ("sequence_pool", "MaxIndex"),
    ("feed", "Out"),
    ("fetch", "Out"),
    ("view_slice", "out"),
    ("share_data", "Out"),
}
"""Outputs without bytes on a CPU, or without bytes of their own."""

T = TypeVar("T")


class VariableBytes(Protocol):
    """Provider of the bytes of variables: over all assignments (`declared_bytes`), and as written by an operator
    (`written_bytes`).
    """

    def declared_bytes(self, place: ScopedVariable) -> int: ...

    def written_bytes(self, block: int, op: int, place: ScopedVariable) -> int: ...


@dataclass(frozen=True)
class RunRequest:
    """A run to simulate.

    sizes    the bytes of variables
    keep     the variables fetched after the run
    trips    the iterations of each loop, by the name of its condition, "" for every loop; a count known from the
             program has precedence
    met      the values of conditions of branches
    in_trip  the bytes of variables in each iteration of a loop, if different: sequences end at different iterations
    scratch  the scratch bytes of kernels, by (block, operator), where measured
    """

    program: PaddleProgram
    sizes: VariableBytes
    keep: frozenset[ScopedVariable] = frozenset()
    trips: Mapping[str, int] = field(default_factory=dict)
    met: Mapping[ScopedVariable, bool] = field(default_factory=dict)
    in_trip: Sequence[VariableBytes] = ()
    scratch: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass
class ContentScope(Generic[T]):
    """The contents of a block's variables in a scope, and the scopes kept by each variable."""

    held: dict[str, T] = field(default_factory=dict)
    kept: dict[str, list[ContentScope[T]]] = field(default_factory=dict)

    def all_contents(self) -> list[T]:
        """Return all contents, including those of kept scopes."""
        inner = (each for scopes in self.kept.values() for scope in scopes for each in scope.all_contents())
        return [*self.held.values(), *inner]


class SimulatedRun(Generic[T]):
    """A simulated run with contents of type T."""

    def __init__(self, request: RunRequest, scopes: PaddleScopes) -> None:
        self.asked = request
        self.program = request.program
        self.scopes = scopes
        self.current_scopes: dict[int, ContentScope[T]] = {}  # the current scope of each block
        self.known_scalars: dict[ScopedVariable, Number] = {}
        self.steps = 0
        self.where = (0, 0)
        self.trips: dict[int, int] = {}
        self.sizes = request.sizes  # the bytes of variables in the current iteration
        self._written_cache: dict[tuple[int, int], list[tuple[str, ScopedVariable]]] = {}

    # Hooks for subclasses.

    def visit_operator(self, block: int, index: int, op: PaddleOp) -> None:
        """Handle an operator without a block."""

    def operator_done(self, block: int, index: int) -> None:
        """Handle the end of any operator."""

    def copy_input(self, outer: ScopedVariable, inner: ScopedVariable) -> None:
        """Handle the copy of an input into an iteration's scope."""

    def share_gradient(self, outer: ScopedVariable, inner: ScopedVariable) -> None:
        """Handle the second name of an output's gradient in a gradient block."""

    def fill_zeros(self, place: ScopedVariable) -> None:
        """Handle a missing gradient: Paddle fills it with zeros."""

    def add_gradient(self, outer: ScopedVariable, inner: ScopedVariable, carried: bool) -> None:
        """Handle the gradient of an input after an iteration: add to the outer gradient, or replace it if `carried`."""

    def delete_scope(self, scope: ContentScope[T]) -> None:
        """Handle the deletion of a scope."""

    # Traversal of the program.

    def run(self) -> None:
        """Run the program."""
        self.current_scopes[0] = ContentScope()
        self.run_block(0)

    def run_block(self, block: int) -> None:
        """Run a block."""
        for index, op in enumerate(self.program.blocks[block].ops):
            self.where = (block, index)
            inner = op.block_index()
            if inner is None:
                self._run_operator(block, index, op)
            else:
                RUNNERS_BY_OWNER.get(op.type, SimulatedRun.run_unknown_owner)(self, BlockOwner(block, index, op), inner)
                self.where = (block, index)
            self.operator_done(block, index)

    def _run_operator(self, block: int, index: int, op: PaddleOp) -> None:
        """Run an operator without a block. Raises PlanError beyond MAX_STEPS operators."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise PlanError(
                f"the loops of the program run more than {MAX_STEPS:,} operators, the limit of the simulation"
            )
        self.visit_operator(block, index, op)

        def place(name: str) -> ScopedVariable:
            return self.scopes.resolve(block, name)

        propagate_scalars(op, place, self.known_scalars)
        for name in nonempty_names(op.writes):
            if place(name) not in self.known_scalars and place(name) in self.asked.met:
                self.known_scalars[place(name)] = self.asked.met[place(name)]

    def written_variables(self, block: int, index: int, op: PaddleOp) -> list[tuple[str, ScopedVariable]]:
        """Return the slots and variables written by an operator; a `select_output` writes a single output."""
        found = self._written_cache.get((block, index))
        if found is None:
            found = self._written_cache[block, index] = [
                (slot, self.scopes.resolve(block, name))
                for slot, names in op.outputs.items()
                for name in nonempty_names(names)
                if (op.type, slot) not in OUTPUTS_WITHOUT_BYTES
            ]
        mask = op.first_input("Mask") if op.type == "select_output" else None
        value = self.known_scalars.get(self.scopes.resolve(block, mask)) if mask else None
        return found if value is None else found[int(value) : int(value) + 1]

    def run_while(self, owner: BlockOwner, inner: int) -> None:
        """Run a loop."""
        trained = inner in self.scopes.gradients
        scopes: list[ContentScope[T]] = []
        trip = 0
        if not trained:
            self.current_scopes[inner] = ContentScope()
        while self.has_next_iteration(owner, inner, trip):
            if trained:
                self.current_scopes[inner] = ContentScope()
                for name in sorted(self.scopes.copied_inputs.get(inner, ())):
                    self.copy_input(self.scopes.resolve(owner.block, name), ScopedVariable(inner, name))
            self.run_iteration(inner, trip)
            self.where = (owner.block, owner.index)
            if trained:
                scopes.append(self.current_scopes.pop(inner))
            trip += 1
        self.trips[inner] = max(trip, self.trips.get(inner, 0))
        if trained:
            self.keep_scopes(owner, "StepScopes", scopes)
        else:
            self.delete_scope(self.current_scopes.pop(inner))

    def run_iteration(self, inner: int, trip: int) -> None:
        """Run an iteration of a loop or of its gradient."""
        around = self.sizes
        self.sizes = self.asked.in_trip[trip] if trip < len(self.asked.in_trip) else around
        self.run_block(inner)
        self.sizes = around

    def has_next_iteration(self, owner: BlockOwner, inner: int, trip: int) -> bool:
        """Return True if the loop runs another iteration: by the condition if known, else by the requested trip count.

        Raises PlanError if both are unknown.
        """
        name = owner.op.inputs["Condition"][0]
        condition = self.known_scalars.get(self.scopes.resolve(owner.block, name))
        if condition is not None:
            return bool(condition)
        requested = self.asked.trips.get(name, self.asked.trips.get(""))
        if requested is None:
            raise PlanError(
                f"block {inner} is a loop on {name!r}, and the program does not declare the trip count: "
                f"pass --max-trips {name}=N"
            )
        return trip < requested

    def run_while_grad(self, owner: BlockOwner, inner: int) -> None:
        """Run the gradient of a loop, the last iteration first."""
        given = nonempty_names(owner.op.inputs.get(f"Out{GRAD}", ()))
        for name in given:
            self.fill_zeros(self.scopes.resolve(owner.block, name))
        scopes = self.take_scopes(owner, "StepScopes")
        for trip, scope in reversed([*enumerate(scopes)]):
            self.run_backwards(
                owner, inner, scope, dict(zip(linked_gradient_names(owner.op), given, strict=False)), trip
            )

    def run_conditional(self, owner: BlockOwner, inner: int) -> None:
        """Run a conditional block if its condition holds, or is unknown."""
        taken: list[ContentScope[T]] = []
        if self.known_scalars.get(self.scopes.resolve(owner.block, owner.op.inputs["Cond"][0]), True):
            self.current_scopes[inner] = ContentScope()
            self.run_block(inner)
            taken.append(self.current_scopes.pop(inner))
        if inner in self.scopes.gradients:
            self.keep_scopes(owner, "Scope", taken)
        else:
            for scope in taken:
                self.delete_scope(scope)

    def run_conditional_grad(self, owner: BlockOwner, inner: int) -> None:
        """Run the gradient of a conditional block."""
        for scope in self.take_scopes(owner, "Scope"):
            self.run_backwards(owner, inner, scope, {})
        for name in nonempty_names(owner.op.writes):
            self.fill_zeros(self.scopes.resolve(owner.block, name))

    def run_backwards(
        self, owner: BlockOwner, inner: int, scope: ContentScope[T], linked: Mapping[str, str], trip: int | None = None
    ) -> None:
        """Run a gradient block in the scope kept by its forward block, then delete the scope.

        `linked` maps the names of output gradients in the block to the outer names; `trip` is the iteration of a loop.
        """
        forward = self.scopes.forward_block(inner)
        self.current_scopes[inner] = ContentScope()
        if forward is not None:
            self.current_scopes[forward] = scope
        for inside, outside in linked.items():
            if self.scopes.resolve(inner, inside).block == inner:
                self.share_gradient(self.scopes.resolve(owner.block, outside), ScopedVariable(inner, inside))
        if trip is None:
            self.run_block(inner)
        else:
            self.run_iteration(inner, trip)
        self.where = (owner.block, owner.index)
        slot = "X" if "X" in owner.op.inputs else "Input"
        for outer, inside_ in self.scopes.gradient_pairs(owner, inner, slot):
            self.add_gradient(outer, inside_, carried=outer.name in linked.values())
        self.delete_scope(self.current_scopes.pop(inner))
        self.delete_scope(scope)
        if forward is not None:
            del self.current_scopes[forward]

    def run_unknown_owner(self, owner: BlockOwner, inner: int) -> None:
        """Run the block of an unknown operator once."""
        self.current_scopes[inner] = ContentScope()
        self.run_block(inner)
        self.delete_scope(self.current_scopes.pop(inner))

    def keep_scopes(self, owner: BlockOwner, slot: str, scopes: list[ContentScope[T]]) -> None:
        """Keep scopes for the gradient of an operator."""
        place = self.scopes.resolve(owner.block, owner.op.outputs[slot][0])
        self.current_scopes[place.block].kept[place.name] = scopes

    def take_scopes(self, owner: BlockOwner, slot: str) -> list[ContentScope[T]]:
        """Return the scopes kept by a forward operator, and stop keeping the scopes."""
        place = self.scopes.resolve(owner.block, owner.op.inputs[slot][0])
        return self.current_scopes[place.block].kept.pop(place.name, [])

    def content_of(self, place: ScopedVariable) -> T | None:
        """Return the content of a variable, or None."""
        scope = self.current_scopes.get(place.block)
        return None if scope is None else scope.held.get(place.name)

    def is_persistable(self, place: ScopedVariable) -> bool:
        """Return True if the variable is persistable."""
        var = self.program.blocks[place.block].vars.get(place.name)
        return var is not None and var.persistable


RUNNERS_BY_OWNER = {
    "while": SimulatedRun.run_while,
    "while_grad": SimulatedRun.run_while_grad,
    "conditional_block": SimulatedRun.run_conditional,
    "conditional_block_grad": SimulatedRun.run_conditional_grad,
}
"""The method that runs an operator with a block, by operator type."""
