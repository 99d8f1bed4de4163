"""Verification of a foreign plan by the lifetimes in its file: tensors with overlapping lifetimes must not overlap.

No model is read. The verdict says that the lifetimes themselves are not verified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sublet.base.errors import Finding, PlanError, ProblemError
from sublet.base.ranges import merge
from sublet.checker.external.external_plan import (
    Evidence,
    ForeignPlan,
    ForeignVerdict,
    PlacedTensor,
    RegionVerdict,
    peak_bytes_in_use,
)
from sublet.packing.problem import Buffer, Packing, Problem, select_buffers
from sublet.packing.validate import find_violations
from sublet.plan import ARENA

RegionOffset = tuple[str, int]
"""A region, and an offset in the region."""


def judge_by_lifetimes(foreign: ForeignPlan) -> ForeignVerdict:
    """Return the verdict on a plan with lifetimes: overlaps, ends of regions, alignment.

    Raises PlanError if a tensor has no size or no lifetimes, or shares bytes of a tensor missing from the plan.
    """
    buffers = tuple(_packing_buffer(tensor, foreign) for tensor in foreign.tensors)
    problem = Problem(buffers, name=foreign.tool, may_overlap=tuple(_pairs_with_shared_bytes(foreign)))
    places = [(tensor.region, tensor.offset) for tensor in foreign.tensors]
    return judge_packing(
        problem, places, foreign.tool, foreign.regions, foreign.steps, dict.fromkeys(foreign.left_out, NO_PLACE_REASON)
    )


NO_PLACE_REASON = "the plan has no place for the tensor"


def judge_packing(
    problem: Problem,
    places: Sequence[RegionOffset | None],
    tool: str,
    sizes: Mapping[str, int] | None = None,
    steps: Sequence[str] = (),
    not_judged: Mapping[str, str] | None = None,
) -> ForeignVerdict:
    """Return the verdict on the given places of a packing problem's buffers. Each region is judged alone.

    `places` has (region, offset) for each buffer, or None for a buffer without a place. `sizes` has the bytes of
    regions; a region without a size ends at the end of its last buffer.
    """
    sizes = sizes or {}
    names = dict.fromkeys((*sizes, *(place[0] for place in places if place is not None)))
    findings: list[Finding] = []
    regions, drawn = [], []
    for name in names or {ARENA: None}:
        members = [i for i, place in enumerate(places) if place is not None and place[0] == name]
        inside = replace(select_buffers(problem, members), name=problem.name)
        offsets = tuple(place[1] for i in members if (place := places[i]) is not None)
        ends = (offset + buffer.size for offset, buffer in zip(offsets, inside.buffers, strict=True) if buffer.size)
        packing = Packing(offsets, sizes.get(name, max(ends, default=0)), tool)
        several_regions = len(names) > 1
        findings += [
            _with_region_name(finding, name if several_regions else "")
            for finding in find_violations(inside, packing, steps)
        ]
        live_buffers = (
            (offset, offset + buffer.size, merge(buffer.pieces))
            for offset, buffer in zip(offsets, inside.buffers, strict=True)
        )
        regions.append(RegionVerdict(name, packing.arena_bytes, peak_bytes_in_use(live_buffers)))
        drawn.append((inside if not several_regions else replace(inside, name=f"{problem.name}: {name}"), packing))
    unplaced = {
        buffer.id: NO_PLACE_REASON for buffer, place in zip(problem.buffers, places, strict=True) if place is None
    }
    return ForeignVerdict(
        tool=tool,
        evidence=Evidence.LIFETIMES,
        findings=tuple(findings),
        judged=tuple(buffer.id for buffer, place in zip(problem.buffers, places, strict=True) if place is not None),
        not_judged={**unplaced, **(not_judged or {})},
        regions=tuple(regions),
        drawn=tuple(drawn),
    )


def _with_region_name(finding: Finding, region: str) -> Finding:
    """Return the finding with the name of the region added to its location, if `region` is not empty."""
    return replace(finding, where=f"{finding.where} in {region}") if region else finding


def _packing_buffer(tensor: PlacedTensor, foreign: ForeignPlan) -> Buffer:
    """Return the packing buffer of a tensor. Raises PlanError if size or lifetimes are missing or invalid."""
    if tensor.nbytes is None or not tensor.lifetimes:
        lacks = "bytes" if tensor.nbytes is None else "lifetimes"
        raise PlanError(
            f"the plan of {foreign.tool} has no {lacks} for {tensor.name!r}: add them to the plan, or pass the model"
        )
    if empty := next((piece for piece in tensor.lifetimes if piece[0] >= piece[1]), None):
        raise PlanError(f"the plan of {foreign.tool}: {tensor.name!r} lives from {empty[0]} until before {empty[1]}")
    try:
        return Buffer.alive_in(tensor.name, tensor.nbytes, merge(tensor.lifetimes), foreign.alignment or 1)
    except ProblemError as error:
        raise PlanError(f"the plan of {foreign.tool}: {error}") from None


def _pairs_with_shared_bytes(foreign: ForeignPlan) -> Iterator[tuple[int, int]]:
    """Yield the pairs of tensors allowed to overlap: all pairs within each chain of `shares`.

    Raises PlanError if a chain is a cycle or leads to an unknown tensor.
    """
    positions = {tensor.name: i for i, tensor in enumerate(foreign.tensors)}
    left_out, groups = set(foreign.left_out), dict[int, list[int]]()
    for i, tensor in enumerate(foreign.tensors):
        root, seen = tensor, {tensor.name}
        while root.shares and root.shares not in left_out:
            if root.shares not in positions or root.shares in seen:
                what = "which forms a cycle" if root.shares in seen else "which the plan does not list"
                raise PlanError(f"the plan of {foreign.tool}: {root.name!r} shares bytes of {root.shares!r}, {what}")
            root = foreign.tensors[positions[root.shares]]
            seen.add(root.name)
        groups.setdefault(positions[root.name], []).append(i)
    for members in groups.values():
        yield from ((one, other) for k, one in enumerate(members) for other in members[k + 1 :])
