"""Building blocks of shape inference. All functions raise SpecError with the offending shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.numpy_types import NUMPY
from sublet.base.tensor import INTEGERS, DType, TensorSpec
from sublet.ops.op import Attrs, Infer, Specs

FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
NUMBERS = (*FLOATS, *INTEGERS)
ANY = (*NUMBERS, DType.BOOL)
INDICES = (DType.I32, DType.I64)


def require_present(spec: TensorSpec | None, role: str) -> TensorSpec:
    """Return the spec of a required input."""
    if spec is None:
        raise SpecError(f"{role} is missing")
    return spec


def require_type(spec: TensorSpec | None, allowed: Sequence[DType], role: str = "the input") -> TensorSpec:
    """Return the spec of an input with a type in `allowed`."""
    checked = require_present(spec, role)
    if checked.dtype not in allowed:
        names = ", ".join(dtype.text for dtype in allowed)
        raise SpecError(f"{role} is {checked}, expected one of the types {names}")
    return checked


def require_same_type(specs: Specs, allowed: Sequence[DType] = NUMBERS) -> DType:
    """Return the common type of all present inputs."""
    given = [require_type(spec, allowed, f"input {i}") for i, spec in enumerate(specs) if spec is not None]
    if not given:
        raise SpecError("expected at least one input")
    for i, spec in enumerate(given):
        if spec.dtype is not given[0].dtype:
            raise SpecError(
                f"input {i} is {spec}, but the first is {given[0]}: their types must be equal. Use nn.cast."
            )
    return given[0].dtype


def broadcast_shape(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Return the common shape of all inputs after NumPy broadcasting."""
    rank = max(len(spec.shape) for spec in specs)
    shape = [1] * rank
    for spec in specs:
        for axis, extent in enumerate(spec.shape, rank - len(spec.shape)):
            if extent != 1 and shape[axis] not in (1, extent):
                shown = " and ".join(map(str, specs))
                raise SpecError(f"{shown} cannot be broadcast together: along axis {axis - rank} they differ")
            if extent != 1:
                shape[axis] = extent
    return tuple(shape)


def normalize_axis(axis: int, rank: int) -> int:
    """Return the axis counted from the front."""
    if not -rank <= axis < rank:
        raise SpecError(f"axis {axis} is out of range for {rank} axes")
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the axes counted from the front, ascending, without repetition; all axes for ()."""
    ordered = tuple(sorted(normalize_axis(axis, rank) for axis in axes)) if axes else tuple(range(rank))
    if len(set(ordered)) != len(ordered):
        raise SpecError(f"axes {list(axes)} name one axis twice")
    return ordered


def elementwise_infer(allowed: Sequence[DType] = NUMBERS, result: DType | None = None) -> Infer:
    """Return an inference rule for inputs of equal type, broadcast together."""

    def infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        given = [require_present(spec, f"input {i}") for i, spec in enumerate(specs)]
        dtype = require_same_type(given, allowed)
        return (TensorSpec(result or dtype, broadcast_shape(given)),)

    return infer


def infer_like_first(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    """Return the spec of the only output: the floating-point spec of the first input."""
    return (require_type(specs[0], FLOATS),)


def require_equal(a: TensorSpec, b: TensorSpec, roles: str) -> None:
    """Raise SpecError unless both specs are equal."""
    if a != b:
        raise SpecError(f"{roles} are {a} and {b}, but must be equal")


def parse_dtype(text: str, allowed: Sequence[DType] = ANY) -> DType:
    """Return the type named by an attribute, for example "f32"."""
    names = {dtype.text: dtype for dtype in allowed}
    if text not in names:
        raise SpecError(f"dtype = {text!r} must be one of {', '.join(names)}")
    return names[text]


def require_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape given by an attribute."""
    if any(extent < 0 for extent in shape):
        raise SpecError(f"shape = {list(shape)} must be a list of extents, none below 0")
    return tuple(shape)


def number_as(value: float, dtype: DType) -> float | int | bool:
    """Return a number as an element of `dtype`: floats are rounded, fractions and overflow of integers are errors."""
    kind = NUMPY[dtype]
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            return float(np.asarray(value, np.float64).astype(kind))
    low, high = (0, 1) if dtype is DType.BOOL else (np.iinfo(kind).min, np.iinfo(kind).max)
    if value != value or not low <= value <= high or value != int(value):
        raise SpecError(f"{value} is no {dtype}: it must be a whole number of {low} to {high}")
    return bool(value) if dtype is DType.BOOL else int(value)
