"""Stream assignment: the stream of every node of a graph, and the nodes to wait for."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sublet.analysis.control_flow import ControlFlowGraph
from sublet.base.errors import ProblemError
from sublet.ir.dataflow import producer_positions, required_values
from sublet.ir.graph import Graph, Node, Value, While
from sublet.plan.schedule import Schedule, ScheduleStep

# Concurrency: the points of a control flow graph that may run at the same time in several streams.

Mask = NDArray[np.bool_]
STEPS_PER_BLOCK = 1024  # steps of a block of the relation; a multiple of 8, since the bits are packed in bytes


class Concurrency:
    """Pairs of points not ordered by a stream, a wait or the end of an iteration.

    Arms of a branch never run together, and the points of a step run in order. Two points are therefore concurrent only
    below two unordered steps of the same level.
    """

    def __init__(self, flow: ControlFlowGraph):
        self.is_serial = flow.is_serial
        self._points = len(flow.points)
        self._accesses: dict[Value, int] = defaultdict(int)
        self._concurrent: dict[Value, int] = defaultdict(int)
        self._concurrent_with_write: dict[Value, int] = defaultdict(int)
        if self.is_serial:
            return
        concurrent = _concurrent_points(flow)
        for t, point in enumerate(flow.points):
            for value in (*point.uses, *point.defs):
                self._accesses[value] |= 1 << t
                self._concurrent[value] |= concurrent[t]
            for value in point.defs:
                self._concurrent_with_write[value] |= concurrent[t]

    def may_access_together(self, a: Value, b: Value) -> bool:
        """True if an access to `a` may happen at the same time as an access to `b`."""
        return bool(self._concurrent[a] & self._accesses[b]) if not self.is_serial else False

    def may_write_during(self, a: Value, b: Value) -> bool:
        """True if `a` may be written at the same time as an access to `b`."""
        return bool(self._concurrent_with_write[a] & self._accesses[b]) if not self.is_serial else False

    def access_points(self, values: Iterable[Value]) -> list[int]:
        """Return the points accessing any of `values`, ascending."""
        return [int(point) for point in np.flatnonzero(self._union_of(self._accesses, values))]

    def concurrent_points_of(self, values: Iterable[Value]) -> Mask:
        """Return a mask, True at every point that may run at the same time as an access to any of `values`."""
        return self._union_of(self._concurrent, values)

    def _union_of(self, bits: Mapping[Value, int], values: Iterable[Value]) -> Mask:
        """Return the union of the bit sets of `values`, as a bool for each point."""
        together = 0
        for value in values:
            together |= bits[value]
        row: Mask = _unpack_bits([together], self._points)[0].astype(np.bool_)
        return row


def _concurrent_points(flow: ControlFlowGraph) -> list[int]:
    """Return for each point the bit set of points that may run at the same time."""
    count = len(flow.points)
    step_at = np.full((len(flow.levels), count), -1, dtype=np.int32)  # by level and point: the step around the point
    for t, point in enumerate(flow.points):
        for level, step in point.path:
            step_at[level, t] = step
    concurrent = [0] * count
    for level, before in enumerate(flow.levels):
        below = np.flatnonzero(step_at[level] >= 0)
        rank = step_at[level, below]
        for i, beside in enumerate(_unordered_steps(before)):
            row = np.zeros(count, dtype=np.bool_)
            row[below] = beside[rank]
            if not row.any():
                continue
            mask = int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")
            for t in below[rank == i]:
                concurrent[t] |= mask
    return concurrent


def _unordered_steps(before: tuple[int, ...]) -> Iterator[Mask]:
    """Yield for each step of a level the unordered steps, as a bool for each step.

    The function works on blocks of steps, because a dense matrix of all pairs would be large.
    """
    count = len(before)
    packed = _pack_bits(before, count)
    for begin in range(0, count, STEPS_PER_BLOCK):
        end = min(begin + STEPS_PER_BLOCK, count)
        earlier = np.unpackbits(packed[begin:end], axis=1, count=count, bitorder="little")
        later = np.unpackbits(packed[:, begin // 8 : (end + 7) // 8], axis=1, count=end - begin, bitorder="little")
        beside = (earlier | later.T) == 0
        beside[np.arange(end - begin), np.arange(begin, end)] = False
        yield from beside


def _pack_bits(bit_sets: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Return a row of bytes for each bit set of `count` bits, low bits first."""
    width = (count + 7) // 8
    joined = b"".join(bits.to_bytes(width, "little") for bits in bit_sets)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(bit_sets), width)


def _unpack_bits(bit_sets: Sequence[int], count: int) -> NDArray[np.uint8]:
    """Return a row of `count` zeros and ones for each bit set."""
    return np.unpackbits(_pack_bits(bit_sets, count), axis=1, count=count, bitorder="little")


MAX_NODES = 32_768
"""Nodes of a program with several streams. The happens-before relation takes a bit for each pair of nodes: 128 MiB."""


def assign_streams(graph: Graph, streams: int, check: int = 0) -> Schedule:
    """Return the graph's order spread over at most `streams` streams, sub-graphs included.

    A node follows the latest needed node still last on a stream, else goes to the stream idle for longest. The node
    waits for needed nodes on other streams. The first `check` nodes of a loop body compute the condition and precede
    all others. Raises ProblemError for more than MAX_NODES nodes in several streams.
    """
    count = _count_nodes(graph)
    if streams > 1 and count > MAX_NODES:
        raise ProblemError(
            f"graph {graph.name}: {count} nodes exceed the limit of {MAX_NODES} nodes in several "
            "streams; plan it with one (--streams 1)"
        )
    return _assign_level(graph, streams, check)


def _count_nodes(graph: Graph) -> int:
    """Return the number of nodes, sub-graphs included."""
    return len(graph.nodes) + sum(_count_nodes(sub) for node in graph.nodes for sub in node.subgraphs)


def _assign_level(graph: Graph, streams: int, check: int) -> Schedule:
    """Return the schedule of a graph and, recursively, of the sub-graphs."""
    useful = max(1, min(streams, len(graph.nodes)))
    last: OrderedDict[int, str] = OrderedDict.fromkeys(range(useful), "")  # last node by stream, longest idle first
    steps: list[ScheduleStep] = []
    stream_of: dict[str, int] = {}
    for node, first in dependencies(graph, check):
        ends = [name for name in reversed(first) if last[stream_of[name]] == name]
        stream = stream_of[ends[0]] if ends else next(iter(last))
        waits = tuple(name for name in first if stream_of[name] != stream)
        stream_of[node.name] = stream
        last[stream] = node.name
        last.move_to_end(stream)
        steps.append(ScheduleStep(node.name, stream, waits))
    bodies = {
        node.name: tuple(_assign_level(sub, streams, _count_condition_nodes(node)) for sub in node.subgraphs)
        for node in graph.nodes
        if node.subgraphs
    }
    return Schedule(tuple(steps), bodies)


def _count_condition_nodes(node: Node) -> int:
    """Return the number of nodes computing the condition of a loop; 0 for a node without condition."""
    return node.check if isinstance(node, While) else 0


def dependencies(graph: Graph, check: int) -> list[tuple[Node, list[str]]]:
    """Return every node with the names of the needed nodes of the same graph, in graph order."""
    made = producer_positions(graph.nodes)
    needed = []
    for i, node in enumerate(graph.nodes):
        first = {made[value] for value in required_values(node) if value in made}
        if i >= check:
            first.update(range(check))
        needed.append((node, [graph.nodes[j].name for j in sorted(first)]))
    return needed
