"""Tensors of a dynamic graph: elements are available as soon as the tensor exists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from sublet.base.arrays import is_packed, unpacked_elements
from sublet.base.dlpack import CPU, SharedArray
from sublet.base.errors import RunError, SpecError
from sublet.base.tensor import INTEGERS, DType
from sublet.dynamic.exclusive_access import ExclusiveAccess
from sublet.dynamic.gradient_record import Symbol
from sublet.dynamic.tensor_storage import TensorKind, TensorStorage
from sublet.ir.graph import Value
from sublet.nn.level_stack import GraphLevel
from sublet.nn.source_location import at_line
from sublet.nn.tensor import Tensor, describe
from sublet.runtime.kernel import Array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_SHOWN_ELEMENTS = 60
"""Maximum number of elements shown in full by `repr`."""


class CommandExecutor(Protocol):
    """An executor of commands: at once, in a call of a jit function, or in a loop or branch under construction."""

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[EagerTensor, ...]:
        """Return the outputs of a command."""


class TensorOwner(Protocol):
    """The interface of a dynamic graph for its tensors: commands go to `calling`, or without a call to `_eager`."""

    @property
    def calling(self) -> Any:
        """The call or block in progress; None without one."""

    @property
    def exclusive_access(self) -> ExclusiveAccess:
        """The exclusive use of the graph."""

    @property
    def _eager(self) -> CommandExecutor:
        """The executor computing at once."""

    @property
    def prefix(self) -> str:
        """The prefix of new names: the open scopes."""

    def apply(self, op: str, *inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
        """Return the outputs of a command."""

    def constant(self, content: Any, dtype: DType | str | None = None) -> Tensor:
        """Return a number or an array as a tensor."""

    def materialize(self, tensor: EagerTensor) -> TensorStorage:
        """Return the storage of a tensor observed by the user; a deferred tensor is computed first."""

    def detach(self, tensor: EagerTensor) -> EagerTensor:
        """Return a tensor of the same elements without gradients."""


class EagerTensor(Tensor):
    """A tensor of a `DynamicGraph`. Operators compute at once, and the elements can be observed as of a NumPy array."""

    __slots__ = ("__weakref__", "_call", "_kind", "_slot", "_storage", "_symbol", "results")
    graph: TensorOwner

    def __init__(
        self,
        graph: TensorOwner,
        kind: TensorKind,
        storage: TensorStorage | None,
        symbol: Symbol | None = None,
        call: Any = None,
        slot: int = -1,
    ) -> None:
        self.graph = graph
        self._kind = kind
        self._storage = storage
        self._symbol = symbol
        self._call = call
        self._slot = slot
        self.results: dict[Any, Any] | None = None  # the table of live results, see `live_results`

    def __del__(self) -> None:
        symbol = self._symbol
        if symbol is not None and symbol.held:
            symbol.release_handle()

    @property
    def symbol(self) -> Symbol:
        """The symbol of the tensor in the record, created on demand."""
        symbol = self._symbol
        if symbol is None:
            symbol = self._symbol = Symbol(self._kind, True)
        return symbol

    def _apply(self, op: str, *inputs: Any, **attrs: Any) -> Tensor:
        graph = self.graph
        presence = graph.exclusive_access
        if not presence.acquire(False):
            presence.enter()
        try:
            return (graph.calling or graph._eager).apply(op, inputs, attrs)[0]
        finally:
            presence.leave()

    @property
    def value(self) -> Value:  # type: ignore[override]
        """A value with the spec of the tensor."""
        return Value(self.name, self._kind.spec)

    @property
    def name(self) -> str:
        """The name for messages."""
        return "tensor"

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes."""
        return self._kind.spec.shape

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._kind.dtype

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._kind.spec.size

    def __repr__(self) -> str:
        try:
            array = self._array()
        except RunError:
            return f"Tensor({self._kind.spec}, not computed)"
        shown = np.array2string(array, threshold=MAX_SHOWN_ELEMENTS, edgeitems=3, separator=", ", prefix="Tensor(")
        return f"Tensor({shown}, {self._kind.spec})"

    def _describe(self) -> str:
        """Return a description without the elements."""
        return f"Tensor({self._kind.spec})"

    def _array(self) -> Array:
        """Return the elements as an array over the storage, valid until the next computation."""
        array = self.graph.materialize(self).view.array
        return unpacked_elements(array, self._kind.spec) if is_packed(self._kind.spec) else array

    def numpy(self) -> Array:
        """Return the elements as a new array."""
        return np.array(self._array())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array of a tensor is a copy")
        return np.array(self._array(), dtype)

    def __dlpack__(self, **asked: Any) -> Any:
        """Return a copy of the elements for DLPack: the memory of a tensor may be overwritten later."""
        return SharedArray(self.numpy()).__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def item(self) -> Any:
        """Return the only element as a Python number. Raises SpecError for a tensor of several elements."""
        return self._single_element("a number").item()

    def tolist(self) -> Any:
        """Return the elements as nested lists."""
        return self._array().tolist()

    def _single_element(self, what: str) -> Array:
        """Return the array of a single element. Raises SpecError for another number of elements."""
        if self._kind.spec.size != 1:
            raise SpecError(
                at_line(f"{self._kind.spec} has {self._kind.spec.size} elements, not one: it cannot be {what}")
            )
        return self._array()

    def __bool__(self) -> bool:
        return bool(self._single_element("true or false; use (...).sum() or nn.all"))

    def __float__(self) -> float:
        return float(self._single_element("a number").item())

    def __int__(self) -> int:
        return int(self._single_element("a number").item())

    def __index__(self) -> int:
        if self._kind.dtype not in INTEGERS:
            raise TypeError(f"{self._kind.spec} is not an integer")
        return int(self)

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if form else repr(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def detach(self) -> EagerTensor:
        """Return a tensor of the same elements without gradients."""
        return self.graph.detach(self)


class NumberTensor(EagerTensor):
    """A Python number as a tensor: the result of `DynamicGraph.constant` in a jit function."""

    __slots__ = ("number",)

    def __init__(self, owner: TensorOwner, like: EagerTensor, number: Any) -> None:
        super().__init__(owner, like._kind, like._storage, Symbol(like._kind, False))
        self.number = number


class Parameter(EagerTensor):
    """A parameter or state of a `DynamicGraph`, with a name and a content changed by updates.

    bound_storage   the fixed memory used by plans, once a plan exists
    declared_as     shape, type and `trained` as passed by the first request
    trained         False for a state
    """

    __slots__ = ("_full_name", "bound_storage", "declared_as", "trained")

    def __init__(
        self, graph: TensorOwner, kind: TensorKind, storage: TensorStorage, symbol: Symbol, full: str, trained: bool
    ) -> None:
        super().__init__(graph, kind, storage, symbol)
        self._full_name = full
        self.trained = trained
        self.bound_storage: TensorStorage | None = None  # the fixed memory for plans
        self.declared_as: Any = None  # shape, type and `trained` of the first request

    @property
    def name(self) -> str:
        """The full name, with scopes."""
        return self._full_name

    def take(self, storage: TensorStorage) -> None:
        """Set another content, without gradients to the values the content was computed from."""
        before = self._symbol
        self._storage = storage
        self._symbol = Symbol(self._kind, True)
        if before is not None:
            before.release_handle()


class BlockTensor(Tensor):
    """A value of a body or arm under construction: without known elements, and unusable outside of the body or arm."""

    __slots__ = ("level",)

    def __init__(self, graph: Any, value: Value, level: GraphLevel) -> None:
        super().__init__(graph, value)
        self.level = level

    def _not_there(self, *_: Any, **__: Any) -> NoReturn:
        """Raise SpecError: the value has no elements before the loop or branch is complete."""
        where = f"is computed in {self.level.description}, and cannot be read there"
        raise SpecError(at_line(f"{describe(self)} {where}: read a result after the loop or branch"))

    __bool__ = __int__ = __float__ = __array__ = __index__ = item = numpy = tolist = _not_there


def unknown_outside_error(tensor: BlockTensor) -> SpecError:
    """Return the error for a value used outside of its body or arm."""
    what = f"{describe(tensor)} belongs to {tensor.level.description} and cannot be used outside"
    return SpecError(at_line(f"{what}: use a result of the loop or branch instead"))


def require_own_tensors(graph: object, given: Sequence[Any]) -> list[EagerTensor]:
    """Return the tensors. Raises SpecError for an object other than a tensor and for a tensor of another graph."""
    for tensor in given:
        if not isinstance(tensor, Tensor):
            hint = (
                ": convert it with d.tensor"
                if isinstance(tensor, bool | int | float | list | np.ndarray | np.generic)
                else ""
            )
            raise SpecError(at_line(f"{type(tensor).__name__} is not a Tensor{hint}"))
        if tensor.graph is not graph:
            raise SpecError(at_line(f"{describe(tensor)} belongs to another graph"))
        if isinstance(tensor, BlockTensor):
            raise unknown_outside_error(tensor)
    return list(given)
