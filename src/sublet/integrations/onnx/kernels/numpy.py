"""The NumPy backend: common operators, written directly to their outputs, without large temporaries.

The backend accepts an operator only if the result equals the reference implementation bit by bit, else returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sublet.base.tensor import INTEGERS, DType, TensorSpec
from sublet.integrations.onnx.dialect import PREFIX
from sublet.ir.graph import Node, Value
from sublet.ir.model import Model
from sublet.runtime.kernel import Array, Call, Kernel, Operand

FLOATS = (DType.F16, DType.F32, DType.F64)
NUMBERS = (*FLOATS, *INTEGERS)
COMMON = (*NUMBERS, DType.BOOL)

UFUNCS: Mapping[str, tuple[Any, int, tuple[DType, ...]]] = {
    "Add": (np.add, 2, NUMBERS),
    "Sub": (np.subtract, 2, NUMBERS),
    "Mul": (np.multiply, 2, NUMBERS),
    "Div": (np.divide, 2, FLOATS),
    "Neg": (np.negative, 1, NUMBERS),
    "Abs": (np.absolute, 1, NUMBERS),
    "Sqrt": (np.sqrt, 1, FLOATS),
    "Exp": (np.exp, 1, FLOATS),
    "Log": (np.log, 1, FLOATS),
    "Tanh": (np.tanh, 1, FLOATS),
    "Equal": (np.equal, 2, COMMON),
    "Less": (np.less, 2, NUMBERS),
    "LessOrEqual": (np.less_equal, 2, NUMBERS),
    "Greater": (np.greater, 2, NUMBERS),
    "GreaterOrEqual": (np.greater_equal, 2, NUMBERS),
    "And": (np.logical_and, 2, (DType.BOOL,)),
    "Or": (np.logical_or, 2, (DType.BOOL,)),
    "Not": (np.logical_not, 1, (DType.BOOL,)),
}
"""Element-wise operators: the function, its number of inputs, and the types of the first input."""

COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
EXTREMES: Mapping[str, Any] = {"Max": np.maximum, "Min": np.minimum}
REDUCTIONS: Mapping[str, tuple[Any, tuple[DType, ...]]] = {
    "ReduceSum": (np.sum, NUMBERS),
    "ReduceMean": (np.mean, (DType.F32, DType.F64)),
}

CHUNK = 1 << 16
"""Elements of a mask computed at a time."""

Make = Callable[[Sequence[Any], Any], Call]
"""(input arrays, output array) -> a call computing the output from the inputs."""


@dataclass(frozen=True)
class Numpy:
    """The backend of NumPy's functions."""

    name: str = "numpy"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of an ONNX operator; None if NumPy has no kernel with the bits of the reference."""
        values = (*node.inputs, *node.outputs)
        if len(node.outputs) != 1 or not all(v and isinstance(v.spec, TensorSpec) for v in values):
            return None
        if not node.op.startswith(PREFIX) or not all(v and _dtype(v) in COMMON for v in values):
            return None
        maker = MAKERS.get(node.op.removeprefix(PREFIX))
        try:
            make = maker(node, constants) if maker else None
        except (IndexError, ValueError, TypeError):  # an invalid node: another backend reports the error
            return None
        return None if make is None else _NumpyKernel(make)


@dataclass(frozen=True)
class _NumpyKernel:
    """A kernel made of NumPy functions, with NumPy's warnings off."""

    make: Make
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        call = self.make(inputs, outputs[0])

        def run() -> None:
            with np.errstate(all="ignore"):
                call()

        return run


Constants = Mapping[Value, Array]


def _dtype(value: Value) -> DType | None:
    return value.spec.dtype if isinstance(value.spec, TensorSpec) else None


def _shape(value: Value | None) -> tuple[int, ...]:
    assert value is not None
    assert isinstance(value.spec, TensorSpec)
    return value.spec.shape


def _have_one_type(values: Sequence[Value]) -> bool:
    return len({_dtype(value) for value in values}) == 1


def _is_elementwise(node: Node) -> bool:
    """True if the output has the broadcast shape of the inputs, and no attribute of an old version applies."""
    shapes = [_shape(value) for value in node.uses]
    return not node.attrs and np.broadcast_shapes(*shapes) == _shape(node.outputs[0])


def _ufunc(node: Node, constants: Constants) -> Make | None:
    function, count, dtypes = UFUNCS[node.op.removeprefix(PREFIX)]
    if len(node.inputs) != count or not _is_elementwise(node) or not _have_one_type(node.uses):
        return None
    result = DType.BOOL if node.op.removeprefix(PREFIX) in COMPARISONS else _dtype(node.uses[0])
    if _dtype(node.uses[0]) not in dtypes or _dtype(node.defs[0]) is not result:
        return None
    return lambda inputs, out: partial(function, *inputs, out=out)


def _relu(node: Node, constants: Constants) -> Make | None:
    if not _is_elementwise(node) or _dtype(node.uses[0]) not in NUMBERS or not _have_one_type((*node.uses, *node.defs)):
        return None
    return lambda inputs, out: partial(np.maximum, inputs[0], np.zeros((), out.dtype), out=out)


def _extreme(node: Node, constants: Constants) -> Make | None:
    """Return a maker of a variadic maximum or minimum.

    The first two inputs are read together, every further input after the output has been written.
    """
    function = EXTREMES[node.op.removeprefix(PREFIX)]
    if len(node.inputs) < 2 or not _is_elementwise(node) or not _have_one_type((*node.uses, *node.defs)):
        return None
    if _dtype(node.uses[0]) not in NUMBERS:
        return None

    def make(inputs: Sequence[Any], out: Any) -> Call:
        def run() -> None:
            function(inputs[0], inputs[1], out=out)
            for other in inputs[2:]:
                function(out, other, out=out)

        return run

    return make


def _where(node: Node, constants: Constants) -> Make | None:
    if len(node.inputs) != 3 or not _is_elementwise(node) or _dtype(node.uses[0]) is not DType.BOOL:
        return None
    return _Where if _have_one_type((*node.uses[1:], *node.defs)) else None


class _Where:
    """A selection by condition; the output may lie over either choice."""

    def __init__(self, inputs: Sequence[Any], out: Any) -> None:
        self.condition, self.chosen, self.other = inputs
        self.out = out
        self.over_chosen = np.may_share_memory(self.chosen, out)

    def __call__(self) -> None:
        if self.over_chosen:
            self._copy_unselected()
        else:
            np.copyto(self.out, self.other)
            np.copyto(self.out, self.chosen, where=self.condition)

    def _copy_unselected(self) -> None:
        """Write the unselected elements, one chunk of the negated condition at a time."""
        mask = np.empty(min(CHUNK, self.out.size), np.bool_)
        modes: Any = [["readonly"], ["readonly"], ["readwrite"]]
        order: Any = ["external_loop", "buffered", "zerosize_ok"]
        with np.nditer([self.condition, self.other, self.out], order, modes, buffersize=CHUNK) as chunks:
            for condition, other, out in chunks:
                absent = np.logical_not(condition, out=mask[: condition.size])
                np.copyto(out, other, where=absent)


def _cast(node: Node, constants: Constants) -> Make | None:
    """Return a maker of a cast over flat arrays, since NumPy then sees that a copy onto itself needs no buffer."""
    if any(_dtype(value) not in NUMBERS for value in (*node.uses, *node.defs)):
        return None
    if _shape(node.inputs[0]) != _shape(node.outputs[0]):
        return None
    return lambda inputs, out: partial(np.copyto, out.reshape(-1), inputs[0].reshape(-1), casting="unsafe")


def _transpose(node: Node, constants: Constants) -> Make | None:
    perm: Any = node.attrs.get("perm") or None
    transposed = np.transpose(np.empty(_shape(node.inputs[0]), np.void), perm)
    if transposed.shape != _shape(node.outputs[0]) or not _have_one_type((*node.uses, *node.defs)):
        return None
    return lambda inputs, out: partial(np.copyto, out, np.transpose(inputs[0], perm))


def _concat(node: Node, constants: Constants) -> Make | None:
    axis = node.attrs.get("axis")
    if not isinstance(axis, int) or not _have_one_type((*node.uses, *node.defs)):
        return None
    shapes, whole = [_shape(value) for value in node.uses], _shape(node.outputs[0])
    axis %= len(whole)
    if sum(shape[axis] for shape in shapes) != whole[axis]:
        return None
    if any((*shape[:axis], *shape[axis + 1 :]) != (*whole[:axis], *whole[axis + 1 :]) for shape in shapes):
        return None

    def make(inputs: Sequence[Any], out: Any) -> Call:
        copies, begin = [], 0
        lanes = np.moveaxis(out, axis, 0)
        for array in inputs:
            part = np.moveaxis(array, axis, 0)
            place = lanes[begin : begin + len(part)]
            begin += len(part)
            if place.ctypes.data != part.ctypes.data:  # equal addresses: the operand is already in place
                copies.append((place, part))

        def run() -> None:
            for place, part in copies:
                np.copyto(place, part)

        return run

    return make


def _slice(node: Node, constants: Constants) -> Make | None:
    """Return a maker of a slice with constant starts, ends, axes and steps."""
    if len(node.inputs) < 3 or any(value not in constants for value in node.uses[1:]):
        return None
    starts, ends, *rest = (constants[value].tolist() for value in node.uses[1:])
    shape = _shape(node.inputs[0])
    axes = rest[0] if rest else range(len(starts))
    steps = rest[1] if len(rest) > 1 else [1] * len(starts)
    chosen = [slice(None)] * len(shape)
    for begin, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        chosen[axis] = slice(begin, end, step)
    lengths = tuple(len(range(extent)[cut]) for extent, cut in zip(shape, chosen, strict=True))
    if lengths != _shape(node.outputs[0]) or _dtype(node.uses[0]) is not _dtype(node.defs[0]):
        return None
    return lambda inputs, out: partial(np.copyto, out, inputs[0][tuple(chosen)])


def _gather(node: Node, constants: Constants) -> Make | None:
    """Return a maker of a gather.

    `take` writes to its output without a buffer only in a mode without range checks; the call checks the range itself.
    """
    axis = node.attrs.get("axis", 0)
    if not isinstance(axis, int) or len(node.inputs) != 2 or _dtype(node.uses[1]) is not DType.I64:
        return None
    shape, axis = _shape(node.inputs[0]), axis % len(_shape(node.inputs[0]))
    extent = shape[axis]
    if (*shape[:axis], *_shape(node.inputs[1]), *shape[axis + 1 :]) != _shape(node.outputs[0]):
        return None
    if _dtype(node.uses[0]) is not _dtype(node.defs[0]):
        return None

    def make(inputs: Sequence[Any], out: Any) -> Call:
        array, indices = inputs

        def run() -> None:
            if indices.size and not (-extent <= indices.min() and indices.max() < extent):
                raise IndexError(f"an index is out of range for an axis of {extent}")
            np.take(array, indices, axis, out=out, mode="wrap")

        return run

    return make


def _reduction(node: Node, constants: Constants) -> Make | None:
    function, dtypes = REDUCTIONS[node.op.removeprefix(PREFIX)]
    given: Any = node.attrs.get("axes")
    if _dtype(node.uses[0]) not in dtypes or _dtype(node.uses[0]) is not _dtype(node.defs[0]):
        return None
    if len(node.inputs) > 1:
        if node.uses[1] not in constants:
            return None
        given = constants[node.uses[1]].reshape(-1).tolist()
    if not given and node.attrs.get("noop_with_empty_axes", 0):
        return None
    shape, axes = _shape(node.inputs[0]), tuple(given) if given else None
    spread: Any = np.broadcast_to(np.zeros((), np.bool_), shape)
    keepdims = bool(node.attrs.get("keepdims", 1))
    if np.any(spread, axis=axes, keepdims=keepdims).shape != _shape(node.outputs[0]):
        return None
    left = np.any(spread, axis=axes).shape
    return lambda inputs, out: partial(function, inputs[0], axis=axes, dtype=out.dtype, out=out.reshape(left))


def _matmul(node: Node, constants: Constants) -> Make | None:
    """Return a maker of a matrix product.

    `dot` up to matrices, as in the reference implementation: `matmul` may call another routine and round differently.
    """
    if len(node.inputs) != 2 or not _have_one_type((*node.uses, *node.defs)) or _dtype(node.uses[0]) not in NUMBERS:
        return None
    function: Any = np.dot if max(len(_shape(value)) for value in node.inputs) <= 2 else np.matmul

    def make(inputs: Sequence[Any], out: Any) -> Call:
        if function is np.dot and not out.flags.aligned:  # `dot` rejects unaligned outputs
            return lambda: np.copyto(out, np.dot(*inputs))
        return partial(function, *inputs, out=out)

    return make


MAKERS: Mapping[str, Callable[[Node, Constants], Make | None]] = {
    **dict.fromkeys(UFUNCS, _ufunc),
    **dict.fromkeys(EXTREMES, _extreme),
    **dict.fromkeys(REDUCTIONS, _reduction),
    "Relu": _relu,
    "Where": _where,
    "Cast": _cast,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "MatMul": _matmul,
}


def backend_for(model: Model) -> Numpy:
    """Return the backend, which is the same for all models."""
    return Numpy()
