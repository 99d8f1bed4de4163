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
from sublet.base.tensor import Dims, DType, shown
from sublet.frontends.paddle.format.program import EMPTY, GRAD, ROWS, SCOPES, TENSOR, Op, Program, Var
from sublet.frontends.paddle.operators.rules.call import Call, Operand
from sublet.frontends.paddle.operators.rules.table import known, results

SEQUENCES = "sequences"
"""The key in `dims` for the number of sequences in a feed with a level of detail."""

STEPS, STEPS_EACH = 10_000, 100
"""Limit of visited operators: STEPS, plus STEPS_EACH for each operator of the program. Nested loops multiply visits.
Beyond, the inference raises ModelError."""

Key = tuple[int, str]
"""A variable: the declaring block, and the name."""
State = dict[Key, Operand]


def bytes_of(dims: Iterable[int | None], dtype: DType) -> int:
    """Return the bytes of a tensor; an open extent counts as 0."""
    return (prod(extent or 0 for extent in dims) * dtype.bits + 7) // 8


@dataclass(frozen=True)
class Sizes:
    """The extents of each variable, in all its assignments.

    dims_seen       the extents inferred for each variable
    cause           for a variable with open extents, the variable that causes the open extents: itself, or an input
    unruled         the type of the operator without a shape rule, by variable
    dims_at_writes  the extents of each assignment, by (block, operator, name)
    """

    program: Program
    where: str
    seen: Mapping[Key, tuple[Dims, ...]]
    cause: Mapping[Key, Key]
    unruled: Mapping[Key, str]
    written: Mapping[tuple[int, int, str], Dims]

    def dims(self, block: int, name: str) -> Dims:
        """Return the extents of a variable; None for an extent that is open or differs between assignments.

        Return None if the variable has no known rank.
        """
        home = self.program.home(block, name)
        every = self.seen.get((home, name), ()) if home is not None else ()
        common = every[0] if every else None
        for dims in every[1:]:
            common = joined(common, dims)
        return common

    def shape(self, block: int, name: str) -> tuple[int, ...]:
        """Return the extents of a variable with a single shape. Raises ModelError with advice if an extent is open."""
        dims = self.dims(block, name)
        if dims is None or None in dims:
            raise self._unknown(self._key(block, name), dims)
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
        for dims in self.seen.get(key, ()):
            if dims is None or None in dims:
                raise self._unknown(key, dims)
            most = max(most, bytes_of(dims, dtype))
        return most

    def dtype(self, block: int, name: str) -> DType | None:
        """Return the element type of a variable; a gradient without a type has that of its variable."""
        var = self.program.var(block, name)
        if var is not None and var.dtype is None and GRAD in name:
            var = self.program.var(block, name.partition(GRAD)[0]) or var
        return var.dtype if var is not None else None

    @property
    def unknown(self) -> tuple[Key, ...]:
        """The variables that cause open extents, each once."""
        return tuple(dict.fromkeys(self.cause.values()))

    def _key(self, block: int, name: str) -> Key:
        """Return the variable of a name used in a block. Raises ModelError for an undeclared name."""
        home = self.program.home(block, name)
        if home is None:
            raise ModelError(f"{self.where}: block {block} has no variable {name!r:.80}")
        return home, name

    def _unknown(self, key: Key, dims: Dims) -> ModelError:
        """Return the error for open extents, with the cause and advice."""
        block, name = self.cause.get(key, key)
        at_fault = self.dims(block, name)
        example = ",".join("1" if extent is None else str(extent) for extent in at_fault or (None,))
        why = f"operator {self.unruled[block, name]} has no shape rule" if (block, name) in self.unruled else "open"
        also = "" if (block, name) == key else f", which leaves {key[1]!r} {shown(dims)}"
        return ModelError(
            f"{self.where}: the extents of {name!r} in block {block} are {shown(at_fault)} ({why}){also}: tell them, "
            f"as --shape {name}={example} or shapes={{{name!r}: ...}}"
        )


def bound(
    program: Program,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    dims: Mapping[str, int] | None = None,
    where: str = "the program",
) -> Sizes:
    """Infer the extents of every variable.

    `shapes` has whole shapes by variable name: shapes of feeds, and of outputs without a shape rule. `dims` has single
    extents: `"x.0"` is the first extent of x, `"sequences"` the number of sequences in feeds with a level of detail.
    Raises ModelError for unknown names, and for extents in contradiction to the program.
    """
    walk = _Walk(program, where, _told(program, shapes or {}, dims or {}, where), (dims or {}).get(SEQUENCES))
    walk.steps = STEPS + STEPS_EACH * sum(len(block.ops) for block in program.blocks)
    walk.run(0, {})
    for block in program.blocks:
        for name in block.vars:
            if (block.index, name) not in walk.seen:
                walk.read(block.index, name, {})
    seen = {key: tuple(every) for key, every in walk.seen.items()}
    return Sizes(program, where, seen, walk.cause, walk.unruled, walk.written)


def _told(
    program: Program, shapes: Mapping[str, tuple[int, ...]], dims: Mapping[str, int], where: str
) -> dict[str, Dims]:
    """Return the requested extents by variable. Raises ModelError for unknown names and contradictions."""
    requested: dict[str, Dims] = dict(shapes)
    for name, extent in dims.items():
        if name == SEQUENCES:
            continue
        of, _, axis = name.rpartition(".")
        var = _anywhere(program, of)
        if var is None or not axis.isdigit() or int(axis) >= len(var.dims):
            raise ModelError(
                f"{where}: --dim {name}={extent} names no extent: say x.0=... for the first one of x, or sequences=..."
            )
        before = requested.get(of) or tuple(None if declared < 0 else declared for declared in var.dims)
        requested[of] = tuple(extent if i == int(axis) else other for i, other in enumerate(before))
    for name, given in requested.items():
        var = _anywhere(program, name)
        if var is None:
            open_ = [v.name for block in program.blocks for v in block.vars.values() if min(v.dims, default=0) < 0]
            advice = f"variables with open extents: {', '.join(open_[:8])}" if open_ else "no variable has open extents"
            raise ModelError(f"{where}: --shape {name}: there is no such variable ({advice})")
        declared = [None if extent < 0 else extent for extent in var.dims]
        if given is None or len(given) != len(declared) or any(
            a is not None and b is not None and a != b for a, b in zip(given, declared, strict=True)
        ):  # fmt: skip
            raise ModelError(f"{where}: {name!r} is declared as {shown(declared)}, so that it cannot be {shown(given)}")
        if any(extent is not None and extent < 0 for extent in given):
            raise ModelError(f"{where}: --shape {name}: an extent cannot be below 0")
    return requested


def _anywhere(program: Program, name: str) -> Var | None:
    """Return a variable of the name in any block, or None."""
    return next((block.vars[name] for block in program.blocks if name in block.vars), None)


def joined(a: Dims, b: Dims) -> Dims:
    """Return the extents common to two assignments; None if the ranks differ."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _meet(a: Dims, b: Dims) -> Dims:
    """Return the extents known from either operand; `a` where the operands differ."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        return a
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


@dataclass
class _Walk:
    """State of a shape inference over a program."""

    program: Program
    where: str
    told: Mapping[str, Dims]
    sequences: int | None
    seen: dict[Key, dict[Dims, None]] = field(default_factory=dict)
    cause: dict[Key, Key] = field(default_factory=dict)
    unruled: dict[Key, str] = field(default_factory=dict)
    written: dict[tuple[int, int, str], Dims] = field(default_factory=dict)
    homes: dict[Key, Key | None] = field(default_factory=dict)
    steps: int = 0

    def run(self, block: int, state: State) -> State:
        """Infer the extents in a block, and return the updated state."""
        for position, op in enumerate(self.program.blocks[block].ops):
            inner = op.block()
            self.steps -= 1
            if self.steps < 0:
                raise ModelError(f"{self.where}: its loops take too many rounds to find what they do to shapes")
            if inner is not None:
                self._control(inner, op, state)
            else:
                self._apply(block, position, op, state)
        return state

    def _control(self, inner: int, op: Op, state: State) -> None:
        """Infer the extents in the body of a branch, or iterate over the body of a loop until a fixpoint."""
        loop = op.type.startswith(("while", "recurrent"))
        while True:
            after = self.run(inner, dict(state))
            changed = False
            for key, now in after.items():
                before = state.get(key)
                both = now if before is None else _joined(before, now)
                changed |= both != before
                state[key] = both
            if not (loop and changed):
                return

    def key(self, block: int, name: str) -> Key | None:
        """Return the variable of a name used in a block, or None."""
        if (block, name) not in self.homes:
            home = self.program.home(block, name)
            self.homes[block, name] = None if home is None else (home, name)
        return self.homes[block, name]

    def read(self, block: int, name: str, state: State) -> Operand:
        """Return the known facts about a name: its last assignment, else its declaration."""
        key = self.key(block, name)
        if key is None:
            return Operand(None)
        operand = state.get(key)
        if operand is None:
            kind = self.program.blocks[key[0]].vars[name].kind
            operand = Operand(self._of_gradient(block, key, self._declared(key), state), None, kind == ROWS)
            self._note(key, operand.dims)
        return operand

    def _of_gradient(self, block: int, key: Key, dims: Dims, state: State) -> Dims:
        """Refine open extents of a gradient by the extents of its variable, found by name."""
        name = key[1]
        if GRAD not in name or (dims is not None and None not in dims):
            return dims
        of = self.key(block, name.partition(GRAD)[0])
        if of is None or self.program.blocks[key[0]].vars[name].kind == ROWS:
            return dims
        return _meet(dims, self.read(block, of[1], state).dims)

    def _declared(self, key: Key) -> Dims:
        """Return the requested extents of a variable, completed by the declaration."""
        var = self.program.blocks[key[0]].vars[key[1]]
        # some gradients in the body of a loop's gradient have a name, but no declared type
        named = var.kind == TENSOR and var.dtype is None and not var.dims
        declared = None if named else tuple(None if extent < 0 else extent for extent in var.dims)
        return _meet(self.told.get(key[1]), declared)

    def _note(self, key: Key, dims: Dims) -> None:
        """Note inferred extents of a variable."""
        self.seen.setdefault(key, {})[dims] = None
        if dims is None or None in dims:
            self.cause.setdefault(key, key)

    def _apply(self, block: int, position: int, op: Op, state: State) -> None:
        """Infer the outputs of an operator without a block."""
        inputs = {
            slot: [self.read(block, name, state) for name in names if name != EMPTY]
            for slot, names in op.inputs.items()
        }
        outputs = {slot: len(names) for slot, names in op.outputs.items()}
        call = Call(op.type, {name: a.value for name, a in op.attrs.items()}, inputs, outputs, self.sequences)
        try:
            inferred = results(call)
        except SpecError as error:
            title = f"block {block}, operator {position} ({op.type}"
            first = ", ".join(repr(name) for name in op.writes[:2])
            raise ModelError(f"{self.where}: {title}, which writes {first}) {error}") from None
        ruled = known(call)
        for slot, names in op.outputs.items():
            every = inferred.get(slot, ())
            for index, name in enumerate(names):
                key = self.key(block, name)
                if key is None or name == EMPTY:
                    continue
                result = every[index] if index < len(every) else Operand(None)
                result = replace(result, dims=self._refined(block, key, result.dims, state))
                self._write(block, position, key, result, op, ruled, state)

    def _refined(self, block: int, key: Key, dims: Dims, state: State) -> Dims:
        """Refine the extents inferred by a rule: by gradient name, by request, by declaration.

        Raises ModelError if a requested extent contradicts the rule.
        """
        name, declared = key[1], self._declared(key)
        if self.program.blocks[key[0]].vars[name].kind == ROWS:
            return dims
        dims = self._of_gradient(block, key, dims, state)
        given = self.told.get(name)
        if given is not None and dims is not None and _meet(given, dims) != _meet(dims, given):
            raise ModelError(f"{self.where}: {name!r} comes out as {shown(dims)}, so that it cannot be {shown(given)}")
        if dims is not None and declared is not None and {*dims, *declared} == {1}:
            return declared  # a single element: [] since 2.5, [1] before
        return _meet(dims, declared)

    def _write(self, block: int, position: int, key: Key, result: Operand, op: Op, ruled: bool, state: State) -> None:
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
        self._note(key, result.dims)
        before = self.written.get((block, position, key[1]), result.dims)
        self.written[block, position, key[1]] = joined(before, result.dims)
        state[key] = result


def _joined(a: Operand, b: Operand) -> Operand:
    """Return the facts common to two operands."""
    values = a.values if a.values == b.values else None
    return Operand(joined(a.dims, b.dims), values, a.selected or b.selected)
