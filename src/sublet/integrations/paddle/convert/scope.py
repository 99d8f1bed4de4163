"""State of a conversion: used names, inputs, weights, and the current value of each variable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from sublet.base.errors import ModelError, SubletError
from sublet.base.names import NameGenerator
from sublet.base.tensor import Dims, DType, Spec, TensorSpec, Unplannable
from sublet.integrations.paddle.format.program import ARRAY, ROWS, TENSOR, PaddleOp, PaddleProgram
from sublet.integrations.paddle.operators.dialect import PREFIX, UNDEFINED
from sublet.integrations.paddle.operators.shapes import VariableKey, VariableSizes
from sublet.ir.graph import Node, Value

Scope = dict[VariableKey, Value]
"""The current value of each variable: the value of its last assignment."""

UNPLANNABLE_REASONS = {
    ARRAY: "the length of a tensor array is known only in a run",
    ROWS: "the number of selected rows is known only in a run",
}


@dataclass
class PaddleConversion:
    """A program during conversion to a graph. Messages call the program `where`.

    fed             True if the program has `feed` operators; only a program without may have further inputs
    selections      the output of a converted branch for a pair of arm variables
    wanted          the variables with a use of their content
    read_elsewhere  the variables with a use outside of `select_input`
    """

    program: PaddleProgram
    sizes: VariableSizes
    where: str
    fed: bool
    inputs: dict[VariableKey, Value] = field(default_factory=dict)
    weights: dict[VariableKey, Value] = field(default_factory=dict)
    selections: dict[tuple[VariableKey, VariableKey], Value] = field(default_factory=dict)
    wanted: frozenset[VariableKey] = frozenset()
    read_elsewhere: frozenset[VariableKey] = frozenset()
    names: NameGenerator = field(default_factory=partial(NameGenerator, separator=".", first=1))

    def variable_key(self, block: int, name: str) -> VariableKey:
        """Return the variable of a name in a block. Raises ModelError for an undeclared name."""
        home = self.program.declaring_block(block, name)
        if home is None:
            raise ModelError(f"{self.where}: block {block} uses an undeclared variable {name!r:.80}")
        return home, name

    def spec_of(self, key: VariableKey, dims: Dims) -> Spec:
        """Return the spec of a variable with the given extents."""
        var = self.program.blocks[key[0]].vars[key[1]]
        dtype = self.sizes.dtype(*key)
        element = dtype.text if dtype is not None else ""
        if var.kind != TENSOR:
            reason = UNPLANNABLE_REASONS.get(var.kind, f"a {var.kind} is not a tensor")
            return Unplannable(reason, other=f"{var.kind.lower()}({element})")
        if dtype is None:
            return Unplannable("the program does not declare the element type", other="tensor")
        if dims is None or None in dims:
            return Unplannable(self._why_open(key), element, dims)
        try:
            return TensorSpec(dtype, tuple(extent for extent in dims if extent is not None))
        except SubletError as error:
            raise ModelError(f"{self.where}: variable {key[1]!r}: {error}") from None

    def _why_open(self, key: VariableKey) -> str:
        """Return the reason for open extents, with advice."""
        block, name = self.sizes.cause.get(key, key)
        if (block, name) in self.sizes.unruled:
            op = self.sizes.unruled[block, name]
            return f"operator {op} has no shape rule: declare the extents of its outputs with --shape {name}=..."
        return f"the extents are known only in a run: declare those of {name} with --shape {name}=..."

    def new_value(self, key: VariableKey, dims: Dims) -> Value:
        """Return a new value for an assignment of a variable."""
        return Value(self.names.fresh(key[1]), self.spec_of(key, dims))

    def read_value(self, block: int, name: str, scope: Scope) -> Value:
        """Return the current value of a name.

        An unwritten persistable variable becomes a weight. Any other unwritten variable becomes an input if the program
        has no feeds; otherwise the method raises ModelError.
        """
        key = self.variable_key(block, name)
        if key in scope:
            return scope[key]
        var = self.program.blocks[key[0]].vars[key[1]]
        known = self.weights if var.persistable else self.inputs
        if key not in known:
            if known is self.inputs and (self.fed or key[0] != 0):
                what = f"block {block} reads {name!r}, which is not written yet"
                raise ModelError(f"{self.where}: {what}: feed or write the variable first")
            known[key] = self.new_value(key, self.sizes.dims(*key))
        return known[key]

    def value_before_control_flow(self, key: VariableKey, scope: Scope, nodes: list[Node]) -> Value:
        """Return the value of a variable before control flow; an unwritten variable gets an `undefined` node."""
        if key not in scope and not self.program.blocks[key[0]].vars[key[1]].persistable:
            scope[key] = self.new_value(key, self.sizes.dims(*key))
            name = self.names.fresh(f"{scope[key].name}.{UNDEFINED}")
            nodes.append(Node(name, f"{PREFIX}{UNDEFINED}", (), (scope[key],)))
        scope[key] = self.read_value(key[0], key[1], scope)
        return scope[key]

    def condition_value(self, block: int, name: str, scope: Scope) -> Value:
        """Return the value of a condition. Raises ModelError unless the condition is a single bool."""
        value = self.read_value(block, name, scope)
        spec = value.spec
        if not isinstance(spec, TensorSpec) or spec.dtype is not DType.BOOL or spec.size != 1:
            raise ModelError(f"{self.where}: block {block}: the condition {name!r} is {spec}, not one bool")
        return value

    def open_input_error(self, value: Value, name: str) -> ModelError | None:
        """Return the error for an input with open extents; None otherwise."""
        if isinstance(value.spec, TensorSpec) or value.spec.dims is None:
            return None
        example = ",".join("1" if extent is None else str(extent) for extent in value.spec.dims)
        return ModelError(
            f"{self.where}: input {name!r} is {value.spec.type}: declare its extents with --shape {name}={example}"
        )


Converter = Callable[[PaddleConversion, int, Scope], list[Node]]
"""A function that returns the nodes of a block, and updates the scope to the values at the end of the block."""


def node_name(block: int, position: int, op: PaddleOp) -> str:
    """Return the node name of an operator."""
    return f"{op.type}.{position}" if block == 0 else f"{op.type}.{block}.{position}"


def dims_of(value: Value) -> Dims:
    """Return the known extents of a value."""
    return value.spec.shape if isinstance(value.spec, TensorSpec) else value.spec.dims


def nested_operators(program: PaddleProgram, block: int) -> Iterator[tuple[int, int, PaddleOp]]:
    """Yield the operators of a block and of all blocks run from the block, each with block and position."""
    for position, op in enumerate(program.blocks[block].ops):
        yield block, position, op
        inner = op.block_index()
        if inner is not None:
            yield from nested_operators(program, inner)


def outer_assignments(program: PaddleProgram, block: int) -> dict[VariableKey, list[tuple[int, int]]]:
    """Return the outer variables assigned by a block or its nested blocks, in order, with the assignment positions."""
    inside = {block, *(op.block_index() for _, _, op in nested_operators(program, block))}
    positions: dict[VariableKey, list[tuple[int, int]]] = {}
    for at, position, op in nested_operators(program, block):
        if op.block_index() is None:
            for name in op.writes:
                home = program.declaring_block(at, name)
                if home is not None and home not in inside:
                    positions.setdefault((home, name), []).append((at, position))
    return positions


def variables_read(program: PaddleProgram, block: int) -> set[VariableKey]:
    """Return the variables read by a block and its nested blocks."""
    names = ((at, name) for at, _, op in nested_operators(program, block) for name in op.reads)
    return {(home, name) for at, name in names if (home := program.declaring_block(at, name)) is not None}


def used_variables(program: PaddleProgram, but: str = "") -> frozenset[VariableKey]:
    """Return the variables with a use: read by an operator, condition of a branch or loop, or persistable.

    Uses by operators of the type `but` do not count.
    """
    used: set[VariableKey] = set()
    for block in program.blocks:
        for op in block.ops:
            slots = {"while": ("Condition",), "conditional_block": ("Cond",), but: ()}.get(op.type)
            names = op.reads if slots is None else tuple(name for slot in slots for name in op.inputs.get(slot, ()))
            for name in names:
                home = program.declaring_block(block.index, name)
                if home is not None:
                    used.add((home, name))
    used.update((0, name) for name, var in program.blocks[0].vars.items() if var.persistable)
    return frozenset(used)


COUNTER_SPEC = TensorSpec(DType.I64)
"""The spec of a loop counter."""
