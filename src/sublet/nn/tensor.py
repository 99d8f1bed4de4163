"""A tensor of a graph that is being written: it has a shape and a type, and bytes only when the graph runs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as integer
from typing import Any, NoReturn, Protocol

import numpy as np

from sublet.base.errors import SpecError, SubletError
from sublet.base.tensor import DType
from sublet.ir.graph import Value
from sublet.nn.lines import at_line
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.nn.shapes import FLOATS

Operand = Any
"""A Tensor, a number, an array, or None for an omitted input."""


NAMES = {
    "bfloat16": "bf16",
    **{f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)},
}
"""NumPy's names of types."""


class Writer(Protocol):
    """The graph that is being written, as its tensors see it."""

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """The outputs of a new node."""


def told(given: object) -> str:
    """What messages call something: on one line, and without computing it."""
    if isinstance(given, Tensor):
        return given._told()
    return f"an array {given.dtype}{list(given.shape)}" if isinstance(given, np.ndarray) else repr(given)


class Tensor:
    """A value of `graph` [NNC: tensor symbol]. Arithmetic and comparison write nodes; see `sublet.nn` for the rest."""

    __slots__ = ("graph", "value")
    __array_ufunc__ = None  # so that array * tensor asks the tensor
    __hash__ = object.__hash__

    def __init__(self, graph: Writer, value: Value) -> None:
        self.graph = graph
        self.value = value

    @property
    def name(self) -> str:
        return self.value.name

    @property
    def shape(self) -> tuple[int, ...]:
        return spec_of(self.value).shape

    @property
    def dtype(self) -> DType:
        return spec_of(self.value).dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return spec_of(self.value).size

    def __repr__(self) -> str:
        return f"Tensor(%{self.value.name}: {self.value.spec})"

    def _told(self) -> str:
        return repr(self)

    def _apply(self, op: str, *inputs: Operand, **attrs: Any) -> Tensor:
        return self.graph.apply(op, *inputs, **attrs)[0]

    def __add__(self, other: Operand) -> Tensor:
        return self._apply("nn.add", self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return self._apply("nn.add", other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return self._apply("nn.sub", self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return self._apply("nn.sub", other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return self._apply("nn.mul", self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return self._apply("nn.mul", other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return self._apply("nn.div", self._fractional(), other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self._apply("nn.div", other, self._fractional())

    def __floordiv__(self, other: Operand) -> Tensor:
        quotient = self._apply("nn.div", self, other)
        return self._apply("nn.floor", quotient) if self.dtype in FLOATS else quotient

    def __mod__(self, other: Operand) -> Tensor:
        """The remainder of `//`: it has the sign of `other`, as in Python."""
        taken: Tensor = (self // other) * other
        return self - taken

    def __pow__(self, other: Operand) -> Tensor:
        return self._apply("nn.pow", self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return self._apply("nn.pow", other, self)

    def __matmul__(self, other: Operand) -> Tensor:
        return self._apply("nn.matmul", self, other)

    def __rmatmul__(self, other: Operand) -> Tensor:
        return self._apply("nn.matmul", other, self)

    def __neg__(self) -> Tensor:
        return self._apply("nn.neg", self)

    def __abs__(self) -> Tensor:
        return self._apply("nn.abs", self)

    def __lt__(self, other: Operand) -> Tensor:
        return self._apply("nn.less", self, other)

    def __le__(self, other: Operand) -> Tensor:
        return self._apply("nn.less_equal", self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return self._apply("nn.greater", self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return self._apply("nn.greater_equal", self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return self._apply("nn.equal", self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return self._apply("nn.not_equal", self, other)

    def __and__(self, other: Operand) -> Tensor:
        return self._apply("nn.logical_and", self, other)

    def __or__(self, other: Operand) -> Tensor:
        return self._apply("nn.logical_or", self, other)

    def __invert__(self) -> Tensor:
        return self._apply("nn.logical_not", self)

    def _without_content(self, *_: Any, **__: Any) -> NoReturn:
        raise SpecError(
            at_line(
                f"{told(self)} has no content before a run: branch with g.case_of, loop with g.while_, see g.output"
            )
        )

    __bool__: Any = _without_content
    __int__: Any = _without_content
    __float__: Any = _without_content
    __array__: Any = _without_content
    item: Any = _without_content
    numpy: Any = _without_content

    def __iter__(self) -> Any:
        raise SpecError(at_line(f"{told(self)} cannot be iterated: nn.split gives its parts, g.while_ loops over it"))

    def __getattr__(self, name: str) -> NoReturn:
        hint = f"; write nn.{name}(...)" if name in COMMANDS else ""
        raise AttributeError(f"a Tensor has no {name!r}{hint}")

    def detach(self) -> Tensor:
        """The same elements, through which no gradient goes."""
        return self._apply(STOP_GRADIENT, self)

    def __getitem__(self, index: Any) -> Tensor:
        """A slice: integers, whose axes disappear, slices with positive steps, `...`, and None for a new axis of 1.

        A tensor of integers gives rows along axis 0.
        """
        if isinstance(index, Tensor):
            return self._rows(index)
        starts, ends, steps, shape = [], [], [], []
        axis = 0
        for item in _for_each_axis(self, index if isinstance(index, tuple) else (index,)):
            if item is None:
                shape.append(1)
                continue
            start, end, step, kept = _cut(self, axis, item)
            shape += [len(range(start, end, step))] if kept else []
            starts.append(start)
            ends.append(max(start, end))
            steps.append(step)
            axis += 1
        cut = self._apply("nn.slice", self, starts=starts, ends=ends, steps=steps)
        return cut if cut.shape == tuple(shape) else cut.reshape(*shape)

    def _rows(self, index: Tensor) -> Tensor:
        if index.dtype not in (DType.I32, DType.I64):
            raise SpecError(at_line(f"{index!r} is no index: these are integers; see nn.where and nn.masked_fill"))
        return (
            self._apply("nn.index_select", self, index, axis=0) if index.ndim else self._apply("nn.select", self, index)
        )

    def _fractional(self) -> Tensor:
        if self.dtype not in FLOATS:
            raise SpecError(at_line(f"{told(self)} is of integers: divide by //, or take astype('f32') first"))
        return self

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in another shape; -1 stands for what is left."""
        return self._apply("nn.reshape", self, shape=_completed(self, _integers(shape)))

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """The axes in another order; reversed when none is given."""
        return self._apply("nn.transpose", self, axes=_integers(axes) or tuple(reversed(range(self.ndim))))

    @property
    def T(self) -> Tensor:
        return self.transpose()

    def sum(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """The sum over some axes, over all when none is given."""
        return self._apply("nn.sum", self, axes=_integers(axes), keepdims=keepdims)

    def mean(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """The mean over some axes, over all when none is given."""
        return self._apply("nn.mean", self, axes=_integers(axes), keepdims=keepdims)

    def max(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """The greatest element over some axes, over all when none is given."""
        return self._apply("nn.max", self, axes=_integers(axes), keepdims=keepdims)

    def min(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """The least element over some axes, over all when none is given."""
        return self._apply("nn.min", self, axes=_integers(axes), keepdims=keepdims)

    def astype(self, dtype: DType | str | type) -> Tensor:
        """The elements in another type."""
        return self._apply("nn.cast", self, dtype=dtype_of(dtype))


def _integers(given: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
    """Integers given one by one, or as one sequence. Raises SpecError for anything else."""
    chosen = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    try:
        return tuple(integer(item) for item in chosen)  # type: ignore[arg-type]
    except TypeError:
        raise SpecError(at_line(f"{list(given)} must be integers")) from None


def _for_each_axis(tensor: Tensor, items: tuple[Any, ...]) -> list[Any]:
    """The parts of an index, with `...` and what is left out at the end written out as slices."""
    places = [i for i, item in enumerate(items) if item is Ellipsis]
    missing = tensor.ndim - sum(item is not None and item is not Ellipsis for item in items)
    if missing < 0 or len(places) > 1:
        raise SpecError(at_line(f"{told(tensor)} takes up to {tensor.ndim} integers or slices, not {list(items)}"))
    place = places[0] if places else len(items)
    return [*items[:place], *[slice(None)] * missing, *items[place + 1 :]]


def _cut(tensor: Tensor, axis: int, item: Any) -> tuple[int, int, int, bool]:
    """Start, end and step of one part of an index, and whether its axis is kept."""
    extent = tensor.shape[axis]
    if isinstance(item, slice):
        start, end, step = _bounds(tensor, item, extent)
        if step < 1:
            raise SpecError(at_line(f"{told(tensor)}: the step {step} along axis {axis} is not positive; see nn.flip"))
        return start, end, step, True
    try:
        at = integer(item)
    except TypeError:
        at = None
    if at is None or isinstance(item, bool):
        what = f"{told(tensor)} takes integers and slices, not {item!r}; see nn.index_select and nn.gather"
        raise SpecError(at_line(what))
    if not -extent <= at < extent:
        raise SpecError(at_line(f"{told(tensor)}: there is no index {at} along axis {axis}"))
    return at % extent, at % extent + 1, 1, False


def _bounds(tensor: Tensor, item: slice, extent: int) -> tuple[int, int, int]:
    try:
        return item.indices(extent)
    except (TypeError, ValueError) as error:
        raise SpecError(
            at_line(f"{told(tensor)}: {item}: {error}; a start known only in a run needs nn.gather")
        ) from None


def _completed(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with its one -1 filled in."""
    if shape.count(-1) != 1:
        return shape
    rest = 1
    for extent in shape:
        rest *= extent if extent != -1 else 1
    size = spec_of(tensor.value).size
    return tuple((size // rest if rest else 0) if extent == -1 else extent for extent in shape)


def dtype_of(dtype: DType | str | type) -> DType:
    """The type of a name, Sublet's ("f32") or NumPy's ("float32"), or of a NumPy type. Raises SpecError otherwise."""
    if isinstance(dtype, DType):
        return dtype
    is_numpys = isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic | bool))
    name = np.dtype(dtype).name if is_numpys else str(dtype)
    try:
        return DType.parse(NAMES.get(name, name))
    except SubletError as error:
        raise SpecError(at_line(str(error))) from None
