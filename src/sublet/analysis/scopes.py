"""What is known of a whole program before it is laid out, found once for all its layouts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.ir.graph import Graph, Node, Value, While
from sublet.ir.walk import assignments
from sublet.ops import Share, lookup


@dataclass(frozen=True, slots=True)
class Facts:
    """What the op of a node may share, by position; they hold of its instances too, whatever these read."""

    views: tuple[Share, ...]
    parts: tuple[Share, ...]
    inplace: tuple[Share, ...]


class Scopes:
    """Where a program defines its values, what its loops and branches assign, what its ops may share.

    position   of each value in the order of definition, in which the values of a body follow one another
    """

    def __init__(self, graph: Graph) -> None:
        self.position = {value: i for i, value in enumerate(graph.values())}
        self._sources: dict[Value, tuple[Value, ...]] = {}
        self._ends: dict[str, int] = {}  # for each loop the position after the last value of its body
        self._facts: dict[str, Facts] = {}
        for node in graph.walk():
            self._sources.update(assignments(node))
            if isinstance(node, While):
                *_, last = node.body.values()
                self._ends[node.name] = self.position[last] + 1

    def facts(self, node: Node) -> Facts:
        """What the op of a node of the program may share."""
        found = self._facts.get(node.name)
        if found is None:
            op = lookup(node.op)
            found = self._facts[node.name] = Facts(op.views(node), op.parts(node), op.inplace(node))
        return found

    def carried(self, node: While, positions: Iterable[int], pointers: frozenset[Value]) -> frozenset[Value]:
        """The values of a loop's body whose bytes the pointer parameters at these positions may come to stand for."""
        begin, end = self.position[node.counter], self._ends[node.name]
        todo = [node.updates[i] for i in positions]
        seen: set[Value] = set(node.parameters)
        found: set[Value] = set()
        while todo:
            value = todo.pop()
            if value in seen or not begin <= self.position[value] < end:
                continue
            seen.add(value)
            if value in pointers:
                todo += self._sources[value]
            else:
                found.add(value)
        return frozenset(found)
