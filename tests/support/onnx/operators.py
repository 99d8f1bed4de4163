"""Single operators of random ONNX models, in every data type that ONNX Runtime has a kernel for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

from tests.support.onnx.control_flow import branch, call, loop, scan
from tests.support.onnx.models import COUNT, F32, FLAG, Block, Known, Shape, Step, Writer

DTYPES = {
    "tensor(float)": F32, "tensor(double)": np.dtype(np.float64), "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16), "tensor(bool)": FLAG,
    **{f"tensor({kind}{bits})": np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip


@lru_cache(maxsize=1)
def _kernels() -> dict[str, list[tuple[tuple[int, int], dict[str, list[str]]]]]:
    found: dict[str, list[Any]] = {}
    for kernel in runtime.get_all_opkernel_def():
        if kernel.provider == "CPUExecutionProvider" and not kernel.domain:
            found.setdefault(kernel.op_name, []).append((kernel.version_range, kernel.type_constraints))
    return found


@lru_cache(maxsize=4096)
def kinds(op: str, opset: int, letter: str = "T") -> frozenset[np.dtype[Any]]:
    """The types that ONNX Runtime computes the operator in."""
    texts = [
        text
        for (first, last), constraints in _kernels().get(op, ())
        if first <= opset <= last
        for text in constraints.get(letter, ())
    ]
    return frozenset(DTYPES[text] for text in texts if text in DTYPES)


def reads(w: Writer, block: Block, op: str, fits: Callable[[Known], bool] = lambda value: True) -> Known | None:
    allowed = kinds(op, w.opset)
    return w.fitting(block, lambda value: value.dtype in allowed and fits(value))


def shape_of(value: Known) -> Shape:
    assert value.shape is not None
    return value.shape


UNARY = (
    *("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Floor", "Ceil", "Round", "Sign", "Erf", "Not", "Identity"),
    *("BitwiseNot", "Softplus", "Elu", "LeakyRelu", "HardSigmoid", "Sqrt", "Reciprocal", "Sin", "Softsign", "Selu"),
    *("HardSwish", "Mish", "Gelu", "Celu", "ThresholdedRelu"),
)
SINCE = {"BitwiseNot": 18, "HardSwish": 14, "Mish": 18, "Gelu": 20, "BitwiseAnd": 18, "BitwiseOr": 18, "BitwiseXor": 18}
BINARY = ("Add", "Sub", "Mul", "Min", "Max", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu")
COMPARING = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")


def unary(w: Writer, block: Block) -> Sequence[Known]:
    op = w.rng.choice([op for op in UNARY if SINCE.get(op, 0) <= w.opset])
    value = reads(w, block, op)
    return w.add(block, op, [value], (value.dtype, value.shape)) if value else ()


def partner(w: Writer, block: Block, value: Known) -> Known:
    """An operand of the same type that can be broadcast to it."""
    shape = shape_of(value)

    def fits(other: Known) -> bool:
        ends = zip(reversed(shape_of(other)), reversed(shape), strict=False)
        return other.dtype == value.dtype and other.rank <= value.rank and all(a in (1, b) for a, b in ends)

    there = w.fitting(block, fits)
    if there is not None and w.chance(0.8):
        return there
    wide = tuple(extent if w.chance(0.6) else 1 for extent in shape[w.rng.randint(0, len(shape)) :])
    return w.constant(block, w.array(value.dtype, wide))


def binary(w: Writer, block: Block) -> Sequence[Known]:
    op = w.rng.choice([op for op in (*BINARY, *COMPARING) if SINCE.get(op, 0) <= w.opset])
    value = reads(w, block, op)
    if value is None:
        return ()
    other = partner(w, block, value)
    operands = [other, value] if w.chance(0.3) and op != "PRelu" else [value, other]
    return w.add(block, op, operands, (FLAG if op in COMPARING else value.dtype, value.shape))


def where(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "Where")
    if value is None:
        return ()
    keep = Known("", FLAG, value.shape)
    return w.add(block, "Where", [partner(w, block, keep), value, partner(w, block, value)], (value.dtype, value.shape))


def clip(w: Writer, block: Block) -> Sequence[Known]:
    """Both bounds can be left out."""
    value = reads(w, block, "Clip")
    if value is None:
        return ()
    low, high = (w.constant(block, np.array(number, value.dtype)) if w.chance(0.6) else None for number in (1, 3))
    inputs = [value, low, high]
    while inputs[-1] is None:
        inputs.pop()
    return w.add(block, "Clip", inputs, (value.dtype, value.shape))


def cast(w: Writer, block: Block) -> Sequence[Known]:
    """Not from floating point to integers, where what does not fit may become anything."""
    value = w.fitting(block, lambda value: value.dtype in DTYPES.values())
    if value is None:
        return ()
    floats = [kind for kind in DTYPES.values() if kind.kind == "f"]
    kind = w.rng.choice([*floats, FLAG] if value.dtype.kind == "f" else list(DTYPES.values()))
    number = helper.np_dtype_to_tensor_dtype(kind)
    return w.add(block, "Cast", [value], (kind, value.shape), to=number)


def reshape(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "Reshape")
    if value is None:
        return ()
    shape, axes = list(shape_of(value)), w.rng.randint(0, 3)
    if axes == 0 and value.size:
        shape = [-1]
    elif axes == 1:
        shape.insert(w.rng.randint(0, len(shape)), 1)
    elif axes == 2 and len(shape) > 1:
        shape[:2] = [shape[0] * shape[1]]
    made = tuple(value.size if extent < 0 else extent for extent in shape)
    return w.add(
        block, "Reshape", [value, w.indices(block, *shape)], (value.dtype, made), allowzero=1 if w.opset > 13 else None
    )


def transpose(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "Transpose", lambda value: value.rank > 0)
    if value is None:
        return ()
    order = w.rng.sample(range(value.rank), value.rank)
    return w.add(block, "Transpose", [value], (value.dtype, tuple(shape_of(value)[i] for i in order)), perm=order)


def with_axis(w: Writer, block: Block, op: str) -> tuple[Known, int] | None:
    value = reads(w, block, op, lambda value: value.rank > 0)
    return None if value is None else (value, w.rng.randrange(value.rank))


def changed(shape: Shape, axis: int, *extents: int) -> Shape:
    return (*shape[:axis], *extents, *shape[axis + 1 :])


def slice_(w: Writer, block: Block) -> Sequence[Known]:
    found = with_axis(w, block, "Slice")
    if found is None:
        return ()
    value, axis = found
    extent, step = shape_of(value)[axis], w.rng.choice((1, 1, 1, 2, -1))
    begin, end = w.rng.randint(0, extent), w.rng.randint(0, extent)
    if step > 0:
        begin, end = sorted((begin, end))
    length = len(range(extent)[begin:end:step])
    inputs = [value, *(w.indices(block, number) for number in (begin, end, axis, step))]
    return w.add(block, "Slice", inputs, (value.dtype, changed(shape_of(value), axis, length)))


def concat(w: Writer, block: Block) -> Sequence[Known]:
    found = with_axis(w, block, "Concat")
    if found is None:
        return ()
    value, axis = found
    rest = changed(shape_of(value), axis)

    def fits(other: Known) -> bool:
        return other.dtype == value.dtype and other.rank == value.rank and changed(shape_of(other), axis) == rest

    others = [w.fitting(block, fits) for _ in range(w.rng.randint(0, 2))]
    parts = [value, *(other for other in others if other)]
    w.rng.shuffle(parts)
    whole = sum(shape_of(part)[axis] for part in parts)
    return w.add(block, "Concat", parts, (value.dtype, changed(shape_of(value), axis, whole)), axis=axis)


def split(w: Writer, block: Block) -> Sequence[Known]:
    found = with_axis(w, block, "Split")
    if found is None:
        return ()
    value, axis = found
    cuts = sorted(w.rng.randint(0, shape_of(value)[axis]) for _ in range(w.rng.randint(1, 2)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, shape_of(value)[axis]], strict=True)]
    outs = [(value.dtype, changed(shape_of(value), axis, size)) for size in sizes]
    return w.add(block, "Split", [value, w.indices(block, *sizes)], *outs, axis=axis)


def expand(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "Expand", lambda value: value.size < 64)
    if value is None:
        return ()
    ones = [i for i, extent in enumerate(shape_of(value)) if extent == 1]
    shape = tuple(w.rng.choice((0, 1, 3)) if i in ones else extent for i, extent in enumerate(shape_of(value)))
    shape = (w.rng.choice((1, 2)), *shape) if w.chance(0.4) else shape
    return w.add(block, "Expand", [value, w.indices(block, *shape)], (value.dtype, shape))


def unsqueeze(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "Unsqueeze", lambda value: value.rank < 4)
    if value is None:
        return ()
    shape, axis = shape_of(value), w.rng.randint(0, value.rank)
    if 1 in shape and w.chance(0.5):
        axis = shape.index(1)
        return w.add(block, "Squeeze", [value, w.indices(block, axis)], (value.dtype, changed(shape, axis)))
    wide = (*shape[:axis], 1, *shape[axis:])
    return w.add(block, "Unsqueeze", [value, w.indices(block, axis)], (value.dtype, wide))


def gather(w: Writer, block: Block) -> Sequence[Known]:
    found = with_axis(w, block, "Gather")
    if found is None or not shape_of(found[0])[found[1]]:
        return ()
    value, axis = found
    wanted = w.rng.choice(((), (1,), (3,), (0,), (2, 2)))
    indices = w.constant(block, w.numbers.integers(0, shape_of(value)[axis], wanted).astype(COUNT))
    return w.add(block, "Gather", [value, indices], (value.dtype, changed(shape_of(value), axis, *wanted)), axis=axis)


def pad(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "Pad", lambda value: value.rank > 0 and value.size < 64)
    if value is None:
        return ()
    ends = [w.rng.choice((0, 0, 1, 2)) for _ in range(2 * value.rank)]
    shape = tuple(d + ends[i] + ends[i + value.rank] for i, d in enumerate(shape_of(value)))
    return w.add(block, "Pad", [value, w.indices(block, *ends)], (value.dtype, shape))


def reduce(w: Writer, block: Block) -> Sequence[Known]:
    op = w.rng.choice(("ReduceSum", "ArgMax", "CumSum", "Softmax", "LogSoftmax"))
    found = with_axis(w, block, op)
    if found is None or not found[0].size:
        return ()
    value, axis = found
    shape = shape_of(value)
    if op == "ReduceSum":
        return w.add(block, op, [value, w.indices(block, axis)], (value.dtype, changed(shape, axis)), keepdims=0)
    if op == "ArgMax":
        return w.add(block, op, [value], (COUNT, changed(shape, axis, 1)), axis=axis)
    if op == "CumSum":
        at = w.constant(block, np.array(axis, COUNT))
        return w.add(block, op, [value, at], (value.dtype, shape), reverse=int(w.chance(0.5)))
    return w.add(block, op, [value], (value.dtype, shape), axis=axis)


def product(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "MatMul", lambda value: value.rank in (2, 3))
    if value is None:
        return ()
    columns = w.rng.choice((1, 4, 8))
    other = w.exactly(block, value.dtype, (shape_of(value)[-1], columns))
    return w.add(block, "MatMul", [value, other], (value.dtype, (*shape_of(value)[:-1], columns)))


def shape(w: Writer, block: Block) -> Sequence[Known]:
    value = w.fitting(block, lambda value: True)
    if value is None:
        return ()
    if w.chance(0.4):
        return w.add(block, "Size", [value], (COUNT, ()))
    return w.add(block, "Shape", [value], (COUNT, (value.rank,)))


def constant(w: Writer, block: Block) -> Sequence[Known]:
    kind = w.rng.choice(list(DTYPES.values()))
    block.scope.append(w.constant(block, w.array(kind, w.shape())))
    return block.scope[-1:]


SIMPLE: tuple[Step, ...] = (
    *(unary, unary, unary, binary, binary, binary, where, clip, cast, cast, reshape, transpose, slice_, slice_),
    *(concat, concat, split, expand, unsqueeze, gather, pad, reduce, product, shape, constant),
)
CONTROL: tuple[Step, ...] = (branch, branch, loop, loop, loop, scan, call, call, call)
