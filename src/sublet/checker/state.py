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
from dataclasses import dataclass, replace
from functools import reduce
from itertools import takewhile

from sublet.checker.contents import cut, joined
from sublet.checker.memory import Content, Memory, Piece, Segment, meet
from sublet.plan import Region

Guard = Mapping[str, frozenset[int]]
"""A path condition: for each loop or branch the possible exits of a run."""

MOST_WAYS = 16
"""Bindings of a pointer to one region, each with its own path condition; `merge_targets` merges more into one."""


@dataclass(frozen=True, slots=True)
class Target:
    """A possible binding of a pointer to a region, with the path condition of the binding.

    invalid_bytes   the foreign (not the pointer's own) bytes of the region, in the runs with this binding
    path_condition  the exits of loops and branches taken in these runs
    choices         the pointers whose assignments selected this region among several, in order of assignment
    """

    broken: Memory
    guard: Guard
    choices: tuple[str, ...] = ()

    def covers(self, other: Target) -> bool:
        """True if merging `other` into this binding loses no information except for invalid bytes.

        The same holds if the path conditions differ in one node only: the merged condition is the exact union.
        """
        own, others = self.guard, other.guard
        if self.choices != other.choices[: len(self.choices)] or not own.keys() <= others.keys():
            return False
        beyond = [name for name, ways in own.items() if not others[name] <= ways]
        alike = self.choices == other.choices and own.keys() == others.keys()
        return not beyond or (len(beyond) == 1 and alike and all(own[n] == others[n] for n in own if n != beyond[0]))

    def met(self, other: Target) -> Target:
        """Return the meet: invalid bytes of either binding, the weaker path condition, the common prefix of choices."""
        if self is other:
            return self
        guard = {name: ways | other.guard[name] for name, ways in self.guard.items() if name in other.guard}
        broken = self.broken.copy()
        for storage, track in other.broken.tracks.items():
            for segment in track:
                broken.lay(storage, segment.begin, segment.end, [segment])
        same = takewhile(lambda pair: pair[0] == pair[1], zip(self.choices, other.choices, strict=False))
        return Target(broken, guard, tuple(choice for choice, _ in same))

    def by(self, node: str, way: int) -> Target:
        """Return the binding for the runs that left `node` by exit `way`."""
        return replace(self, guard={**self.guard, node: frozenset([way])})

    def may(self, ways: Mapping[str, int]) -> bool:
        """True if the path condition allows all exits in `ways`."""
        return all(way in self.guard.get(name, (way,)) for name, way in ways.items())

    def without(self, nodes: frozenset[str]) -> Target:
        """Return the binding without conditions on the given nodes."""
        return replace(self, guard={name: ways for name, ways in self.guard.items() if name not in nodes})

    def written(self, place: Region, region: Region, foreign: list[Segment]) -> Target:
        """Return the binding after a write to `region`; segments `foreign` fill the overlap with `place`."""
        broken = self.broken.copy()
        broken.lay(place.storage, max(place.offset, region.offset), min(place.end, region.end), foreign)
        return replace(self, broken=broken)

    def outside(self, body: frozenset[str]) -> Target:
        """Return the binding without the choices made in a body."""
        return replace(self, choices=tuple(choice for choice in self.choices if choice not in body))

    def chosen(self, name: str) -> Target:
        """Return the binding with the pointer `name` added to the choices."""
        return self if name in self.choices else replace(self, choices=(*self.choices, name))


def together(targets: Iterable[Target]) -> tuple[Target, ...]:
    """Return the bindings to one region, with covered bindings merged; a single merged binding beyond MOST_BINDINGS."""
    merged: list[Target] = []
    for target in targets:
        i = next((i for i, one in enumerate(merged) if one is target or one.covers(target)), None)
        if i is None:
            merged.append(target)
        else:
            merged[i] = merged[i].met(target)
    return tuple(merged) if len(merged) <= MOST_WAYS else (reduce(Target.met, merged),)


@dataclass(frozen=True, slots=True)
class Pointer:
    """The abstract value of a pointer: the content, and the possible regions, each with the bindings to the region."""

    content: Content
    targets: Mapping[Region, tuple[Target, ...]]

    @property
    def each(self) -> Iterator[tuple[Region, Target]]:
        """Yield every region with every binding to the region."""
        return ((region, target) for region, bindings in self.targets.items() for target in bindings)

    def changed(self, change: Callable[[Target], Target]) -> Pointer:
        """Return the pointer with `change` applied to every binding."""
        targets = {region: together(map(change, bindings)) for region, bindings in self.targets.items()}
        return replace(self, targets=targets)

    @property
    def nbytes(self) -> int:
        """The size of the content in bytes."""
        return sum(piece.length for piece in self.content)

    @property
    def choice(self) -> str:
        """The pointer whose assignment selected the region; "" for a single region, or without a common choice.

        Two pointers with the same choice point to the same place.
        """
        if len(self.targets) == 1:
            return ""
        first, *others = (target for _, target in self.each)
        return next((name for name in first.choices if all(name in other.choices for other in others)), "")

    @property
    def measure(self) -> object:
        """A value that changes when the pointer covers more runs; the fixpoint compares the values."""
        return self.content, {
            place: [(target.broken.covered_bytes(), target.guard, target.choices) for target in bindings]
            for place, bindings in self.targets.items()
        }

    def met(self, other: Pointer, name: str) -> Pointer:
        """Return the meet of two pointers, for the pointer called `name`."""
        if self is other:
            return self
        targets = dict(self.targets)
        for region, bindings in other.targets.items():
            targets[region] = together((*targets[region], *bindings)) if region in targets else bindings
        content = self.content if self.content == other.content else (Piece(name, 0, self.nbytes),)
        met = Pointer(content, targets)
        return met if self.choice == other.choice == met.choice != "" else met.chosen(name)

    def chosen(self, name: str) -> Pointer:
        """Return the pointer with `name` as a choice of all bindings, if there are several regions."""
        if len(self.targets) == 1:
            return self
        return self.changed(lambda target: target.chosen(name))

    def when(self, ways: Mapping[str, int]) -> Pointer | None:
        """Return the pointer restricted to runs with the exits `ways`; None if no binding allows the exits."""
        if not any(target.guard for _, target in self.each):
            return self
        possible = {
            region: tuple(one for one in bindings if one.may(ways)) for region, bindings in self.targets.items()
        }
        targets = {region: bindings for region, bindings in possible.items() if bindings}
        return Pointer(self.content, targets) if targets else None

    def ended(self, name: str, body: frozenset[str], fresh: dict[Content, Content]) -> Pointer:
        """Return the pointer at the end of an iteration, when the tokens in `body` take another meaning.

        The pointer's own name replaces content and choices from the body; `fresh` maps old content to new content.
        """
        content = self.content
        if any(piece.token in body for piece in content):
            content = fresh.setdefault(content, (Piece(name, 0, self.nbytes),))
        ended = self if content is self.content else replace(self, content=content)
        if any(not body.isdisjoint(target.choices) for _, target in self.each):
            ended = ended.changed(lambda target: target.outside(body))
        return ended if ended.choice else ended.chosen(name)

    def written(self, region: Region, content: Content, writer: str, source: Content) -> Pointer:
        """Return the pointer after a write, with the invalidated bytes of its targets.

        The write invalidates no bytes if the bytes are the pointer's own under the name before the write (`source`).
        """
        targets: dict[Region, tuple[Target, ...]] | None = None
        for place, bindings in self.targets.items():
            if place.storage == region.storage and place.offset < region.end and region.offset < place.end:
                foreign = list(_foreign(place, self.content, region, content, writer))
                if source and foreign and not any(_foreign(place, self.content, region, source, writer)):
                    continue
                targets = targets if targets is not None else dict(self.targets)
                targets[place] = tuple(target.written(place, region, foreign) for target in bindings)
        return self if targets is None else Pointer(self.content, targets)


@dataclass
class State:
    """The abstract state: memory and pointers."""

    memory: Memory
    pointers: dict[str, Pointer]

    def copy(self) -> State:
        """Return an independent copy."""
        return State(self.memory.copy(), dict(self.pointers))

    @property
    def measure(self) -> object:
        """A value that changes when the state covers more runs; the fixpoint compares the values."""
        return self.memory.known_bytes(), {name: pointer.measure for name, pointer in self.pointers.items()}

    def met(self, other: State) -> State:
        """Return the meet: the facts common to both states."""
        pointers = {
            name: pointer.met(other.pointers[name], name)
            for name, pointer in self.pointers.items()
            if name in other.pointers
        }
        return State(meet(self.memory, other.memory), pointers)

    def when(self, ways: Mapping[str, int]) -> State | None:
        """Return the state restricted to runs with the exits `ways`; None if no run takes the exits."""
        pointers: dict[str, Pointer] = {}
        for name, pointer in self.pointers.items():
            restricted = pointer.when(ways)
            if restricted is None:
                return None
            pointers[name] = restricted
        return State(self.memory.copy(), pointers)

    def by_way(self, names: Iterable[str], node: str, way: int) -> None:
        """Add to the path condition of the named pointers that the run left `node` by exit `way`."""
        for name in names:
            pointer = self.pointers.get(name)
            if pointer is not None:
                self.pointers[name] = pointer.changed(lambda target: target.by(node, way))

    def first(self) -> Mapping[str, Region]:
        """Return the first region of each pointer."""
        return _Pointed(self.pointers, 0)

    def variants(self, names: Iterable[str]) -> Iterator[Mapping[str, Region]]:
        """Yield further regions of pointers, so that every pointer in `names` takes each of its regions once."""
        pointers = [self.pointers[name] for name in names if name in self.pointers]
        for i in range(1, max((len(pointer.targets) for pointer in pointers), default=1)):
            yield _Pointed(self.pointers, i)

    def resolve(self, content: Content) -> Content:
        """Return a content with bytes of pointers replaced by the pointers' current content."""
        if not self.pointers or not any(piece.token in self.pointers for piece in content):
            return content
        return joined(self._piece(piece) for piece in content)

    def _piece(self, piece: Piece) -> Content:
        pointer = self.pointers.get(piece.token)
        return (piece,) if pointer is None else cut(pointer.content, piece.start, piece.length)

    def wrong(self, region: Region, content: Content) -> list[Segment]:
        """Return the segments of a region that differ from an unresolved content.

        Bytes of a pointer inside the pointer's own target are correct unless invalidated.
        """
        segments: list[Segment] = []
        at = region.offset
        for piece in content:
            pointer = self.pointers.get(piece.token)
            outside_targets = pointer is None
            for place, target in pointer.each if pointer else ():
                if place.storage == region.storage and place.offset == at - piece.start:
                    segments += target.broken.within(region.storage, at, at + piece.length)
                else:
                    outside_targets = True
            if outside_targets:
                segments += self.memory.mismatches(region.storage, at, self._piece(piece))
            at += piece.length
        return segments

    def at(self, region: Region, content: Content, place: Region | None = None) -> Pointer:
        """Return a pointer bound to a content in one region; `place` is the new name of the region, if different."""
        place, broken = place or region, Memory()
        for segment in self.wrong(region, content):
            broken.lay(place.storage, segment.begin, segment.end, [segment])
        return Pointer(self.resolve(content), {place: (Target(broken, {}),)})

    def write(self, region: Region, content: Content, writer: str, source: Content = ()) -> None:
        """Write resolved bytes to a region; `source` is the former content, under which pointers may know the bytes."""
        self.memory.write(region.storage, region.offset, content, writer)
        self._touch(region, content, writer, source)

    def forget(self, region: Region, writer: str) -> None:
        """Make the content of a region unknown."""
        self.memory.forget(region, writer)
        self._touch(region, (), writer)

    def _touch(self, region: Region, content: Content, writer: str, source: Content = ()) -> None:
        for name, pointer in self.pointers.items():
            after = pointer.written(region, content, writer, source)
            if after is not pointer:
                self.pointers[name] = after

    def drop(self, names: Collection[str]) -> None:
        """Remove pointers."""
        if names:
            self.pointers = {name: pointer for name, pointer in self.pointers.items() if name not in names}

    def end(self, body: frozenset[str], keeping: Collection[str] = ()) -> Callable[[Content], Content]:
        """End an iteration of a body, or a loop: the tokens of the body denote different bytes from now on.

        The state drops all pointers of the body except for those in `keeping`, the parameters of the next iteration.
        Returns a function from an old content to the new name: empty if no pointer kept the content.
        """
        self.drop([name for name in self.pointers if name in body and name not in keeping])
        fresh: dict[Content, Content] = {}
        for name, pointer in sorted(self.pointers.items()):
            self.pointers[name] = pointer.ended(name, body, fresh)
        self.memory = self.memory.renamed(lambda token: None if token in body else token)
        return lambda content: fresh.get(content, () if any(piece.token in body for piece in content) else content)

    def forget_ways(self, nodes: frozenset[str]) -> None:
        """Remove the exits of `nodes` from all path conditions."""
        for name, pointer in self.pointers.items():
            if any(not nodes.isdisjoint(target.guard) for _, target in pointer.each):
                self.pointers[name] = pointer.changed(lambda target: target.without(nodes))


class _Pointed(Mapping[str, Region]):
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


def _foreign(place: Region, own: Content, region: Region, content: Content, writer: str) -> Iterator[Segment]:
    """Yield the segments of a write at `place` that are foreign to the pointer; empty `content` means unknown bytes."""
    if not content:
        yield Segment(max(place.offset, region.offset), min(place.end, region.end), None, 0, writer)
        return
    there = Memory()
    there.write("", place.offset, own, "")
    at = region.offset
    for piece in content:
        begin, end = max(at, place.offset), min(at + piece.length, place.end)
        if begin < end:
            within = Piece(piece.token, piece.start + begin - at, end - begin)
            for other in there.mismatches("", begin, (within,)):
                yield Segment(other.begin, other.end, piece.token, at - piece.start, writer)
        at += piece.length
