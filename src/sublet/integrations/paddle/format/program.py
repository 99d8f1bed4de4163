"""Records of a Paddle program of any version: blocks with variables and operators, decoded or new.

A decoded record keeps its original bytes (`origin`). The encoder writes every part unchanged by `dataclasses.replace`
as the original bytes, including unknown fields and field order; see `encoding.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sublet.base.errors import ModelError, SubletError
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.paddle.format.wire import WireMessage

# Paddle's numbers for kinds of variables, element types and attribute kinds, and the message fields of each.

KINDS = {
    7: "DENSE_TENSOR", 8: "SELECTED_ROWS", 9: "FEED_MINIBATCH", 10: "FETCH_LIST", 11: "STEP_SCOPES",
    12: "RANK_TABLE", 13: "TENSOR_ARRAY", 14: "PLACE_LIST", 15: "READER", 17: "RAW", 18: "TUPLE",
    25: "STRING", 26: "STRINGS", 27: "VOCAB", 28: "FEED_LIST", 29: "PSTRING", 30: "SPARSE_COO", 31: "SPARSE_CSR",
}  # fmt: skip
"""Kinds of variables; older versions say LOD_TENSOR, LOD_TENSOR_ARRAY and LOD_RANK_TABLE."""

DTYPES = {
    0: DType.BOOL, 1: DType.I16, 2: DType.I32, 3: DType.I64, 4: DType.F16, 5: DType.F32, 6: DType.F64,
    19: DType.U64, 20: DType.U8, 21: DType.I8, 22: DType.BF16, 23: DType.C64, 24: DType.C128,
    32: DType.F8E4M3FN, 33: DType.F8E5M2,
}  # fmt: skip
"""Element types; attributes named "dtype" use the same numbers."""

TENSOR_FIELD = {
    "DENSE_TENSOR": (3, True), "SELECTED_ROWS": (2, False), "TENSOR_ARRAY": (4, True), "STRING": (8, False),
    "STRINGS": (9, False), "VOCAB": (10, False), "SPARSE_COO": (11, False), "SPARSE_CSR": (12, False),
}  # fmt: skip
"""The field with the tensor description of each kind of variable, and True if a message lies in between."""

ATTRS = {
    0: ("INT", 3, False), 1: ("FLOAT", 4, False), 2: ("STRING", 5, False), 3: ("INTS", 6, True),
    4: ("FLOATS", 7, True), 5: ("STRINGS", 8, True), 6: ("BOOLEAN", 10, False), 7: ("BOOLEANS", 11, True),
    8: ("BLOCK", 12, False), 9: ("LONG", 13, False), 10: ("BLOCKS", 14, True), 11: ("LONGS", 15, True),
    12: ("FLOAT64S", 16, True), 13: ("VAR", 17, False), 14: ("VARS", 18, True), 15: ("FLOAT64", 19, False),
    16: ("SCALAR", 20, False), 17: ("SCALARS", 21, True),
}  # fmt: skip
"""Kinds of attributes: the name, the field of the value, and True for a list."""

SCALARS: dict[int, type] = {1: bool, 2: int, 3: float, 4: complex}


TENSOR, ROWS, ARRAY, SCOPES = "DENSE_TENSOR", "SELECTED_ROWS", "TENSOR_ARRAY", "STEP_SCOPES"
EMPTY_NAME = "@EMPTY@"
"""Paddle's name for a missing operand."""
GRAD = "@GRAD"
"""Paddle's suffix for the gradient of a variable or slot."""

AttrValue = (
    bool | int | float | complex | str | tuple[bool, ...] | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
    | tuple[bool | int | float | complex, ...]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Origin:
    """The bytes that a record was decoded from, and the decoded record."""

    raw: bytes
    record: PaddleAttr | PaddleOp | PaddleVar | PaddleBlock | PaddleProgram


@dataclass(frozen=True, slots=True)
class PaddleAttr:
    """An attribute: `kind` is Paddle's name of the type ("INTS"); BLOCK and BLOCKS hold block indices."""

    kind: str
    value: AttrValue
    origin: Origin | None = field(default=None, compare=False, repr=False)
    name: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PaddleVar:
    """A variable: `kind` is Paddle's name ("DENSE_TENSOR" for LOD_TENSOR of older versions, "STEP_SCOPES", ...).

    `dtype` is None for a kind without elements; an open extent in `dims` is -1.
    """

    name: str
    kind: str
    dtype: DType | None
    dims: tuple[int, ...]
    lod_level: int
    persistable: bool
    parameter: bool
    stop_gradient: bool
    origin: Origin | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PaddleOp:
    """An operator: variable names by slot."""

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attrs: Mapping[str, PaddleAttr]
    origin: Origin | None = field(default=None, compare=False, repr=False)

    def block_index(self, name: str = "sub_block") -> int | None:
        """Return the block index in an attribute, or None."""
        attr = self.attrs.get(name)
        return attr.value if attr and attr.kind == "BLOCK" and isinstance(attr.value, int) else None

    def first_input(self, slot: str) -> str | None:
        """Return the first name in an input slot, or None."""
        return next(iter(self.inputs.get(slot, ())), None)

    def first_output(self, slot: str) -> str | None:
        """Return the first name in an output slot, or None."""
        return next(iter(self.outputs.get(slot, ())), None)

    def with_names(self, names: Mapping[str, str]) -> PaddleOp:
        """Return the operator with names in its slots replaced; the operator itself if no name matches."""
        if names.keys().isdisjoint((*self.reads, *self.writes)):
            return self
        inputs, outputs = (
            {slot: tuple(names.get(name, name) for name in found) for slot, found in side.items()}
            for side in (self.inputs, self.outputs)
        )
        return replace(self, inputs=inputs, outputs=outputs)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names in all input slots, in order."""
        return tuple(name for names in self.inputs.values() for name in names)

    @property
    def writes(self) -> tuple[str, ...]:
        """The names in all output slots, in order."""
        return tuple(name for names in self.outputs.values() for name in names)


@dataclass(frozen=True, slots=True)
class PaddleBlock:
    """A block: `parent` is the enclosing block, `forward` the block with this block as gradient; -1 if none."""

    index: int
    parent: int
    forward: int
    vars: Mapping[str, PaddleVar]
    ops: tuple[PaddleOp, ...]
    origin: Origin | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PaddleProgram:
    """A program; execution starts at block 0. `version` is Paddle's version (3000000 is 3.0.0), or 0 if missing."""

    blocks: tuple[PaddleBlock, ...]
    version: int = 0
    origin: Origin | None = field(default=None, compare=False, repr=False)

    def declaring_block(self, block: int, name: str) -> int | None:
        """Return the block with the declaration of a name used in `block`: the block itself, or the nearest parent.

        A gradient block runs in the scope left by its forward block, so the forward block's variables come before the
        parent's.
        """
        while block >= 0:
            if name in self.blocks[block].vars:
                return block
            forward = self.blocks[block].forward
            if 0 <= forward < block and name in self.blocks[forward].vars:
                return forward
            block = self.blocks[block].parent
        return None

    def find_var(self, block: int, name: str) -> PaddleVar | None:
        """Return the variable of a name used in a block, or None."""
        home = self.declaring_block(block, name)
        return None if home is None else self.blocks[home].vars[name]


def new_var(
    name: str,
    dtype: DType | None,
    dims: Iterable[int] = (),
    *,
    kind: str = TENSOR,
    lod_level: int = 0,
    persistable: bool = False,
    parameter: bool = False,
    stop_gradient: bool = False,
) -> PaddleVar:
    """Return a new variable."""
    return PaddleVar(name, kind, dtype, tuple(dims), lod_level, persistable, parameter, stop_gradient)


def new_op(
    type: str,
    inputs: Mapping[str, Sequence[str]],
    outputs: Mapping[str, Sequence[str]],
    attrs: Mapping[str, PaddleAttr | AttrValue | Sequence[int] | Sequence[float] | Sequence[str]] | None = None,
) -> PaddleOp:
    """Return a new operator. The kind of a plain attribute value follows from its Python type (see `attr_of`)."""
    given = {name: value if isinstance(value, PaddleAttr) else attr_of(value) for name, value in (attrs or {}).items()}
    slots = [{slot: tuple(names) for slot, names in side.items()} for side in (inputs, outputs)]
    return PaddleOp(type, slots[0], slots[1], given)


def attr_of(value: object) -> PaddleAttr:
    """Return an attribute of the simplest kind for a value. Raises ModelError if no kind fits."""
    for type_, kind in ((bool, "BOOLEAN"), (int, "INT"), (float, "FLOAT"), (str, "STRING")):
        if isinstance(value, type_):
            return PaddleAttr(kind, value)
        if isinstance(value, list | tuple) and value and all(isinstance(element, type_) for element in value):
            return PaddleAttr(f"{kind}S", tuple(value))
    if isinstance(value, list | tuple) and not value:
        return PaddleAttr("INTS", ())
    raise ModelError(f"{value!r:.80} is not an attribute of a Paddle operator: pass Attr(kind, value)")


DEEPEST = 64
"""Limit of nesting, for safe recursion over blocks. Beyond, `require_block_tree` raises ModelError."""


def require_block_tree(program: PaddleProgram, where: str) -> PaddleProgram:
    """Return the program if its blocks form a tree, each run by a single operator. Raises ModelError otherwise."""
    if not program.blocks:
        raise ModelError(f"{where}: a program without blocks (the file is empty, or not a Paddle program)")
    depths: list[int] = []
    owned: set[int] = set()
    for index, block in enumerate(program.blocks):
        if block.index != index:
            raise ModelError(f"{where}: block {index} has the index {block.index}")
        if not (block.parent == -1 if index == 0 else 0 <= block.parent < index):
            raise ModelError(f"{where}: block {index} cannot lie in block {block.parent}")
        if not -1 <= block.forward < max(index, 1):
            raise ModelError(f"{where}: block {index} cannot be the gradient of block {block.forward}")
        depths.append(1 + depths[block.parent] if index else 0)
        if depths[index] > DEEPEST:
            raise ModelError(f"{where}: block {index} is nested deeper than {DEEPEST} blocks")
        for position, op in enumerate(block.ops):
            for inner in _blocks_run_by(op):
                there = index < inner < len(program.blocks) and program.blocks[inner].parent == index
                if not there or inner in owned:
                    title = f"block {index}, operator {position} ({op.type!r:.80})"
                    raise ModelError(
                        f"{where}: {title} cannot run block {inner}, which belongs to another operator or block"
                    )
                owned.add(inner)
    return program


def _blocks_run_by(op: PaddleOp) -> Iterator[int]:
    """Yield the block indices in BLOCK attributes of an operator."""
    for attr in op.attrs.values():
        if attr.kind == "BLOCK" and isinstance(attr.value, int):
            yield attr.value


ELEMENTS: Mapping[DType, Any] = {
    DType.BOOL: np.bool_, DType.I8: np.int8, DType.I16: np.int16, DType.I32: np.int32, DType.I64: np.int64,
    DType.U8: np.uint8, DType.U64: np.uint64, DType.F16: np.float16, DType.F32: np.float32, DType.F64: np.float64,
    DType.C64: np.complex64, DType.C128: np.complex128, DType.BF16: ml_dtypes.bfloat16,
    DType.F8E4M3FN: ml_dtypes.float8_e4m3fn, DType.F8E5M2: ml_dtypes.float8_e5m2,
}  # fmt: skip

MAX_LEVELS = 64
"""Limit of levels of detail of a weight. Beyond, the file is refused."""
MAX_DESCRIPTION_BYTES = 1 << 16
"""Limit of bytes of a tensor description. Beyond, the file is refused."""


@dataclass(frozen=True, slots=True)
class StoredParam:
    """A weight in a file: the spec, and the byte offset of the elements."""

    path: Path
    spec: TensorSpec
    offset: int

    def array(self) -> NDArray[Any]:
        """Read the elements. Raises ModelError if the file cannot be read or became shorter."""
        try:
            elements = np.fromfile(self.path, ELEMENTS[self.spec.dtype], self.spec.size, offset=self.offset)
        except OSError as cause:
            raise ModelError(f"{self.path}: cannot be read: {cause.strerror or cause}") from cause
        if elements.size != self.spec.size:
            raise ModelError(f"{self.path}: became shorter during use")
        return elements.reshape(self.spec.shape)


def read_params(path: str | Path, program: PaddleProgram) -> Mapping[str, StoredParam]:
    """Return the weights of a program by name.

    Raises ModelError unless the file has exactly the weights declared by the program.
    """
    path = Path(path)
    names = sorted(name for name, var in program.blocks[0].vars.items() if var.persistable and var.kind == TENSOR)
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            params = {name: _read_entry(file, size, path, name) for name in names}
            rest = size - file.tell()
    except OSError as cause:
        raise ModelError(f"{path}: cannot be read: {cause.strerror or cause}") from cause
    if rest:
        raise ModelError(f"{path}: {rest} bytes are left behind the {len(names)} weights that the program declares")
    for name, param in params.items():
        var = program.blocks[0].vars[name]
        if var.dtype is not param.spec.dtype or len(var.dims) != len(param.spec.shape) or any(
            declared not in (-1, extent) for declared, extent in zip(var.dims, param.spec.shape, strict=False)
        ):  # fmt: skip
            declared = f"{var.dtype}{list(var.dims)}"
            raise ModelError(f"{path}: the weight {name!r} is {param.spec}, the program declares {declared}")
    return params


def _read_entry(file: BinaryIO, size: int, path: Path, name: str) -> StoredParam:
    """Read the next entry: version, levels of detail, tensor version, description; skip the elements."""

    def take(count: int) -> bytes:
        """Read `count` bytes. Raises ModelError at the end of the file."""
        raw = file.read(count)
        if len(raw) < count:
            raise ModelError(f"{path}: ends within the weight {name!r} (it is cut off, or belongs to another program)")
        return raw

    def number(form: str, maximum: int, what: str) -> int:
        """Read a number of the `struct` format `form` from 0 to `maximum`. Raises ModelError otherwise."""
        at = file.tell()
        value = int(struct.unpack(form, take(struct.calcsize(form)))[0])
        if not 0 <= value <= maximum:
            raise ModelError(f"{path}: at byte {at}: weight {name!r} has {value} {what}: not a file of weights")
        return value

    number("<I", 0, "as its version")
    for _ in range(number("<Q", MAX_LEVELS, "levels of detail")):
        file.seek(number("<Q", size - file.tell(), "bytes of a level of detail"), 1)
    number("<I", 0, "as the version of its tensor")
    at = file.tell()
    described = WireMessage.parse(
        take(number("<i", MAX_DESCRIPTION_BYTES, "bytes of description")), f"{path}: weight {name!r}"
    )
    dtype = DTYPES.get(described.integer(1, -1))
    if dtype is None:
        raise ModelError(f"{path}: at byte {at}: weight {name!r} has elements of an unknown type")
    try:
        spec = TensorSpec(dtype, described.integers(2))
    except SubletError as error:
        raise ModelError(f"{path}: at byte {at}: weight {name!r}: {error}") from None
    offset = file.tell()
    if offset + spec.nbytes > size:
        raise ModelError(f"{path}: ends within the weight {name!r} (it is cut off, or belongs to another program)")
    file.seek(spec.nbytes, 1)
    return StoredParam(path, spec, offset)
