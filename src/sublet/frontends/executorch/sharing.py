"""Assignment of tensors to shared places, and the live range of each place.

A tensor placed by ExecuTorch inside another tensor (the storage base) lies in the base's place. The result of a branch
is, in a run, the very tensor returned by the executed arm. All tensors of a result are coalesced into one place, so the
bytes count once, and a view of the result, which ExecuTorch reads at the result's place, finds the returned content.

    a = cond(p, t, f)    t and f are never live together, nor with a: three names of one place

Where coalescing is illegal (a tensor returned twice, or a tensor of the outer module), the returned tensors stay live
as long as the result is read, and the result gets no place.
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
"""The memory of a tensor without a memory number from an earlier pass."""


@dataclass(frozen=True)
class Place:
    """The bytes shared by several tensors: the offset of each tensor from the lowest, and the common live range."""

    memory: int
    members: tuple[tuple[Spec, int], ...]
    live: Ranges

    @property
    def nbytes(self) -> int:
        """The bytes of the place, with sizes rounded up by ExecuTorch."""
        return max(distance + int(spec.allocated_memory) for spec, distance in self.members)


@dataclass(frozen=True)
class Shared:
    """The places of a program; `unplaced` are branch results that only name the returned tensors."""

    places: tuple[Place, ...]
    unplaced: frozenset[Spec]


def shared(clock: Clock, placed: Sequence[Spec]) -> Shared:
    """Assign the tensors to places. Raises PlanError for an invalid storage base."""
    wanted = set(placed)
    inside = {spec: _root(spec, wanted) for spec in placed if spec.storage_base is not None}
    based = [(root, spec) for spec, (root, _) in inside.items()]
    separate = {o.made for o in clock.outcomes if not _alike(o, clock, wanted, inside)}
    while True:
        names = [
            (given, o.made) for o in clock.outcomes if o.made in separate for given in o.given if given is not None
        ]
        pieces = needed(clock, [*based, *names])
        groups = _groups([o for o in clock.outcomes if o.made not in separate])
        clashing = {o.made for o in clock.outcomes if o.made not in separate and _clash(groups[o.made], pieces)}
        if not clashing:
            break
        separate |= clashing
    unplaced = frozenset(separate & wanted)
    members: dict[Spec, list[tuple[Spec, int]]] = {}
    for spec in placed:
        if spec not in unplaced:
            root, distance = inside.get(spec, (spec, 0))
            members.setdefault(groups.get(root, [root])[0], []).append((spec, distance))
    return Shared(tuple(_places(members, groups, pieces)), unplaced)


def memory_of(spec: Spec) -> int:
    """Return the number of a tensor's memory."""
    return DEFAULT_MEMORY if spec.mem_id is None else int(spec.mem_id)


def _places(
    members: Mapping[Spec, list[tuple[Spec, int]]], groups: Mapping[Spec, list[Spec]], pieces: Mapping[Spec, Ranges]
) -> Iterator[Place]:
    """Yield the places, with the union of the members' live ranges."""
    for first, several in members.items():
        live = merge(piece for spec in groups.get(first, [first]) for piece in pieces[spec])
        yield Place(memory_of(several[0][0]), tuple(several), live)


def _root(spec: Spec, wanted: set[Spec]) -> tuple[Spec, int]:
    """Return the outermost storage base of a tensor, and the tensor's offset in the base in bytes.

    Raises PlanError for a cyclic, unaligned, too small or unplaced storage base.
    """
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
    """True if a result and all tensors returned for the result can share a place, regardless of live ranges."""
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
    """Return, for each tensor of a result, all tensors sharing the tensor's place, in a fixed order."""
    groups: dict[Spec, list[Spec]] = {}
    for outcome in outcomes:
        joined = list(
            dict.fromkeys(member for spec in (outcome.made, *outcome.given) for member in groups.get(spec, [spec]))
        )
        for member in joined:
            groups[member] = joined
    return groups


def _clash(group: Sequence[Spec], pieces: Mapping[Spec, Ranges]) -> bool:
    """True if two tensors of the group are live at the same time."""
    return any(a[1] > b[0] for a, b in pairwise(sorted(piece for spec in group for piece in pieces[spec])))
