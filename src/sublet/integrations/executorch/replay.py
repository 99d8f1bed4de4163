"""Verifier of a plan: replays a program over the planned places, on all paths at once, and checks each read.

The replay trusts no live ranges. The state of each tensor holds the possible places and the first write over the tensor
on any path (a forward data-flow analysis). A tensor read by a step must be intact; at the end, outputs and states must
be intact.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from sublet.base.errors import Finding, ModelError
from sublet.integrations.executorch.instructions import ByteRange, MethodProgram, MethodStep, MethodTensor

UNWRITTEN = (-1, -1)
"""The (step, tensor) of a tensor never written."""

MAX_VISITED_TENSORS = 100_000_000
"""The limit of visited tensors over all passes: a larger program raises ModelError instead of taking hours."""


@dataclass(frozen=True, slots=True)
class TensorState:
    """The possible places of a tensor, and a (step, tensor) that overwrote the bytes; None for an intact tensor."""

    where: frozenset[ByteRange]
    overwritten_by: tuple[int, int] | None

    def merge_with(self, other: TensorState) -> TensorState:
        """Return the join of two states at a merge of paths."""
        if self == other:
            return self
        breaks = [broken for broken in (self.overwritten_by, other.overwritten_by) if broken is not None]
        return TensorState(self.where | other.where, max(breaks) if breaks else None)


def replay(program: MethodProgram) -> list[Finding]:
    """Return all violations: `outside`, `misaligned`, `overwritten`, `unwritten`, `written-while-read`.

    Raises ModelError for a program above `MAX_VISITED_TENSORS`.
    """
    findings = [finding for tensor in program.tensors for finding in _place_findings(program, tensor)]
    return findings + _ProgramReplay(program).findings()


def _place_findings(program: MethodProgram, tensor: MethodTensor) -> Iterator[Finding]:
    """Yield a violation for a place outside the memory, and for a misaligned place."""
    place = tensor.place
    if place is None:
        return
    size = program.memories.get(place.memory, 0)
    if place.end > size and place.begin < place.end:
        yield Finding("outside", tensor.name, f"{place}, which has {size}", "enlarge the memory", (tensor.name,))
    if place.begin % tensor.alignment:
        what = f"{place}: not a multiple of {tensor.alignment}"
        yield Finding("misaligned", tensor.name, what, "round the offset up", (tensor.name,))


class _ProgramReplay:
    """The replay of a program: a fixpoint over basic blocks, then a pass collecting violations."""

    def __init__(self, program: MethodProgram) -> None:
        self._program = program
        self._own = [frozenset() if t.place is None else frozenset({t.place}) for t in program.tensors]
        self._near = _OverlapIndex(program)
        self._work = 0
        self._found: dict[tuple[str, int, int], Finding] = {}

    def findings(self) -> list[Finding]:
        """Return the violations of all reachable steps and of the end."""
        blocks = self._program.basic_blocks()
        block_at = {block.start: i for i, block in enumerate(blocks)}
        first = [
            TensorState(own, None if tensor.given else UNWRITTEN)
            for own, tensor in zip(self._own, self._program.tensors, strict=True)
        ]
        before: dict[int, list[TensorState]] = {0: first}
        todo = [0] if blocks else []
        while todo:
            block = todo.pop()
            state = list(before[block])
            for at in blocks[block]:
                self._apply_step(state, at, reports=False)
            for then in self._program.steps[blocks[block][-1]].then:
                after = block_at.get(then)
                if after is not None and self._merge_into_block(before, after, state):
                    todo.append(after)
        last = len(self._program.steps)
        for block, begin in sorted(before.items()):
            state = list(begin)
            for at in blocks[block]:
                self._apply_step(state, at, reports=True)
            if last in self._program.steps[blocks[block][-1]].then:
                for number, tensor in enumerate(self._program.tensors):
                    if tensor.kept:
                        self._check_read(state, number, last)
        return list(self._found.values())

    def _merge_into_block(self, before: dict[int, list[TensorState]], block: int, state: list[TensorState]) -> bool:
        """Join `state` into the entry state of a block; True if the entry state changed."""
        self._count_work(len(state))
        if block not in before:
            before[block] = state.copy()
            return True
        joined = [one.merge_with(other) for one, other in zip(before[block], state, strict=True)]
        changed = joined != before[block]
        before[block] = joined
        return changed

    def _apply_step(self, state: list[TensorState], at: int, reports: bool) -> None:
        """Apply a step to `state`; with `reports`, record violations."""
        step = self._program.steps[at]
        if reports:
            for number in (*step.reads, *step.fills):
                self._check_read(state, number, at)
            self._check_disjoint(state, step, at)
        for number in step.begins:
            state[number] = TensorState(self._own[number], None)
        for number in (*step.writes, *step.fills):
            self._invalidate_overlapping(state, number, at)
        for number in step.writes:
            state[number] = TensorState(state[number].where, None)
        for source, name in step.moves:
            state[name] = state[source]
        for base, view in step.views:
            held = state[base]
            same = held.overwritten_by is None and held.where == self._own[view]
            state[view] = TensorState(self._own[view], None if same else held.overwritten_by or (at, base))

    def _invalidate_overlapping(self, state: list[TensorState], number: int, at: int) -> None:
        """Invalidate all tensors possibly overlapping the written tensor, except tensors of the same family."""
        family = self._program.tensors[number].family
        for place in state[number].where:
            for other in self._near.tensors_overlapping(place):
                self._count_work(1)
                held = state[other]
                kin = family >= 0 and self._program.tensors[other].family == family
                if other != number and held.overwritten_by is None and not kin and _overlaps(held.where, place):
                    state[other] = TensorState(held.where, (at, number))

    def _check_read(self, state: list[TensorState], number: int, at: int) -> None:
        """Record a violation unless the tensor is intact."""
        broken = state[number].overwritten_by
        if broken is None:
            return
        name, when = self._program.tensors[number].name, self._step_text(at)
        if broken == UNWRITTEN:
            what = f"read {when}, before the first write to these bytes"
            self._add_finding("unwritten", number, -1, state[number].where, what, "write the tensor first", name)
            return
        writer, by = self._program.tensors[broken[1]].name, self._step_text(broken[0])
        what = f"read {when}, but {writer} overwrote the bytes {by}"
        if (broken[1], number) in self._program.steps[broken[0]].views:
            what = (
                f"read {when} as a view of {writer}, which does not lie in {self._program.tensors[number].place} {by}"
            )
        self._add_finding(
            "overwritten", number, broken[1], state[number].where, what, "keep the two apart", name, writer
        )

    def _check_disjoint(self, state: list[TensorState], step: MethodStep, at: int) -> None:
        """Record a violation for each tensor used by a step and overlapping another tensor written by the same step."""
        tensors = self._program.tensors
        for written in (*step.writes, *step.fills):
            for other in (*step.reads, *step.writes):
                kin = tensors[written].family >= 0 and tensors[written].family == tensors[other].family
                if other == written or kin:
                    continue
                if any(_overlaps(state[other].where, place) for place in state[written].where):
                    name, writer = tensors[other].name, tensors[written].name
                    what = f"{self._step_text(at)} the tensor is used while {writer} overwrites the bytes"
                    self._add_finding(
                        "written-while-read",
                        other,
                        written,
                        state[other].where,
                        what,
                        "keep the two apart",
                        name,
                        writer,
                    )

    def _add_finding(
        self, rule: str, number: int, other: int, places: frozenset[ByteRange], what: str, fix: str, *names: str
    ) -> None:
        """Record a violation, once per rule and pair of tensors."""
        where = f"{names[0]} ({', '.join(map(str, sorted(places))) or 'no bytes'})"
        self._found.setdefault((rule, number, other), Finding(rule, where, what, fix, names))

    def _step_text(self, at: int) -> str:
        """Return the text of a step for messages."""
        steps = self._program.steps
        return f"at step {at} ({steps[at].what})" if at < len(steps) else "at the end"

    def _count_work(self, visits: int) -> None:
        """Add to the work counter. Raises ModelError above `MAX_VISITED_TENSORS`."""
        self._work += visits
        if self._work > MAX_VISITED_TENSORS:
            raise ModelError(f"{self._program.name}: the replay visits more than {MAX_VISITED_TENSORS:,} tensors")


def _overlaps(where: frozenset[ByteRange], place: ByteRange) -> bool:
    """True if any byte range in `where` overlaps `place`."""
    return any(held.memory == place.memory and held.begin < place.end and place.begin < held.end for held in where)


class _OverlapIndex:
    """An index from places to the tensors that may ever lie in the place's bytes, directly or through moves."""

    def __init__(self, program: MethodProgram) -> None:
        self._holders: dict[ByteRange, set[int]] = {}
        for number, tensor in enumerate(program.tensors):
            if tensor.place is not None:
                self._holders.setdefault(tensor.place, set()).add(number)
        names: dict[int, set[int]] = {}
        for step in program.steps:
            for source, name in step.moves:
                names.setdefault(source, set()).add(name)
        for holders in self._holders.values():
            todo = list(holders)
            while todo:
                for name in names.get(todo.pop(), ()):
                    if name not in holders:
                        holders.add(name)
                        todo.append(name)
        self._places: dict[int, list[ByteRange]] = {}
        for place in sorted(self._holders):
            self._places.setdefault(place.memory, []).append(place)
        self._longest = {m: max(p.end - p.begin for p in several) for m, several in self._places.items()}
        self._cache: dict[ByteRange, tuple[int, ...]] = {}

    def tensors_overlapping(self, place: ByteRange) -> tuple[int, ...]:
        """Return the tensors that may lie in some byte of `place`, sorted."""
        if place not in self._cache:
            places = self._places[place.memory]
            low = bisect_left(places, ByteRange(place.memory, place.begin - self._longest[place.memory], 0))
            high = bisect_left(places, ByteRange(place.memory, place.end, 0))
            near = {n for each in places[low:high] if place.begin < each.end for n in self._holders[each]}
            self._cache[place] = tuple(sorted(near))
        return self._cache[place]
