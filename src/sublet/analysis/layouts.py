"""Buffer assignment for one schedule: control flow, live ranges and shared buffers.

The planner assigns buffers repeatedly, with more and more loop-carried values renamed instead of copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property

from sublet.analysis.exchange import cycles
from sublet.analysis.flow import Flow
from sublet.analysis.flow_builder import flow
from sublet.analysis.instances import Reusable
from sublet.analysis.interference import MAX_BUFFERS
from sublet.analysis.layout import Layout
from sublet.analysis.liveness import LiveRanges, liveness
from sublet.analysis.options import Options
from sublet.analysis.pointers import Pointing, carried_rows, reusable_in
from sublet.analysis.sharing import copying, share
from sublet.analysis.windows import obstacle
from sublet.ir.graph import Graph, Value
from sublet.plan import Storage, bound_to
from sublet.plan.exchange import placed
from sublet.plan.schedule import Schedule

NOT_FOLLOWED = "the checker could not follow what it points at"


class Layouts:
    """Planner of storage aliases: the buffer assignments of a graph under a schedule and options.

    bound_kinds  the kind of storage ("weight", "input" or "output") of every value with memory outside the arena
    storages     the storage of every plannable value in `bound_kinds`
    swap_cycles  cycles of updated values whose storages are swapped after a run
    """

    def __init__(self, graph: Graph, schedule: Schedule, options: Options) -> None:
        self.options = options
        self.bound = _bound_values(graph, io_bound=options.io == "bound", weights_bound=options.weights == "bound")
        self.storages = _storages_of(self.bound)
        self.exchanged = cycles(graph, self.storages) if options.share else ()
        self._homes = _homes_of(graph, self.storages)
        self._graph = placed(graph, self.exchanged)
        self._schedule = schedule

    def of(self, timeline: Flow) -> Layout:
        """Return the buffer assignment of a control flow graph: compute live ranges, then share buffers."""
        ranges = _always_live(liveness(timeline), self._graph.constants, len(timeline.points))
        return self.shared(timeline, ranges)

    def shared(
        self,
        timeline: Flow,
        ranges: LiveRanges[Value],
        *,
        blocks: bool = True,
        placed: Mapping[Value, int] | None = None,
    ) -> Layout:
        """Return the buffer assignment of a control flow graph with the live ranges `ranges`.

        With `blocks`, the packer places every buffer as a rectangle, needed whole while any member is live; a merge
        must then not raise the peak of live bytes. Without `blocks`, every legal merge is made. `placed` fixes the
        offsets of some values, in bytes: a merge contradicting a fixed offset is not made.
        """
        buffers = share(
            self._graph,
            timeline,
            ranges,
            alignment=self.options.alignment,
            homes=self._homes,
            merging=self.options.share,
            blocks=blocks,
            placed=placed,
            smallest=self.options.smallest,
        )
        return Layout(timeline, ranges, buffers, tuple(copying(timeline, buffers)))

    @cached_property
    def plain(self) -> Layout:
        """The buffer assignment without renamed values. If `options.share` is false, every value has separate bytes."""
        return self.of(flow(self._graph, self._schedule))

    @cached_property
    def _reusable(self) -> Reusable:
        """The reuse predicate of the assignment without renaming, see `carry_renaming.reuse_predicate`."""
        return reusable_in(self.plain)

    def _may_reuse(self, first: Value, second: Value) -> bool:
        """True if `second` may overwrite `first` within an iteration."""
        return self._reusable(first, second)

    def settled(self, copied: Collection[Value] = ()) -> Layout:
        """Return the buffer assignment with the fewest copied bytes, without renaming any value in `copied`.

        A row of a stacked output may also update a loop parameter. In a second attempt the planner renames these
        parameters, and the rows may become views of the stacked outputs. The second attempt wins only with fewer copied
        bytes.
        """
        if not self.options.share:
            return self.plain
        # A bound value, such as an output in memory of the caller, must have bytes: it cannot be renamed.
        known = {**dict.fromkeys(self._homes, ""), **dict.fromkeys(copied, NOT_FOLLOWED)}
        best = self._pointing(known, frozenset())
        carried = frozenset(carried_rows(self._graph, self._may_be_window))
        if carried and best.copied_windows:
            best = min(best, self._pointing(known, carried), key=lambda layout: layout.moved)
        return best

    def _pointing(self, known: Mapping[Value, str], carried: frozenset[Value]) -> Layout:
        """Return the best assignment found when the destinations of residual copies are renamed, attempt by attempt.

        `known` maps values excluded from renaming to the reason. The parameters in `carried` are renamed from the first
        attempt on; the assignment without renaming is then no candidate. Among assignments with equally many copied
        bytes the last attempt wins. In several streams the attempts end at more than MAX_BUFFERS arena buffers.
        """
        if not self.plain.copied and not carried:
            return self.plain
        pointing = Pointing(self._graph, self._schedule, self.plain, self._may_reuse, known, carried)
        current, tried = self.plain, [] if carried else [self.plain]
        while (timeline := pointing.flow(current)) is not None:
            current = self.of(timeline)
            if not timeline.serial and sum(buffer.packed for buffer in current.buffers) > MAX_BUFFERS:
                break
            tried.insert(0, current)  # so that `min` prefers the last attempt among equals
        best = min(tried, key=lambda layout: layout.moved, default=self.plain)
        return replace(best, refused=pointing.refused)

    def _may_be_window(self, row: Value, whole: Value, axis: int) -> bool:
        """True if `row` may be a view of `whole`, an output stacked along `axis`."""
        return not obstacle(row, whole, axis, self.options.alignment, self.options.smallest)


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
    return {v: Storage(bound_to(v.name), kind, v.nbytes) for v, kind in bound.items() if v.plannable}


def _homes_of(graph: Graph, storages: Mapping[Value, Storage]) -> dict[Value, tuple[str, bool]]:
    """Map every bound value to the name of the storage, and to True if the network may write into the storage."""
    updated = set(graph.updated)
    return {value: (s.name, s.kind == "output" or value in updated) for value, s in storages.items()}


def _always_live(ranges: LiveRanges[Value], values: tuple[Value, ...], points: int) -> LiveRanges[Value]:
    """Return `ranges` with `values` live from the first point to the last, because the next run reads `values` too."""
    return replace(ranges, halves={**ranges.halves, **dict.fromkeys(values, ((0, 2 * points),))})
