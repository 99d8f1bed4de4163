"""Decoder of programs in Paddle's newer form (PIR, `.json`): single-assignment values, blocks with arguments.

The decoder renumbers the values: a file may reuse the numbers of block arguments, the records do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.files import parse_json
from sublet.base.tensor import Dims, DType

DTYPES = {
    "t_bool": DType.BOOL, "t_i8": DType.I8, "t_ui8": DType.U8, "t_u8": DType.U8, "t_i16": DType.I16, "t_i32": DType.I32,
    "t_i64": DType.I64, "t_f16": DType.F16, "t_bf16": DType.BF16, "t_f32": DType.F32, "t_f64": DType.F64,
    "t_c64": DType.C64, "t_c128": DType.C128, "t_f8e4m3fn": DType.F8E4M3FN, "t_f8e5m2": DType.F8E5M2,
}  # fmt: skip

DEEPEST = 64
"""Limit of nested blocks. Beyond, `decode` raises ModelError."""
PARAMETER = "p"
OPERATORS_WITH_RESULTS = ("data", "feed", "combine")


@dataclass(frozen=True, slots=True)
class PirValue:
    """A value: element type and extents of a tensor (None for an open extent), or the `parts` of a list of tensors."""

    number: int
    dtype: DType | None
    dims: Dims
    kind: str
    parts: tuple[PirValue, ...] = ()


@dataclass(frozen=True, slots=True)
class PirOp:
    """An operator: the name without the dialect, and the numbers of its operands (0 for a missing operand)."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[PirValue, ...]
    attrs: Mapping[str, object]
    blocks: tuple[PirBlock, ...]


@dataclass(frozen=True, slots=True)
class PirBlock:
    """A block with arguments."""

    args: tuple[PirValue, ...]
    ops: tuple[PirOp, ...]


def decode_pir(text: str, where: str) -> PirBlock:
    """Return the outermost block of a program. Raises ModelError unless the text is a PIR program."""
    content = parse_json(text, where, ModelError)
    if isinstance(content, dict) and {"fingerprint", "schedule"} <= content.keys():
        raise ModelError(
            f"{where} is a plan by Sublet, not a model: pass the model before the plan, or `sublet show` it"
        )
    reader = _PirReader(where)
    code = reader.entry(content, "base_code", dict)
    if code.get("magic") != "pir":
        raise reader.error("the base_code does not declare a Paddle program (magic: pir)")
    blocks = reader.read_blocks(reader.entry(content, "program", dict), {}, 0)
    if len(blocks) != 1:
        raise reader.error(f"a program has one outermost block, not {len(blocks)}")
    return blocks[0]


@dataclass
class _PirReader:
    """Typed access to the entries of the JSON, with new numbers for all values."""

    where: str
    count: int = field(default=0)

    def error(self, what: str) -> ModelError:
        """Return the error for a malformed file."""
        return ModelError(
            f"{self.where}: {what} (the file is damaged, or not a Paddle program in PIR: save the program again)"
        )

    def entry(self, content: Any, name: str, kind: type) -> Any:
        """Return an entry of the given type. Raises ModelError otherwise."""
        if not isinstance(content, dict) or not isinstance(content.get(name), kind):
            raise self.error(f"entry {name!r} is missing or has the wrong type")
        return content[name]

    def read_blocks(self, holder: Any, scope: dict[int, int], depth: int) -> tuple[PirBlock, ...]:
        """Read the blocks in all regions. Raises ModelError for blocks nested deeper than DEEPEST."""
        if depth > DEEPEST:
            raise self.error(f"blocks are nested deeper than {DEEPEST}")
        regions = self.entry(holder, "regions", list)
        return tuple(
            self.read_block(block, dict(scope), depth)
            for region in regions
            for block in self.entry(region, "blocks", list)
        )

    def read_block(self, content: Any, scope: dict[int, int], depth: int) -> PirBlock:
        """Read a block."""
        args = tuple(self.define_value(arg, "#", scope) for arg in self.entry(content, "args", list))
        return PirBlock(args, tuple(self.read_operator(op, scope, depth) for op in self.entry(content, "ops", list)))

    def define_value(self, content: Any, name: str, scope: dict[int, int]) -> PirValue:
        """Read the definition of a value and give the value a new number."""
        number = self.entry(content, name, int)
        self.count += 1
        scope[number] = self.count
        return self.read_type(self.count, self.entry(content, "TT", dict))

    def read_type(self, number: int, content: Any) -> PirValue:
        """Read the type of a value."""
        kind = self.entry(content, "#", str).rpartition(".")[2]
        parts = content.get("D")
        if kind == "t_vec" and isinstance(parts, list):
            return PirValue(number, None, None, kind, tuple(self._read_part(part) for part in parts))
        if kind != "t_dtensor" or not isinstance(parts, list) or len(parts) < 2 or not isinstance(parts[1], list):
            return PirValue(number, None, None, kind)
        if not all(type(extent) is int for extent in parts[1]):
            raise self.error("an extent is not an integer")
        dims = tuple(None if extent < 0 else extent for extent in parts[1])
        return PirValue(number, DTYPES.get(self.entry(parts[0], "#", str).rpartition(".")[2]), dims, kind)

    def _read_part(self, content: Any) -> PirValue:
        """Read the type of a part of a list of tensors."""
        self.count += 1
        return (
            self.read_type(self.count, content) if isinstance(content, dict) else PirValue(self.count, None, None, "")
        )

    def read_operator(self, content: Any, scope: dict[int, int], depth: int) -> PirOp:
        """Read an operator."""
        kind = self.entry(content, "#", str)
        name = kind.rpartition(".")[2]
        if name == PARAMETER:
            fields = self.entry(content, "A", list)
            if not fields or not isinstance(fields[-1], str):
                raise self.error("a parameter has no name")
            return PirOp(
                name, (), (self.define_value(self.entry(content, "O", dict), "%", scope),), {"name": fields[-1]}, ()
            )
        inputs = tuple(self.operand_number(operand, scope) for operand in self.entry(content, "I", list))
        blocks = self.read_blocks(content, scope, depth + 1) if "regions" in content else ()
        outputs = tuple(self.define_value(result, "%", scope) for result in self.entry(content, "O", list))
        if name in OPERATORS_WITH_RESULTS and not outputs:
            raise self.error(f"an operator {name} has no outputs")
        return PirOp(name, inputs, outputs, self.read_attributes(self.entry(content, "A", list)), blocks)

    def operand_number(self, operand: Any, scope: Mapping[int, int]) -> int:
        """Return the new number of an operand. Raises ModelError for a use without a definition in scope."""
        number = self.entry(operand, "%", int)
        if number and number not in scope:
            raise self.error(f"value {number} is read outside the scope of its definition")
        return scope[number] if number else 0

    def read_attributes(self, content: Sequence[Any]) -> dict[str, object]:
        """Read the attributes of an operator."""
        return {self.entry(each, "N", str): _plain_value(self.entry(each, "AT", dict)) for each in content}


def _plain_value(content: Any) -> object:
    """Return the value of an attribute; a list of attributes becomes a tuple of values."""
    value = content.get("D") if isinstance(content, dict) else content
    if isinstance(value, list):
        return tuple(_plain_value(each) if isinstance(each, dict) else each for each in value)
    return value
