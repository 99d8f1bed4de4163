"""The tensor of a graph under construction: shape and type are known, bytes exist only while the graph runs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as integer
from typing import Any, NoReturn, Protocol

import numpy as np

from sublet.base.errors import SpecError, SubletError
from sublet.base.tensor import DType
from sublet.ir.graph import Value
from sublet.nn.source_location import at_line
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.nn.rules import FLOATS

Operand = Any
"""A Tensor, a number, an array, or None for an omitted input."""


TYPE_NAMES = {
    "bfloat16": "bf16",
    **{f"{kind}{bits}": f"{kind[0]}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)},
}
"""Sublet's type names by NumPy's type names."""


class TensorWriter(Protocol):
    """The interface of graphs for tensors."""

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """Append a node and return the outputs."""


def describe(given: object) -> str:
    """Return a description for messages: on one line, and without computing a lazy tensor."""
    if isinstance(given, Tensor):
        return given._describe()
    return f"an array {given.dtype}{list(given.shape)}" if isinstance(given, np.ndarray) else repr(given)


class Tensor:
    """A value of `graph` [NNC: tensor symbol]. Arithmetic and comparison append nodes; `sublet.nn` lists all commands.

    All methods raise SpecError, beginning with the user's line, for shapes or types not accepted by the command.
    """

    __slots__ = ("graph", "value")
    __array_ufunc__ = None  # lets NumPy's `array * tensor` call Tensor.__rmul__
    __hash__ = object.__hash__

    def __init__(self, graph: TensorWriter, value: Value) -> None:
        self.graph = graph
        self.value = value

    @property
    def name(self) -> str:
        """The name of the value."""
        return self.value.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes."""
        return spec_of(self.value).shape

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return spec_of(self.value).dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return spec_of(self.value).size

    def __repr__(self) -> str:
        return f"Tensor(%{self.value.name}: {self.value.spec})"

    def _describe(self) -> str:
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
        return self._apply("nn.div", self._require_float(), other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self._apply("nn.div", other, self._require_float())

    def __floordiv__(self, other: Operand) -> Tensor:
        """Return the quotient, rounded down."""
        quotient = self._apply("nn.div", self, other)
        return self._apply("nn.floor", quotient) if self.dtype in FLOATS else quotient

    def __mod__(self, other: Operand) -> Tensor:
        """Return the remainder of `//`, with the sign of `other`, as in Python."""
        multiple: Tensor = (self // other) * other
        return self - multiple

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

    def _raise_without_content(self, *_: Any, **__: Any) -> NoReturn:
        """Raise SpecError: a tensor has no content before a run."""
        raise SpecError(at_line(f"{describe(self)} has no content before a run: use g.case_of, g.while_ or g.output"))

    __bool__: Any = _raise_without_content
    __int__: Any = _raise_without_content
    __float__: Any = _raise_without_content
    __array__: Any = _raise_without_content
    item: Any = _raise_without_content
    numpy: Any = _raise_without_content

    def __iter__(self) -> Any:
        raise SpecError(
            at_line(f"{describe(self)} cannot be iterated: use nn.split, or g.while_ to loop over the first axis")
        )

    def __getattr__(self, name: str) -> NoReturn:
        hint = f"; call nn.{name}(...)" if name in COMMANDS else ""
        raise AttributeError(f"a Tensor has no {name!r}{hint}")

    def detach(self) -> Tensor:
        """Return a tensor of the same elements and shape; no gradient passes through."""
        return self._apply(STOP_GRADIENT, self)

    def __getitem__(self, index: Any) -> Tensor:
        """Return a slice: integers remove an axis, slices need positive steps, and `...` and None work as in NumPy.

        A tensor of integers selects along axis 0: one index removes the axis, a list of indices gives as many rows.
        """
        if isinstance(index, Tensor):
            return self._select_rows(index)
        starts, ends, steps, shape = [], [], [], []
        axis = 0
        for item in _index_per_axis(self, index if isinstance(index, tuple) else (index,)):
            if item is None:
                shape.append(1)
                continue
            start, end, step, kept = _axis_slice(self, axis, item)
            shape += [len(range(start, end, step))] if kept else []
            starts.append(start)
            ends.append(max(start, end))
            steps.append(step)
            axis += 1
        part = self._apply("nn.slice", self, starts=starts, ends=ends, steps=steps)
        return part if part.shape == tuple(shape) else part.reshape(*shape)

    def _select_rows(self, index: Tensor) -> Tensor:
        """Return the row at an index, or the rows at a tensor of indices. Raises SpecError for other than integers."""
        if index.dtype not in (DType.I32, DType.I64):
            raise SpecError(
                at_line(f"{index!r} is not an index: expected i32 or i64; for a mask use nn.where or nn.masked_fill")
            )
        return (
            self._apply("nn.index_select", self, index, axis=0) if index.ndim else self._apply("nn.select", self, index)
        )

    def _require_float(self) -> Tensor:
        """Return the tensor. Raises SpecError unless the elements are floating-point numbers."""
        if self.dtype not in FLOATS:
            raise SpecError(at_line(f"{describe(self)} has integer elements: use //, or call astype('f32') first"))
        return self

    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """Return the same elements in another shape of equal size; one extent may be -1, computed from the others."""
        return self._apply("nn.reshape", self, shape=_complete_shape(self, _integers(shape)))

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """Return the tensor with axes in the given order; reversed without `axes`."""
        return self._apply("nn.transpose", self, axes=_integers(axes) or tuple(reversed(range(self.ndim))))

    @property
    def T(self) -> Tensor:
        """The tensor with reversed axes."""
        return self.transpose()

    def sum(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """Return the sum over `axes`, or over all axes by default; `keepdims` keeps the axes with extent 1."""
        return self._apply("nn.sum", self, axes=_integers(axes), keepdims=keepdims)

    def mean(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """Return the mean over `axes`, or over all axes by default; `keepdims` keeps the axes with extent 1."""
        return self._apply("nn.mean", self, axes=_integers(axes), keepdims=keepdims)

    def max(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """Return the maximum over `axes`, or over all axes by default; `keepdims` keeps the axes with extent 1."""
        return self._apply("nn.max", self, axes=_integers(axes), keepdims=keepdims)

    def min(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """Return the minimum over `axes`, or over all axes by default; `keepdims` keeps the axes with extent 1."""
        return self._apply("nn.min", self, axes=_integers(axes), keepdims=keepdims)

    def astype(self, dtype: DType | str | type) -> Tensor:
        """Return the elements converted to another type, by Sublet's or NumPy's name. Raises SpecError if unknown."""
        return self._apply("nn.cast", self, dtype=dtype_of(dtype))


def _integers(given: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
    """Return integers given one by one, or as one sequence. Raises SpecError for other arguments."""
    chosen = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    try:
        return tuple(integer(item) for item in chosen)  # type: ignore[arg-type]
    except TypeError:
        raise SpecError(at_line(f"{list(given)} must be integers")) from None


def _index_per_axis(tensor: Tensor, items: tuple[Any, ...]) -> list[Any]:
    """Return an index with one item an axis: `...` and missing items at the end are replaced by slices."""
    places = [i for i, item in enumerate(items) if item is Ellipsis]
    missing = tensor.ndim - sum(item is not None and item is not Ellipsis for item in items)
    if missing < 0 or len(places) > 1:
        raise SpecError(at_line(f"{describe(tensor)} takes up to {tensor.ndim} integers or slices, not {list(items)}"))
    place = places[0] if places else len(items)
    return [*items[:place], *[slice(None)] * missing, *items[place + 1 :]]


def _axis_slice(tensor: Tensor, axis: int, item: Any) -> tuple[int, int, int, bool]:
    """Return start, end and step of one item of an index, and True if the axis is kept."""
    extent = tensor.shape[axis]
    if isinstance(item, slice):
        start, end, step = _slice_bounds(tensor, item, extent)
        if step < 1:
            raise SpecError(
                at_line(
                    f"{describe(tensor)}: the step {step} along axis {axis} is not positive: use nn.flip to reverse"
                )
            )
        return start, end, step, True
    try:
        position = integer(item)
    except TypeError:
        position = None
    if position is None or isinstance(item, bool):
        what = f"{describe(tensor)} takes integers and slices, not {item!r}: use nn.index_select or nn.gather"
        raise SpecError(at_line(what))
    if not -extent <= position < extent:
        raise SpecError(at_line(f"{describe(tensor)}: there is no index {position} along axis {axis}"))
    return position % extent, position % extent + 1, 1, False


def _slice_bounds(tensor: Tensor, item: slice, extent: int) -> tuple[int, int, int]:
    """Return start, end and step of a slice. Raises SpecError for a bound known only at run time."""
    try:
        return item.indices(extent)
    except (TypeError, ValueError) as error:
        raise SpecError(
            at_line(f"{describe(tensor)}: {item}: {error}; for a start known only at run time use nn.gather")
        ) from None


def _complete_shape(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with a single -1 replaced by the missing extent."""
    if shape.count(-1) != 1:
        return shape
    rest = 1
    for extent in shape:
        rest *= extent if extent != -1 else 1
    size = spec_of(tensor.value).size
    return tuple((size // rest if rest else 0) if extent == -1 else extent for extent in shape)


def dtype_of(dtype: DType | str | type) -> DType:
    """Return the type named by Sublet ("f32") or NumPy ("float32"), or of a NumPy type. Raises SpecError if unknown."""
    if isinstance(dtype, DType):
        return dtype
    is_numpys = isinstance(dtype, np.dtype) or (isinstance(dtype, type) and issubclass(dtype, np.generic | bool))
    name = np.dtype(dtype).name if is_numpys else str(dtype)
    try:
        return DType.parse(TYPE_NAMES.get(name, name))
    except SubletError as error:
        raise SpecError(at_line(str(error))) from None
