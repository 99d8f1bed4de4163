"""How a program in one order is laid out: its flow, lives and buffers, with ever more pointers."""

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
    """The layouts of a graph as a schedule and options say.

    bound      the values with memory of their own outside the arena, each with the kind of its storage
    storages   the storages of those of them that are planned
    exchanged  the updated values that take over each other's memory when a run has ended
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
        """The layout of a flow: liveness, then sharing."""
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
        """The layout of a flow with these lives; not as `blocks` with all that may be the same bytes.

        Values may be `placed` at offsets: those at others are not the same bytes.
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
        """The layout without pointers; without sharing every value has bytes of its own."""
        return self.of(flow(self._graph, self._schedule))

    @cached_property
    def _reusable(self) -> Reusable:
        return reusable_in(self.plain)

    def _may_reuse(self, first: Value, second: Value) -> bool:
        return self._reusable(first, second)

    def settled(self, copied: Collection[Value] = ()) -> Layout:
        """The layout that copies the fewest bytes, in which the `copied` values are no pointers.

        A row that is also carried is bytes of its whole where a pointer stands for it, if that copies less.
        """
        if not self.options.share:
            return self.plain
        # what is bound must have bytes of its own, such as outputs in memory of the caller
        known = {**dict.fromkeys(self._homes, ""), **dict.fromkeys(copied, NOT_FOLLOWED)}
        best = self._pointing(known, frozenset())
        carried = frozenset(carried_rows(self._graph, self._may_be_window))
        if carried and best.copied_windows:
            best = min(best, self._pointing(known, carried), key=lambda layout: layout.moved)
        return best

    def _pointing(self, known: Mapping[Value, str], carried: frozenset[Value]) -> Layout:
        """The best layout with what is copied as pointers, and with the `carried` parameters."""
        if not self.plain.copied and not carried:
            return self.plain
        pointing = Pointing(self._graph, self._schedule, self.plain, self._may_reuse, known, carried)
        current, tried = self.plain, [] if carried else [self.plain]
        while (timeline := pointing.flow(current)) is not None:
            current = self.of(timeline)
            if not timeline.serial and sum(buffer.packed for buffer in current.buffers) > MAX_BUFFERS:
                break
            tried.insert(0, current)  # of those that copy as much the last one is taken
        best = min(tried, key=lambda layout: layout.moved, default=self.plain)
        return replace(best, refused=pointing.refused)

    def _may_be_window(self, row: Value, whole: Value, axis: int) -> bool:
        """Whether a row could be bytes of its whole, which is stacked along an axis."""
        return not obstacle(row, whole, axis, self.options.alignment, self.options.smallest)


def _bound_values(graph: Graph, *, io_bound: bool, weights_bound: bool) -> dict[Value, str]:
    """The values that have memory of their own outside the arena, each with the kind of its storage."""
    kinds: dict[Value, str] = {}
    if weights_bound:
        kinds |= dict.fromkeys(graph.weights, "weight")
    if io_bound:
        kinds |= dict.fromkeys(graph.inputs, "input")
        kinds = dict.fromkeys((v for v in graph.outputs if v not in set(graph.weights)), "output") | kinds
    return kinds


def _storages_of(bound: Mapping[Value, str]) -> dict[Value, Storage]:
    """The storages of those of them that are planned."""
    return {v: Storage(bound_to(v.name), kind, v.nbytes) for v, kind in bound.items() if v.plannable}


def _homes_of(graph: Graph, storages: Mapping[Value, Storage]) -> dict[Value, tuple[str, bool]]:
    """For each bound value the name of its storage, and whether the network may write there."""
    updated = set(graph.updated)
    return {value: (s.name, s.kind == "output" or value in updated) for value, s in storages.items()}


def _always_live(ranges: LiveRanges[Value], values: tuple[Value, ...], points: int) -> LiveRanges[Value]:
    """`ranges` with `values` alive from the first point to the last: they serve the next run too."""
    return replace(ranges, halves={**ranges.halves, **dict.fromkeys(values, ((0, 2 * points),))})
