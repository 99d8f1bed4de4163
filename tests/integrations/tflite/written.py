"""Small .tflite files, written field by field as the schema has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sublet.integrations.tflite.offline_plan import (
    ItemVector,
    NumberField,
    TableRecord,
    Text,
    Vector,
    encode_flatbuffer,
)
from sublet.integrations.tflite.program import CUSTOM, IDENTIFIER, OPERATORS

NUMBERS = {
    "f32": (0, np.float32),
    "i32": (2, np.int32),
    "u8": (3, np.uint8),
    "i64": (4, np.int64),
    "bool": (6, np.bool_),
    "i16": (7, np.int16),
    "i8": (9, np.int8),
    "resource": (13, np.int32),
    "u32": (15, np.uint32),
}
"""Types of elements: their number in the schema, and NumPy's."""

Options = tuple[int, dict[int, NumberField | Text | Vector]]
"""The number of the table among the options, and its fields."""


def integer(value: int) -> NumberField:
    return NumberField("i", value)


def byte(value: int) -> NumberField:
    return NumberField("b", value)


@dataclass
class T:
    """A tensor; one with `content` is a constant."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    content: object = None
    scale: float | None = None
    zero: int = 0
    variable: bool = False
    name: str = ""
    signature: tuple[int, ...] = ()
    scales: tuple[float, ...] = ()
    """One a channel, in the place of one for all."""
    axis: int = 0

    def array(self) -> NDArray[np.generic]:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(self.content, NUMBERS[self.dtype][1]), self.shape))


@dataclass
class O:  # noqa: E742
    """An operator: its name, the positions of its tensors, and its options."""

    name: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    options: Options | None = None
    version: int = 1


@dataclass
class G:
    """A subgraph."""

    tensors: Sequence[T]
    operators: Sequence[O]
    inputs: Sequence[int]
    outputs: Sequence[int]
    name: str = "main"


@dataclass
class _File:
    codes: dict[tuple[str, int], int] = field(default_factory=dict)
    buffers: list[TableRecord] = field(default_factory=lambda: [TableRecord({})])

    def tensor(self, tensor: T, index: int) -> TableRecord:
        number, _ = NUMBERS[tensor.dtype]
        buffer = 0
        if tensor.content is not None:
            buffer = len(self.buffers)
            self.buffers.append(TableRecord({0: Vector("B", tensor.array().tobytes(), 16)}))
        fields = {
            0: Vector("i", tensor.shape),
            1: byte(number),
            2: NumberField("I", buffer),
            3: Text(tensor.name or f"t{index}"),
            5: NumberField("B", tensor.variable),
        }
        if tensor.scale is not None:
            scales = tensor.scales or (tensor.scale,)
            zeros = Vector("q", (tensor.zero,) * len(scales))
            fields[4] = TableRecord({2: Vector("f", scales), 3: zeros, 6: integer(tensor.axis)})
        if tensor.signature:
            fields[7] = Vector("i", tensor.signature)
        return TableRecord(fields)

    def operator(self, operator: O) -> TableRecord:
        code = self.codes.setdefault((operator.name, operator.version), len(self.codes))
        fields = {0: NumberField("I", code), 1: Vector("i", operator.inputs), 2: Vector("i", operator.outputs)}
        if operator.options is not None:
            fields[3], fields[4] = NumberField("B", operator.options[0]), TableRecord(operator.options[1])
        return TableRecord(fields)

    def code(self, name: str, version: int) -> TableRecord:
        number = OPERATORS.index(name) if name in OPERATORS else CUSTOM
        fields = {0: byte(min(number, 127)), 2: integer(version), 3: integer(number)}
        if number == CUSTOM:
            fields[1] = Text(name)
        return TableRecord(fields)


def tflite(*subgraphs: G, metadata: Sequence[tuple[str, bytes]] = ()) -> bytes:
    """A file with these subgraphs; the first is what runs."""
    file = _File()
    made = [
        TableRecord(
            {
                0: ItemVector([file.tensor(tensor, i) for i, tensor in enumerate(graph.tensors)]),
                1: Vector("i", graph.inputs),
                2: Vector("i", graph.outputs),
                3: ItemVector([file.operator(operator) for operator in graph.operators]),
                4: Text(graph.name),
            }
        )
        for graph in subgraphs
    ]
    told = []
    for name, content in metadata:
        told.append(TableRecord({0: Text(name), 1: NumberField("I", len(file.buffers))}))
        file.buffers.append(TableRecord({0: Vector("B", content, 16)}))
    fields = {
        0: NumberField("I", 3),
        1: ItemVector([file.code(*code) for code in file.codes]),
        2: ItemVector(made),
        3: Text("written for a test"),
        4: ItemVector(file.buffers),
    }
    if told:
        fields[6] = ItemVector(told)
    return encode_flatbuffer(TableRecord(fields), IDENTIFIER)


ADD, MUL = (11, {0: byte(0)}), (21, {0: byte(0)})


def chain() -> bytes:
    """Two additions, one after the other."""
    tensors = [T((1, 16), name=name) for name in "xyz"]
    return tflite(G(tensors, [O("ADD", (0, 0), (1,), ADD), O("ADD", (1, 0), (2,), ADD)], [0], [2]))


def branch() -> bytes:
    """x + 1 or x * 3, and x again afterwards."""
    main = [T((1, 16), name="x"), T((), "bool", name="which"), T((1, 16), name="chosen"), T((1, 16), name="out")]
    run = O("IF", (1, 0), (2,), (92, {0: integer(1), 1: integer(2)}))
    arms = [
        G([T((1, 16)), T((1,), content=number), T((1, 16))], [O(name, (0, 1), (2,), told)], [0], [2], name)
        for name, number, told in (("ADD", 1.0, ADD), ("MUL", 3.0, MUL))
    ]
    return tflite(G(main, [run, O("ADD", (2, 0), (3,), ADD)], [0, 1], [3]), *arms)


def loop() -> bytes:
    """Doubles x while a count is below 5."""
    main = [T((1,), "i32", name="n"), T((1, 16), name="x"), T((1,), "i32", name="m"), T((1, 16), name="y")]
    run = O("WHILE", (0, 1), (2, 3), (93, {0: integer(1), 1: integer(2)}))
    check = [T((1,), "i32"), T((1, 16)), T((1,), "i32", content=5), T((1,), "bool")]
    body = [T((1,), "i32"), T((1, 16)), T((1,), "i32", content=1), T((1,), "i32"), T((1, 16))]
    return tflite(
        G(main, [run], [0, 1], [2, 3]),
        G(check, [O("LESS", (0, 2), (3,))], [0, 1], [3], "check"),
        G(body, [O("ADD", (0, 2), (3,), ADD), O("ADD", (1, 1), (4,), ADD)], [0, 1], [3, 4], "body"),
    )


def counting() -> bytes:
    """Adds x to what a variable remembers, which the first run sets to 2."""
    handle = (111, {0: Text(""), 1: Text("sum")})
    main = [
        T((1, 4), name="x"),
        T((), "resource", name="handle"),
        T((1, 4), name="before"),
        T((1, 4), name="after"),
    ]
    operators = [
        O("CALL_ONCE", (), (), (103, {0: integer(1)})),
        O("VAR_HANDLE", (), (1,), handle),
        O("READ_VARIABLE", (1,), (2,)),
        O("ADD", (2, 0), (3,), ADD),
        O("ASSIGN_VARIABLE", (1, 3), ()),
    ]
    start = [T((), "resource"), T((1, 4), content=2.0)]
    init = [O("VAR_HANDLE", (), (0,), handle), O("ASSIGN_VARIABLE", (0, 1), ())]
    return tflite(G(main, operators, [0], [3]), G(start, init, [], [], "init"))
