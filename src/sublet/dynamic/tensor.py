"""A tensor of a dynamic graph: its elements are there as soon as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from sublet.base.dlpack import CPU, Shared
from sublet.base.errors import RunError, SpecError
from sublet.base.tensor import INTEGERS, DType
from sublet.dynamic.presence import Presence
from sublet.dynamic.record import Symbol
from sublet.dynamic.storage import Kind, Storage
from sublet.ir.graph import Value
from sublet.nn.levels import Level
from sublet.nn.lines import at_line
from sublet.nn.tensor import Tensor, told
from sublet.runtime.dtypes import packed, plain
from sublet.runtime.kernel import Array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHOWN = 60
"""Elements that `repr` shows all of."""


class Computing(Protocol):
    """What computes commands, at once or in a remembered call."""

    def apply(self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> tuple[EagerTensor, ...]:
        """The outputs of a command."""


class Owner(Protocol):
    """The graph of a tensor, as the tensor sees it: what it is `calling`, or else its `_eager`, computes."""

    @property
    def calling(self) -> Any:
        """The remembered call that goes on."""

    @property
    def presence(self) -> Presence:
        """The right to be in the graph."""

    @property
    def _eager(self) -> Computing:
        """What computes at once."""

    def apply(self, op: str, *inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
        """The outputs of a command."""

    def observed(self, tensor: EagerTensor) -> Storage:
        """What a tensor holds, computed if it was put off, for the user to see."""

    def detached(self, tensor: EagerTensor) -> EagerTensor:
        """The same elements, through which no gradient goes."""


class EagerTensor(Tensor):
    """A tensor of a `DynamicGraph`. What Tensor writes, it computes; and it can be looked at, like a NumPy array."""

    __slots__ = ("__weakref__", "_call", "_kind", "_slot", "_storage", "_symbol", "results")
    graph: Owner

    def __init__(
        self,
        graph: Owner,
        kind: Kind,
        storage: Storage | None,
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
        self.results: dict[Any, Any] | None = None  # what was computed of it, see `living`

    def __del__(self) -> None:
        symbol = self._symbol
        if symbol is not None and symbol.held:
            symbol.dropped()

    @property
    def symbol(self) -> Symbol:
        """What it is in the record: of what was not recorded, made when it is asked for."""
        found = self._symbol
        if found is None:
            found = self._symbol = Symbol(self._kind, True)
        return found

    def _apply(self, op: str, *inputs: Any, **attrs: Any) -> Tensor:
        graph = self.graph
        presence = graph.presence
        if not presence.acquire(False):
            presence.enter()
        try:
            return (graph.calling or graph._eager).apply(op, inputs, attrs)[0]
        finally:
            presence.leave()

    @property
    def value(self) -> Value:  # type: ignore[override]
        return Value(self.name, self._kind.spec)

    @property
    def name(self) -> str:
        return "tensor"

    @property
    def shape(self) -> tuple[int, ...]:
        return self._kind.spec.shape

    @property
    def dtype(self) -> DType:
        return self._kind.dtype

    @property
    def size(self) -> int:
        return self._kind.spec.size

    def __repr__(self) -> str:
        try:
            array = self._array()
        except RunError:
            return f"Tensor({self._kind.spec}, not computed)"
        shown = np.array2string(array, threshold=SHOWN, edgeitems=3, separator=", ", prefix="Tensor(")
        return f"Tensor({shown}, {self._kind.spec})"

    def _told(self) -> str:
        return f"Tensor({self._kind.spec})"

    def _array(self) -> Array:
        """The elements where they lie, good until somebody else runs."""
        array = self.graph.observed(self).view.array
        return plain(array, self._kind.spec) if packed(self._kind.spec) else array

    def numpy(self) -> Array:
        """The elements, as an array of the caller's own."""
        return np.array(self._array())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("an array of a tensor is a copy")
        return np.array(self._array(), dtype)

    def __dlpack__(self, **asked: Any) -> Any:
        """A copy of the elements for any library with DLPack: what a tensor holds may be computed over later."""
        return Shared(self.numpy()).__dlpack__(**asked)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def item(self) -> Any:
        """The only element, as a number of Python's."""
        return self._only("a number").item()

    def tolist(self) -> Any:
        """The elements as nested lists."""
        return self._array().tolist()

    def _only(self, what: str) -> Array:
        if self._kind.spec.size != 1:
            raise SpecError(at_line(f"{self._kind.spec} has {self._kind.spec.size} elements, and is not {what}"))
        return self._array()

    def __bool__(self) -> bool:
        return bool(self._only("true or false; take (...).sum() or nn.all"))

    def __float__(self) -> float:
        return float(self._only("a number").item())

    def __int__(self) -> int:
        return int(self._only("a number").item())

    def __index__(self) -> int:
        if self._kind.dtype not in INTEGERS:
            raise TypeError(f"{self._kind.spec} is no integer")
        return int(self)

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if form else repr(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of no axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def detach(self) -> EagerTensor:
        """The same elements, through which no gradient goes."""
        return self.graph.detached(self)


class NumberTensor(EagerTensor):
    """A number of Python's as a tensor: what a graph gives for a constant in a remembered call."""

    __slots__ = ("number",)

    def __init__(self, owner: Owner, like: EagerTensor, number: Any) -> None:
        super().__init__(owner, like._kind, like._storage, Symbol(like._kind, False))
        self.number = number


class Parameter(EagerTensor):
    """A parameter or state of a `DynamicGraph`: it has a name, and `update` changes what it holds."""

    __slots__ = ("_full", "asked", "home", "trained")

    def __init__(self, graph: Owner, kind: Kind, storage: Storage, symbol: Symbol, full: str, trained: bool) -> None:
        super().__init__(graph, kind, storage, symbol)
        self._full = full
        self.trained = trained
        self.home: Storage | None = None  # where plans have it
        self.asked: Any = None  # shape and type as they were asked for first

    @property
    def name(self) -> str:
        return self._full

    def take(self, storage: Storage) -> None:
        """Hold another content, through which no gradient goes to what it was made of."""
        before = self._symbol
        self._storage = storage
        self._symbol = Symbol(self._kind, True)
        if before is not None:
            before.dropped()


class Inner(Tensor):
    """A value of a body or arm that is being written: nobody knows what it holds, and nobody knows it outside."""

    __slots__ = ("level",)

    def __init__(self, graph: Any, value: Value, level: Level) -> None:
        super().__init__(graph, value)
        self.level = level

    def _not_there(self, *_: Any, **__: Any) -> NoReturn:
        where = f"is what {self.level.what} computes, each time anew"
        raise SpecError(at_line(f"{told(self)} {where}: look at what the loop or branch gives, when it is over"))

    __bool__ = __int__ = __float__ = __array__ = __index__ = item = numpy = tolist = _not_there


def not_known(tensor: Inner) -> SpecError:
    """The error of who uses a value outside of the body or arm that it is of."""
    what = f"{told(tensor)} was made in {tensor.level.what} and is not known outside of it"
    return SpecError(at_line(f"{what}: take what the loop or branch gives instead"))


def tensors_of(graph: object, given: Sequence[Any]) -> list[EagerTensor]:
    """The tensors, once they are of the graph. Raises SpecError."""
    for tensor in given:
        if not isinstance(tensor, Tensor):
            hint = ": d.tensor makes one" if isinstance(tensor, bool | int | float | np.ndarray | np.generic) else ""
            raise SpecError(at_line(f"{type(tensor).__name__} is no Tensor{hint}"))
        if tensor.graph is not graph:
            raise SpecError(at_line(f"{told(tensor)} belongs to another graph"))
        if isinstance(tensor, Inner):
            raise not_known(tensor)
    return list(given)
