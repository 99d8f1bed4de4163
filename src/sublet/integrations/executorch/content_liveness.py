"""Live ranges of tensor contents in a program, for lower bounds and for the picture.

    point 2k      step k reads and writes
    point 2k + 1  step k is finished

A content is live from the first possible write until the last reader on some path. Names, views and their bases are the
same bytes and count once.
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.base.disjoint_sets import DisjointSets
from sublet.base.errors import ModelError
from sublet.base.ranges import Ranges, merge
from sublet.integrations.executorch.program import ByteRange, MethodProgram, MethodStep
from sublet.packing import Buffer, Problem, lower_bound

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
