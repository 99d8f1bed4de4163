"""Programs of ExecuTorch from their files (.pte), every index checked: values, instructions, where tensors lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from sublet.base.errors import ModelError
from sublet.base.files import read_bytes
from sublet.base.flatbuffer import Table, Wire
from sublet.base.printable import printable
from sublet.frontends.executorch.instructions import (
    COPY_INDEX,
    Delegate,
    Free,
    Instruction,
    Jump,
    Kernel,
    Method,
    Move,
    Value,
)
from sublet.frontends.executorch.program import Bytes, Program

ADVICE = "the file is damaged, or is no program of ExecuTorch: export it again"
IDENTIFIER = b"ET12"
MOST_RANK = 64
MOST_BYTES = (1 << 62) - 1
SHOWN = 8
"""So many extents of a wrong shape are in a message."""
BOOLEAN, TENSOR, LISTS = 3, 5, (10, 11)
"""Kinds of values, by ExecuTorch's numbers."""
NOTHING = -1
"""What a list of optional tensors has for one that is not there."""
WIDTHS = {
    **dict.fromkeys((0, 1, 11, 12, 13, 16, 17, 23, 24, 25, 26), 1),
    **dict.fromkeys((2, 5, 15, 22, 27), 2),
    **dict.fromkeys((3, 6, 8, 14, 28), 4),
    **dict.fromkeys((4, 7, 9, 29), 8),
    10: 16,
}
"""Bytes of an element, by ExecuTorch's numbers of scalar types."""
EXTERNAL = 1
"""Where the content of a constant lies that is in a file of its own."""


def read_programs(path: Path) -> list[Program]:
    """The methods of a program, step by step. Raises ModelError for a file that is damaged."""
    return [method.program() for method in methods_of(read_bytes(path, ModelError), str(path))]


def methods_of(raw: bytes, where: str) -> list[Method]:
    """The methods of a program as its file says them; `where` names it in errors. Raises ModelError."""
    wire = Wire(raw, where, ADVICE)
    return [_method(table, wire) for table in wire.root(IDENTIFIER).tables(1)]


def _method(table: Table, wire: Wire) -> Method:
    name = printable(table.text(0)) or "a method"
    where = f"{wire.where}: {name}"
    several = list(table.tables(2))
    values = [_value(number, each, len(several), where) for number, each in enumerate(several)]
    chains = list(table.tables(5))
    if len(chains) != 1:
        raise ModelError(f"{where} has {len(chains)} chains of instructions; Sublet reads programs with one")
    operators = [".".join(filter(None, (each.text(0), each.text(1)))) for each in table.tables(6)]
    listed = list(chains[0].tables(2))
    instructions = [_instruction(each, len(values), len(listed), operators, where) for each in listed]
    inputs = _indices(table.integers(3, "i"), len(values), where)
    outputs = _indices(table.integers(4, "i"), len(values), where)
    memories = dict(enumerate(table.integers(8, "q")))
    if any(size < 0 for size in memories.values()):
        raise _broken(where, "a memory has fewer than no bytes")
    return Method(name, _named(values, instructions, inputs), instructions, inputs, outputs, memories)


def _value(number: int, table: Table, count: int, where: str) -> Value:
    kind, told, name = table.integer(0, "B"), table.table(1), f"value {number}"
    if told is None or kind not in (BOOLEAN, TENSOR, *LISTS):
        return Value(name)
    if kind == BOOLEAN:
        return Value(name, truth=bool(told.integer(0, "B")))
    if kind in LISTS:
        items = [item for item in told.integers(0, "i") if item != NOTHING]
        return Value(name, items=_indices(items, count, where))
    sizes, scalar = told.integers(2, "i"), told.integer(0, "b")
    if scalar not in WIDTHS or len(sizes) > MOST_RANK or any(size < 0 for size in sizes):
        more_of_them = " ..." if len(sizes) > SHOWN else ""
        raise _broken(where, f"{name} is a tensor of type {scalar} and shape {sizes[:SHOWN]}{more_of_them}")
    content, allocated, more = told.integer(5, "I"), told.table(6), told.table(9)
    nbytes = prod(sizes) * WIDTHS[scalar]
    if nbytes > MOST_BYTES:
        raise _broken(where, f"{name} has 2^{nbytes.bit_length() - 1} bytes or more")
    elsewhere = more is not None and more.integer(2, "b") == EXTERNAL
    called = "" if more is None else printable(more.text(1))
    if allocated is None:
        return Value(called or name, nbytes, constant=content > 0 or elsewhere)
    begin = allocated.integer(1, "I") + (allocated.integer(2, "I") << 32)
    place = Bytes(allocated.integer(0, "I"), begin, begin + nbytes)
    return Value(called or name, nbytes, place, initial=content > 0, alignment=WIDTHS[scalar])


def _instruction(table: Table, values: int, instructions: int, operators: Sequence[str], where: str) -> Instruction:
    told = table.table(1)
    if told is None:
        raise _broken(where, "an instruction says nothing")

    def value(field: int) -> int:
        return _indices([told.integer(field, "i")], values, where)[0]

    def arguments() -> tuple[int, ...]:
        return _indices(told.integers(1, "i"), values, where)

    def kernel() -> Kernel:
        return Kernel(operators[_indices([told.integer(0, "i")], len(operators), where)[0]], arguments())

    def jump() -> Jump:
        return Jump(value(0), _indices([told.integer(1, "i")], instructions + 1, where)[0])

    kinds: dict[int, Callable[[], Instruction]] = {
        1: kernel,
        2: lambda: Delegate(arguments()),
        3: lambda: Move(value(0), value(1)),
        4: jump,
        5: lambda: Free(value(0)),
    }
    kind = table.integer(0, "B")
    if kind not in kinds:
        raise _broken(where, f"there is no instruction of kind {kind}")
    return kinds[kind]()


def _named(values: Sequence[Value], instructions: Sequence[Instruction], inputs: Sequence[int]) -> list[Value]:
    """The values by what people know of them: their number, and which input they are or who makes them."""
    made: dict[int, str] = {}
    for instruction in instructions:
        if isinstance(instruction, Kernel) and instruction.arguments:
            last = instruction.arguments[0 if instruction.operator.startswith(COPY_INDEX) else -1]
            for number in (last, *values[last].items):
                made.setdefault(number, f"of {printable(instruction.operator)}")
        elif isinstance(instruction, Move):
            made.setdefault(instruction.target, "that comes out of a branch")
    made.update({number: f"(input {k})" for k, number in enumerate(inputs)})
    named = []
    for number, value in enumerate(values):
        known = made.get(number, "")
        own = value.name if value.name == f"value {number}" else f"value {number}, {value.name}"
        named.append(replace(value, name=f"{own} {known}".strip()))
    return named


def _indices(numbers: Sequence[int], count: int, where: str) -> tuple[int, ...]:
    for number in numbers:
        if not 0 <= number < count:
            raise _broken(where, f"{number} is no position among {count}")
    return tuple(numbers)


def _broken(where: str, what: str) -> ModelError:
    return ModelError(f"{where}: {what} ({ADVICE})")
