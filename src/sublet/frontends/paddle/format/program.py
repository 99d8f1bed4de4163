"""Records of a Paddle program of any version: blocks with variables and operators, decoded or new.

A decoded record keeps its original bytes (`origin`). The encoder writes every part unchanged by `dataclasses.replace`
as the original bytes, including unknown fields and field order; see `encoding.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.base.errors import ModelError
from sublet.base.tensor import DType

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
