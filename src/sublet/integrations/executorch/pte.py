"""Reader of ExecuTorch program files (.pte): values, instructions, and places of tensors, with every index checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from sublet.base.errors import ModelError
from sublet.base.files import read_bytes
from sublet.base.flatbuffer import Table, Wire
from sublet.base.formatting import printable
from sublet.integrations.executorch.instructions import (
    COPY_INDEX,
    DelegateCall,
    ExecutorchMethod,
    Free,
    Instruction,
    JumpIfFalse,
    KernelCall,
    MethodValue,
    ValueMove,
)
from sublet.integrations.executorch.program import ByteRange, MethodProgram

ADVICE = "the file is damaged, or not an ExecuTorch program: export the program again"
IDENTIFIER = b"ET12"
MAX_RANK = 64
MAX_TENSOR_BYTES = (1 << 62) - 1
MAX_SHOWN_EXTENTS = 8
"""The number of extents of a wrong shape shown in a message."""
BOOLEAN, TENSOR, LISTS = 3, 5, (10, 11)
"""ExecuTorch's numbers of value kinds."""
ABSENT_TENSOR = -1
"""The entry of an absent tensor in a list of optional tensors."""
ELEMENT_BYTES = {
    **dict.fromkeys((0, 1, 11, 12, 13, 16, 17, 23, 24, 25, 26), 1),
    **dict.fromkeys((2, 5, 15, 22, 27), 2),
    **dict.fromkeys((3, 6, 8, 14, 28), 4),
    **dict.fromkeys((4, 7, 9, 29), 8),
    10: 16,
}
"""The bytes of an element, by ExecuTorch's scalar type number."""
EXTERNAL_LOCATION = 1
"""The location code of a constant stored in a separate file."""


def read_programs(path: Path) -> list[MethodProgram]:
    """Read the methods of a program file as steps. Raises ModelError for a damaged file."""
    return [method.as_steps() for method in methods_of(read_bytes(path, ModelError), str(path))]


def methods_of(raw: bytes, where: str) -> list[ExecutorchMethod]:
    """Return the methods as stored in a program file; `where` names the file in errors. Raises ModelError."""
    wire = Wire(raw, where, ADVICE)
    return [_decode_method(table, wire) for table in wire.root(IDENTIFIER).tables(1)]


def _decode_method(table: Table, wire: Wire) -> ExecutorchMethod:
    name = printable(table.text(0)) or "a method"
    where = f"{wire.where}: {name}"
    tables = list(table.tables(2))
    values = [_decode_value(number, entry, len(tables), where) for number, entry in enumerate(tables)]
    chains = list(table.tables(5))
    if len(chains) != 1:
        raise ModelError(f"{where} has {len(chains)} chains of instructions; Sublet reads programs with one")
    operators = [".".join(filter(None, (entry.text(0), entry.text(1)))) for entry in table.tables(6)]
    instruction_tables = list(chains[0].tables(2))
    instructions = [
        _decode_instruction(entry, len(values), len(instruction_tables), operators, where)
        for entry in instruction_tables
    ]
    inputs = _checked_positions(table.integers(3, "i"), len(values), where)
    outputs = _checked_positions(table.integers(4, "i"), len(values), where)
    memories = dict(enumerate(table.integers(8, "q")))
    if any(size < 0 for size in memories.values()):
        raise _damage_error(where, "a memory has a negative size")
    return ExecutorchMethod(
        name, _with_descriptive_names(values, instructions, inputs), instructions, inputs, outputs, memories
    )


def _decode_value(number: int, table: Table, count: int, where: str) -> MethodValue:
    kind, content_table, name = table.integer(0, "B"), table.table(1), f"value {number}"
    if content_table is None or kind not in (BOOLEAN, TENSOR, *LISTS):
        return MethodValue(name)
    if kind == BOOLEAN:
        return MethodValue(name, truth=bool(content_table.integer(0, "B")))
    if kind in LISTS:
        items = [item for item in content_table.integers(0, "i") if item != ABSENT_TENSOR]
        return MethodValue(name, items=_checked_positions(items, count, where))
    sizes, scalar = content_table.integers(2, "i"), content_table.integer(0, "b")
    if scalar not in ELEMENT_BYTES or len(sizes) > MAX_RANK or any(size < 0 for size in sizes):
        more_of_them = " ..." if len(sizes) > MAX_SHOWN_EXTENTS else ""
        raise _damage_error(
            where, f"{name} is a tensor of type {scalar} and shape {sizes[:MAX_SHOWN_EXTENTS]}{more_of_them}"
        )
    buffer_index, allocated, more = content_table.integer(5, "I"), content_table.table(6), content_table.table(9)
    nbytes = prod(sizes) * ELEMENT_BYTES[scalar]
    if nbytes > MAX_TENSOR_BYTES:
        raise _damage_error(where, f"{name} has 2^{nbytes.bit_length() - 1} bytes or more")
    elsewhere = more is not None and more.integer(2, "b") == EXTERNAL_LOCATION
    label = "" if more is None else printable(more.text(1))
    if allocated is None:
        return MethodValue(label or name, nbytes, constant=buffer_index > 0 or elsewhere)
    begin = allocated.integer(1, "I") + (allocated.integer(2, "I") << 32)
    place = ByteRange(allocated.integer(0, "I"), begin, begin + nbytes)
    return MethodValue(label or name, nbytes, place, initial=buffer_index > 0, alignment=ELEMENT_BYTES[scalar])


def _decode_instruction(
    table: Table, values: int, instructions: int, operators: Sequence[str], where: str
) -> Instruction:
    content = table.table(1)
    if content is None:
        raise _damage_error(where, "an instruction is empty")

    def value(field: int) -> int:
        return _checked_positions([content.integer(field, "i")], values, where)[0]

    def arguments() -> tuple[int, ...]:
        return _checked_positions(content.integers(1, "i"), values, where)

    def kernel() -> KernelCall:
        return KernelCall(
            operators[_checked_positions([content.integer(0, "i")], len(operators), where)[0]], arguments()
        )

    def jump() -> JumpIfFalse:
        return JumpIfFalse(value(0), _checked_positions([content.integer(1, "i")], instructions + 1, where)[0])

    kinds: dict[int, Callable[[], Instruction]] = {
        1: kernel,
        2: lambda: DelegateCall(arguments()),
        3: lambda: ValueMove(value(0), value(1)),
        4: jump,
        5: lambda: Free(value(0)),
    }
    kind = table.integer(0, "B")
    if kind not in kinds:
        raise _damage_error(where, f"unknown instruction kind {kind}")
    return kinds[kind]()


def _with_descriptive_names(
    values: Sequence[MethodValue], instructions: Sequence[Instruction], inputs: Sequence[int]
) -> list[MethodValue]:
    """Return the values with descriptive names: the number, and the input or the defining operator."""
    origins: dict[int, str] = {}
    for instruction in instructions:
        if isinstance(instruction, KernelCall) and instruction.arguments:
            last = instruction.arguments[0 if instruction.operator.startswith(COPY_INDEX) else -1]
            for number in (last, *values[last].items):
                origins.setdefault(number, f"of {printable(instruction.operator)}")
        elif isinstance(instruction, ValueMove):
            origins.setdefault(instruction.target, "returned by a branch")
    origins.update({number: f"(input {k})" for k, number in enumerate(inputs)})
    named = []
    for number, value in enumerate(values):
        origin = origins.get(number, "")
        own = value.name if value.name == f"value {number}" else f"value {number}, {value.name}"
        named.append(replace(value, name=f"{own} {origin}".strip()))
    return named


def _checked_positions(numbers: Sequence[int], count: int, where: str) -> tuple[int, ...]:
    """Return the numbers. Raises ModelError for a number outside 0 to `count` - 1."""
    for number in numbers:
        if not 0 <= number < count:
            raise _damage_error(where, f"index {number} is outside 0 to {count - 1}")
    return tuple(numbers)


def _damage_error(where: str, what: str) -> ModelError:
    """Return the error for a damaged file."""
    return ModelError(f"{where}: {what} ({ADVICE})")
