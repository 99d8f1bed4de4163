"""When a program needs what its tensors hold: for what no plan can do below, and for the picture.

    point 2k      step k reads and writes
    point 2k + 1  it has done so

A tensor is held from when it may have been written until its last reader, on some way through the program. Names, views
and what they stand for are the same bytes and count once.
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.base.errors import ModelError
from sublet.base.ranges import Ranges, merge
from sublet.frontends.executorch.program import Bytes, Program, Step
from sublet.packing import Buffer, Problem, lower_bound
from sublet.packing.conflicts import joined

MOST_WORK = 50_000_000
"""Tensors looked at in all."""


def held(program: Program) -> list[Ranges]:
    """For each tensor the points at which its content is there and will be read. Raises ModelError for a giant."""
    live, there = _needed(program), _written(program)
    points: list[list[tuple[int, int]]] = [[] for _ in program.tensors]
    for at, step in enumerate(program.steps):
        after, before = live[at], _before(step, live[at])
        for number in before & (there[at] | {*step.fills}):
            points[number].append((2 * at, 2 * at + 1))
        written = {*step.writes, *step.fills}
        for number in written - before:  # while it is written, what the step reads is needed too
            points[number].append((2 * at, 2 * at + 1))
        for number in (after & (there[at] | _made(step))) | written:
            points[number].append((2 * at + 1, 2 * at + 2))
    return [merge(several) for several in points]


def least_bytes(program: Program, when: list[Ranges]) -> dict[int, int]:
    """What the tensors of each memory take in every plan that runs these steps in this order."""
    groups = _groups(program)
    members: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        members.setdefault(group, []).append(number)
    buffers: dict[int, list[Buffer]] = {memory: [] for memory in program.memories}
    for group, several in members.items():
        memories = {place.memory for n in several if when[n] and (place := program.tensors[n].place) is not None}
        live = merge(piece for number in several for piece in when[number])
        if len(memories) == 1 and live and all(program.tensors[n].place is not None for n in several if when[n]):
            nbytes = min(program.tensors[number].nbytes for number in several if when[number])
            buffers.setdefault(memories.pop(), []).append(Buffer.alive_in(str(group), nbytes, live))
    return {memory: lower_bound(Problem(tuple(inside))).bytes for memory, inside in buffers.items()}


def in_places(program: Program, when: list[Ranges]) -> Iterator[tuple[int, Bytes, Ranges]]:
    """For each tensor with a place the points at which its bytes hold something, be it under another's name."""
    names: dict[int, set[int]] = {}
    for step in program.steps:
        for source, name in step.moves:
            names.setdefault(source, set()).add(name)
    for number, tensor in enumerate(program.tensors):
        if tensor.place is not None:
            known, todo = {number}, [number]
            while todo:
                more = names.get(todo.pop(), set()) - known
                known |= more
                todo += more
            yield number, tensor.place, merge(piece for each in known for piece in when[each])


def _made(step: Step) -> set[int]:
    """What holds something after a step that held nothing before."""
    several = (*step.moves, *step.views)
    return {*step.writes, *step.fills, *step.begins, *(target for _, target in several)}


def _before(step: Step, after: set[int]) -> set[int]:
    """What is needed before a step, of what is needed after it."""
    needed = set(after)
    for base, view in step.views:
        if view in needed:
            needed = (needed - {view}) | {base}
    stood = {source for source, name in step.moves if name in needed}
    needed = (needed - {name for _, name in step.moves}) | stood
    return (needed - {*step.writes, *step.begins}) | {*step.reads, *step.fills}


def _needed(program: Program) -> list[set[int]]:
    """For each step the tensors that are read after it, on some way."""
    ends = {number for number, tensor in enumerate(program.tensors) if tensor.kept}
    live: list[set[int]] = [set() for _ in program.steps]
    before: list[set[int]] = [*(set() for _ in program.steps), ends]
    work, changed = 0, True
    while changed:
        changed = False
        for at in range(len(program.steps) - 1, -1, -1):
            after = set().union(*(before[then] for then in program.steps[at].then))
            work = _counted(program, work + len(after) + 1)
            now = _before(program.steps[at], after)
            changed = changed or now != before[at]
            live[at], before[at] = after, now
    return live


def _written(program: Program) -> list[set[int]]:
    """For each step the tensors that may hold something when it begins."""
    there: list[set[int] | None] = [None] * (len(program.steps) + 1)
    there[0] = {number for number, tensor in enumerate(program.tensors) if tensor.given}
    work, todo = 0, [0]
    while todo:
        at = todo.pop()
        now = there[at] or set()
        after = now | _made(program.steps[at])
        work = _counted(program, work + len(after) + 1)
        for then in program.steps[at].then:
            known = there[then]
            if known is None or not after <= known:
                there[then] = after if known is None else known | after
                if then < len(program.steps):
                    todo.append(then)
    return [known or set() for known in there]


def _counted(program: Program, work: int) -> int:
    if work > MOST_WORK:
        raise ModelError(f"{program.name}: too many tensors are needed for too long to be judged")
    return work


def _groups(program: Program) -> list[int]:
    """For each tensor the first of those that may be the same bytes, by moves and views."""
    return joined(len(program.tensors), (pair for step in program.steps for pair in (*step.moves, *step.views)))
