"""The tensor of a graph under construction: shape and type are known, bytes exist only while the graph runs."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as integer
from typing import Any, NoReturn, Protocol

import numpy as np

from sublet.base.errors import SpecError, SubletError
from sublet.base.tensor import DType
from sublet.ir.graph import Value
from sublet.nn.keywords import require_known_keywords
from sublet.nn.source_location import at_line
from sublet.nn.tensor_index import IndexedBlock, UpdatableSlices
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


FUNCTION_NAMES = {*COMMANDS}
"""The names of the functions of `sublet.nn`, which adds the functions composed of commands."""


class TensorWriter(Protocol):
    """The interface of graphs for tensors."""

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """Append a node and return the outputs."""

    def constant(self, content: Any, dtype: DType | str | None = None) -> Tensor:
        """Return a number or an array as a tensor."""


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
        hint = f"; call nn.{name}(...)" if name in FUNCTION_NAMES else ""
        raise AttributeError(f"a Tensor has no {name!r}{hint}")

    def detach(self) -> Tensor:
        """Return a tensor of the same elements and shape; no gradient passes through."""
        return self._apply(STOP_GRADIENT, self)

    def __getitem__(self, index: Any) -> Tensor:
        """Return a slice: integers remove an axis, slices need positive steps, and `...` and None work as in NumPy.

        A tensor or an array of integers selects along axis 0: one index removes the axis, a list of indices gives as
        many rows.
        """
        rows = self._row_indices(index)
        if rows is not None:
            op, attrs = ("nn.index_select", {"axis": 0}) if rows.ndim else ("nn.select", {})
            return self._apply(op, self, rows, **attrs)
        block = IndexedBlock(self, index)
        part = block.slice_of(self)
        return part if part.shape == block.shape else part.reshape(*block.shape)

    def _row_indices(self, index: Any) -> Tensor | None:
        """Return an index along axis 0, as a tensor, list or array of integers; None for integers and slices.

        Raises SpecError for a tensor or array of other elements.
        """
        given = np.asarray(index) if isinstance(index, list) else index
        rows = self._operand(given) if isinstance(given, np.ndarray) and given.ndim else given
        if not isinstance(rows, Tensor):
            return None
        if rows.dtype not in (DType.I32, DType.I64):
            hint = "expected i32 or i64; for a mask use nn.where or nn.masked_fill"
            raise SpecError(at_line(f"{describe(given)} is not an index: {hint}"))
        return rows

    def _operand(self, given: Operand) -> Tensor:
        """Return a tensor, an array or a number as a tensor of the graph; a number takes the type of the tensor."""
        if isinstance(given, Tensor):
            return given
        is_number = isinstance(given, bool | int | float | np.generic)
        return self.graph.constant(given, self.dtype if is_number else None)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise SpecError(
            at_line(f"{describe(self)} cannot be assigned to: write `x = x.at[...].set(v)`, or nn.update(x, index, v)")
        )

    @property
    def at(self) -> UpdatableSlices:
        """The slices of the tensor, for updated copies: `x.at[1:3].set(0)`, `x.at[..., 0].add(y)`; see `nn.update`."""
        return UpdatableSlices(self)

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

    @require_known_keywords
    def sum(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """Return the sum over `axes`, or over all axes by default; `keepdims` keeps the axes with extent 1."""
        return self._apply("nn.sum", self, axes=_integers(axes), keepdims=keepdims)

    @require_known_keywords
    def mean(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """Return the mean over `axes`, or over all axes by default; `keepdims` keeps the axes with extent 1."""
        return self._apply("nn.mean", self, axes=_integers(axes), keepdims=keepdims)

    @require_known_keywords
    def max(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """Return the maximum over `axes`, or over all axes by default; `keepdims` keeps the axes with extent 1."""
        return self._apply("nn.max", self, axes=_integers(axes), keepdims=keepdims)

    @require_known_keywords
    def min(self, *axes: int | Sequence[int], keepdims: bool = False) -> Tensor:
        """Return the minimum over `axes`, or over all axes by default; `keepdims` keeps the axes with extent 1."""
        return self._apply("nn.min", self, axes=_integers(axes), keepdims=keepdims)

    def astype(self, dtype: DType | str | type) -> Tensor:
        """Return the elements converted to another type, by Sublet's or NumPy's name. Raises SpecError if unknown."""
        return self._apply("nn.cast", self, dtype=dtype_of(dtype))


def first_tensor(inputs: Sequence[Operand], name: str) -> Tensor:
    """Return the first tensor among the inputs of nn.`name`. Raises SpecError, with the user's line, if none is one."""
    for given in inputs:
        if isinstance(given, Tensor):
            return given
    hint = f"pass one from g.constant, or call g.apply('nn.{name}', ...)"
    raise SpecError(at_line(f"nn.{name} needs a Tensor among its inputs: {hint}"))


def _integers(given: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
    """Return integers given one by one, or as one sequence. Raises SpecError for other arguments."""
    chosen = given[0] if len(given) == 1 and isinstance(given[0], list | tuple) else given
    try:
        return tuple(integer(item) for item in chosen)  # type: ignore[arg-type]
    except TypeError:
        raise SpecError(at_line(f"{list(given)} must be integers")) from None


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
