"""Verification of ExecuTorch programs by replay of their instructions; the file declares no lifetimes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from sublet.base.disjoint_sets import DisjointSets
from sublet.base.errors import Finding, ModelError
from sublet.base.files import read_bytes
from sublet.base.flatbuffer import Table, Wire
from sublet.base.formatting import printable
from sublet.base.ranges import Ranges, merge
from sublet.checker.external.external_plan import Evidence, ForeignVerdict, RegionVerdict
from sublet.integrations.executorch.instructions import (
    COPY_INDEX,
    ByteRange,
    DelegateCall,
    ExecutorchMethod,
    Free,
    Instruction,
    JumpIfFalse,
    KernelCall,
    MethodProgram,
    MethodStep,
    MethodValue,
    ValueMove,
)
from sublet.integrations.executorch.replay import replay
from sublet.packing import lower_bound
from sublet.packing.problem import Buffer, Packing, Problem

# Live ranges of tensor contents in a program, for lower bounds and for the picture.
#
#     point 2k      step k reads and writes
#     point 2k + 1  step k is finished
#
# A content is live from the first possible write until the last reader on some path. Names, views and their bases are
# the same bytes and count once.

MAX_VISITED_TENSORS = 50_000_000
"""The limit of visited tensors over all fixpoint passes: a larger program raises ModelError."""


def content_live_ranges(program: MethodProgram) -> list[Ranges]:
    """Return the live range of every tensor's content: points with content to be read on some path.

    Raises ModelError for a program above `MAX_VISITED_TENSORS`.
    """
    live, has_content = _live_after_steps(program), _with_content_before_steps(program)
    points: list[list[tuple[int, int]]] = [[] for _ in program.tensors]
    for at, step in enumerate(program.steps):
        after, before = live[at], _live_before(step, live[at])
        for number in before & (has_content[at] | {*step.fills}):
            points[number].append((2 * at, 2 * at + 1))
        written = {*step.writes, *step.fills}
        for number in written - before:  # the write overlaps the live range of the tensors the step reads
            points[number].append((2 * at, 2 * at + 1))
        for number in (after & (has_content[at] | _gained_by(step))) | written:
            points[number].append((2 * at + 1, 2 * at + 2))
    return [merge(pieces) for pieces in points]


def memory_lower_bounds(program: MethodProgram, when: list[Ranges]) -> dict[int, int]:
    """Return the lower bound in bytes of each memory, over all plans running the steps in the given order."""
    aliases = DisjointSets[int]()
    """Tensors possibly sharing the same bytes through moves and views."""
    for step in program.steps:
        for pair in (*step.moves, *step.views):
            aliases.union(*pair)
    members: dict[int, list[int]] = {}
    for number in range(len(program.tensors)):
        members.setdefault(aliases.find(number), []).append(number)
    buffers: dict[int, list[Buffer]] = {memory: [] for memory in program.memories}
    for group, numbers in members.items():
        memories = {place.memory for n in numbers if when[n] and (place := program.tensors[n].place) is not None}
        live = merge(piece for number in numbers for piece in when[number])
        if len(memories) == 1 and live and all(program.tensors[n].place is not None for n in numbers if when[n]):
            nbytes = min(program.tensors[number].nbytes for number in numbers if when[number])
            buffers.setdefault(memories.pop(), []).append(Buffer.alive_in(str(group), nbytes, live))
    return {memory: lower_bound(Problem(tuple(inside))).bytes for memory, inside in buffers.items()}


def occupied_points(program: MethodProgram, when: list[Ranges]) -> Iterator[tuple[int, ByteRange, Ranges]]:
    """Yield (number, place, points) of each placed tensor: the points with live content there, under any name."""
    names: dict[int, set[int]] = {}
    for step in program.steps:
        for source, name in step.moves:
            names.setdefault(source, set()).add(name)
    for number, tensor in enumerate(program.tensors):
        if tensor.place is not None:
            aliases, todo = {number}, [number]
            while todo:
                more = names.get(todo.pop(), set()) - aliases
                aliases |= more
                todo += more
            yield number, tensor.place, merge(piece for alias in aliases for piece in when[alias])


def _gained_by(step: MethodStep) -> set[int]:
    """Return the tensors that gain content in a step."""
    pairs = (*step.moves, *step.views)
    return {*step.writes, *step.fills, *step.begins, *(target for _, target in pairs)}


def _live_before(step: MethodStep, after: set[int]) -> set[int]:
    """Return the tensors live before a step, given the tensors live after the step."""
    needed = set(after)
    for base, view in step.views:
        if view in needed:
            needed = (needed - {view}) | {base}
    sources = {source for source, name in step.moves if name in needed}
    needed = (needed - {name for _, name in step.moves}) | sources
    return (needed - {*step.writes, *step.begins}) | {*step.reads, *step.fills}


def _live_after_steps(program: MethodProgram) -> list[set[int]]:
    """Return, for each step, the tensors read later on some path (backward liveness)."""
    ends = {number for number, tensor in enumerate(program.tensors) if tensor.kept}
    live: list[set[int]] = [set() for _ in program.steps]
    before: list[set[int]] = [*(set() for _ in program.steps), ends]
    work, changed = 0, True
    while changed:
        changed = False
        for at in range(len(program.steps) - 1, -1, -1):
            after = set().union(*(before[follower] for follower in program.steps[at].then))
            work = _checked_work(program, work + len(after) + 1)
            live_before = _live_before(program.steps[at], after)
            changed = changed or live_before != before[at]
            live[at], before[at] = after, live_before
    return live


def _with_content_before_steps(program: MethodProgram) -> list[set[int]]:
    """Return, for each step, the tensors that may have content when the step begins (forward reachability)."""
    contents: list[set[int] | None] = [None] * (len(program.steps) + 1)
    contents[0] = {number for number, tensor in enumerate(program.tensors) if tensor.given}
    work, todo = 0, [0]
    while todo:
        at = todo.pop()
        current = contents[at] or set()
        after = current | _gained_by(program.steps[at])
        work = _checked_work(program, work + len(after) + 1)
        for follower in program.steps[at].then:
            known = contents[follower]
            if known is None or not after <= known:
                contents[follower] = after if known is None else known | after
                if follower < len(program.steps):
                    todo.append(follower)
    return [known or set() for known in contents]


def _checked_work(program: MethodProgram, work: int) -> int:
    """Return `work`. Raises ModelError above `MAX_VISITED_TENSORS`."""
    if work > MAX_VISITED_TENSORS:
        raise ModelError(f"{program.name}: the liveness analysis visits more than {MAX_VISITED_TENSORS:,} tensors")
    return work


# Reader of ExecuTorch program files (.pte): values, instructions, and places of tensors, with every index checked.

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


TOOL = "ExecuTorch"
SUFFIX = ".pte"


def is_pte(path: Path) -> bool:
    """Return True if the suffix of `path` is that of an ExecuTorch program (`.pte`)."""
    return path.suffix.lower() == SUFFIX


def judge_pte(path: Path) -> ForeignVerdict:
    """Read an ExecuTorch program and return the verdict on its memory plan.

    Raises ModelError if the file cannot be read, is too large, or has no method.
    """
    programs = read_programs(path)
    if not programs:
        raise ModelError(f"{path} has no method to check")
    return judge_programs(programs)


def judge_programs(programs: Iterable[MethodProgram]) -> ForeignVerdict:
    """Return the verdict on the memory plans of all methods of a program.

    Each method is replayed alone. A step must read the content that the program wrote for the step. A region has a
    lower bound only if its method has no finding.
    """
    methods = list(programs)
    findings: list[Finding] = []
    regions: list[RegionVerdict] = []
    drawn: list[tuple[Problem, Packing]] = []
    names: list[str] = []
    for program in methods:
        prefix = f"{program.name}: " if len(methods) > 1 else ""
        wrong = replay(program)
        findings += [replace(finding, where=f"{prefix}{finding.where}") for finding in wrong]
        when = content_live_ranges(program)
        lower_bounds: Mapping[int, int] = {} if wrong else memory_lower_bounds(program, when)
        names += [f"{prefix}{tensor.name}" for tensor in program.tensors if tensor.place is not None]
        for memory, size in program.memories.items():
            inside = [each for each in occupied_points(program, when) if each[1].memory == memory and each[2]]
            if size or inside:
                regions.append(RegionVerdict(f"{prefix}memory {memory}", size, lower_bounds.get(memory, 0)))
                buffers = tuple(
                    Buffer.alive_in(program.tensors[k].name, place.end - place.begin, live) for k, place, live in inside
                )
                offsets = tuple(place.begin for _, place, _ in inside)
                problem = Problem(buffers, name=f"{prefix}memory {memory}")
                drawn.append((problem, Packing(offsets, size, TOOL)))
    return ForeignVerdict(
        TOOL, Evidence.INSTRUCTIONS, tuple(findings), tuple(names), regions=tuple(regions), drawn=tuple(drawn)
    )
