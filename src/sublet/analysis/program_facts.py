"""Program facts: properties of the whole program, computed once for all control flow graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph, Node, Value, While
from sublet.ops import Share, lookup


@dataclass(frozen=True, slots=True)
class SharingFacts:
    """The values an op may share, by position of inputs and outputs.

    The facts of a node hold for all versions of the node, whatever versions of its inputs they read.
    """

    views: tuple[Share, ...]
    parts: tuple[Share, ...]
    inplace: tuple[Share, ...]


class ProgramFacts:
    """Facts of a program: the order of definitions, the assignments of loops and branches, the sharing facts of ops.

    position   of each value in the order of definition; the values of a loop body are consecutive
    """

    def __init__(self, graph: Graph) -> None:
        self.position = {value: i for i, value in enumerate(graph.values())}
        self._sources: dict[Value, tuple[Value, ...]] = {}
        self._body_ends: dict[str, int] = {}  # by loop, the position after the last value of the body
        self._facts: dict[str, SharingFacts] = {}
        for node in graph.walk():
            self._sources.update(assignments(node))
            if isinstance(node, While):
                *_, last = node.body.values()
                self._body_ends[node.name] = self.position[last] + 1

    def sharing_facts_of(self, node: Node) -> SharingFacts:
        """Return the sharing facts of a program node."""
        facts = self._facts.get(node.name)
        if facts is None:
            op = lookup(node.op)
            facts = self._facts[node.name] = SharingFacts(op.views(node), op.parts(node), op.inplace(node))
        return facts

    def carried_values(self, node: While, positions: Iterable[int], pointers: frozenset[Value]) -> frozenset[Value]:
        """Return the values of a loop body with bytes that the renamed parameters at `positions` may be bound to."""
        begin, end = self.position[node.counter], self._body_ends[node.name]
        todo = [node.updates[i] for i in positions]
        seen: set[Value] = set(node.parameters)
        carried: set[Value] = set()
        while todo:
            value = todo.pop()
            if value in seen or not begin <= self.position[value] < end:
                continue
            seen.add(value)
            if value in pointers:
                todo += self._sources[value]
            else:
                carried.add(value)
        return frozenset(carried)
