"""Profile of a run: every point with thread and times, as a trace for Perfetto or chrome://tracing.

The file follows the Trace Event Format: complete events ("X") in one lane per thread, metadata ("M") with the names
of the lanes, and a counter ("C") of the live bytes of the arena.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from sublet.base.errors import RunError
from sublet.base.files import write
from sublet.base.ranges import union_length
from sublet.ir.graph import Graph
from sublet.plan import Placement
from sublet.plan.schedule import Schedule
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Call
from sublet.runtime.state import PointAccesses

MAX_EVENTS = 100_000
"""Most events kept in a trace, to bound the memory of long loops; further events are only counted and summed."""

PROCESS = 1
"""Process number in the trace: a run has a single process."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A point of the program, with the number of its runs and their total seconds."""

    point: PointAccesses
    runs: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Event:
    """One run of a point: thread, begin and end in nanoseconds."""

    point: int
    thread: int
    begin: int
    end: int


class Profile:
    """Records one run of an executable: `executable.run_watched(inputs, profile.watch)`.

    Records of a failed or interrupted run are kept.
    """

    def __init__(self, executable: Executable, max_events: int = MAX_EVENTS) -> None:
        self._points = executable.point_accesses
        self._plan = executable.plan
        self._streams = _streams(executable.graph, executable.plan.schedule)
        self._max_events = max_events
        self._events: list[_Event] = []
        self._runs = [0] * len(self._points)
        self._nanoseconds = [0] * len(self._points)

    def watch(self, index: int, action: Call) -> Call:
        """Return the action with timing. A point never runs in two threads at once, so that its sums need no lock."""
        events, runs, nanoseconds, most = self._events, self._runs, self._nanoseconds, self._max_events

        def run_timed() -> Any:
            begin = perf_counter_ns()
            try:
                return action()
            finally:
                end = perf_counter_ns()
                runs[index] += 1
                nanoseconds[index] += end - begin
                if len(events) < most:
                    events.append(_Event(index, get_ident(), begin, end))

        return run_timed

    @property
    def dropped_events(self) -> int:
        """The number of events beyond the limit of the trace."""
        return sum(self._runs) - len(self._events)

    def slowest(self) -> tuple[Cost, ...]:
        """Return every point that ran, by total time, longest first."""
        costs = [
            Cost(point, runs, nanoseconds / 1e9)
            for point, runs, nanoseconds in zip(self._points, self._runs, self._nanoseconds, strict=True)
            if runs
        ]
        return tuple(sorted(costs, key=lambda cost: -cost.seconds))

    def trace(self) -> dict[str, Any]:
        """Return the trace as JSON content; times in microseconds since the first event."""
        events = sorted(self._events, key=lambda event: (event.begin, -event.end, event.point))
        origin = events[0].begin if events else 0
        lanes = self._lanes(events)
        content = [
            {"name": "thread_name", "ph": "M", "pid": PROCESS, "tid": lane, "args": {"name": name}}
            for lane, name in lanes.values()
        ]
        content += [self._complete_event(event, lanes[event.thread][0], origin) for event in events]
        content += self._live_bytes(events, origin)
        about = {
            "graph": self._plan.graph,
            "arena_bytes": self._plan.arena_bytes,
            "events_dropped": self.dropped_events,
        }
        return {"traceEvents": content, "displayTimeUnit": "ms", "otherData": about}

    def save(self, path: str | Path) -> None:
        """Write the trace to a file, atomically. Raises RunError when the file cannot be written."""
        write(path, json.dumps(self.trace()), RunError)

    def _lanes(self, events: list[_Event]) -> Mapping[int, tuple[int, str]]:
        """Return the number and name of the lane of each thread, in order of appearance."""
        lanes: dict[int, tuple[int, str]] = {}
        for event in events:
            stream = self._stream(event.point)
            if event.thread not in lanes:
                lanes[event.thread] = (len(lanes), f"thread {len(lanes)}")
            if stream is not None and lanes[event.thread][1].startswith("thread"):
                lanes[event.thread] = (lanes[event.thread][0], f"stream {stream}")
        return lanes

    def _stream(self, index: int) -> int | None:
        """Return the stream of the outermost step of a point."""
        return self._streams.get(self._points[index].point.node)

    def _complete_event(self, event: _Event, lane: int, origin: int) -> dict[str, Any]:
        """Return the trace event of one run of a point."""
        point = self._points[event.point]
        arguments: dict[str, Any] = {"point": event.point, "stream": self._stream(event.point)}
        if point.node is not None:
            outputs = [f"{value}: {value.spec}" for value in point.writes]
            arguments |= {"node": point.node.name, "op": point.node.op, "outputs": outputs}
        return {
            "name": str(point),
            "cat": point.kind,
            "ph": "X",
            "ts": (event.begin - origin) / 1000,
            "dur": (event.end - event.begin) / 1000,
            "pid": PROCESS,
            "tid": lane,
            "args": arguments,
        }

    def _live_bytes(self, events: list[_Event], origin: int) -> list[dict[str, Any]]:
        """Return counter events: the live bytes of each arena at the begin of each point.

        With several streams, the bytes live at any of the running points.
        """
        arenas = [storage.name for storage in self._plan.arenas]
        live = [_LiveRegions(name, self._plan.placements, len(self._points)) for name in arenas]
        running: list[_Event] = []
        content = []
        for event in events:
            running = [*(other for other in running if other.end > event.begin), event]
            points = tuple(sorted(other.point for other in running))
            content.append(
                {
                    "name": "live bytes",
                    "ph": "C",
                    "ts": (event.begin - origin) / 1000,
                    "pid": PROCESS,
                    "args": {name: regions.nbytes(points) for name, regions in zip(arenas, live, strict=True)},
                }
            )
        return content


def _streams(graph: Graph, schedule: Schedule) -> dict[str, int]:
    """Return the stream of each node; nodes of sub-graphs have the stream of their outermost node."""
    streams = {step.node: step.stream for step in schedule.steps}
    bodies = ((node.name, sub) for node in graph.nodes for sub in node.subgraphs)
    return streams | {inner.name: streams[name] for name, sub in bodies for inner in sub.walk()}


class _LiveRegions:
    """The live bytes of an arena at each point."""

    def __init__(self, arena: str, placements: Sequence[Placement], points: int) -> None:
        self._at: list[list[tuple[int, int]]] = [[] for _ in range(points)]
        for place in placements:
            if place.region.storage == arena and place.region.nbytes:
                for begin, end in place.live:
                    for index in range(begin, end):
                        self._at[index].append((place.region.offset, place.region.end))
        self._known: dict[tuple[int, ...], int] = {}

    def nbytes(self, points: tuple[int, ...]) -> int:
        """Return the bytes live at any of the points; shared bytes count once."""
        if points not in self._known:
            self._known[points] = union_length(region for point in points for region in self._at[point])
        return self._known[points]
