"""Building blocks of shape inference, which raise SpecError with the offending shapes, and of gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sublet.base.errors import SpecError
from sublet.base.tensor import INTEGERS, NUMPY, DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import spec_of
from sublet.ops.op import Attrs, Emit, Gradient, Grads, Infer, Specs

FLOATS = (DType.F16, DType.BF16, DType.F32, DType.F64)
NUMBERS = (*FLOATS, *INTEGERS)
ANY = (*NUMBERS, DType.BOOL)
INDICES = (DType.I32, DType.I64)


def require_present(spec: TensorSpec | None, role: str) -> TensorSpec:
    """Return the spec of a required input."""
    if spec is None:
        raise SpecError(f"{role} is missing")
    return spec


def require_type(
    spec: TensorSpec | None, allowed: Sequence[DType], role: str = "the input", hint: str = ""
) -> TensorSpec:
    """Return the spec of an input with a type in `allowed`. `hint` ends the error for another type."""
    checked = require_present(spec, role)
    if checked.dtype not in allowed:
        names = ", ".join(dtype.text for dtype in allowed)
        raise SpecError(f"{role} is {checked}, expected one of the types {names}{hint}")
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


# Building blocks of gradient rules.


def sum_to_shape(emit: Emit, grad: Value, like: Value) -> Value:
    """Return the gradient of a broadcast input: sum over the broadcast axes."""
    shape = spec_of(like).shape
    return grad if spec_of(grad).shape == shape else emit("nn.sum_to", grad, shape=shape)


def only_gradient(grads: Grads) -> Value:
    """Return the gradient of the only output."""
    (grad,) = grads
    assert grad is not None
    return grad


def operand(node: Node, position: int) -> Value:
    """Return the input at `position`, which must be present."""
    value = node.inputs[position]
    assert value is not None
    return value


def result(node: Node, position: int = 0) -> Value:
    """Return the output at `position`, which must be present."""
    value = node.outputs[position]
    assert value is not None
    return value


def reshape_to(emit: Emit, value: Value, shape: tuple[int, ...]) -> Value:
    """Return the value reshaped to `shape`; the same value if the shape is equal."""
    return value if spec_of(value).shape == shape else emit("nn.reshape", value, shape=shape)


def zeros_like(emit: Emit, like: Value) -> Value:
    """Return zeros with the spec of `like`."""
    return emit.constant(0, like, spec_of(like).shape)


def scale_by(emit: Emit, value: Value, number: float) -> Value:
    """Return the value times a number."""
    return emit("nn.mul", value, emit.constant(number, value))


def one_minus(emit: Emit, value: Value) -> Value:
    """Return 1 - value."""
    return emit("nn.sub", emit.constant(1, value), value)


def multiply(emit: Emit, first: Value, *factors: Value) -> Value:
    """Return the product of several values."""
    for factor in factors:
        first = emit("nn.mul", first, factor)
    return first


def sum_present(emit: Emit, *terms: Value | None) -> Value | None:
    """Return the sum of the present terms; None if all terms are None."""
    added: Value | None = None
    for term in terms:
        if term is not None:
            added = term if added is None else emit("nn.add", added, term)
    return added


TermRule = Callable[[Emit, Node, Value], Value]
"""(emit, node, gradient of the output) -> gradient of one input, before summing to the input's shape."""


def elementwise_gradient(*rules: TermRule | None) -> Gradient:
    """Return the gradient of a command with one output and broadcast inputs: one rule per input, None for zero."""

    def gradient(emit: Emit, node: Node, grads: Grads) -> Sequence[Value | None]:
        grad = only_gradient(grads)
        return [
            None if rule is None else sum_to_shape(emit, rule(emit, node, grad), operand(node, i))
            for i, rule in enumerate(rules)
        ]

    return gradient


def term_by_op(op: str, *positions: int) -> TermRule:
    """Return the rule `op(grad, *inputs at positions)`, with the attributes of the node."""
    return lambda emit, node, grad: emit(op, grad, *(operand(node, i) for i in positions), **node.attrs)
