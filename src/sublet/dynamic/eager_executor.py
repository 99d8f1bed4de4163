"""Execution of commands at once, and recording for gradients."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

import numpy as np

from sublet.base.arrays import is_packed, pack
from sublet.base.errors import KernelError, SpecError, SubletError
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.dynamic.control_flow_commands import PROGRAM_ATTR, ControlFlowCommand, WrittenControlFlow
from sublet.dynamic.gradient_record import RecordedApplication, SingleResult, Symbol
from sublet.dynamic.specialized_commands import SpecializedCommand, specialize_command
from sublet.dynamic.tensor import BlockTensor, EagerTensor, TensorOwner, unknown_outside_error
from sublet.dynamic.tensor_storage import BlockPool, KindRegistry, TensorKind, TensorStorage
from sublet.ir.graph import Value
from sublet.nn.graph import DTYPE_OF_NUMPY, as_array
from sublet.nn.source_location import CodePosition, at_line, user_position
from sublet.nn.tensor import Tensor, describe
from sublet.ops import lookup
from sublet.ops.nn import random
from sublet.ops.nn.command import PREFIX
from sublet.ops.nn.rules import FLOATS
from sublet.runtime.kernel import Array, Backend

# Reuse of live results: the same command on the same tensors returns the earlier results without computing.
#
# Each tensor has a table of the results with the tensor as first operand, by weak references, so that the table keeps
# nothing alive. Excluded are parameters, as their memory is overwritten; random commands; and commands cheaper to
# compute than to look up.

RANDOM_COMMANDS = frozenset(PREFIX + record.name for record in random.COMMANDS)

PURGE_FROM = 64
"""Results of one tensor from which dead results are removed, and again at each doubling of the number of results."""


def is_reusable(command: Any, operands: Sequence[Any]) -> bool:
    """True if results of a command on these operands are kept for reuse."""
    if command.direct is not None or not operands or not all(type(one) is EagerTensor for one in operands):
        return False
    op = command.node.op
    return op not in RANDOM_COMMANDS and bool(command.node.subgraphs or lookup(op).pure)


def find_live_results(command: Any, operands: Sequence[EagerTensor], recording: bool) -> tuple[EagerTensor, ...] | None:
    """Return the earlier results of a command on the operands, if all results are still alive; None otherwise."""
    first, *others = operands
    entry = first.results and first.results.get((command, recording, *map(id, others)))
    if not entry:
        return None
    given, results = entry
    tensors = tuple(one() for one in results)
    if any(one is None for one in tensors) or any(one() is not other for one, other in zip(given, others, strict=True)):
        return None
    return tensors


def remember_results(
    command: Any, operands: Sequence[EagerTensor], recording: bool, tensors: Sequence[EagerTensor]
) -> None:
    """Store weak references to the results of a command."""
    first, *others = operands
    results = first.results
    if results is None:
        results = first.results = {}
    results[(command, recording, *map(id, others))] = tuple(map(ref, others)), tuple(map(ref, tensors))
    count = len(results)
    if count >= PURGE_FROM and not count & (count - 1):
        dead = [key for key, (_, cached) in results.items() if any(one() is None for one in cached)]
        for key in dead:
            del results[key]


class Omitted:
    """The marker of an omitted input."""

    _kind = _storage = symbol = None


OMITTED = Omitted()


class EagerExecutor:
    """The executor of commands of a dynamic graph, by the kernels of `backends`. Results are tensors of `owner`.

    recording  True if commands are recorded for gradients
    kinds      the kinds of tensors in use
    pool       the memory of tensors
    closed     True after `close`
    """

    def __init__(self, owner: TensorOwner, backends: Sequence[Backend], quick: Sequence[Backend] = ()) -> None:
        """Create an executor. For single commands the backends in `quick` are asked before `backends`."""
        self._owner = owner
        self._backends = backends
        self._quick = quick
        self.kinds = KindRegistry()
        self.pool = BlockPool()
        self.recording = True
        self._used: dict[Any, Any] = {}
        self._programs: deque[Any] = deque()  # keys of loops and branches, oldest first
        self._numbers: dict[Any, EagerTensor] = {}
        self._beside: dict[Any, tuple[SpecializedCommand, EagerTensor, Any]] = {}  # commands with a number operand
        self._literals: dict[tuple[str, TensorSpec], tuple[TensorKind, TensorStorage]] = {}
        self._applications = 0
        self.closed = False

    def close(self) -> None:
        """Forget all kernels and free memory; computing raises SpecError from now on."""
        self.closed = True
        self._used.clear()
        self._programs.clear()
        self._numbers.clear()
        self._beside.clear()
        self._literals.clear()
        self.pool.close()

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[EagerTensor, ...]:
        """Compute a command and return the outputs; return live outputs of an equal earlier application instead.

        Raises SpecError for inputs not accepted by the command, KernelError for a failed kernel.
        """
        if len(inputs) == 2 and not attrs:
            result = self._apply_binary(op, *inputs)
            if result is not None:
                return (result,)
        command, operands = self.find(op, inputs, attrs)
        recording = command.recorded and self.recording
        if self._owner.calling is not None or not is_reusable(command, operands):
            return self._apply(command, operands, recording)
        results = find_live_results(command, operands, recording)
        if results is None:
            results = self._apply(command, operands, recording)
            remember_results(command, operands, recording, results)
        return results

    def _apply(self, command: Any, operands: Sequence[Any], recording: bool) -> tuple[EagerTensor, ...]:
        """Compute a specialized command, and record the application if a gradient can pass through."""
        storages = [one._storage for one in operands]
        if None in storages:
            storages = [self._storage_of(one) for one in operands]
        results = self.compute(command, storages)
        kinds, owner = command.outputs, self._owner
        if not recording:
            return tuple(map(EagerTensor, [owner] * len(kinds), kinds, results))
        symbols = [Symbol(kind, True) for kind in kinds]
        self.record(command, [one.symbol for one in operands], symbols, storages, results)
        return tuple(map(EagerTensor, [owner] * len(kinds), kinds, results, symbols))

    def _apply_binary(self, op: str, a: Any, b: Any) -> EagerTensor | None:
        """Compute a command of two operands by one function of arrays; None if the command must be looked up first."""
        saved: Any = None
        try:
            if b.__class__ in NUMBER_TYPES:
                command, b, saved = self._beside[op, a._kind, b, b.__class__]
            elif a.__class__ in NUMBER_TYPES:
                command, a, saved = self._beside[op, a, a.__class__, b._kind]
            else:
                command = self._used[op, a._kind, b._kind]
            given = a._storage, b._storage
            direct = command.direct
            if direct is None:
                return None
            result = TensorStorage(self.pool, command.kind)
            direct(given[0].view.array, given[1].view.array, result.view.array)
        except (KeyError, AttributeError, TypeError):
            return None
        if not (command.recorded and self.recording):
            return EagerTensor(self._owner, command.kind, result)
        if saved is None:
            reads, gives = command._keeps or command.keeps
            saved = [*[given[i] for i in reads], *[result for _ in gives]] if reads or gives else ()
        self._applications += 1
        symbols = a._symbol or a.symbol, b._symbol or b.symbol
        symbol = SingleResult(command, symbols, saved, self._applications, user_position())
        return EagerTensor(self._owner, command.kind, result, symbol)

    def find(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        """Return the command specialized for the inputs, and the inputs as tensors."""
        given = inputs
        try:
            key: Any = (op, *[one._kind for one in inputs])
        except AttributeError:
            inputs = self.operands(inputs)
            key = (op, *[one._kind for one in inputs])
        if attrs:
            key = (*key, repr(attrs))
        command = self._used.get(key)
        if command is None:
            command = self._used[key] = self._command_for_operands(op, inputs, attrs)
            self._evict_commands(key, command)
        if inputs is not given and len(inputs) == 2 and not attrs:
            self._cache_with_number(op, command, given, inputs)
        return command, inputs

    def _cache_with_number(self, op: str, command: Any, given: Sequence[Any], operands: Sequence[Any]) -> None:
        """Cache a command with a number operand by the number, for `_apply_binary`."""
        (a, b), (first, second) = given, operands
        if len(self._beside) >= MAX_CACHED_NUMBERS:
            self._beside.clear()
        if (
            b.__class__ in NUMBER_TYPES and b and a is first
        ):  # not zero: 0.0 and -0.0 are equal keys of different numbers
            self._beside[op, a._kind, b, b.__class__] = command, second, command.saved_beside_number(1, second._storage)
        elif a.__class__ in NUMBER_TYPES and a and b is second:
            self._beside[op, a, a.__class__, b._kind] = command, first, command.saved_beside_number(0, first._storage)

    def command_for_kinds(self, op: str, kinds: Sequence[TensorKind | None], attrs: Mapping[str, Any]) -> Any:
        """Return the command specialized for inputs of certain kinds."""
        key = (op, *kinds, repr(attrs)) if attrs else (op, *kinds)
        command = self._used.get(key)
        if command is None:
            command = self._used[key] = self._make_command(op, kinds, attrs)
            self._evict_commands(key, command)
        return command

    def _evict_commands(self, key: Any, command: SpecializedCommand | ControlFlowCommand) -> None:
        """Evict commands beyond the limits.

        Beyond MAX_CACHED_PROGRAMS the oldest loop or branch is evicted, as each has an arena. Beyond
        MAX_CACHED_COMMANDS the older half of all commands is evicted.
        """
        if isinstance(command, ControlFlowCommand):
            self._programs.append(key)
            if len(self._programs) > MAX_CACHED_PROGRAMS:
                self._used.pop(self._programs.popleft(), None)
        if len(self._used) > MAX_CACHED_COMMANDS:
            for old in list(self._used)[: MAX_CACHED_COMMANDS // 2]:
                self._used.pop(old, None)

    def literal(self, value: Value) -> tuple[TensorKind, TensorStorage]:
        """Return the kind and the storage of a constant."""
        assert value.literal is not None
        assert isinstance(value.spec, TensorSpec)
        if value.spec.size == 1:
            known = self._literals.get((repr(value.literal), value.spec))
            if known is not None:
                return known
        array = np.array(value.literal, NUMPY[value.spec.dtype]).reshape(value.spec.shape)
        stored = self.store_array(array)
        if value.spec.size == 1 and len(self._literals) < MAX_CACHED_NUMBERS:
            self._literals[repr(value.literal), value.spec] = stored
        return stored

    def compute(self, command: SpecializedCommand, storages: Sequence[TensorStorage | None]) -> list[TensorStorage]:
        """Run a command and return the results. Raises KernelError for any error other than Sublet's."""
        try:
            return command.run(storages, self.pool)
        except SubletError:
            raise
        except Exception as error:  # a kernel may raise anything
            raise KernelError(at_line(f"{command.node.op}: {type(error).__name__}: {error}")) from error

    def record(
        self,
        command: SpecializedCommand,
        inputs: Sequence[Symbol | None],
        outputs: Sequence[Symbol],
        operands: Sequence[TensorStorage | None],
        results: Sequence[TensorStorage | None],
        line: CodePosition | None = None,
    ) -> None:
        """Record an application for gradients, with the storages read by the gradient rule."""
        reads, gives = command.keeps
        kept = [*[operands[i] for i in reads], *[results[i] for i in gives]] if reads or gives else ()
        self._applications += 1
        RecordedApplication(command, inputs, outputs, kept, self._applications, line or user_position())

    @property
    def application_count(self) -> int:
        """The number of commands recorded so far."""
        return self._applications

    def tensor_from_array(self, array: Any, dtype: DType | None = None, *, held: bool = True) -> EagerTensor:
        """Return a tensor with a copy of an array or a number. `held` is False for a constant operand."""
        kind, storage = self.store_array(array, dtype)
        return EagerTensor(self._owner, kind, storage, None if held else Symbol(kind, False))

    def store_array(
        self, content: Any, dtype: DType | None = None, kind: TensorKind | None = None
    ) -> tuple[TensorKind, TensorStorage]:
        """Return the kind and the storage of a copy of an array, in memory of the graph."""
        self.require_open()
        array = as_array(content, dtype)
        kind = kind or self.kinds.kind_of(TensorSpec(DTYPE_OF_NUMPY[array.dtype], array.shape))
        return kind, self.pool.store_copy(kind, _as_stored(array, kind))

    def number(self, number: Any, dtype: DType) -> EagerTensor:
        """Return a number as a tensor without axes; the same tensor for an equal number."""
        key: Any = (type(number), number, dtype) if number else (type(number), repr(number), dtype)
        tensor = self._numbers.get(key)
        if tensor is None:
            tensor = self.tensor_from_array(number, dtype, held=False)
            if len(self._numbers) >= MAX_CACHED_NUMBERS:
                self._numbers.clear()
            self._numbers[key] = tensor
        return tensor

    def operands(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs as tensors, or OMITTED. Numbers take the type of the first tensor other than bool."""
        self.require_open()
        kinds = [one.dtype for one in inputs if isinstance(one, Tensor)]
        like = next((kind for kind in kinds if kind is not DType.BOOL), None)
        return [self._operand(one, like) for one in inputs]

    def _operand(self, given: Any, like: DType | None) -> Any:
        """Return an input as a tensor. Raises SpecError for a tensor of another graph or of an open loop or branch."""
        if given is None or given is OMITTED:
            return OMITTED
        if isinstance(given, Tensor):
            if given.graph is not self._owner:
                raise SpecError(at_line(f"{describe(given)} belongs to another graph"))
            if isinstance(given, BlockTensor):
                raise unknown_outside_error(given)
            return given
        if not isinstance(given, bool | int | float | np.generic):
            return self.tensor_from_array(given, held=False)
        return self.number(given, number_type(given, like))

    def _storage_of(self, one: Any) -> TensorStorage | None:
        """Return the storage of an operand, computed first if deferred; None for an omitted operand."""
        if one is OMITTED or one._storage is not None:
            found: TensorStorage | None = one._storage
            return found
        return self._owner.materialize(one)

    def _command_for_operands(
        self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]
    ) -> SpecializedCommand | ControlFlowCommand:
        """Return the command specialized for operands."""
        self.require_open()
        return self._make_command(op, [one._kind for one in self.operands(inputs)], attrs)

    def _make_command(
        self, op: str, kinds: Sequence[TensorKind | None], attrs: Mapping[str, Any]
    ) -> SpecializedCommand | ControlFlowCommand:
        """Return a new specialized command. Raises SpecError, beginning with the user's line."""
        values = [None if kind is None else Value(f"x{i}", kind.spec) for i, kind in enumerate(kinds)]
        written = attrs.get(PROGRAM_ATTR)
        try:
            if isinstance(written, WrittenControlFlow):
                return ControlFlowCommand(written, self.kinds, self._backends)
            return specialize_command(op, values, dict(attrs), [*self._quick, *self._backends], self.kinds)
        except SubletError as error:
            prefix = "" if str(error).startswith(op) else f"{op}: "
            raise SpecError(at_line(f"{prefix}{error}")) from None

    def require_open(self) -> None:
        """Raise SpecError for a closed graph."""
        if self.closed:
            raise SpecError(at_line("the dynamic graph is closed: its tensors cannot be used any more"))


NUMBER_TYPES = frozenset({int, float})

MAX_CACHED_PROGRAMS = 64
"""Maximum number of loops and branches with cached plans; beyond, the oldest is evicted."""

MAX_CACHED_COMMANDS = 2048
"""Maximum number of cached commands, one for each combination of operand kinds and attributes; beyond, the older half
is evicted."""

MAX_CACHED_NUMBERS = 4096
"""Maximum number of Python numbers cached as tensors; beyond, the cache is cleared."""


def number_type(given: Any, like: DType | None) -> DType:
    """Return the type of a Python number next to a tensor of type `like`.

    Raises SpecError for a number without a tensor, except a bool, and for a float next to integers.
    """
    if like is None and isinstance(given, bool | np.bool_):
        return DType.BOOL
    if like is None:
        raise SpecError(at_line(f"the type of {describe(given)} cannot be inferred: convert with d.constant"))
    if like not in FLOATS and isinstance(given, float | np.floating):
        raise SpecError(
            at_line(f"{describe(given)} would be rounded to a number of {like}: call astype('f32') on the tensor first")
        )
    return like


def _as_stored(array: Array, kind: TensorKind) -> Array:
    """Return an array as stored: types below 8 bits packed."""
    return pack(array, kind.spec) if is_packed(kind.spec) else array
