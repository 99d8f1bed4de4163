"""Shape inference: the extents of every variable, given the extents of the feeds.

Operators are followed in execution order, with the known facts about each name at the current point, because a name may
have several assignments. Loops are iterated until a fixpoint; an extent with different values in several iterations is
open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from sublet.base.errors import ModelError, SpecError
from sublet.base.tensor import Dims, DType, format_dims
from sublet.integrations.paddle.format.program import (
    EMPTY_NAME,
    GRAD,
    ROWS,
    SCOPES,
    TENSOR,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
)
from sublet.integrations.paddle.operators.rules import has_rule, infer_outputs
from sublet.integrations.paddle.operators.rules.call import Operand, PaddleCall

SEQUENCES = "sequences"
"""The key in `dims` for the number of sequences in a feed with a level of detail."""

STEPS, STEPS_EACH = 10_000, 100
"""Limit of visited operators: STEPS, plus STEPS_EACH for each operator of the program. Nested loops multiply visits.
Beyond, the inference raises ModelError."""

VariableKey = tuple[int, str]
"""A variable: the declaring block, and the name."""
State = dict[VariableKey, Operand]


def tensor_bytes(dims: Iterable[int | None], dtype: DType) -> int:
    """Return the bytes of a tensor; an open extent counts as 0."""
    return (prod(extent or 0 for extent in dims) * dtype.bits + 7) // 8


@dataclass(frozen=True)
class VariableSizes:
    """The extents of each variable, in all its assignments.

    dims_seen       the extents inferred for each variable
    cause           for a variable with open extents, the variable that causes the open extents: itself, or an input
    unruled         the type of the operator without a shape rule, by variable
    dims_at_writes  the extents of each assignment, by (block, operator, name)
    """

    program: PaddleProgram
    where: str
    dims_seen: Mapping[VariableKey, tuple[Dims, ...]]
    cause: Mapping[VariableKey, VariableKey]
    unruled: Mapping[VariableKey, str]
    dims_at_writes: Mapping[tuple[int, int, str], Dims]

    def dims(self, block: int, name: str) -> Dims:
        """Return the extents of a variable; None for an extent that is open or differs between assignments.

        Return None if the variable has no known rank.
        """
        home = self.program.declaring_block(block, name)
        every = self.dims_seen.get((home, name), ()) if home is not None else ()
        common = every[0] if every else None
        for dims in every[1:]:
            common = join_dims(common, dims)
        return common

    def shape(self, block: int, name: str) -> tuple[int, ...]:
        """Return the extents of a variable with a single shape. Raises ModelError with advice if an extent is open."""
        dims = self.dims(block, name)
        if dims is None or None in dims:
            raise self._open_extents_error(self._key(block, name), dims)
        return tuple(extent for extent in dims if extent is not None)

    def nbytes(self, block: int, name: str) -> int:
        """Return the bytes of a variable's largest assignment; for an array, of an element.

        Return 0 for a variable without an element type. Raises ModelError with advice if an extent is open.
        """
        key = self._key(block, name)
        dtype = self.dtype(block, name)
        if dtype is None:
            return 0
        most = 0
        for dims in self.dims_seen.get(key, ()):
            if dims is None or None in dims:
                raise self._open_extents_error(key, dims)
            most = max(most, tensor_bytes(dims, dtype))
        return most

    def dtype(self, block: int, name: str) -> DType | None:
        """Return the element type of a variable; a gradient without a type has that of its variable."""
        var = self.program.find_var(block, name)
        if var is not None and var.dtype is None and GRAD in name:
            var = self.program.find_var(block, name.partition(GRAD)[0]) or var
        return var.dtype if var is not None else None

    @property
    def open_causes(self) -> tuple[VariableKey, ...]:
        """The variables that cause open extents, each once."""
        return tuple(dict.fromkeys(self.cause.values()))

    def _key(self, block: int, name: str) -> VariableKey:
        """Return the variable of a name used in a block. Raises ModelError for an undeclared name."""
        home = self.program.declaring_block(block, name)
        if home is None:
            raise ModelError(f"{self.where}: block {block} has no variable {name!r:.80}")
        return home, name

    def _open_extents_error(self, key: VariableKey, dims: Dims) -> ModelError:
        """Return the error for open extents, with the cause and advice."""
        block, name = self.cause.get(key, key)
        at_fault = self.dims(block, name)
        why = f"operator {self.unruled[block, name]} has no shape rule" if (block, name) in self.unruled else "open"
        also = "" if (block, name) == key else f", which leaves {key[1]!r} {format_dims(dims)}"
        return ModelError(
            f"{self.where}: the extents of {name!r} in block {block} are {format_dims(at_fault)} ({why}){also}: "
            f"declare them{self._example_shapes((block, name))}"
        )

    def _example_shapes(self, first: VariableKey) -> str:
        """Return the options that close the open extents of all feeds, or of `first`, to paste; an open extent is 1."""
        written = {name for block in self.program.blocks for op in block.ops for name in op.writes}
        feeds = [key for key in dict.fromkeys((first, *self.open_causes)) if key[1] not in written]
        examples = {
            name: tuple(1 if extent is None else extent for extent in self.dims(block, name) or (None,))
            for block, name in feeds or [first]
        }
        has_sequences = any(var is not None and var.lod_level for var in (self.program.find_var(*key) for key in feeds))
        line = " ".join(f"--shape {name}={','.join(map(str, extents))}" for name, extents in examples.items())
        line += f" --dim {SEQUENCES}=1" if has_sequences else ""
        keywords = f"shapes={examples}" + (f", dims={{{SEQUENCES!r}: 1}}" if has_sequences else "")
        return f" with {line}, in Python {keywords}, with the extents of your batch instead of 1"


def infer_sizes(
    program: PaddleProgram,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    where: str = "the program",
) -> VariableSizes:
    """Infer the extents of every variable.

    `shapes` has whole shapes by variable name: shapes of feeds, and of outputs without a shape rule. `dims` has single
    extents: `"x.0"` is the first extent of x, `"sequences"` the number of sequences in feeds with a level of detail.
    Raises ModelError for unknown names, and for extents in contradiction to the program.
    """
    walk = _ShapeInference(
        program, where, _requested_extents(program, shapes or {}, dims or {}, where), (dims or {}).get(SEQUENCES)
    )
    walk.steps = STEPS + STEPS_EACH * sum(len(block.ops) for block in program.blocks)
    walk.infer_block(0, {})
    for block in program.blocks:
        for name in block.vars:
            if (block.index, name) not in walk.dims_seen:
                walk.operand_of(block.index, name, {})
    dims_seen = {key: tuple(every) for key, every in walk.dims_seen.items()}
    return VariableSizes(program, where, dims_seen, walk.cause, walk.unruled, walk.dims_at_writes)


def _requested_extents(
    program: PaddleProgram, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int], where: str
) -> dict[str, Dims]:
    """Return the requested extents by variable. Raises ModelError for unknown names and contradictions."""
    requested: dict[str, Dims] = dict(shapes)
    for name, extent in dims.items():
        if name == SEQUENCES:
            continue
        of, _, axis = name.rpartition(".")
        var = _find_declaration(program, of)
        if var is None or not axis.isdigit() or int(axis) >= len(var.dims):
            raise ModelError(
                f"{where}: --dim {name}={extent} names no extent: write x.0=... for axis 0 of x, or sequences=..."
            )
        before = requested.get(of) or tuple(None if declared < 0 else declared for declared in var.dims)
        requested[of] = tuple(extent if i == int(axis) else other for i, other in enumerate(before))
    for name, extents in requested.items():
        var = _find_declaration(program, name)
        if var is None:
            open_ = [v.name for block in program.blocks for v in block.vars.values() if min(v.dims, default=0) < 0]
            advice = f"variables with open extents: {', '.join(open_[:8])}" if open_ else "no variable has open extents"
            raise ModelError(f"{where}: --shape {name}: there is no such variable ({advice})")
        declared = [None if extent < 0 else extent for extent in var.dims]
        if extents is None or len(extents) != len(declared) or any(
            a is not None and b is not None and a != b for a, b in zip(extents, declared, strict=True)
        ):  # fmt: skip
            raise ModelError(
                f"{where}: {name!r} is declared as {format_dims(declared)}, which contradicts {format_dims(extents)}"
            )
        if any(extent is not None and extent < 0 for extent in extents):
            raise ModelError(f"{where}: --shape {name}: an extent cannot be below 0")
    return requested


def _find_declaration(program: PaddleProgram, name: str) -> PaddleVar | None:
    """Return a variable of the name in any block, or None."""
    return next((block.vars[name] for block in program.blocks if name in block.vars), None)


def join_dims(a: Dims, b: Dims) -> Dims:
    """Return the extents common to two assignments; None if the ranks differ."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _refine_dims(a: Dims, b: Dims) -> Dims:
    """Return the extents known from either operand; `a` where the operands differ."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        return a
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


@dataclass
class _ShapeInference:
    """State of a shape inference over a program."""

    program: PaddleProgram
    where: str
    requested_dims: Mapping[str, Dims]
    sequences: int | None
    dims_seen: dict[VariableKey, dict[Dims, None]] = field(default_factory=dict)
    cause: dict[VariableKey, VariableKey] = field(default_factory=dict)
    unruled: dict[VariableKey, str] = field(default_factory=dict)
    dims_at_writes: dict[tuple[int, int, str], Dims] = field(default_factory=dict)
    homes: dict[VariableKey, VariableKey | None] = field(default_factory=dict)
    steps: int = 0

    def infer_block(self, block: int, state: State) -> State:
        """Infer the extents in a block, and return the updated state."""
        for position, op in enumerate(self.program.blocks[block].ops):
            inner = op.block_index()
            self.steps -= 1
            if self.steps < 0:
                raise ModelError(f"{self.where}: shape inference of its loops takes too many passes")
            if inner is not None:
                self._infer_control_flow(inner, op, state)
            else:
                self._infer_operator(block, position, op, state)
        return state

    def _infer_control_flow(self, inner: int, op: PaddleOp, state: State) -> None:
        """Infer the extents in the body of a branch, or iterate over the body of a loop until a fixpoint."""
        loop = op.type.startswith(("while", "recurrent"))
        while True:
            after = self.infer_block(inner, dict(state))
            changed = False
            for key, now in after.items():
                before = state.get(key)
                both = now if before is None else _join_operands(before, now)
                changed |= both != before
                state[key] = both
            if not (loop and changed):
                return

    def key(self, block: int, name: str) -> VariableKey | None:
        """Return the variable of a name used in a block, or None."""
        if (block, name) not in self.homes:
            home = self.program.declaring_block(block, name)
            self.homes[block, name] = None if home is None else (home, name)
        return self.homes[block, name]

    def operand_of(self, block: int, name: str, state: State) -> Operand:
        """Return the known facts about a name: its last assignment, else its declaration."""
        key = self.key(block, name)
        if key is None:
            return Operand(None)
        operand = state.get(key)
        if operand is None:
            kind = self.program.blocks[key[0]].vars[name].kind
            operand = Operand(
                self._refine_by_gradient_name(block, key, self._declared_dims(key), state), None, kind == ROWS
            )
            self._note_dims(key, operand.dims)
        return operand

    def _refine_by_gradient_name(self, block: int, key: VariableKey, dims: Dims, state: State) -> Dims:
        """Refine open extents of a gradient by the extents of its variable, found by name."""
        name = key[1]
        if GRAD not in name or (dims is not None and None not in dims):
            return dims
        of = self.key(block, name.partition(GRAD)[0])
        if of is None or self.program.blocks[key[0]].vars[name].kind == ROWS:
            return dims
        return _refine_dims(dims, self.operand_of(block, of[1], state).dims)

    def _declared_dims(self, key: VariableKey) -> Dims:
        """Return the requested extents of a variable, completed by the declaration."""
        var = self.program.blocks[key[0]].vars[key[1]]
        # some gradients in the body of a loop's gradient have a name, but no declared type
        named = var.kind == TENSOR and var.dtype is None and not var.dims
        declared = None if named else tuple(None if extent < 0 else extent for extent in var.dims)
        return _refine_dims(self.requested_dims.get(key[1]), declared)

    def _note_dims(self, key: VariableKey, dims: Dims) -> None:
        """Note inferred extents of a variable."""
        self.dims_seen.setdefault(key, {})[dims] = None
        if dims is None or None in dims:
            self.cause.setdefault(key, key)

    def _infer_operator(self, block: int, position: int, op: PaddleOp, state: State) -> None:
        """Infer the outputs of an operator without a block."""
        inputs = {
            slot: [self.operand_of(block, name, state) for name in names if name != EMPTY_NAME]
            for slot, names in op.inputs.items()
        }
        outputs = {slot: len(names) for slot, names in op.outputs.items()}
        call = PaddleCall(op.type, {name: a.value for name, a in op.attrs.items()}, inputs, outputs, self.sequences)
        try:
            inferred = infer_outputs(call)
        except SpecError as error:
            title = f"block {block}, operator {position} ({op.type}"
            first = ", ".join(repr(name) for name in op.writes[:2])
            raise ModelError(f"{self.where}: {title}, which writes {first}) {error}") from None
        ruled = has_rule(call)
        for slot, names in op.outputs.items():
            every = inferred.get(slot, ())
            for index, name in enumerate(names):
                key = self.key(block, name)
                if key is None or name == EMPTY_NAME:
                    continue
                result = every[index] if index < len(every) else Operand(None)
                result = replace(result, dims=self._refine_result(block, key, result.dims, state))
                self._note_assignment(block, position, key, result, op, ruled, state)

    def _refine_result(self, block: int, key: VariableKey, dims: Dims, state: State) -> Dims:
        """Refine the extents inferred by a rule: by gradient name, by request, by declaration.

        Raises ModelError if a requested extent contradicts the rule.
        """
        name, declared = key[1], self._declared_dims(key)
        if self.program.blocks[key[0]].vars[name].kind == ROWS:
            return dims
        dims = self._refine_by_gradient_name(block, key, dims, state)
        requested = self.requested_dims.get(name)
        if (
            requested is not None
            and dims is not None
            and _refine_dims(requested, dims) != _refine_dims(dims, requested)
        ):
            raise ModelError(
                f"{self.where}: {name!r} is inferred as {format_dims(dims)}, which contradicts {format_dims(requested)}"
            )
        if dims is not None and declared is not None and {*dims, *declared} == {1}:
            return declared  # a single element: [] since 2.5, [1] before
        return _refine_dims(dims, declared)

    def _note_assignment(
        self, block: int, position: int, key: VariableKey, result: Operand, op: PaddleOp, ruled: bool, state: State
    ) -> None:
        """Note an assignment and its cause of open extents, and update the state."""
        var = self.program.blocks[key[0]].vars[key[1]]
        result = replace(result, selected=var.kind == ROWS)
        if var.kind == SCOPES:
            return
        if result.dims is None or None in result.dims:
            if not ruled:
                self.unruled.setdefault(key, op.type)
            sources = [self.key(block, name) for name in op.reads if ruled]
            causes = [self.cause[of] for of in sources if of is not None and of != key and of in self.cause]
            if causes:
                self.cause.setdefault(key, causes[0])
        self._note_dims(key, result.dims)
        before = self.dims_at_writes.get((block, position, key[1]), result.dims)
        self.dims_at_writes[block, position, key[1]] = join_dims(before, result.dims)
        state[key] = result


def _join_operands(a: Operand, b: Operand) -> Operand:
    """Return the facts common to two operands."""
    values = a.values if a.values == b.values else None
    return Operand(join_dims(a.dims, b.dims), values, a.selected or b.selected)
