"""The abstract state of the replay: the content of memory, and the points-to sets of pointers (renamed values).

The analysis treats each pointer separately. For each target, and each path condition leading to the target, a pointer
records the invalid bytes: foreign bytes at the target, in the runs with this binding. The state does not record the
bindings of further pointers in the same runs. The size of the state of n pointers is therefore the sum of their
targets and path conditions, not the product.

The bytes of a pointer are the bytes of its source, or, if sources differ, bytes of a token with the pointer's own
name. At the end of an iteration or a loop, the tokens of the body denote an earlier iteration: bytes with a pointer
take the name of the pointer, and the state forgets all further bytes of these tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import takewhile

from sublet.base.errors import Finding
from sublet.checker.contents import concat_contents, slice_content
from sublet.checker.memory import AbstractMemory, Content, MemorySegment, TokenRange, meet_memories
from sublet.ir.graph import While
from sublet.plan import Context, Region

ExitConstraints = Mapping[str, frozenset[int]]
"""A path condition: for each loop or branch the possible exits of a run."""

MOST_BINDINGS = 16
"""Bindings of a pointer to one region, each with its own path condition; `merge_targets` merges more into one."""


@dataclass(frozen=True, slots=True)
class PointsTo:
    """A possible binding of a pointer to a region, with the path condition of the binding.

    invalid_bytes   the foreign (not the pointer's own) bytes of the region, in the runs with this binding
    path_condition  the exits of loops and branches taken in these runs
    choices         the pointers whose assignments selected this region among several, in order of assignment
    """

    invalid_bytes: AbstractMemory
    path_condition: ExitConstraints
    choices: tuple[str, ...] = ()

    def covers(self, other: PointsTo) -> bool:
        """True if merging `other` into this binding loses no information except for invalid bytes.

        The same holds if the path conditions differ in one node only: the merged condition is the exact union.
        """
        own, others = self.path_condition, other.path_condition
        if self.choices != other.choices[: len(self.choices)] or not own.keys() <= others.keys():
            return False
        beyond = [name for name, ways in own.items() if not others[name] <= ways]
        alike = self.choices == other.choices and own.keys() == others.keys()
        return not beyond or (len(beyond) == 1 and alike and all(own[n] == others[n] for n in own if n != beyond[0]))

    def meet(self, other: PointsTo) -> PointsTo:
        """Return the meet: invalid bytes of either binding, the weaker path condition, the common prefix of choices."""
        if self is other:
            return self
        guard = {
            name: ways | other.path_condition[name]
            for name, ways in self.path_condition.items()
            if name in other.path_condition
        }
        broken = self.invalid_bytes.copy()
        for storage, track in other.invalid_bytes.tracks.items():
            for segment in track:
                broken.replace_range(storage, segment.begin, segment.end, [segment])
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.choices, other.choices, strict=False))
        return PointsTo(broken, guard, tuple(choice for choice, _ in same))

    def with_exit(self, node: str, way: int) -> PointsTo:
        """Return the binding for the runs that left `node` by exit `way`."""
        return replace(self, path_condition={**self.path_condition, node: frozenset([way])})

    def is_possible(self, ways: Mapping[str, int]) -> bool:
        """True if the path condition allows all exits in `ways`."""
        return all(way in self.path_condition.get(name, (way,)) for name, way in ways.items())

    def without_conditions(self, nodes: frozenset[str]) -> PointsTo:
        """Return the binding without conditions on the given nodes."""
        return replace(
            self, path_condition={name: ways for name, ways in self.path_condition.items() if name not in nodes}
        )

    def after_write(self, place: Region, region: Region, foreign: list[MemorySegment]) -> PointsTo:
        """Return the binding after a write to `region`; segments `foreign` fill the overlap with `place`."""
        broken = self.invalid_bytes.copy()
        broken.replace_range(place.storage, max(place.offset, region.offset), min(place.end, region.end), foreign)
        return replace(self, invalid_bytes=broken)

    def without_choices_in(self, body: frozenset[str]) -> PointsTo:
        """Return the binding without the choices made in a body."""
        return replace(self, choices=tuple(choice for choice in self.choices if choice not in body))

    def with_choice(self, name: str) -> PointsTo:
        """Return the binding with the pointer `name` added to the choices."""
        return self if name in self.choices else replace(self, choices=(*self.choices, name))


def merge_targets(targets: Iterable[PointsTo]) -> tuple[PointsTo, ...]:
    """Return the bindings to one region, with covered bindings merged; a single merged binding beyond MOST_BINDINGS."""
    merged: list[PointsTo] = []
    for target in targets:
        i = next((i for i, one in enumerate(merged) if one is target or one.covers(target)), None)
        if i is None:
            merged.append(target)
        else:
            merged[i] = merged[i].meet(target)
    return tuple(merged) if len(merged) <= MOST_BINDINGS else (reduce(PointsTo.meet, merged),)


@dataclass(frozen=True, slots=True)
class Pointer:
    """The abstract value of a pointer: the content, and the possible regions, each with the bindings to the region."""

    content: Content
    targets: Mapping[Region, tuple[PointsTo, ...]]

    @property
    def all_bindings(self) -> Iterator[tuple[Region, PointsTo]]:
        """Yield every region with every binding to the region."""
        return ((region, target) for region, bindings in self.targets.items() for target in bindings)

    def map_targets(self, change: Callable[[PointsTo], PointsTo]) -> Pointer:
        """Return the pointer with `change` applied to every binding."""
        targets = {region: merge_targets(map(change, bindings)) for region, bindings in self.targets.items()}
        return replace(self, targets=targets)

    @property
    def nbytes(self) -> int:
        """The size of the content in bytes."""
        return sum(piece.length for piece in self.content)

    @property
    def common_choice(self) -> str:
        """The pointer whose assignment selected the region; "" for a single region, or without a common choice.

        Two pointers with the same choice point to the same place.
        """
        if len(self.targets) == 1:
            return ""
        first, *others = (target for _, target in self.all_bindings)
        return next((name for name in first.choices if all(name in other.choices for other in others)), "")

    @property
    def coverage_key(self) -> object:
        """A value that changes when the pointer covers more runs; the fixpoint compares the values."""
        return self.content, {
            place: [
                (target.invalid_bytes.covered_bytes(), target.path_condition, target.choices) for target in bindings
            ]
            for place, bindings in self.targets.items()
        }

    def meet(self, other: Pointer, name: str) -> Pointer:
        """Return the meet of two pointers, for the pointer called `name`."""
        if self is other:
            return self
        targets = dict(self.targets)
        for region, bindings in other.targets.items():
            targets[region] = merge_targets((*targets[region], *bindings)) if region in targets else bindings
        content = self.content if self.content == other.content else (TokenRange(name, 0, self.nbytes),)
        met = Pointer(content, targets)
        return met if self.common_choice == other.common_choice == met.common_choice != "" else met.with_choice(name)

    def with_choice(self, name: str) -> Pointer:
        """Return the pointer with `name` as a choice of all bindings, if there are several regions."""
        if len(self.targets) == 1:
            return self
        lacking = {
            region: merge_targets(target.with_choice(name) for target in bindings)
            for region, bindings in self.targets.items()
            if any(name not in target.choices for target in bindings)
        }
        return replace(self, targets={**self.targets, **lacking}) if lacking else self

    def restricted_to(self, ways: Mapping[str, int]) -> Pointer | None:
        """Return the pointer restricted to runs with the exits `ways`; None if no binding allows the exits."""
        if not any(target.path_condition for _, target in self.all_bindings):
            return self
        possible = {
            region: tuple(one for one in bindings if one.is_possible(ways)) for region, bindings in self.targets.items()
        }
        targets = {region: bindings for region, bindings in possible.items() if bindings}
        return Pointer(self.content, targets) if targets else None

    def after_scope_end(self, name: str, body: frozenset[str], fresh: dict[Content, Content]) -> Pointer:
        """Return the pointer at the end of an iteration, when the tokens in `body` take another meaning.

        The pointer's own name replaces content and choices from the body; `fresh` maps old content to new content.
        """
        content = self.content
        if any(piece.token in body for piece in content):
            content = fresh.setdefault(content, (TokenRange(name, 0, self.nbytes),))
        ended = self if content is self.content else replace(self, content=content)
        if any(not body.isdisjoint(target.choices) for _, target in self.all_bindings):
            ended = ended.map_targets(lambda target: target.without_choices_in(body))
        return ended if ended.common_choice else ended.with_choice(name)

    def after_write(self, region: Region, content: Content, writer: str, source: Content) -> Pointer:
        """Return the pointer after a write, with the invalidated bytes of its targets.

        The write invalidates no bytes if the bytes are the pointer's own under the name before the write (`source`).
        """
        targets: dict[Region, tuple[PointsTo, ...]] | None = None
        for place, bindings in self.targets.items():
            if place.storage == region.storage and place.offset < region.end and region.offset < place.end:
                foreign = list(_foreign_segments(place, self.content, region, content, writer))
                if source and foreign and not any(_foreign_segments(place, self.content, region, source, writer)):
                    continue
                targets = targets if targets is not None else dict(self.targets)
                targets[place] = tuple(target.after_write(place, region, foreign) for target in bindings)
        return self if targets is None else Pointer(self.content, targets)


@dataclass
class AbstractState:
    """The abstract state: memory and pointers."""

    memory: AbstractMemory
    pointers: dict[str, Pointer]

    def copy(self) -> AbstractState:
        """Return an independent copy."""
        return AbstractState(self.memory.copy(), dict(self.pointers))

    @property
    def coverage_key(self) -> object:
        """A value that changes when the state covers more runs; the fixpoint compares the values."""
        return self.memory.known_bytes(), {name: pointer.coverage_key for name, pointer in self.pointers.items()}

    def meet(self, other: AbstractState) -> AbstractState:
        """Return the meet: the facts common to both states."""
        pointers = {
            name: pointer.meet(other.pointers[name], name)
            for name, pointer in self.pointers.items()
            if name in other.pointers
        }
        return AbstractState(meet_memories(self.memory, other.memory), pointers)

    def restricted_to(self, ways: Mapping[str, int]) -> AbstractState | None:
        """Return the state restricted to runs with the exits `ways`; None if no run takes the exits."""
        pointers: dict[str, Pointer] = {}
        for name, pointer in self.pointers.items():
            restricted = pointer.restricted_to(ways)
            if restricted is None:
                return None
            pointers[name] = restricted
        return AbstractState(self.memory.copy(), pointers)

    def record_exit(self, names: Iterable[str], node: str, way: int) -> None:
        """Add to the path condition of the named pointers that the run left `node` by exit `way`."""
        for name in names:
            pointer = self.pointers.get(name)
            if pointer is not None:
                self.pointers[name] = pointer.map_targets(lambda target: target.with_exit(node, way))

    def first_targets(self) -> Mapping[str, Region]:
        """Return the first region of each pointer."""
        return _TargetSelection(self.pointers, 0)

    def further_targets(self, names: Iterable[str]) -> Iterator[Mapping[str, Region]]:
        """Yield further regions of pointers, so that every pointer in `names` takes each of its regions once."""
        pointers = [self.pointers[name] for name in names if name in self.pointers]
        for i in range(1, max((len(pointer.targets) for pointer in pointers), default=1)):
            yield _TargetSelection(self.pointers, i)

    def resolve(self, content: Content) -> Content:
        """Return a content with bytes of pointers replaced by the pointers' current content."""
        if not self.pointers or not any(piece.token in self.pointers for piece in content):
            return content
        return concat_contents(self._resolve_piece(piece) for piece in content)

    def _resolve_piece(self, piece: TokenRange) -> Content:
        pointer = self.pointers.get(piece.token)
        return (piece,) if pointer is None else slice_content(pointer.content, piece.start, piece.length)

    def mismatches(self, region: Region, content: Content) -> list[MemorySegment]:
        """Return the segments of a region that differ from an unresolved content.

        Bytes of a pointer inside the pointer's own target are correct unless invalidated.
        """
        if region.rows != 1:
            return [wrong for run, part in _rows_with_content(region, content) for wrong in self.mismatches(run, part)]
        segments: list[MemorySegment] = []
        at = region.offset
        for piece in content:
            pointer = self.pointers.get(piece.token)
            outside_targets = pointer is None
            for place, target in pointer.all_bindings if pointer else ():
                if place.storage == region.storage and place.offset == at - piece.start:
                    segments += target.invalid_bytes.segments_within(region.storage, at, at + piece.length)
                else:
                    outside_targets = True
            if outside_targets:
                segments += self.memory.mismatches(region.storage, at, self._resolve_piece(piece))
            at += piece.length
        return segments

    def pointer_to(self, region: Region, content: Content, place: Region | None = None) -> Pointer:
        """Return a pointer bound to a content in one region; `place` is the new name of the region, if different."""
        place, broken = place or region, AbstractMemory()
        for segment in self.mismatches(region, content):
            broken.replace_range(place.storage, segment.begin, segment.end, [segment])
        return Pointer(self.resolve(content), {place: (PointsTo(broken, {}),)})

    def write(self, region: Region, content: Content, writer: str, source: Content = ()) -> None:
        """Write resolved bytes to a region; `source` is the former content, under which pointers may know the bytes."""
        if region.rows != 1:
            for run, part in _rows_with_content(region, content):
                self.write(run, part, writer)
            return
        self.memory.write(region.storage, region.offset, content, writer)
        self._update_pointers(region, content, writer, source)

    def forget(self, region: Region, writer: str) -> None:
        """Make the content of a region unknown."""
        self.memory.forget(region, writer)
        self._update_pointers(region, (), writer)

    def _update_pointers(self, region: Region, content: Content, writer: str, source: Content = ()) -> None:
        for name, pointer in self.pointers.items():
            after = pointer.after_write(region, content, writer, source)
            if after is not pointer:
                self.pointers[name] = after

    def drop(self, names: Collection[str]) -> None:
        """Remove pointers."""
        if names:
            self.pointers = {name: pointer for name, pointer in self.pointers.items() if name not in names}

    def end_scope(self, body: frozenset[str], keeping: Collection[str] = ()) -> Callable[[Content], Content]:
        """End an iteration of a body, or a loop: the tokens of the body denote different bytes from now on.

        The state drops all pointers of the body except for those in `keeping`, the parameters of the next iteration.
        Returns a function from an old content to the new name: empty if no pointer kept the content.
        """
        self.drop([name for name in self.pointers if name in body and name not in keeping])
        fresh: dict[Content, Content] = {}
        for name, pointer in sorted(self.pointers.items()):
            self.pointers[name] = pointer.after_scope_end(name, body, fresh)
        self.memory = self.memory.with_renamed_tokens(lambda token: None if token in body else token)
        return lambda content: fresh.get(content, () if any(piece.token in body for piece in content) else content)

    def forget_exits(self, nodes: frozenset[str]) -> None:
        """Remove the exits of `nodes` from all path conditions."""
        for name, pointer in self.pointers.items():
            if any(not nodes.isdisjoint(target.path_condition) for _, target in pointer.all_bindings):
                self.pointers[name] = pointer.map_targets(lambda target: target.without_conditions(nodes))


class _TargetSelection(Mapping[str, Region]):
    """A map from each pointer to its i-th target, modulo the number of targets."""

    def __init__(self, pointers: Mapping[str, Pointer], i: int) -> None:
        self._pointers = pointers
        self._i = i

    def __getitem__(self, name: str) -> Region:
        targets = self._pointers[name].targets
        regions = list(targets)
        return regions[self._i % len(regions)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pointers)

    def __len__(self) -> int:
        return len(self._pointers)


def _rows_with_content(region: Region, content: Content) -> Iterator[tuple[Region, Content]]:
    """Yield each row of a region with its part of the content."""
    for number, run in enumerate(region.runs):
        yield run, slice_content(content, number * run.nbytes, run.nbytes)


def _foreign_segments(
    place: Region, own: Content, region: Region, content: Content, writer: str
) -> Iterator[MemorySegment]:
    """Yield the segments of a write at `place` that are foreign to the pointer; empty `content` means unknown bytes."""
    if not content:
        yield MemorySegment(max(place.offset, region.offset), min(place.end, region.end), None, 0, writer)
        return
    there = AbstractMemory()
    there.write("", place.offset, own, "")
    at = region.offset
    for piece in content:
        begin, end = max(at, place.offset), min(at + piece.length, place.end)
        if begin < end:
            within = TokenRange(piece.token, piece.start + begin - at, end - begin)
            for other in there.mismatches("", begin, (within,)):
                yield MemorySegment(other.begin, other.end, piece.token, at - piece.start, writer)
        at += piece.length


# The fixpoint state of a loop in the replay.


@dataclass
class LoopFixpoint:
    """The fixpoint state of a loop: by body version the entry state, the exit state, and the findings.

    node      the loop
    within    the body versions of the enclosing loops
    entries   the entry state of each version
    exits     the state after the exit edge of each version
    findings  the findings of the last run of each version, with the fixpoint states of nested loops in their places
    """

    node: While
    within: Context = ()
    entries: dict[int, AbstractState] = field(default_factory=dict)
    exits: dict[int, AbstractState] = field(default_factory=dict)
    findings: dict[int, list[Finding | LoopFixpoint]] = field(default_factory=dict)
