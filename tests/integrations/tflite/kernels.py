"""One operator of each kind that TensorFlow Lite Micro has, at several shapes and types: what facts are tried with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sublet.integrations.tflite.offline_plan import NumberField
from tests.integrations.tflite.written import ADD, MUL, O, Options, T, byte, integer

SHAPES = ((7,), (1, 16), (3, 5), (2, 3, 7), (1, 3, 8, 16), (2, 3, 4, 5))
FLOAT, BYTE, WORD = ("f32",), ("f32", "i8"), ("f32", "i8", "i16")
ANY = ("f32", "i8", "i16", "i32", "i64", "u8", "bool")
SUB, DIV, SOFTMAX, LEAKY = (
    (28, {0: byte(0)}),
    (29, {0: byte(0)}),
    (9, {0: NumberField("f", 1.0)}),
    (75, {0: NumberField("f", 0.3)}),
)
UNARY: dict[str, Options | None] = {
    **dict.fromkeys(("ABS", "RSQRT", "SQRT", "SQUARE", "LOG", "SIN", "COS", "CEIL", "FLOOR", "ROUND", "NEG", "EXP")),
    **dict.fromkeys(("RELU", "RELU6", "LOGISTIC", "TANH", "HARD_SWISH", "ELU", "LOGICAL_NOT", "ZEROS_LIKE")),
    **dict.fromkeys(("L2_NORMALIZATION", "LOG_SOFTMAX")),
    "LEAKY_RELU": LEAKY,
    "SOFTMAX": SOFTMAX,
}
BINARY: dict[str, Options | None] = {
    **{"ADD": ADD, "SUB": SUB, "MUL": MUL, "DIV": DIV},
    **dict.fromkeys(("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV", "FLOOR_MOD", "PRELU")),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")),
    **dict.fromkeys(("LOGICAL_AND", "LOGICAL_OR")),
}
COMPARISONS = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
CONVERSIONS = (
    ("QUANTIZE", "i8", "i8"), ("QUANTIZE", "i16", "i16"), ("QUANTIZE", "i8", "u8"), ("QUANTIZE", "u8", "i8"),
    ("CAST", "f32", "i32"), ("CAST", "i32", "f32"), ("CAST", "i8", "u8"), ("CAST", "bool", "i8"),
    ("CAST", "i8", "bool"), ("CAST", "u8", "i8"), ("CAST", "bool", "u8"), ("CAST", "u8", "bool"),
    ("CAST", "i32", "u32"), ("CAST", "u32", "i32"), ("CAST", "u32", "f32"), ("CAST", "f32", "u32"),
    *(("CAST", dtype, dtype) for dtype in ANY), ("DEQUANTIZE", "i32", "f32"), ("QUANTIZE", "i32", "i32"),
)  # fmt: skip
OUTPUTS = {
    **dict.fromkeys((("LOGISTIC", "i8"), ("SOFTMAX", "i8")), (1 / 256, -128)),
    **dict.fromkeys((("TANH", "i8"), ("L2_NORMALIZATION", "i8")), (1 / 128, 0)),
    **dict.fromkeys((("LOGISTIC", "i16"), ("TANH", "i16"), ("SOFTMAX", "i16")), (1 / 32768, 0)),
    ("LOG_SOFTMAX", "i8"): (16 / 256, 127),
}
"""The quantisation that kernels want of what they give."""


@dataclass(frozen=True)
class Case:
    """An operator with its tensors; `over` is the operand whose bytes its first output may take, `kind` how."""

    operator: O
    tensors: Sequence[T]
    over: int
    kind: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """The operator, the type of what is overwritten (and of the output, where it is another), where, and how."""
        first, last = self.tensors[self.operator.inputs[self.over]], self.tensors[self.operator.outputs[0]]
        types = first.dtype if first.dtype == last.dtype else f"{first.dtype}>{last.dtype}"
        return self.operator.name, types, self.over, self.kind


def tensor(shape: Sequence[int], dtype: str, scale: float = 0.05, zero: int = 3, content: object = None) -> T:
    quantised = dtype in ("i8", "i16", "u8")
    return T(
        tuple(shape), dtype, content, scale if quantised else None, 0 if dtype == "i16" else zero if quantised else 0
    )


def unary() -> Iterator[Case]:
    for name, options in UNARY.items():
        for dtype in ANY:
            scale, zero = OUTPUTS.get((name, dtype), (0.04, -5))
            for shape in SHAPES:
                tensors = tensor(shape, dtype), tensor(shape, dtype, scale, zero)
                yield Case(O(name, (0,), (1,), options), tensors, 0, "same")
    for name, source, result in CONVERSIONS:
        for shape in SHAPES:
            yield Case(O(name, (0,), (1,)), (tensor(shape, source), tensor(shape, result, 0.04, -5)), 0, "same")


def smaller(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Shapes that are stretched to one."""
    yield (1,) * len(shape)
    yield (1,) * (len(shape) - 1) + shape[-1:]
    if len(shape) > 1:
        yield shape[-1:]
        yield (*shape[:-1], 1)
        yield (shape[0], *(1,) * (len(shape) - 1))


def binary() -> Iterator[Case]:
    for name, options in BINARY.items():
        for dtype in ("bool",) if name.startswith("LOGICAL") else ("i8", "u8", "bool") if name in COMPARISONS else ANY:
            result = "bool" if name in COMPARISONS else dtype
            for shape in SHAPES:
                out = tensor(shape, result, 0.07, -5)
                whole, other = tensor(shape, dtype), tensor(shape, dtype, 0.03, -9)
                yield Case(O(name, (0, 0), (1,), options), (whole, out), 0, "twice")
                for over in (0, 1):
                    yield Case(O(name, (0, 1), (2,), options), (whole, other, out), over, "same")
                    for stretched in smaller(shape):
                        small = tensor(stretched, dtype, 0.03, -9)
                        pair = (whole, small) if over == 0 else (small, whole)
                        yield Case(O(name, (0, 1), (2,), options), (*pair, out), over, "broadcast")


def others() -> Iterator[Case]:
    for dtype in ANY:
        for shape in SHAPES:
            whole = [tensor(shape, dtype) for _ in range(3)]
            for over in range(3):
                yield Case(O("ADD_N", (0, 1, 2), (3,)), (*whole, tensor(shape, dtype)), over, "same")
            which = tensor(shape, "bool")
            for over in (0, 1, 2):
                yield Case(O("SELECT_V2", (0, 1, 2), (3,)), (which, whole[0], whole[1], whole[2]), over, "same")
            for axis in range(len(shape)):
                along = T((), "i32", axis)
                for told in ({}, {0: byte(1)}, {1: byte(1)}, {0: byte(1), 1: byte(1)}):
                    yield Case(O("CUMSUM", (0, 1), (2,), (102, told)), (whole[0], along, whole[1]), 0, "same")
            to = T((len(shape),), "i32", shape)
            yield Case(O("BROADCAST_TO", (0, 1), (2,)), (whole[0], to, whole[1]), 0, "same")
            part = tensor([max(1, extent - 1) for extent in shape], dtype)
            start = T((len(shape),), "i32", [extent > 1 for extent in shape])
            yield Case(O("DYNAMIC_UPDATE_SLICE", (0, 1, 2), (3,)), (whole[0], part, start, whole[1]), 0, "same")


def mixing() -> Iterator[Case]:
    """Operators that read what they have overwritten: an experiment that lets these pass proves nothing."""
    for dtype in BYTE:
        order = T((2,), "i32", (1, 0))
        yield Case(O("TRANSPOSE", (0, 1), (2,)), (tensor((5, 4), dtype), order, tensor((4, 5), dtype)), 0, "same")
        along = T((1,), "i32", 0)
        yield Case(O("REVERSE_V2", (0, 1), (2,)), (tensor((6, 4), dtype), along, tensor((6, 4), dtype)), 0, "same")
        weight = tensor((8, 8), dtype, 0.02, 0, [[(3 * i + j) % 7 - 3 for i in range(8)] for j in range(8)])
        dense = O("FULLY_CONNECTED", (0, 1, -1), (2,), (8, {0: byte(0)}))
        yield Case(dense, (tensor((2, 8), dtype), weight, tensor((2, 8), dtype)), 0, "same")


@dataclass(frozen=True)
class Piece:
    """An operator whose output `output` is bytes of operand `operand`, or holds it, `offset` bytes apart."""

    operator: O
    tensors: Sequence[T]
    kind: str


def slice_options(**masks: int) -> Options:
    names = ("begin", "end", "ellipsis", "new", "shrink")
    return 32, {i: integer(masks.get(name, 0)) for i, name in enumerate(names)}


def pieces() -> Iterator[Piece]:
    """Operators that move bytes and change none."""

    def numbers(*values: int) -> T:
        return T((len(values),), "i32", values)

    for dtype in ("f32", "i8", "i16", "i32"):
        x = tensor((4, 6), dtype)
        yield Piece(O("RESHAPE", (0, 1), (2,), (17, {})), (x, numbers(2, 12), tensor((2, 12), dtype)), "view")
        yield Piece(O("EXPAND_DIMS", (0, 1), (2,)), (x, numbers(0), tensor((1, 4, 6), dtype)), "view")
        one = tensor((1, 4, 6), dtype)
        yield Piece(O("SQUEEZE", (0,), (1,), (30, {})), (one, tensor((4, 6), dtype)), "view")
        told = numbers(1, 0), numbers(3, 6), numbers(1, 1)
        cut = O("STRIDED_SLICE", (0, 1, 2, 3), (4,), slice_options())
        yield Piece(cut, (x, *told, tensor((2, 6), dtype)), "view")
        one_row = O("STRIDED_SLICE", (0, 1, 2, 3), (4,), slice_options(shrink=1))
        yield Piece(one_row, (x, numbers(2, 0), numbers(3, 6), numbers(1, 1), tensor((6,), dtype)), "view")
        sliced = O("SLICE", (0, 1, 2), (3,))
        yield Piece(sliced, (x, numbers(2, 0), numbers(2, 6), tensor((2, 6), dtype)), "view")
        halves = tensor((2, 6), dtype), tensor((2, 6), dtype)
        yield Piece(O("SPLIT", (0, 1), (2, 3), (35, {0: integer(2)})), (T((), "i32", 0), x, *halves), "view")
        uneven = tensor((1, 6), dtype), tensor((3, 6), dtype)
        split_v = O("SPLIT_V", (0, 1, 2), (3, 4), (79, {0: integer(2)}))
        yield Piece(split_v, (x, numbers(1, 3), T((), "i32", 0), *uneven), "view")
        rows = [tensor((6,), dtype) for _ in range(4)]
        unpack = O("UNPACK", (0,), (1, 2, 3, 4), (64, {0: integer(4), 1: integer(0)}))
        yield Piece(unpack, (x, *rows), "view")
        joined = O("CONCATENATION", (0, 1), (2,), (10, {0: integer(0), 1: byte(0)}))
        yield Piece(joined, (*halves, tensor((4, 6), dtype)), "part")
        flat = tensor((1, 5), dtype), tensor((1, 7), dtype)
        behind = O("CONCATENATION", (0, 1), (2,), (10, {0: integer(-1), 1: byte(0)}))
        yield Piece(behind, (*flat, tensor((1, 12), dtype)), "part")
        packed = O("PACK", (0, 1), (2,), (59, {0: integer(2), 1: integer(0)}))
        yield Piece(packed, (rows[0], rows[1], tensor((2, 6), dtype)), "part")
        for order, whole in (((1, 0, 2), (1, 4, 6)), ((0, 2, 1), (4, 1, 6)), ((0, 1), (4, 6))):
            turned = tensor([whole[axis] for axis in order], dtype)
            yield Piece(O("TRANSPOSE", (0, 1), (2,)), (tensor(whole, dtype), numbers(*order), turned), "view")
        for chosen, shape in ((numbers(1, 2), (2, 6)), (T((), "i32", 2), (6,))):
            gathered = O("GATHER", (0, 1), (2,), (23, {0: integer(0)}))
            yield Piece(gathered, (x, chosen, tensor(shape, dtype)), "view")
