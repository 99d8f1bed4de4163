"""The operators whose kernels read other elements than the one they write, at parameters with which shapes agree.

Most may not be in place: `find_facts` has to notice it. Those with a state, or with an accumulator of their own, may.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sublet.integrations.tflite.offline_plan import NumberField
from tests.integrations.tflite.kernels import WORD, Case, tensor
from tests.integrations.tflite.written import O, Options, T, byte, integer

SAME, VALID = 0, 1
WINDOWED = ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
IMAGES = ((1, 4, 5, 3), (2, 3, 3, 2), (1, 6, 1, 8))


def ints(*values: int, dtype: str = "i32") -> T:
    return T((len(values),), dtype, values)


def weights(shape: Sequence[int], dtype: str, scales: int = 1) -> T:
    """Small numbers, all of them different from their neighbours; 16-bit kernels take 8-bit ones."""
    count = 1
    for extent in shape:
        count *= extent
    numbers = [(5 * i) % 7 - 3 for i in range(count)]
    content = [numbers[i : i + shape[-1]] for i in range(0, count, shape[-1])]
    found = tensor(shape, "f32" if dtype == "f32" else "i8", 0.02, 0)
    found.content = _shaped(content, shape)
    if scales > 1 and dtype != "f32":
        found.scales, found.axis = (0.02,) * scales, 0
    return found


def _shaped(rows: list[list[int]], shape: Sequence[int]) -> object:
    nested: object = rows
    for extent in reversed(shape[1:-1]):
        assert isinstance(nested, list)
        nested = [nested[i : i + extent] for i in range(0, len(nested), extent)]
    return nested if len(shape) > 1 else rows[0]


def biases(count: int, dtype: str) -> T:
    kind = {"f32": "f32", "i8": "i32", "i16": "i64"}[dtype]
    return T((count,), kind, [3 * i - 4 for i in range(count)], None if dtype == "f32" else 0.001)


def _padding(which: int, stride: int, **others: int) -> dict[int, NumberField]:
    fields = {0: byte(which), 1: integer(stride), 2: integer(stride)}
    return {**fields, **{int(name[1:]): integer(value) for name, value in others.items()}}


def pooling() -> Iterator[Case]:
    for name in WINDOWED:
        for dtype in WORD:
            for shape in IMAGES:
                for filter_ in (1, 2, 3):
                    x = tensor(shape, dtype)
                    told = 5, _padding(SAME, 1, _3=filter_, _4=filter_)
                    yield Case(O(name, (0,), (1,), told), (x, x), 0, "same")


def convolutions() -> Iterator[Case]:
    for dtype in WORD:
        for shape in IMAGES:
            depth, x = shape[-1], tensor(shape, dtype, 0.05, 0)
            for filter_ in (1, 3):
                for stepped in (1, 2):
                    kernel = weights((depth, filter_, filter_, depth), dtype, depth)
                    told: Options = 1, {**_padding(SAME, 1), 4: integer(stepped), 5: integer(stepped)}
                    tensors = (x, kernel, biases(depth, dtype), x)
                    yield Case(O("CONV_2D", (0, 1, 2), (3,), told), tensors, 0, "same")
                alone = weights((1, filter_, filter_, depth), dtype)
                told = 2, _padding(SAME, 1, _3=1, _5=1, _6=1)
                tensors = (x, alone, biases(depth, dtype), x)
                yield Case(O("DEPTHWISE_CONV_2D", (0, 1, 2), (3,), told), tensors, 0, "same")
                kernel = weights((depth, filter_, filter_, depth), dtype, depth)
                turned = (ints(*shape), kernel, x, biases(depth, dtype), x)
                told = 49, _padding(SAME, 1)
                yield Case(O("TRANSPOSE_CONV", (0, 1, 2, 3), (4,), told), turned, 2, "same")


def products() -> Iterator[Case]:
    for dtype in WORD:
        for rows, width in ((1, 8), (3, 5), (4, 4)):
            x = tensor((rows, width), dtype, 0.05, 0)
            told: Options = 8, {0: byte(0)}
            dense = O("FULLY_CONNECTED", (0, 1, 2), (3,), told)
            yield Case(dense, (x, weights((width, width), dtype), biases(width, dtype), x), 0, "same")
            square = tensor((1, 4, 4), dtype, 0.05, 0)
            for over in (0, 1):
                for turned in (0, 1):
                    multiply = O("BATCH_MATMUL", (0, 1), (2,), (101, {0: byte(0), 1: byte(turned)}))
                    yield Case(multiply, (square, square, square), over, "same")


def moved() -> Iterator[Case]:
    """Elements somewhere else, or where they were."""
    for dtype in ("f32", "i8", "i16", "i32", "bool"):
        flat, image = tensor((4, 3), dtype), tensor((2, 4, 4, 3), dtype)
        for axis, chosen in ((0, (2, 0, 3, 1)), (0, (0, 1, 2, 3)), (1, (1, 2, 0))):
            gather = O("GATHER", (0, 1), (2,), (23, {0: integer(axis)}))
            yield Case(gather, (flat, ints(*chosen), flat), 0, "same")
        rows = tensor((4,), dtype)
        asked = O("GATHER", (0, 1), (2,), (23, {0: integer(0)}))
        yield Case(asked, (rows, T((4,), "i32", (3, 2, 1, 0)), rows), 0, "same")
        yield Case(O("EMBEDDING_LOOKUP", (0, 1), (2,)), (ints(2, 0, 3, 1), flat, flat), 1, "same")
        pairs = T((4, 1), "i32", ((3,), (0,), (2,), (1,)))
        yield Case(O("GATHER_ND", (0, 1), (2,)), (flat, pairs, flat), 0, "same")
        order = tensor((4, 4), dtype)
        for turned in ((1, 0), (0, 1)):
            yield Case(O("TRANSPOSE", (0, 1), (2,)), (order, ints(*turned), order), 0, "same")
        for axis in (0, 1):
            yield Case(O("REVERSE_V2", (0, 1), (2,)), (order, ints(axis), order), 0, "same")
        yield from _without_effect(dtype, image)


def _without_effect(dtype: str, image: T) -> Iterator[Case]:
    """Padding by nothing, blocks of one: with shapes that agree there is no other way."""
    nothing, none = T((4, 2), "i32", 0), T((2, 2), "i32", 0)
    yield Case(O("PAD", (0, 1), (2,), (22, {})), (image, nothing, image), 0, "same")
    yield Case(O("PADV2", (0, 1, 2), (3,), (43, {})), (image, nothing, tensor((), dtype, content=1), image), 0, "same")
    for mode in (0, 1):
        yield Case(O("MIRROR_PAD", (0, 1), (2,), (77, {0: byte(mode)})), (image, nothing, image), 0, "same")
    for name, options in (("SPACE_TO_DEPTH", 19), ("DEPTH_TO_SPACE", 94)):
        yield Case(O(name, (0,), (1,), (options, {0: integer(1)})), (image, image), 0, "same")
    for name, options in (("BATCH_TO_SPACE_ND", 24), ("SPACE_TO_BATCH_ND", 25)):
        yield Case(O(name, (0, 1, 2), (3,), (options, {})), (image, ints(1, 1), none, image), 0, "same")
    for shape in ((2, 4, 4, 3), (1, 3, 5, 2), (1, 1, 7, 1)):
        for corners, half in ((0, 0), (0, 1), (1, 0)):
            x, size = tensor(shape, dtype), ints(*shape[1:3])
            told: Options = 15, {2: byte(corners), 3: byte(half)}
            yield Case(O("RESIZE_BILINEAR", (0, 1), (2,), told), (x, size, x), 0, "same")
            told = 74, {0: byte(corners), 1: byte(half)}
            yield Case(O("RESIZE_NEAREST_NEIGHBOR", (0, 1), (2,), told), (x, size, x), 0, "same")


def reduced() -> Iterator[Case]:
    """Along axes of one element, the only ones along which the shape stays."""
    for name in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ALL"):
        for dtype in (*WORD, "i32", "bool"):
            for shape, axes in (((4, 1, 5), (1,)), ((3, 7, 1), (2,)), ((2, 1, 1, 6), (1, 2)), ((1, 6), (0,))):
                for scale in (0.05, 0.04):
                    tensors = tensor(shape, dtype), ints(*axes), tensor(shape, dtype, scale)
                    yield Case(O(name, (0, 1), (2,), (27, {0: NumberField("B", 1)})), tensors, 0, "same")


def stated() -> Iterator[Case]:
    """Operators that remember: SVDF, LSTM."""
    for dtype in WORD:
        for batch, width, memory, rank in ((1, 4, 3, 1), (2, 6, 4, 1), (2, 4, 5, 2), (1, 8, 2, 2)):
            yield _svdf(dtype, batch, width, memory, rank)
        for batch, time, width, time_first in ((1, 3, 4, 0), (2, 3, 5, 0), (3, 2, 16, 0), (2, 4, 6, 1), (1, 1, 8, 1)):
            yield _lstm(dtype, batch, time, width, time_first)


def _svdf(dtype: str, batch: int, width: int, memory: int, rank: int) -> Case:
    filters = width * rank
    x, out = tensor((batch, width), dtype, 0.05, 0), tensor((batch, width), dtype, 0.1, 0)
    features = weights((filters, width), dtype)
    kept = "f32" if dtype == "f32" else "i16"
    over_time = tensor((filters, memory), kept, 0.01, 0)
    over_time.content = [[(3 * i + j) % 5 - 2 for j in range(memory)] for i in range(filters)]
    bias = T((width,), "f32" if dtype == "f32" else "i32", [i - 2 for i in range(width)], 0.01 * 0.02)
    state = tensor((batch, memory * filters), kept, 0.02, 0)
    state.variable = True
    svdf = O("SVDF", (0, 1, 2, 3, 4), (5,), (6, {0: integer(rank), 1: byte(0)}))
    return Case(svdf, (x, features, over_time, bias, state, out), 0, "same")


def _lstm(dtype: str, batch: int, time: int, width: int, time_first: int) -> Case:
    """It reads x, four weights for x, four for the state, no peepholes, four biases, no projection, two states."""
    shape = (time, batch, width) if time_first else (batch, time, width)
    x = tensor(shape, dtype, 0.05, 0)
    gates = [weights((width, width), dtype) for _ in range(8)]
    bias = [T((width,), {"f32": "f32", "i8": "i32", "i16": "i64"}[dtype], [i - 1 for i in range(width)],
              None if dtype == "f32" else 0.001) for _ in range(4)]  # fmt: skip
    hidden = tensor((batch, width), dtype, 0.05, 0)
    cell = tensor((batch, width), "f32" if dtype == "f32" else "i16", 2.0**-11, 0)
    hidden.variable = cell.variable = True
    tensors = [x, *gates, *bias, hidden, cell, tensor(shape, dtype, 0.05, 0)]
    inputs = (0, *range(1, 9), -1, -1, -1, *range(9, 13), -1, -1, 13, 14, -1, -1, -1, -1)
    told = {0: byte(4), 1: NumberField("f", 10.0), 2: NumberField("f", 0.0), 3: byte(time_first)}
    return Case(O("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, (15,), (71, told)), tensors, 0, "same")


def shapes() -> Iterator[Case]:
    """Operators on shapes. Only shapes that agree can be broadcast; with ones, and with itself, every one does."""
    yield Case(O("SHAPE", (0,), (1,), (55, {0: byte(2)})), (T((1,), "i32"), T((1,), "i32")), 0, "same")
    for dtype in ("i32", "i64"):
        for rank in (1, 3, 4):
            x = T((rank,), dtype)
            yield Case(O("BROADCAST_ARGS", (0, 0), (1,)), (x, x), 0, "twice")
            for ones, kind in ((ints(*[1] * rank, dtype=dtype), "same"), (ints(1, dtype=dtype), "broadcast")):
                if kind == "same" or rank > 1:
                    yield Case(O("BROADCAST_ARGS", (0, 1), (2,)), (x, ones, x), 0, kind)
                    yield Case(O("BROADCAST_ARGS", (0, 1), (2,)), (ones, x, x), 1, kind)


def elsewhere() -> Iterator[Case]:
    """All of them."""
    for make in (pooling, convolutions, products, moved, reduced, stated, shapes):
        yield from make()


UNTRIED = {
    **dict.fromkeys(("IF", "WHILE"), "their operands are copied into other subgraphs: the tests of branches and loops"),
    **dict.fromkeys(
        ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"), "no operand in the arena, or no output"
    ),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN", "FILL"), "no operand with elements has the shape of the output"),
}
"""Of the operators that TFLM has those that cannot be tried in place, with the reason."""
