"""The reads and writes of every node, derived statically.

The node of an op is one action. A branch or a loop has several actions: the parallel moves at its edges, the
fetching of slices, the storing of rows. The replay performs actions; the race check compares their regions.
For values with several regions, an action belongs to a context: one body version of each enclosing loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sublet.base.errors import Finding
from sublet.checker.contents import ByteSource, op_facts, slice_content
from sublet.checker.layout import PlanLayout, format_region, overlapping_pairs, regions_overlap
from sublet.checker.loop_slices import slice_region
from sublet.checker.memory import Content, MemorySegment
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import shares_of
from sublet.plan import UPDATE, Region


class Write(NamedTuple):
    """A region, and the content after the write. Not `touched`: the bytes were in place and only change the token.

    `source` is the content before the write, if the write only changes the token.
    """

    region: Region
    content: Content
    touched: bool = True
    value: str = ""
    source: Content = ()


class Action(NamedTuple):
    """An atomic event: first all reads, then all writes.

    `kind` is a kind of point (see `analysis.control_flow`), or "store". The rows of an iteration are stored
    ("store") before the updates are assigned ("next").
    """

    kind: str
    where: str
    reads: tuple[Value, ...] = ()
    writes: tuple[Write, ...] = ()


@dataclass(frozen=True)
class ActionBuilder:
    """A builder of the actions of nodes, from the regions and contents of values."""

    layout: PlanLayout
    contents: Mapping[str, Content]
    sources: Mapping[str, tuple[tuple[ByteSource, ...], ...]]

    def content_of(self, value: Value) -> Content:
        """Return the content of a value."""
        return self.contents.get(value.name, ())

    def run_op(self, node: Node) -> Action:
        """Return the action of a kernel, or of copied views and parts.

        The action neither reads nor writes views and parts already in place.
        """
        writes: list[Write] = []
        needed: set[int] = set()
        in_place: set[int] = set()
        computes = False
        for out, pieces in zip(node.outputs_and_scratch, self.sources[node.name], strict=True):
            region = None if out is None else self.layout.region_of(out)
            if out is None or region is None:
                continue
            for source in pieces:
                if source.input is None:
                    computes = True
                elif self._is_in_place(node, region, source):
                    in_place.add(source.input)
                    continue
                else:
                    needed.add(source.input)
                writes.append(self._write_of_source(out, region, source))
        untouched = set() if computes else in_place - needed
        reads = [value for i, value in enumerate(node.inputs) if value is not None and i not in untouched]
        return Action("run", f"node {node.name}", tuple(dict.fromkeys(reads)), tuple(_merge_adjacent(writes)))

    def _is_in_place(self, node: Node, region: Region, source: ByteSource) -> bool:
        """True if the bytes of `source` already lie at their place in the output at `region`."""
        operand = None if source.input is None else node.inputs[source.input]
        place = None if operand is None else self.layout.region_of(operand)
        if place is None or place.storage != region.storage:
            return False
        return _address(place, source.start) == _address(region, source.at)

    def _write_of_source(self, out: Value, region: Region, source: ByteSource) -> Write:
        """Return the write of the part of an output described by `source`."""
        if source.length == out.nbytes:
            part = region
        else:  # a source in a region of rows lies within a row
            part = Region(region.storage, _address(region, source.at), source.length)
        return Write(part, slice_content(self.content_of(out), source.at, source.length), value=out.name)

    def read_index(self, node: CaseOf) -> Action:
        """Return the action of a branch reading its index."""
        return Action("branch", f"case {node.name}, index", (node.index,))

    def end_of_arm(self, node: CaseOf, position: int) -> Action:
        """Return the moves at the end of an arm; for the position behind the last arm, the moves of the fallbacks."""
        if position < len(node.arms):
            return self.parallel_moves(
                "yield", f"case {node.name}, end of arm {position}", node.arms[position].outputs, node.outputs
            )
        return self.parallel_moves("yield", f"case {node.name}, fallbacks", node.fallbacks, node.outputs)

    def enter_loop(self, node: While) -> Action:
        """Return the moves from initial values to parameters, with an initial write of the stacked outputs."""
        enter = self.parallel_moves("enter", f"loop {node.name}, entry", node.inits, node.parameters)
        return Action("enter", enter.where, enter.reads, (*enter.writes, *self._whole_writes(_stacked_values(node))))

    def begin_iteration(self, node: While) -> Action:
        """Return the action at the start of an iteration: the loop writes the counter."""
        return Action(
            "round", f"loop {node.name}, start of an iteration", writes=tuple(self._whole_writes(node.body.inputs[:1]))
        )

    def read_condition(self, node: While) -> Action:
        """Return the action reading the condition."""
        return Action("check", f"loop {node.name}, condition", (node.condition,))

    def fetch_slices(self, node: While) -> Action:
        """Return the action fetching the slice of every sequence."""
        reads = tuple(dict.fromkeys(node.sequences))
        steps = zip(node.slices, node.sequences, node.slice_axes, node.slice_reversed, strict=True)
        return Action("fetch", f"loop {node.name}, slices", reads, tuple(self._slice_writes(node, steps, whole=False)))

    def store_rows(self, node: While) -> Action:
        """Return the action storing the rows in the stacked outputs."""
        steps = zip(node.rows, node.stacked_outputs, node.row_axes, node.row_reversed, strict=True)
        stored = [(row, out, axis, backwards) for row, out, axis, backwards in steps if out is not None]
        reads = tuple(dict.fromkeys((*(row for row, *_ in stored), *_stacked_values(node))))
        return Action("store", f"loop {node.name}, rows", reads, tuple(self._slice_writes(node, stored, whole=True)))

    def assign_updates(self, node: While) -> Action:
        """Return the moves from updates to the parameters of the next iteration."""
        return self.parallel_moves("next", f"loop {node.name}, end of an iteration", node.updates, node.parameters)

    def exit_loop(self, node: While) -> Action:
        """Return the moves from parameters to final values."""
        return self.parallel_moves("exit", f"loop {node.name}, exit", node.parameters, node.finals)

    def update_state(self, graph: Graph) -> Action:
        """Return the updates at the end of the run: each target takes the content and the token of its source."""
        writes = []
        for target, source in graph.updates:
            region = self.layout.region_of(target)
            if region is not None:
                touched = self.layout.region_of(source) != region
                writes.append(Write(region, self.content_of(source), touched, target.name))
        return Action(UPDATE, "the update at the end", tuple(dict.fromkeys(s for _, s in graph.updates)), tuple(writes))

    def parallel_moves(
        self, kind: str, where: str, sources: Sequence[Value], targets: Sequence[Value | None]
    ) -> Action:
        """Return a parallel assignment.

        Every target with own bytes gets its own token, even for bytes already in place. A renamed target gets no write.
        """
        pairs = [(source, to) for source, to in zip(sources, targets, strict=False) if to is not None]
        writes = []
        for source, target in pairs:
            region = None if target.name in self.layout.pointers else self.layout.region_of(target)
            if region is not None:
                touched = self.layout.region_of(source) != region
                writes.append(Write(region, self.content_of(target), touched, target.name, self.content_of(source)))
        return Action(kind, where, tuple(dict.fromkeys(source for source, _ in pairs)), tuple(writes))

    def _slice_writes(
        self, node: While, steps: Iterable[tuple[Value, Value, int, bool]], *, whole: bool
    ) -> Iterator[Write]:
        """Yield the writes of fetched slices, or of stacked outputs.

        A slice or row already in place touches no bytes.
        """
        for part, around, axis, backwards in steps:
            place = self.layout.region_of(part)
            there = slice_region(node.name, around, self.layout.region_of(around), axis, backwards)
            for write in self._whole_writes([around if whole else part]):
                yield Write(write.region, write.content, place is None or place != there, write.value)

    def _whole_writes(self, values: Sequence[Value]) -> Iterator[Write]:
        """Yield writes of whole values."""
        for value in values:
            region = self.layout.region_of(value)
            if region is not None:
                yield Write(region, self.content_of(value), value=value.name)


def _address(region: Region, at: int) -> int:
    """Return the address of byte `at` of a value in a region."""
    if region.rows == 1:
        return region.offset + at
    row, column = divmod(at, region.nbytes // region.rows)
    return region.offset + row * region.pitch + column


def _stacked_values(node: While) -> list[Value]:
    """Return the present stacked outputs of a loop."""
    return [value for value in node.stacked_outputs if value is not None]


def _merge_adjacent(writes: list[Write]) -> Iterator[Write]:
    """Yield writes, with adjacent writes of one value merged."""
    run: list[Write] = []
    for write in writes:
        is_next = run and run[-1].value == write.value and run[-1].region.end == write.region.offset
        if run and not (is_next and run[-1].region.rows == write.region.rows == 1):
            yield _merge_run(run)
            run = []
        run.append(write)
    if run:
        yield _merge_run(run)


def _merge_run(run: Sequence[Write]) -> Write:
    """Return adjacent writes of one value as a single write."""
    if len(run) == 1:
        return run[0]
    first, last = run[0].region, run[-1].region
    region = Region(first.storage, first.offset, last.end - first.offset)
    return Write(region, tuple(piece for write in run for piece in write.content), value=run[0].value)


# Forbidden overlaps within an action of a node, independent of the content of memory.
#
# Rules: input-overwritten (a kernel or copy overwrites an operand still to be read), outputs-overlap, moves-overlap
# (two targets of one parallel assignment), read-only-written.


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
    allowed = {(share.output, share.input) for share in shares_of(node, op_facts(node).inplace) if share.offset == 0}
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


SHOWN = 3
"""Ranges of wrong bytes listed in a message."""


def misread_finding(
    value: Value, region: Region, wrong: Sequence[MemorySegment], where: str, rule: str, names: tuple[str, ...]
) -> Finding:
    """Return the finding for a value read in a region with the wrong segments `wrong`.

    `names` are the value and the reader. Without `rule` the rule is "clobbered" if some wrong bytes are known, else
    "undefined".
    """
    known = next((segment for segment in wrong if segment.token is not None), None)
    descriptions = "; ".join(_describe_segment(segment) for segment in wrong[:SHOWN])
    more = f"; and {len(wrong) - SHOWN} more ranges" if len(wrong) > SHOWN else ""
    fix = f"keep the bytes of {value} until here"
    if known is not None and known.token != value.name:
        other = known.token
        fix = f"place {value} and %{other} apart, or read {value} before %{other} is written"
    what = f"reads {value} at {format_region(region)}, but {descriptions}{more}"
    others = tuple(segment.token for segment in wrong[:SHOWN] if segment.token is not None)
    return Finding(rule or ("clobbered" if known is not None else "undefined"), where, what, fix, names + others)


def _describe_segment(segment: MemorySegment) -> str:
    """Return a wrong segment in words."""
    place = f"bytes [{segment.begin}, {segment.end})"
    if segment.token is None:
        return f"{place} have no known content ({segment.writer})"
    start = segment.begin - segment.base
    return f"{place} hold bytes [{start}, {start + segment.end - segment.begin}) of %{segment.token}, " + (
        f"written by {segment.writer}"
    )
