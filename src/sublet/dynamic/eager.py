"""Computes commands at once, and records them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sublet.base.errors import KernelError, SpecError, SubletError
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import DType, TensorSpec
from sublet.dynamic import living
from sublet.dynamic.commands import Used, used
from sublet.dynamic.programs import WRITTEN, Program, Written
from sublet.dynamic.record import Applied, Result, Symbol
from sublet.dynamic.storage import Kind, Kinds, Pool, Storage
from sublet.dynamic.tensor import EagerTensor, Inner, Owner, not_known
from sublet.ir.graph import Value
from sublet.nn.graph import DTYPES, as_array
from sublet.nn.lines import Line, at_line, user_code
from sublet.nn.tensor import Tensor, told
from sublet.ops.nn.shapes import FLOATS
from sublet.runtime.dtypes import pack, packed
from sublet.runtime.kernel import Array, Backend


class Omitted:
    """Stands for an input that is left out."""

    _kind = _storage = symbol = None


OMITTED = Omitted()


class Eager:
    """Computes with the kernels of `backends`. What it makes are tensors of `owner`.

    recording  whether it records what gradients may ask for
    """

    def __init__(self, owner: Owner, backends: Sequence[Backend], quick: Sequence[Backend] = ()) -> None:
        """`quick` come before the others for single commands."""
        self._owner = owner
        self._backends = backends
        self._quick = quick
        self.kinds = Kinds()
        self.pool = Pool()
        self.recording = True
        self._used: dict[Any, Any] = {}
        self._programs: deque[Any] = deque()  # the keys of loops and branches
        self._numbers: dict[Any, EagerTensor] = {}
        self._beside: dict[Any, tuple[Used, EagerTensor, Any]] = {}  # commands beside numbers
        self._literals: dict[tuple[str, TensorSpec], tuple[Kind, Storage]] = {}
        self._applications = 0
        self.closed = False

    def close(self) -> None:
        """Compute no more."""
        self.closed = True
        self._used.clear()
        self._programs.clear()
        self._numbers.clear()
        self._beside.clear()
        self._literals.clear()
        self.pool.close()

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[EagerTensor, ...]:
        """The outputs of a command. Raises SpecError when it does not take such inputs, KernelError when it fails."""
        if len(inputs) == 2 and not attrs:
            made = self._pair(op, *inputs)
            if made is not None:
                return (made,)
        found, operands = self.find(op, inputs, attrs)
        recording = found.recorded and self.recording
        if self._owner.calling is not None or not living.remembers(found, operands):
            return self._apply(found, operands, recording)
        there = living.living(found, operands, recording)
        if there is None:
            there = self._apply(found, operands, recording)
            living.note(found, operands, recording, there)
        return there

    def _apply(self, found: Any, operands: Sequence[Any], recording: bool) -> tuple[EagerTensor, ...]:
        storages = [one._storage for one in operands]
        if None in storages:
            storages = [self._there(one) for one in operands]
        results = self.compute(found, storages)
        kinds, owner = found.outputs, self._owner
        if not recording:
            return tuple(map(EagerTensor, [owner] * len(kinds), kinds, results))
        symbols = [Symbol(kind, True) for kind in kinds]
        self.record(found, [one.symbol for one in operands], symbols, storages, results)
        return tuple(map(EagerTensor, [owner] * len(kinds), kinds, results, symbols))

    def _pair(self, op: str, a: Any, b: Any) -> EagerTensor | None:
        """What a command of two operands gives that is one function; None where that was not looked up before."""
        kept: Any = None
        try:
            if b.__class__ in NUMBERS:
                found, b, kept = self._beside[op, a._kind, b, b.__class__]
            elif a.__class__ in NUMBERS:
                found, a, kept = self._beside[op, a, a.__class__, b._kind]
            else:
                found = self._used[op, a._kind, b._kind]
            given = a._storage, b._storage
            direct = found.direct
            if direct is None:
                return None
            result = Storage(self.pool, found.kind)
            direct(given[0].view.array, given[1].view.array, result.view.array)
        except (KeyError, AttributeError, TypeError):
            return None
        if not (found.recorded and self.recording):
            return EagerTensor(self._owner, found.kind, result)
        if kept is None:
            reads, gives = found._keeps or found.keeps
            kept = [*[given[i] for i in reads], *[result for _ in gives]] if reads or gives else ()
        self._applications += 1
        symbols = a._symbol or a.symbol, b._symbol or b.symbol
        symbol = Result(found, symbols, kept, self._applications, user_code())
        return EagerTensor(self._owner, found.kind, result, symbol)

    def find(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        """The command for such inputs, and the inputs as tensors."""
        given = inputs
        try:
            key: Any = (op, *[one._kind for one in inputs])
        except AttributeError:
            inputs = self.operands(inputs)
            key = (op, *[one._kind for one in inputs])
        if attrs:
            key = (*key, repr(attrs))
        found = self._used.get(key)
        if found is None:
            found = self._used[key] = self._look_up(op, inputs, attrs)
            self._few_programs(key, found)
        if inputs is not given and len(inputs) == 2 and not attrs:
            self._note(op, found, given, inputs)
        return found, inputs

    def _note(self, op: str, found: Any, given: Sequence[Any], operands: Sequence[Any]) -> None:
        """Let a command beside a number be found at once the next time."""
        (a, b), (first, second) = given, operands
        if len(self._beside) >= MOST_NUMBERS:
            self._beside.clear()
        if b.__class__ in NUMBERS and b and a is first:  # 0.0 and -0.0 are one key, and two numbers
            self._beside[op, a._kind, b, b.__class__] = found, second, found.kept_beside(1, second._storage)
        elif a.__class__ in NUMBERS and a and b is second:
            self._beside[op, a, a.__class__, b._kind] = found, first, found.kept_beside(0, first._storage)

    def use(self, op: str, kinds: Sequence[Kind | None], attrs: Mapping[str, Any]) -> Any:
        """The command for inputs of such kinds."""
        key = (op, *kinds, repr(attrs)) if attrs else (op, *kinds)
        found = self._used.get(key)
        if found is None:
            found = self._used[key] = self._made_for(op, kinds, attrs)
            self._few_programs(key, found)
        return found

    def _few_programs(self, key: Any, made: Used | Program) -> None:
        """Keep the commands that were met last; few loops and branches, each of which has memory of its own."""
        if isinstance(made, Program):
            self._programs.append(key)
            if len(self._programs) > MOST_PROGRAMS:
                self._used.pop(self._programs.popleft(), None)
        if len(self._used) > MOST_COMMANDS:
            for old in list(self._used)[: MOST_COMMANDS // 2]:
                self._used.pop(old, None)

    def literal(self, value: Value) -> tuple[Kind, Storage]:
        """The elements of a constant, in memory."""
        assert value.literal is not None
        assert isinstance(value.spec, TensorSpec)
        if value.spec.size == 1:
            found = self._literals.get((repr(value.literal), value.spec))
            if found is not None:
                return found
        array = np.array(value.literal, NUMPY[value.spec.dtype]).reshape(value.spec.shape)
        made = self.stored(array)
        if value.spec.size == 1 and len(self._literals) < MOST_NUMBERS:
            self._literals[repr(value.literal), value.spec] = made
        return made

    def compute(self, found: Used, storages: Sequence[Storage | None]) -> list[Storage]:
        """What a command gives."""
        try:
            return found.run(storages, self.pool)
        except SubletError:
            raise
        except Exception as error:  # a kernel may raise anything
            raise KernelError(at_line(f"{found.node.op}: {type(error).__name__}: {error}")) from error

    def record(
        self,
        found: Used,
        inputs: Sequence[Symbol | None],
        outputs: Sequence[Symbol],
        given: Sequence[Storage | None],
        made: Sequence[Storage | None],
        line: Line | None = None,
    ) -> None:
        """Remember how the outputs were made, if a gradient can ask for it."""
        reads, gives = found.keeps
        kept = [*[given[i] for i in reads], *[made[i] for i in gives]] if reads or gives else ()
        self._applications += 1
        Applied(found, inputs, outputs, kept, self._applications, line or user_code())

    @property
    def applications(self) -> int:
        """How many commands were recorded so far."""
        return self._applications

    def made(self, array: Any, dtype: DType | None = None, *, held: bool = True) -> EagerTensor:
        """A tensor with a copy of an array."""
        kind, storage = self.stored(array, dtype)
        return EagerTensor(self._owner, kind, storage, None if held else Symbol(kind, False))

    def stored(self, content: Any, dtype: DType | None = None, kind: Kind | None = None) -> tuple[Kind, Storage]:
        """A copy of an array, in memory of the graph's own."""
        self.require_open()
        array = as_array(content, dtype)
        kind = kind or self.kinds.of(TensorSpec(DTYPES[array.dtype], array.shape))
        return kind, self.pool.filled(kind, _bytes(array, kind))

    def number(self, number: Any, dtype: DType) -> EagerTensor:
        """A number as a tensor of no axes; the same one for the same number."""
        key: Any = (type(number), number, dtype) if number else (type(number), repr(number), dtype)
        found = self._numbers.get(key)
        if found is None:
            found = self.made(number, dtype, held=False)
            if len(self._numbers) >= MOST_NUMBERS:
                self._numbers.clear()
            self._numbers[key] = found
        return found

    def operands(self, inputs: Sequence[Any]) -> list[Any]:
        """Tensors, and OMITTED: numbers and arrays become tensors of the type of the first tensor."""
        self.require_open()
        kinds = [one.dtype for one in inputs if isinstance(one, Tensor)]
        like = next((kind for kind in kinds if kind is not DType.BOOL), None)
        return [self._operand(one, like) for one in inputs]

    def _operand(self, given: Any, like: DType | None) -> Any:
        if given is None or given is OMITTED:
            return OMITTED
        if isinstance(given, Tensor):
            if given.graph is not self._owner:
                raise SpecError(at_line(f"{told(given)} belongs to another graph"))
            if isinstance(given, Inner):
                raise not_known(given)
            return given
        if not isinstance(given, bool | int | float | np.generic):
            return self.made(given, held=False)
        return self.number(given, number_type(given, like))

    def _there(self, one: Any) -> Storage | None:
        if one is OMITTED or one._storage is not None:
            found: Storage | None = one._storage
            return found
        return self._owner.observed(one)

    def _look_up(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Used | Program:
        self.require_open()
        return self._made_for(op, [one._kind for one in self.operands(inputs)], attrs)

    def _made_for(self, op: str, kinds: Sequence[Kind | None], attrs: Mapping[str, Any]) -> Used | Program:
        values = [None if kind is None else Value(f"x{i}", kind.spec) for i, kind in enumerate(kinds)]
        written = attrs.get(WRITTEN)
        try:
            if isinstance(written, Written):
                return Program(written, self.kinds, self._backends)
            return used(op, values, dict(attrs), [*self._quick, *self._backends], self.kinds)
        except SubletError as error:
            named = "" if str(error).startswith(op) else f"{op}: "
            raise SpecError(at_line(f"{named}{error}")) from None

    def require_open(self) -> None:
        """Raise SpecError when the graph was closed."""
        if self.closed:
            raise SpecError(at_line("the dynamic graph was closed: its tensors cannot be computed with any more"))


NUMBERS = frozenset({int, float})

MOST_PROGRAMS = 64
"""Loops and branches whose plans are kept, to compute them at once."""

MOST_COMMANDS = 2048
"""Commands whose kernels are kept, one for each combination of operands. Beyond these the older half is forgotten."""

MOST_NUMBERS = 4096
"""Numbers of Python's that are kept as tensors."""


def number_type(given: Any, like: DType | None) -> DType:
    """The type that a number of Python's takes beside a tensor. Raises SpecError where that is not clear."""
    if like is None and isinstance(given, bool | np.bool_):
        return DType.BOOL
    if like is None:
        raise SpecError(at_line(f"the type of {told(given)} is not clear here: use d.constant"))
    if like not in FLOATS and isinstance(given, float | np.floating):
        raise SpecError(at_line(f"{told(given)} would be cut to a number of {like}: take astype('f32') of the tensor"))
    return like


def _bytes(array: Array, kind: Kind) -> Array:
    return pack(array, kind.spec) if packed(kind.spec) else array
