"""Which tensors are the same bytes, and when anybody needs them.

A tensor that ExecuTorch places inside another (its storage base) lies there. What comes out of a branch is, in a run,
the very tensor that the branch which ran gave back. All of them get one place: so that they cost their bytes once,
and so that a view of the outcome, which ExecuTorch reads where the outcome was placed, finds what was given back.

    a = cond(p, t, f)    t and f are never needed together, nor with a: three names of one place

Where that cannot be (one tensor given back twice, or one from outside), what is given back is kept as long as the
outcome is read, and the outcome gets no place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sublet.base.errors import PlanError
from sublet.base.ranges import Ranges, merge
from sublet.frontends.executorch.lives import Clock, Outcome, needed
from sublet.frontends.executorch.modules import Spec

DEFAULT_MEMORY = 1
"""Where a tensor lies that no pass has given a memory."""


@dataclass(frozen=True)
class Place:
    """Bytes that several tensors share: the distance of each from the lowest, and when anybody needs them."""

    memory: int
    members: tuple[tuple[Spec, int], ...]
    live: Ranges

    @property
    def nbytes(self) -> int:
        """What the members take, rounded up as ExecuTorch asks."""
        return max(distance + int(spec.allocated_memory) for spec, distance in self.members)


@dataclass(frozen=True)
class Shared:
    """The places of a program; `unplaced` are outcomes of branches that are only names of what was given back."""

    places: tuple[Place, ...]
    unplaced: frozenset[Spec]


def shared(clock: Clock, placed: Sequence[Spec]) -> Shared:
    """The places of these tensors. Raises PlanError for a storage base that is none."""
    wanted = set(placed)
    inside = {spec: _root(spec, wanted) for spec in placed if spec.storage_base is not None}
    based = [(root, spec) for spec, (root, _) in inside.items()]
    apart = {o.made for o in clock.outcomes if not _alike(o, clock, wanted, inside)}
    while True:
        named = [(given, o.made) for o in clock.outcomes if o.made in apart for given in o.given if given is not None]
        pieces = needed(clock, [*based, *named])
        groups = _groups([o for o in clock.outcomes if o.made not in apart])
        clashing = {o.made for o in clock.outcomes if o.made not in apart and _clash(groups[o.made], pieces)}
        if not clashing:
            break
        apart |= clashing
    unplaced = frozenset(apart & wanted)
    members: dict[Spec, list[tuple[Spec, int]]] = {}
    for spec in placed:
        if spec not in unplaced:
            root, distance = inside.get(spec, (spec, 0))
            members.setdefault(groups.get(root, [root])[0], []).append((spec, distance))
    return Shared(tuple(_places(members, groups, pieces)), unplaced)


def memory_of(spec: Spec) -> int:
    """The memory that a tensor lies in, by its number."""
    return DEFAULT_MEMORY if spec.mem_id is None else int(spec.mem_id)


def _places(
    members: Mapping[Spec, list[tuple[Spec, int]]], groups: Mapping[Spec, list[Spec]], pieces: Mapping[Spec, Ranges]
) -> Iterator[Place]:
    for first, several in members.items():
        live = merge(piece for spec in groups.get(first, [first]) for piece in pieces[spec])
        yield Place(memory_of(several[0][0]), tuple(several), live)


def _root(spec: Spec, wanted: set[Spec]) -> tuple[Spec, int]:
    """The tensor that one lies in, and how far above its first byte."""
    root, distance, seen = spec, 0, set()
    while root.storage_base is not None:
        if root in seen:
            raise PlanError(f"ExecuTorch: {spec} is its own storage base, through others")
        seen.add(root)
        base, step = root.storage_base, root.storage_base_offset
        if not 0 <= step <= base.allocated_memory - root.allocated_memory:
            raise PlanError(f"ExecuTorch: {root} does not lie inside of its storage base {base}, {step} bytes above it")
        if step % root.alignment:
            raise PlanError(f"ExecuTorch: {root} lies {step} bytes above its storage base, unaligned")
        root, distance = base, distance + step
    if root not in wanted:
        raise PlanError(f"ExecuTorch: {spec} lies in a storage base {root} that gets no place: place graph inputs too")
    return root, distance


def _alike(outcome: Outcome, clock: Clock, wanted: set[Spec], inside: Mapping[Spec, object]) -> bool:
    """Whether an outcome and all that is given back for it can have one place, but for when they are needed."""
    several = [outcome.made, *outcome.given]
    return all(
        spec is not None
        and (spec in wanted or spec is outcome.made)
        and spec not in clock.bound
        and spec not in inside
        and memory_of(spec) == memory_of(outcome.made)
        for spec in several
    )


def _groups(outcomes: Sequence[Outcome]) -> dict[Spec, list[Spec]]:
    """For each tensor of an outcome all those that have its place, in a fixed order."""
    groups: dict[Spec, list[Spec]] = {}
    for outcome in outcomes:
        joined = list(
            dict.fromkeys(member for spec in (outcome.made, *outcome.given) for member in groups.get(spec, [spec]))
        )
        for member in joined:
            groups[member] = joined
    return groups


def _clash(group: Sequence[Spec], pieces: Mapping[Spec, Ranges]) -> bool:
    """Whether two of them are needed at one time."""
    return any(a[1] > b[0] for a, b in pairwise(sorted(piece for spec in group for piece in pieces[spec])))
