"""What holds of every run that comes to a point: what lies where, and what every pointer may stand for.

Pointers are taken one by one. For each of its targets, and each way to it, a pointer knows which bytes there are not
its own, in the runs in which it stands for that target; what another pointer stands for in these runs is not asked.
So the state of a program with n pointers has as many parts as they have targets and ways, and not as they have
combinations of targets.

The bytes of a pointer are those of its source, or, where sources differ, bytes of a token of its own name. When a
round or a loop ends, the tokens of its body become of an earlier round: what is pointed at takes the name of
the pointer, all others are forgotten.
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
"""Loops and branches, each with the ways by which it must have been left."""

MOST_WAYS = 16
"""In so many ways a pointer may have come to stand for one region; what holds of more is joined."""


@dataclass(frozen=True, slots=True)
class Target:
    """One way in which a pointer may have come to stand for a region.

    broken   which bytes there are not the pointer's own, in the runs in which it stands for this region
    guard    how loops and branches have been left then
    choices  the pointers by whose assignment it was decided that it is this region and not another, one after another
    """

    broken: Memory
    guard: Guard
    choices: tuple[str, ...] = ()

    def covers(self, other: Target) -> bool:
        """Whether nothing but what is broken would be forgotten of the target if it may have come about as the other.

        That is so as well when their guards differ in one node: in the ways of both nothing is lost.
        """
        own, others = self.guard, other.guard
        if self.choices != other.choices[: len(self.choices)] or not own.keys() <= others.keys():
            return False
        beyond = [name for name, ways in own.items() if not others[name] <= ways]
        alike = self.choices == other.choices and own.keys() == others.keys()
        return not beyond or (len(beyond) == 1 and alike and all(own[n] == others[n] for n in own if n != beyond[0]))

    def met(self, other: Target) -> Target:
        """What is known when the target may have come about in either way."""
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
        """The target, of runs that left a node by one of its ways."""
        return replace(self, guard={**self.guard, node: frozenset([way])})

    def may(self, ways: Mapping[str, int]) -> bool:
        """Whether it can have come about when loops and branches were left by these ways."""
        return all(way in self.guard.get(name, (way,)) for name, way in ways.items())

    def without(self, nodes: frozenset[str]) -> Target:
        """The target, whatever the ways out of these nodes."""
        return replace(self, guard={name: ways for name, ways in self.guard.items() if name not in nodes})

    def written(self, place: Region, region: Region, foreign: list[Segment]) -> Target:
        """The target after a write, which leaves these bytes where it meets the place."""
        broken = self.broken.copy()
        broken.lay(place.storage, max(place.offset, region.offset), min(place.end, region.end), foreign)
        return replace(self, broken=broken)

    def outside(self, body: frozenset[str]) -> Target:
        """The target, whatever was chosen in a body."""
        return replace(self, choices=tuple(choice for choice in self.choices if choice not in body))

    def chosen(self, name: str) -> Target:
        """The target, as that of a pointer which chose it."""
        return self if name in self.choices else replace(self, choices=(*self.choices, name))


def together(targets: Iterable[Target]) -> tuple[Target, ...]:
    """The ways to one region, those that are alike as one."""
    found: list[Target] = []
    for target in targets:
        i = next((i for i, one in enumerate(found) if one is target or one.covers(target)), None)
        if i is None:
            found.append(target)
        else:
            found[i] = found[i].met(target)
    return tuple(found) if len(found) <= MOST_WAYS else (reduce(Target.met, found),)


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a pointer stands for: what its bytes are, and the regions where they may lie, each with the ways to it."""

    content: Content
    targets: Mapping[Region, tuple[Target, ...]]

    @property
    def each(self) -> Iterator[tuple[Region, Target]]:
        """Every region, with every way to it."""
        return ((region, target) for region, several in self.targets.items() for target in several)

    def changed(self, change: Callable[[Target], Target]) -> Pointer:
        """The pointer with other targets."""
        targets = {region: together(map(change, several)) for region, several in self.targets.items()}
        return replace(self, targets=targets)

    @property
    def nbytes(self) -> int:
        return sum(piece.length for piece in self.content)

    @property
    def choice(self) -> str:
        """By whose assignment it was decided which region it is: two pointers of one choice are at the same place."""
        if len(self.targets) == 1:
            return ""
        first, *others = (target for _, target in self.each)
        return next((name for name in first.choices if all(name in other.choices for other in others)), "")

    @property
    def measure(self) -> object:
        """What tells whether more runs are covered than before."""
        return self.content, {
            place: [(target.broken.covered_bytes(), target.guard, target.choices) for target in several]
            for place, several in self.targets.items()
        }

    def met(self, other: Pointer, name: str) -> Pointer:
        """What a pointer of this name may be that is one or the other."""
        if self is other:
            return self
        targets = dict(self.targets)
        for region, several in other.targets.items():
            targets[region] = together((*targets[region], *several)) if region in targets else several
        content = self.content if self.content == other.content else (Piece(name, 0, self.nbytes),)
        met = Pointer(content, targets)
        return met if self.choice == other.choice == met.choice != "" else met.chosen(name)

    def chosen(self, name: str) -> Pointer:
        """The pointer, as one of this name that may stand for any of several regions."""
        if len(self.targets) == 1:
            return self
        return self.changed(lambda target: target.chosen(name))

    def when(self, ways: Mapping[str, int]) -> Pointer | None:
        """What it may stand for if loops and branches were left by these ways."""
        if not any(target.guard for _, target in self.each):
            return self
        left = {region: tuple(one for one in several if one.may(ways)) for region, several in self.targets.items()}
        targets = {region: several for region, several in left.items() if several}
        return Pointer(self.content, targets) if targets else None

    def ended(self, name: str, body: frozenset[str], fresh: dict[Content, Content]) -> Pointer:
        """The pointer when the names of a body mean other values: its bytes, and choices, get its own name instead."""
        content = self.content
        if any(piece.token in body for piece in content):
            content = fresh.setdefault(content, (Piece(name, 0, self.nbytes),))
        ended = self if content is self.content else replace(self, content=content)
        if any(not body.isdisjoint(target.choices) for _, target in self.each):
            ended = ended.changed(lambda target: target.outside(body))
        return ended if ended.choice else ended.chosen(name)

    def written(self, region: Region, content: Content, writer: str, source: Content) -> Pointer:
        """What it is after a write, which may break what it stands for.

        It does not where the bytes, by the name that they had, are its own.
        """
        targets: dict[Region, tuple[Target, ...]] | None = None
        for place, several in self.targets.items():
            if place.storage == region.storage and place.offset < region.end and region.offset < place.end:
                foreign = list(_foreign(place, self.content, region, content, writer))
                if source and foreign and not any(_foreign(place, self.content, region, source, writer)):
                    continue
                targets = targets if targets is not None else dict(self.targets)
                targets[place] = tuple(target.written(place, region, foreign) for target in several)
        return self if targets is None else Pointer(self.content, targets)


@dataclass
class State:
    """Memory and pointers."""

    memory: Memory
    pointers: dict[str, Pointer]

    def copy(self) -> State:
        return State(self.memory.copy(), dict(self.pointers))

    @property
    def measure(self) -> object:
        """What tells whether more runs are covered than before."""
        return self.memory.known_bytes(), {name: pointer.measure for name, pointer in self.pointers.items()}

    def met(self, other: State) -> State:
        """What holds of the runs of either state."""
        pointers = {
            name: pointer.met(other.pointers[name], name)
            for name, pointer in self.pointers.items()
            if name in other.pointers
        }
        return State(meet(self.memory, other.memory), pointers)

    def when(self, ways: Mapping[str, int]) -> State | None:
        """What holds of the runs that left loops and branches by these ways; None if there are none."""
        pointers: dict[str, Pointer] = {}
        for name, pointer in self.pointers.items():
            left = pointer.when(ways)
            if left is None:
                return None
            pointers[name] = left
        return State(self.memory.copy(), pointers)

    def by_way(self, names: Iterable[str], node: str, way: int) -> None:
        """Note of some pointers that they are what they are because a node was left by one of its ways."""
        for name in names:
            pointer = self.pointers.get(name)
            if pointer is not None:
                self.pointers[name] = pointer.changed(lambda target: target.by(node, way))

    def first(self) -> Mapping[str, Region]:
        """Where pointers point, each to the first of its targets."""
        return _Pointed(self.pointers, 0)

    def variants(self, names: Iterable[str]) -> Iterator[Mapping[str, Region]]:
        """Where they may point too, so that each of some pointers is at each of its targets once."""
        several = [self.pointers[name] for name in names if name in self.pointers]
        for i in range(1, max((len(pointer.targets) for pointer in several), default=1)):
            yield _Pointed(self.pointers, i)

    def resolve(self, content: Content) -> Content:
        """A content with the bytes of pointers given as what they are now."""
        if not self.pointers or not any(piece.token in self.pointers for piece in content):
            return content
        return joined(self._piece(piece) for piece in content)

    def _piece(self, piece: Piece) -> Content:
        pointer = self.pointers.get(piece.token)
        return (piece,) if pointer is None else cut(pointer.content, piece.start, piece.length)

    def wrong(self, region: Region, content: Content) -> list[Segment]:
        """The bytes of a region that are not those of a content, in which pointers are not yet resolved.

        Where the bytes of a pointer lie within what it stands for, they are there as long as nothing broke them.
        """
        found: list[Segment] = []
        at = region.offset
        for piece in content:
            pointer = self.pointers.get(piece.token)
            elsewhere = pointer is None
            for place, target in pointer.each if pointer else ():
                if place.storage == region.storage and place.offset == at - piece.start:
                    found += target.broken.within(region.storage, at, at + piece.length)
                else:
                    elsewhere = True
            if elsewhere:
                found += self.memory.mismatches(region.storage, at, self._piece(piece))
            at += piece.length
        return found

    def at(self, region: Region, content: Content, place: Region | None = None) -> Pointer:
        """A pointer that stands for bytes in one place; `place` is what their region is called from now on."""
        place, broken = place or region, Memory()
        for segment in self.wrong(region, content):
            broken.lay(place.storage, segment.begin, segment.end, [segment])
        return Pointer(self.resolve(content), {place: (Target(broken, {}),)})

    def write(self, region: Region, content: Content, writer: str, source: Content = ()) -> None:
        """Put resolved bytes into a region, which other pointers may know as what their `source` was."""
        self.memory.write(region.storage, region.offset, content, writer)
        self._touch(region, content, writer, source)

    def forget(self, region: Region, writer: str) -> None:
        """Let nothing be known of a region."""
        self.memory.forget(region, writer)
        self._touch(region, (), writer)

    def _touch(self, region: Region, content: Content, writer: str, source: Content = ()) -> None:
        for name, pointer in self.pointers.items():
            after = pointer.written(region, content, writer, source)
            if after is not pointer:
                self.pointers[name] = after

    def drop(self, names: Collection[str]) -> None:
        """Forget pointers."""
        if names:
            self.pointers = {name: pointer for name, pointer in self.pointers.items() if name not in names}

    def end(self, body: frozenset[str], keeping: Collection[str] = ()) -> Callable[[Content], Content]:
        """A round of a body, or its loop, is over: from now on its tokens mean other bytes.

        Its pointers are dropped but for the parameters of the next round. Comes back with what a content of before
        is called from now on: nothing, when no pointer has kept it.
        """
        self.drop([name for name in self.pointers if name in body and name not in keeping])
        fresh: dict[Content, Content] = {}
        for name, pointer in sorted(self.pointers.items()):
            self.pointers[name] = pointer.ended(name, body, fresh)
        self.memory = self.memory.renamed(lambda token: None if token in body else token)
        return lambda content: fresh.get(content, () if any(piece.token in body for piece in content) else content)

    def forget_ways(self, nodes: frozenset[str]) -> None:
        """How these nodes were left means nothing any more."""
        for name, pointer in self.pointers.items():
            if any(not nodes.isdisjoint(target.guard) for _, target in pointer.each):
                self.pointers[name] = pointer.changed(lambda target: target.without(nodes))


class _Pointed(Mapping[str, Region]):
    """Where each pointer points when it is at the i-th of its targets, or the i-th again after the last."""

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
    """What a write leaves at a place that are not the bytes that should be there; no content for unknown bytes."""
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
