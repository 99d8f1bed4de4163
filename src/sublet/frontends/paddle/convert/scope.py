"""What a conversion knows: names in use, weights, and what each variable stands for at a point of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sublet.base.errors import ModelError, SubletError
from sublet.base.tensor import Dims, DType, Spec, TensorSpec, Unplannable
from sublet.frontends.paddle.format.program import ARRAY, ROWS, TENSOR, Op, Program
from sublet.frontends.paddle.operators.dialect import PREFIX, UNDEFINED
from sublet.frontends.paddle.operators.shapes import Key, Sizes
from sublet.ir.graph import Node, Value

Scope = dict[Key, Value]
"""What each variable stands for: the value of its last assignment."""

REASONS = {
    ARRAY: "a tensor array holds as many tensors as the run writes to it",
    ROWS: "selected rows are as many as the run selects",
}


@dataclass
class Conversion:
    """One program on its way to a graph. `where` is what messages call it."""

    program: Program
    sizes: Sizes
    where: str
    fed: bool
    names: dict[str, int] = field(default_factory=dict)
    inputs: dict[Key, Value] = field(default_factory=dict)
    weights: dict[Key, Value] = field(default_factory=dict)
    selections: dict[tuple[Key, Key], Value] = field(default_factory=dict)
    wanted: frozenset[Key] = frozenset()
    read_elsewhere: frozenset[Key] = frozenset()

    def fresh(self, base: str) -> str:
        """`base` if it is free, else the first free of base.1, base.2, ..."""
        count = self.names.get(base, 0)
        name = base if not count else f"{base}.{count}"
        while count and name in self.names:
            count += 1
            name = f"{base}.{count}"
        self.names[base] = count + 1
        if name != base:
            self.names[name] = 1
        return name

    def key(self, block: int, name: str) -> Key:
        home = self.program.home(block, name)
        if home is None:
            raise ModelError(f"{self.where}: block {block} names a variable {name!r:.80} that nothing declares")
        return home, name

    def spec(self, key: Key, dims: Dims) -> Spec:
        """The spec of a variable with these extents."""
        var = self.program.blocks[key[0]].vars[key[1]]
        dtype = self.sizes.dtype(*key)
        element = dtype.text if dtype is not None else ""
        if var.kind != TENSOR:
            reason = REASONS.get(var.kind, f"it is a {var.kind}, no tensor")
            return Unplannable(reason, other=f"{var.kind.lower()}({element})")
        if dtype is None:
            return Unplannable("the program does not tell the type of its elements", other="tensor")
        if dims is None or None in dims:
            return Unplannable(self._why_open(key), element, dims)
        try:
            return TensorSpec(dtype, tuple(extent for extent in dims if extent is not None))
        except SubletError as error:
            raise ModelError(f"{self.where}: variable {key[1]!r}: {error}") from None

    def _why_open(self, key: Key) -> str:
        block, name = self.sizes.cause.get(key, key)
        if (block, name) in self.sizes.unruled:
            op = self.sizes.unruled[block, name]
            return f"operator {op} has no shape rule: tell the extents of what it writes, as --shape {name}=..."
        return f"only a run tells its extents: tell those of {name}, as --shape {name}=..."

    def value(self, key: Key, dims: Dims) -> Value:
        """A new value for an assignment of a variable."""
        return Value(self.fresh(key[1]), self.spec(key, dims))

    def read(self, block: int, name: str, scope: Scope) -> Value:
        """What a name stands for. What nothing has written is a weight, or an input of a program without feeds."""
        key = self.key(block, name)
        if key in scope:
            return scope[key]
        var = self.program.blocks[key[0]].vars[key[1]]
        known = self.weights if var.persistable else self.inputs
        if key not in known:
            if known is self.inputs and (self.fed or key[0] != 0):
                what = f"block {block} reads {name!r}, which nothing has written then"
                raise ModelError(f"{self.where}: {what}: feed it, or write it first")
            known[key] = self.value(key, self.sizes.dims(*key))
        return known[key]

    def initial(self, key: Key, scope: Scope, nodes: list[Node]) -> Value:
        """What a variable stands for in front of control flow; what nobody has written where there is nothing."""
        if key not in scope and not self.program.blocks[key[0]].vars[key[1]].persistable:
            scope[key] = self.value(key, self.sizes.dims(*key))
            name = self.fresh(f"{scope[key].name}.{UNDEFINED}")
            nodes.append(Node(name, f"{PREFIX}{UNDEFINED}", (), (scope[key],)))
        scope[key] = self.read(key[0], key[1], scope)
        return scope[key]

    def flag(self, block: int, name: str, scope: Scope) -> Value:
        """A condition. Raises ModelError for what is not one bool."""
        value = self.read(block, name, scope)
        spec = value.spec
        if not isinstance(spec, TensorSpec) or spec.dtype is not DType.BOOL or spec.size != 1:
            raise ModelError(f"{self.where}: block {block}: the condition {name!r} is {spec}, not one bool")
        return value

    def open_input(self, value: Value, name: str) -> ModelError | None:
        """The error for an input whose extents are open."""
        if isinstance(value.spec, TensorSpec) or value.spec.dims is None:
            return None
        told = ",".join("1" if extent is None else str(extent) for extent in value.spec.dims)
        return ModelError(
            f"{self.where}: input {name!r} is {value.spec.type}: tell its extents, as --shape {name}={told}"
        )


Converter = Callable[[Conversion, int, Scope], list[Node]]
"""Gives the nodes of a block, and leaves in the scope what its variables stand for then."""


def title(block: int, position: int, op: Op) -> str:
    """The name of an operator's node."""
    return f"{op.type}.{position}" if block == 0 else f"{op.type}.{block}.{position}"


def dims_of(value: Value) -> Dims:
    """What is known of a value's extents."""
    return value.spec.shape if isinstance(value.spec, TensorSpec) else value.spec.dims


def operators(program: Program, block: int) -> Iterator[tuple[int, int, Op]]:
    """The operators of a block and of the blocks it runs, with where they stand."""
    for position, op in enumerate(program.blocks[block].ops):
        yield block, position, op
        inner = op.block()
        if inner is not None:
            yield from operators(program, inner)


def assigned(program: Program, block: int) -> dict[Key, list[tuple[int, int]]]:
    """The outer variables that a block assigns, in order, and where."""
    inside = {block, *(op.block() for _, _, op in operators(program, block))}
    found: dict[Key, list[tuple[int, int]]] = {}
    for at, position, op in operators(program, block):
        if op.block() is None:
            for name in op.writes:
                home = program.home(at, name)
                if home is not None and home not in inside:
                    found.setdefault((home, name), []).append((at, position))
    return found


def read(program: Program, block: int) -> set[Key]:
    """The variables that a block reads, and the blocks it runs."""
    every = ((at, name) for at, _, op in operators(program, block) for name in op.reads)
    return {(home, name) for at, name in every if (home := program.home(at, name)) is not None}


def wanted(program: Program, but: str = "") -> frozenset[Key]:
    """The variables whose content an operator reads, a branch depends on, or the program gives.

    Those that only operators of the type `but` read are left out.
    """
    found: set[Key] = set()
    for block in program.blocks:
        for op in block.ops:
            slots = {"while": ("Condition",), "conditional_block": ("Cond",), but: ()}.get(op.type)
            names = op.reads if slots is None else tuple(name for slot in slots for name in op.inputs.get(slot, ()))
            for name in names:
                home = program.home(block.index, name)
                if home is not None:
                    found.add((home, name))
    found.update((0, name) for name, var in program.blocks[0].vars.items() if var.persistable)
    return frozenset(found)


COUNT = TensorSpec(DType.I64)
"""The counter of a loop."""
