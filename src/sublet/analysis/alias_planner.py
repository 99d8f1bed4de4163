"""Buffer assignment for one schedule: control flow, live ranges and shared buffers.

The planner assigns buffers repeatedly, with more and more loop-carried values renamed instead of copied.

For loops read from `AliasPlanner` on: the functions above the class choose updated values with storages to swap after
a run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from math import lcm

from sublet.analysis.carry_renaming import CarryRenaming, reuse_predicate, row_carries
from sublet.analysis.control_flow import ControlFlowGraph
from sublet.analysis.control_flow_builder import build_control_flow
from sublet.analysis.interference import MAX_BUFFERS
from sublet.analysis.liveness import LiveRanges, compute_live_ranges
from sublet.analysis.options import Options
from sublet.analysis.program_facts import ProgramFacts, why_not_view
from sublet.analysis.sharing import BufferAssignment, RowLimits, find_copying_moves, share_buffers
from sublet.analysis.value_versions import ReusePredicate
from sublet.ir.dataflow import assignments, producer_positions
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup
from sublet.plan import Storage, bound_storage_name
from sublet.plan.schedule import Cycle, Schedule, graph_with_swapped_updates

# Storage swap: the choice of updated values with storages swapped after a run, instead of copies by the updates.
#
# See `plan.storage_swap` for the swap itself.

MAX_PERIOD = 6
"""Runs after which all storages have their first names again. A program is bound for each run of this period."""


def find_swap_cycles(graph: Graph, bound: Collection[Value]) -> tuple[Cycle, ...]:
    """Return the cycles of updated values to swap: after a run, each value holds the former content of the next value.

    Only values in `bound` are swapped. A chain of values is closed to a cycle: the last value receives a new content,
    computed in the memory of the first. The function takes the largest cycles first (number of values times the bytes
    of a value), while all storages return to their first names within MAX_PERIOD runs.
    """
    chosen: list[Cycle] = []
    turns = 1
    for cycle in sorted(_close_cycles(_content_sources(graph, bound)), key=lambda cycle: -len(cycle) * cycle[0].nbytes):
        if lcm(turns, len(cycle)) <= MAX_PERIOD:
            turns = lcm(turns, len(cycle))
            chosen.append(tuple(value.name for value in cycle))
    return tuple(chosen)


def _content_sources(graph: Graph, bound: Collection[Value]) -> Mapping[Value, Value]:
    """Map each updated value to the updated value with the content to take over; no content is taken over twice."""
    updated = set(graph.updated_values)
    definer = {value: graph.nodes[i] for value, i in producer_positions(graph.nodes).items()}
    whole = {target: _view_origin(source, updated, definer) for target, source in graph.updates if target in bound}
    staying = {target for target, origin in whole.items() if target == origin}
    sources: dict[Value, Value] = {}
    taken = set(staying)
    for target, origin in whole.items():
        if target not in staying and origin in whole and origin not in taken and target.spec == origin.spec:
            sources[target] = origin
            taken.add(origin)
    return sources


def _view_origin(value: Value, updated: Collection[Value], producers: Mapping[Value, Node]) -> Value:
    """Return the base of `value` through views of the full size: an updated or a computed value."""
    while value not in updated and value in producers:
        node = producers[value]
        shares = () if node.subgraphs else lookup(node.op).views(node)
        bases = (node.inputs[share.input] for share in shares if node.outputs[share.output] == value)
        base = next((base for base in bases if base is not None and base.nbytes == value.nbytes), None)
        if base is None:
            break
        value = base
    return value


def _close_cycles(becomes: Mapping[Value, Value]) -> Iterator[list[Value]]:
    """Yield the cycles of the mapping, and the chains closed to cycles."""
    taken, seen = set(becomes.values()), set[Value]()
    for first in (*(value for value in becomes if value not in taken), *becomes):
        cycle: list[Value] = []
        value: Value | None = first
        while value is not None and value not in seen:
            seen.add(value)
            cycle.append(value)
            value = becomes.get(value)
        if cycle and cycle[0].nbytes:
            yield cycle


NOT_FOLLOWED_BY_CHECKER = "the checker could not track its renamed binding"


class AliasPlanner:
    """Planner of storage aliases: the buffer assignments of a graph under a schedule and options.

    bound_kinds  the kind of storage ("weight", "input" or "output") of every value with memory outside the arena
    storages     the storage of every plannable value in `bound_kinds`
    swap_cycles  cycles of updated values whose storages are swapped after a run
    """

    def __init__(self, graph: Graph, schedule: Schedule, options: Options, facts: ProgramFacts | None = None) -> None:
        self.options = options
        self.bound_kinds = _bound_values(
            graph, io_bound=options.io == "bound", weights_bound=options.weights == "bound"
        )
        self.storages = _storages_of(self.bound_kinds)
        self.swap_cycles = find_swap_cycles(graph, self.storages) if options.share and graph.updates else ()
        self._bound_storages = _bound_storages_of(graph, self.storages)
        self._source_graph, self._graph = graph, graph_with_swapped_updates(graph, self.swap_cycles)
        self._schedule = schedule
        self._facts = facts
        self._row_limits: RowLimits | None = None

    def with_rows(self, live_bytes: int) -> AliasPlanner | None:
        """Return the planner that also shares bytes row by row; None if no values of the program can.

        Merges in rows may raise the live bytes up to `live_bytes`, and beyond only where more bytes are live anyway.
        """
        options, flow = self.options, self.without_renaming.flow
        if not (options.in_rows and options.share and flow.is_serial) or self._facts is not None:
            return None
        if options.regions or options.at_cuts != "arena" or not flow.unrolling.facts.row_facts:
            return None
        other = AliasPlanner(self._source_graph, self._schedule, options)
        other._row_limits = RowLimits(options.min_row_bytes, live_bytes)
        return other

    def assignment_of(self, timeline: ControlFlowGraph) -> BufferAssignment:
        """Return the buffer assignment of a control flow graph: compute live ranges, then share buffers."""
        ranges = _with_always_live(compute_live_ranges(timeline), self._graph.constants, len(timeline.points))
        return self.assign_buffers(timeline, ranges)

    def assign_buffers(
        self,
        timeline: ControlFlowGraph,
        ranges: LiveRanges[Value],
        *,
        blocks: bool = True,
        fixed_offsets: Mapping[Value, int] | None = None,
    ) -> BufferAssignment:
        """Return the buffer assignment of a control flow graph with the live ranges `ranges`.

        With `blocks`, the packer places every buffer as a rectangle, needed whole while any member is live; a merge
        must then not raise the peak of live bytes. Without `blocks`, every legal merge is made. `fixed_offsets` are the
        offsets of some values, in bytes: a merge contradicting a fixed offset is not made.
        """
        buffers = share_buffers(
            self._graph,
            timeline,
            ranges,
            alignment=self.options.alignment,
            homes=self._bound_storages,
            merging=self.options.share,
            blocks=blocks,
            fixed_offsets=fixed_offsets,
            smallest=self.options.min_view_bytes,
            row_limits=self._row_limits,
        )
        return BufferAssignment(timeline, ranges, buffers, tuple(find_copying_moves(timeline, buffers)))

    @cached_property
    def without_renaming(self) -> BufferAssignment:
        """The buffer assignment without renamed values. If `options.share` is false, every value has separate bytes."""
        return self.assignment_of(build_control_flow(self._graph, self._schedule, scopes=self._facts))

    @cached_property
    def _reuse_predicate(self) -> ReusePredicate:
        """The reuse predicate of the assignment without renaming, see `carry_renaming.reuse_predicate`."""
        return reuse_predicate(self.without_renaming)

    def _may_reuse(self, first: Value, second: Value) -> bool:
        """True if `second` may overwrite `first` within an iteration."""
        return self._reuse_predicate(first, second)

    def best(self, copied: Collection[Value] = ()) -> BufferAssignment:
        """Return the buffer assignment with the fewest copied bytes, without renaming any value in `copied`.

        A row of a stacked output may also update a loop parameter. In a second attempt the planner renames these
        parameters, and the rows may become views of the stacked outputs. The second attempt wins only with fewer copied
        bytes.
        """
        if not self.options.share:
            return self.without_renaming
        if self._facts is not None and self._facts.obstacle:
            assigned = (to for node in self._graph.walk() for to, _ in assignments(node))
            return replace(self.without_renaming, renaming_obstacles=dict.fromkeys(assigned, self._facts.obstacle))
        # A bound value, such as an output in memory of the caller, must have bytes: it cannot be renamed.
        known = {**dict.fromkeys(self._bound_storages, ""), **dict.fromkeys(copied, NOT_FOLLOWED_BY_CHECKER)}
        best = self._best_with_renaming(known, frozenset())
        carried = frozenset(row_carries(self._graph, self._may_be_loop_view))
        if carried and best.copied_loop_views:
            best = min(best, self._best_with_renaming(known, carried), key=lambda layout: layout.copied_bytes)
        return best

    def _best_with_renaming(self, known: Mapping[Value, str], carried: frozenset[Value]) -> BufferAssignment:
        """Return the best assignment found when the destinations of residual copies are renamed, attempt by attempt.

        `known` maps values excluded from renaming to the reason. The parameters in `carried` are renamed from the first
        attempt on; the assignment without renaming is then no candidate. Among assignments with equally many copied
        bytes the last attempt wins; but first the assignment without renaming, if no iteration copies. In several
        streams the attempts end at more than MAX_BUFFERS arena buffers.
        """
        if not self.without_renaming.residual_copies and not carried:
            return self.without_renaming
        pointing = CarryRenaming(self._graph, self._schedule, self.without_renaming, self._may_reuse, known, carried)
        current, tried = self.without_renaming, list[BufferAssignment]()
        while (timeline := pointing.next_control_flow(current)) is not None:
            current = self.assignment_of(timeline)
            if not timeline.is_serial and sum(buffer.needs_arena for buffer in current.buffers) > MAX_BUFFERS:
                break
            tried.insert(0, current)  # so that `min` prefers the last attempt among equals
        if not carried:
            tried.insert(len(tried) if self.without_renaming.copied_bytes[0] else 0, self.without_renaming)
        best = min(tried, key=lambda layout: layout.copied_bytes, default=self.without_renaming)
        return replace(best, renaming_obstacles=pointing.renaming_obstacles)

    def _may_be_loop_view(self, row: Value, whole: Value, axis: int) -> bool:
        """True if `row` may be a view of `whole`, an output stacked along `axis`."""
        return not why_not_view(row, whole, axis, self.options.alignment, self.options.min_view_bytes)


def _bound_values(graph: Graph, *, io_bound: bool, weights_bound: bool) -> dict[Value, str]:
    """Map every value with memory outside the arena to the kind of storage: "weight", "input" or "output".

    A value both read from the caller and returned counts as a weight or an input.
    """
    kinds: dict[Value, str] = {}
    if weights_bound:
        kinds |= dict.fromkeys(graph.weights, "weight")
    if io_bound:
        kinds |= dict.fromkeys(graph.inputs, "input")
        kinds = dict.fromkeys((v for v in graph.outputs if v not in set(graph.weights)), "output") | kinds
    return kinds


def _storages_of(bound: Mapping[Value, str]) -> dict[Value, Storage]:
    """Return the storage of every plannable value in `bound`."""
    return {v: Storage(bound_storage_name(v.name), kind, v.nbytes) for v, kind in bound.items() if v.plannable}


def _bound_storages_of(graph: Graph, storages: Mapping[Value, Storage]) -> dict[Value, tuple[str, bool]]:
    """Map every bound value to the name of the storage, and to True if the network may write into the storage."""
    updated = set(graph.updated_values)
    return {value: (s.name, s.kind == "output" or value in updated) for value, s in storages.items()}


def _with_always_live(ranges: LiveRanges[Value], values: tuple[Value, ...], points: int) -> LiveRanges[Value]:
    """Return `ranges` with `values` live from the first point to the last, because the next run reads `values` too."""
    return replace(ranges, slot_ranges={**ranges.slot_ranges, **dict.fromkeys(values, ((0, 2 * points),))})
