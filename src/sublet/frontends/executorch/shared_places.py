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
from sublet.frontends.executorch.graph_modules import Spec
from sublet.frontends.executorch.live_ranges import BranchResult, ProgramClock, live_ranges_of

DEFAULT_MEMORY = 1
"""The memory of a tensor without a memory number from an earlier pass."""


@dataclass(frozen=True)
class SharedPlace:
    """The bytes shared by several tensors: the offset of each tensor from the lowest, and the common live range."""

    memory: int
    members: tuple[tuple[Spec, int], ...]
    live: Ranges

    @property
    def nbytes(self) -> int:
        """The bytes of the place, with sizes rounded up by ExecuTorch."""
        return max(distance + int(spec.allocated_memory) for spec, distance in self.members)


@dataclass(frozen=True)
class PlaceAssignment:
    """The places of a program; `unplaced` are branch results that only name the returned tensors."""

    places: tuple[SharedPlace, ...]
    unplaced: frozenset[Spec]


def assign_places(clock: ProgramClock, placed: Sequence[Spec]) -> PlaceAssignment:
    """Assign the tensors to places. Raises PlanError for an invalid storage base."""
    specs_to_place = set(placed)
    inside = {spec: _storage_root_of(spec, specs_to_place) for spec in placed if spec.storage_base is not None}
    based = [(root, spec) for spec, (root, _) in inside.items()]
    separate = {o.result for o in clock.outcomes if not _can_share_place(o, clock, specs_to_place, inside)}
    while True:
        names = [
            (returned, o.result)
            for o in clock.outcomes
            if o.result in separate
            for returned in o.returned_tensors
            if returned is not None
        ]
        pieces = live_ranges_of(clock, [*based, *names])
        groups = _result_groups([o for o in clock.outcomes if o.result not in separate])
        clashing = {
            o.result for o in clock.outcomes if o.result not in separate and _is_live_together(groups[o.result], pieces)
        }
        if not clashing:
            break
        separate |= clashing
    unplaced = frozenset(separate & specs_to_place)
    members: dict[Spec, list[tuple[Spec, int]]] = {}
    for spec in placed:
        if spec not in unplaced:
            root, distance = inside.get(spec, (spec, 0))
            members.setdefault(groups.get(root, [root])[0], []).append((spec, distance))
    return PlaceAssignment(tuple(_places_of(members, groups, pieces)), unplaced)


def memory_of(spec: Spec) -> int:
    """Return the number of a tensor's memory."""
    return DEFAULT_MEMORY if spec.mem_id is None else int(spec.mem_id)


def _places_of(
    members: Mapping[Spec, list[tuple[Spec, int]]], groups: Mapping[Spec, list[Spec]], pieces: Mapping[Spec, Ranges]
) -> Iterator[SharedPlace]:
    """Yield the places, with the union of the members' live ranges."""
    for first, place_members in members.items():
        live = merge(piece for spec in groups.get(first, [first]) for piece in pieces[spec])
        yield SharedPlace(memory_of(place_members[0][0]), tuple(place_members), live)


def _storage_root_of(spec: Spec, specs_to_place: set[Spec]) -> tuple[Spec, int]:
    """Return the outermost storage base of a tensor, and the tensor's offset in the base in bytes.

    Raises PlanError for a cyclic, unaligned, too small or unplaced storage base.
    """
    root, distance, seen = spec, 0, set()
    while root.storage_base is not None:
        if root in seen:
            raise PlanError(f"ExecuTorch: the storage bases of {spec} form a cycle")
        seen.add(root)
        base, step = root.storage_base, root.storage_base_offset
        if not 0 <= step <= base.allocated_memory - root.allocated_memory:
            raise PlanError(f"ExecuTorch: {root} at byte {step} lies outside its storage base {base}")
        if step % root.alignment:
            raise PlanError(
                f"ExecuTorch: {root} lies at byte {step} of its storage base, not a multiple of {root.alignment}"
            )
        root, distance = base, distance + step
    if root not in specs_to_place:
        raise PlanError(f"ExecuTorch: the storage base {root} of {spec} has no place: plan graph inputs too")
    return root, distance


def _can_share_place(
    outcome: BranchResult, clock: ProgramClock, specs_to_place: set[Spec], inside: Mapping[Spec, object]
) -> bool:
    """True if a result and all tensors returned for the result can share a place, regardless of live ranges."""
    tensors = [outcome.result, *outcome.returned_tensors]
    return all(
        spec is not None
        and (spec in specs_to_place or spec is outcome.result)
        and spec not in clock.bound
        and spec not in inside
        and memory_of(spec) == memory_of(outcome.result)
        for spec in tensors
    )


def _result_groups(outcomes: Sequence[BranchResult]) -> dict[Spec, list[Spec]]:
    """Return, for each tensor of a result, all tensors sharing the tensor's place, in a fixed order."""
    groups: dict[Spec, list[Spec]] = {}
    for outcome in outcomes:
        joined = list(
            dict.fromkeys(
                member for spec in (outcome.result, *outcome.returned_tensors) for member in groups.get(spec, [spec])
            )
        )
        for member in joined:
            groups[member] = joined
    return groups


def _is_live_together(group: Sequence[Spec], pieces: Mapping[Spec, Ranges]) -> bool:
    """True if two tensors of the group are live at the same time."""
    return any(a[1] > b[0] for a, b in pairwise(sorted(piece for spec in group for piece in pieces[spec])))
