"""A tensor of a graph that is being written: it has a shape and a type, and bytes only when the graph runs."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from sublet.builder.lines import at_line
from sublet.errors import SpecError, SubletError
from sublet.ir.graph import Value
from sublet.ops.nn.command import spec_of
from sublet.tensor import DType

Operand = Any
"""A Tensor, a number, an array, or None for an omitted input."""


NAMES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64"}


class Writer(Protocol):
    """The graph that is being written, as its tensors see it."""

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> tuple[Tensor, ...]:
        """The outputs of a new node."""


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

    def __repr__(self) -> str:
        return f"Tensor(%{self.value.name}: {self.value.spec})"

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
        return self._apply("nn.div", self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return self._apply("nn.div", other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return self._apply("nn.pow", self, other)

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

    def __bool__(self) -> NoReturn:
        raise SpecError(at_line(f"{self!r} has no content yet: branch with g.case_of, loop with g.while_"))

    def __iter__(self) -> NoReturn:
        raise SpecError(at_line(f"{self!r} cannot be iterated: nn.split gives its parts, g.while_ loops over it"))

    def __getitem__(self, index: Any) -> Tensor:
        """A slice: integers, and slices with positive steps; axes with an integer disappear."""
        items = index if isinstance(index, tuple) else (index,)
        if len(items) > self.ndim or not all(isinstance(item, int | slice) for item in items):
            raise SpecError(at_line(f"{self!r} takes up to {self.ndim} integers or slices, not [{index!r}]"))
        starts, ends, steps, kept = [], [], [], []
        for axis, extent in enumerate(self.shape):
            item = items[axis] if axis < len(items) else slice(None)
            if isinstance(item, int):
                if not -extent <= item < extent:
                    raise SpecError(at_line(f"{self!r}: there is no index {item} along axis {axis}"))
                start, end, step = item % extent, item % extent + 1, 1
            else:
                start, end, step = item.indices(extent)
                if step < 1:
                    raise SpecError(
                        at_line(f"{self!r}: the step {step} along axis {axis} is not positive; see nn.flip")
                    )
                kept.append(len(range(start, end, step)))
            starts.append(start)
            ends.append(max(start, end))
            steps.append(step)
        cut = self._apply("nn.slice", self, starts=starts, ends=ends, steps=steps)
        return cut if len(kept) == self.ndim else cut.reshape(*kept)

    def reshape(self, *shape: int | tuple[int, ...]) -> Tensor:
        """The same elements in another shape; -1 stands for what is left."""
        first = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return self._apply("nn.reshape", self, shape=_completed(self, tuple(first)))  # type: ignore[arg-type]

    def transpose(self, *axes: int) -> Tensor:
        """The axes in another order; reversed when none is given."""
        return self._apply("nn.transpose", self, axes=axes or tuple(reversed(range(self.ndim))))

    @property
    def T(self) -> Tensor:
        return self.transpose()

    def sum(self, *axes: int, keepdims: bool = False) -> Tensor:
        """The sum over some axes, over all when none is given."""
        return self._apply("nn.sum", self, axes=axes, keepdims=keepdims)

    def mean(self, *axes: int, keepdims: bool = False) -> Tensor:
        """The mean over some axes, over all when none is given."""
        return self._apply("nn.mean", self, axes=axes, keepdims=keepdims)

    def astype(self, dtype: DType | str) -> Tensor:
        """The elements in another type."""
        return self._apply("nn.cast", self, dtype=dtype_of(dtype))


def _completed(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with its one -1 filled in."""
    if shape.count(-1) != 1:
        return shape
    rest = 1
    for extent in shape:
        rest *= extent if extent != -1 else 1
    size = spec_of(tensor.value).size
    return tuple((size // rest if rest else 0) if extent == -1 else extent for extent in shape)


def dtype_of(dtype: DType | str) -> DType:
    """The type of a name: Sublet's ("f32") or NumPy's ("float32"). Raises SpecError for an unknown one."""
    if isinstance(dtype, DType):
        return dtype
    try:
        return DType.parse(NAMES.get(str(dtype), str(dtype)))
    except SubletError as error:
        raise SpecError(at_line(str(error))) from None
