"""Forbidden overlaps within an action of a node, independent of the content of memory.

Rules: input-overwritten (a kernel or copy overwrites an operand still to be read), outputs-overlap,
moves-overlap (two targets of one parallel assignment), read-only-written.
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.base.errors import Finding
from sublet.checker.actions import Action
from sublet.checker.contents import op_facts
from sublet.checker.layout import PlanLayout, format_region, overlapping_pairs
from sublet.ir.graph import CaseOf, Node, While
from sublet.plan import Region


def check_overlaps(node: Node | None, action: Action, layout: PlanLayout) -> Iterator[Finding]:
    """Yield all findings about an action; `node` is None for the updates at the end of the run."""
    yield from _read_only_written(action, layout)
    if node is not None and not isinstance(node, While | CaseOf):
        yield from _inputs_overwritten(node, action, layout)
        yield from _outputs_overlap(node, action, layout)
        return
    slices = action.kind == "fetch"  # two slices of one sequence may both be views of the sequence
    targets = [(write.region, write.value) for write in action.writes if write.touched or not slices]
    for (one_region, one), (other_region, other) in overlapping_pairs(targets):
        what = f"moves %{one} to {format_region(one_region)} and %{other} to {format_region(other_region)} at once"
        yield Finding("moves-overlap", action.where, what, "place them apart", (one, other))


def _inputs_overwritten(node: Node, action: Action, layout: PlanLayout) -> Iterator[Finding]:
    """Yield findings for writes over operands of the same node, except for in-place outputs allowed by the op."""
    allowed = {(share.output, share.input) for share in op_facts(node).inplace(node) if share.offset == 0}
    reads = set(action.reads)
    outs = {i: out for i, out in enumerate(node.outputs_and_scratch) if out is not None}
    positions = {out.name: i for i, out in outs.items()}
    for write in action.writes:
        out = positions[write.value]
        for position, value in enumerate(node.inputs):
            region = layout.region_of(value) if value is not None and value in reads else None
            if (
                value is None
                or region is None
                or not any(regions_overlap(write.region, around) for around in possible_regions(layout, region))
            ):
                continue
            if (out, position) in allowed and region == layout.region_of(outs[out]):
                continue
            what = (
                f"writes %{write.value} at {format_region(write.region)} "
                f"over its own input {value} at {format_region(region)}"
            )
            fix = f"{node.op} cannot write output {out} over input {position}; place them apart"
            yield Finding("input-overwritten", action.where, what, fix)


def _outputs_overlap(node: Node, action: Action, layout: PlanLayout) -> Iterator[Finding]:
    """Yield findings for overlapping outputs of a node."""
    written = {write.value for write in action.writes}
    written_regions = [(write.region, write.value) for write in action.writes]
    in_place = [
        (region, out.name) for out in node.defs if out.name not in written and (region := layout.region_of(out))
    ]
    for (one_region, one), (other_region, other) in overlapping_pairs(written_regions + in_place):
        if one in written or other in written:
            what = f"writes %{one} at {format_region(one_region)} and %{other} at {format_region(other_region)}"
            yield Finding("outputs-overlap", action.where, what, "place the outputs of one node apart")


def _read_only_written(action: Action, layout: PlanLayout) -> Iterator[Finding]:
    """Yield findings for writes to storages of the caller without an update."""
    for write in action.writes:
        if write.touched and layout.is_read_only(write.region):
            kind = layout.storage_kind_of(write.region)
            what = f"writes %{write.value} at {format_region(write.region)}, memory of a bound {kind}"
            yield Finding("read-only-written", action.where, what, f"the network never writes {kind}s")


def possible_regions(layout: PlanLayout, region: Region) -> list[Region]:
    """Return the possible regions of bytes: the region itself, or for a latest row also all enclosing regions.

    The offset of a latest row within the stacked output is unknown.
    """
    around = [found for _, found in layout.cells.enclosing_regions(region)]
    return around if layout.cells.current_slice_of(region.storage) != region.storage else around[:1]


def regions_overlap(one: Region, other: Region) -> bool:
    """True if two regions overlap."""
    return one.storage == other.storage and one.offset < other.end and other.offset < one.end
