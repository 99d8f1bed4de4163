"""What a .tflite file says, as records: its subgraphs, tensors, operators and buffers, every index checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sublet.base.errors import ModelError, SubletError
from sublet.base.flatbuffer import Table, Wire
from sublet.base.tensor import DType, Spec, TensorSpec, Unplannable
from sublet.frontends.tflite.codes import CUSTOM, OPERATORS, PLACEHOLDER, RESOURCE, TYPES

ADVICE = "the file is damaged, or is no TensorFlow Lite model: save it again"
IDENTIFIER = b"TFL3"
COMPRESSED = "COMPRESSION_METADATA"
MOST_RANK = 64
NO_BYTES = TensorSpec(DType.I32, (0,))
"""Of a tensor that names a resource: the kernel that gives it keeps the name itself."""

OPTIONS: Mapping[str, tuple[tuple[str, int], ...]] = {
    "IF": (("then", 0), ("else", 1)),
    "WHILE": (("cond", 0), ("body", 1)),
    "CALL_ONCE": (("init", 0),),
    "CALL": (("callee", 0),),
    "CONCATENATION": (("axis", 0),),
    "PACK": (("axis", 1),),
    "UNPACK": (("axis", 1),),
    "STRIDED_SLICE": tuple((f"{name}_mask", i) for i, name in enumerate(("begin", "end", "ellipsis", "new", "shrink"))),
    "GATHER": (("axis", 0), ("batch_dims", 1)),
}
"""The options of an operator that anything here depends on, each with the number of its field: 32-bit integers."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a subgraph.

    spec       its type and shape as planned; `shape_signature` has -1 where a converter left an extent open
    buffer     the position of its content
    variable   it outlasts a run
    scales, zero_points, axis   of its quantisation, one for all or one for each step along an axis; no scales for none
    packed     its buffer holds something else than the elements in a row
    """

    name: str
    spec: Spec
    type: int
    buffer: int
    variable: bool
    signature: tuple[int, ...]
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int
    packed: bool

    @property
    def quantised(self) -> str:
        """The quantisation in words; "" for none."""
        if not self.scales:
            return ""
        if len(self.scales) > 1:
            return f"{len(self.scales)} scales along axis {self.axis}"
        return f"scale {self.scales[0]:.6g}, zero point {self.zero_points[0] if self.zero_points else 0}"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator: its name, its tensors by position (-1 for one left out), and what is said of it."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, int]
    texts: tuple[str, ...] = ()
    intermediates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Tensors, and operators in the order in which they run."""

    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Program:
    """A file as a whole. The first subgraph is what runs. A buffer that is not there is None; b"" holds nothing."""

    where: str
    version: int
    description: str
    subgraphs: tuple[Subgraph, ...]
    buffers: tuple[memoryview | None, ...]
    metadata: tuple[tuple[str, int], ...]
    detached: bool = field(default=False)
    """Something lies behind the flatbuffer, and is found by its distance from the file's begin."""

    @property
    def packed(self) -> bool:
        """Whether constants may be compressed, as TFLM's own tool does it."""
        return any(name == COMPRESSED for name, _ in self.metadata)

    def content(self, tensor: Tensor) -> memoryview | None:
        """What a constant tensor holds; None for one that is computed, given or remembered."""
        held = self.buffers[tensor.buffer]
        return held if held is not None and len(held) and not tensor.variable else None

    def stored(self, name: str) -> memoryview | None:
        """The buffer of the metadata with this name; None when there is none."""
        for found, buffer in self.metadata:
            if found == name:
                return self.buffers[buffer] if self.buffers[buffer] is not None else memoryview(b"")
        return None


def decode(raw: bytes, where: str) -> Program:
    """The records of a file. Raises ModelError when it is damaged, or is something else."""
    wire = Wire(raw, where, ADVICE)
    root = wire.root(IDENTIFIER)
    buffers, detached = [], False
    for table in root.tables(4):
        buffers.append(table.raw(0))
        detached |= table.integer(1, "Q") > 1
    detached |= root.target(8) is not None or root.target(9) is not None
    codes = [_code(table) for table in root.tables(1)]
    subgraphs = tuple(_subgraph(table, len(buffers), codes) for table in root.tables(2))
    if not subgraphs:
        raise ModelError(f"{where}: the model has no subgraph ({ADVICE})")
    metadata = []
    for table in root.tables(6):
        metadata.append((table.text(0), _index(table, 1, "I", len(buffers), "buffer")))
    large = any(table.integer(9, "Q") > 1 for graph in root.tables(2) for table in graph.tables(3))
    description = root.text(3)
    return Program(
        where, root.integer(0, "I"), description, subgraphs, tuple(buffers), tuple(metadata), detached or large
    )


def _index(table: Table, number: int, kind: str, count: int, what: str) -> int:
    found = table.integer(number, kind)
    if not 0 <= found < count:
        raise table.wire.broken(table.at, f"there is no {what} {found}: the model has {count}")
    return found


def _code(table: Table) -> str:
    """The name of an operator. Old files have its number in a byte, new ones in both places."""
    number = max(table.integer(0, "b"), table.integer(3, "i"))
    if number in (CUSTOM, PLACEHOLDER):
        return f"custom.{re.sub(r'[^0-9A-Za-z_.:-]', '_', table.text(1))[:80]}"
    if not 0 <= number < len(OPERATORS):
        raise table.wire.broken(table.at, f"nobody knows a built-in operator {number}")
    return OPERATORS[number]


def _subgraph(table: Table, buffers: int, codes: list[str]) -> Subgraph:
    tensors = tuple(_tensor(inner, buffers) for inner in table.tables(0))
    count = len(tensors)
    operators = tuple(_operator(inner, codes, count) for inner in table.tables(3))
    ends = [_tensors(table, number, count, least=0) for number in (1, 2)]
    return Subgraph(table.text(4), tensors, ends[0], ends[1], operators)


def _tensors(table: Table, number: int, count: int, least: int = -1) -> tuple[int, ...]:
    """A vector of positions of tensors."""
    found = table.integers(number, "i")
    for index in found:
        if not least <= index < count:
            raise table.wire.broken(table.at, f"there is no tensor {index}: the subgraph has {count}")
    return found


def _tensor(table: Table, buffers: int) -> Tensor:
    shape = table.integers(0, "i")
    type_ = _index(table, 1, "b", len(TYPES), "type of elements with the number")
    quantisation = table.table(4)
    scales: tuple[float, ...] = ()
    zeros: tuple[int, ...] = ()
    axis = 0
    if quantisation is not None:
        scales, zeros, axis = quantisation.reals(2), quantisation.integers(3, "q"), quantisation.integer(6, "i")
    return Tensor(
        table.text(3),
        _spec(table, type_, shape),
        type_,
        _index(table, 2, "I", buffers, "buffer"),
        bool(table.integer(5, "B")),
        table.integers(7, "i"),
        scales,
        zeros,
        axis,
        table.target(6) is not None or bool(table.integer(10, "I")),
    )


def _spec(table: Table, type_: int, shape: tuple[int, ...]) -> Spec:
    element = TYPES[type_]
    if type_ == RESOURCE:
        return NO_BYTES
    if len(shape) > MOST_RANK:
        raise table.wire.broken(table.at, f"a tensor with {len(shape)} axes")
    if not isinstance(element, DType):
        return Unplannable(f"{element} has no size of its own", element, shape)
    try:
        return TensorSpec(element, shape)
    except SubletError as error:
        raise table.wire.broken(table.at, f"a tensor: {error}") from error


def _operator(table: Table, codes: list[str], count: int) -> Operator:
    name = codes[_index(table, 0, "I", len(codes), "operator code")]
    options: dict[str, int] = {}
    texts: tuple[str, ...] = ()
    told = table.table(4)
    if told is not None:
        options = {option: told.integer(number, "i") for option, number in OPTIONS.get(name, ())}
        texts = (told.text(0), told.text(1)) if name == "VAR_HANDLE" else ()
    return Operator(
        name,
        _tensors(table, 1, count),
        _tensors(table, 2, count),
        options,
        texts,
        _tensors(table, 8, count),
    )
