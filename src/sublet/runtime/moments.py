"""What the program reads and writes at each point that a plan lists, for those who watch or judge a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.base.errors import PlanError
from sublet.ir.graph import Graph, Node, Value, While
from sublet.ir.walk import assignments
from sublet.plan import RUN, UPDATE, Context, MemoryPlan, Point


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of a plan with its node, and what may be read and is written there, in the words of the program.

    No pointer is written: nothing lies where it is. Where a branch ends, `reads` are the results of all its arms.
    """

    point: Point
    node: Node | None
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]

    @property
    def kind(self) -> str:
        """What happens."""
        return self.point.kind

    @property
    def copies(self) -> Context:
        """In which copy of the bodies around."""
        return self.point.copies

    def __str__(self) -> str:
        return str(self.point)


def moments(graph: Graph, plan: MemoryPlan, pointers: frozenset[str]) -> tuple[Moment, ...]:
    """The points of a plan. Raises PlanError when one is of no node of the graph."""
    nodes = {node.name: node for node in graph.walk()}
    found: list[Moment] = []
    for point in plan.points:
        node = nodes.get(point.node)
        if node is None and point.node:
            raise PlanError(f"the plan of {plan.graph!r} has a point of {point.node!r}, which is no node of the graph")
        reads, writes = _touched(graph, node, point.kind)
        written = tuple(value for value in writes if value is not None and value.name not in pointers)
        found.append(Moment(point, node, tuple(reads), written))
    return tuple(found)


def _touched(graph: Graph, node: Node | None, kind: str) -> tuple[Iterable[Value], Iterable[Value | None]]:
    """What happens at a point of a kind reads, and what it writes."""
    if node is None:
        return {
            UPDATE: ([source for _, source in graph.updates], graph.updated),
            "start": ((), (*graph.inputs, *graph.weights)),
        }.get(kind, ((*graph.outputs, *graph.updated), ()))
    if isinstance(node, While):
        return _of_loop(node, kind)
    if kind == RUN:
        return node.uses, node.defs
    if kind == "yield":
        return [source for _, sources in assignments(node) for source in sources], node.defs
    return node.uses, ()


def _of_loop(node: While, kind: str) -> tuple[Iterable[Value], Iterable[Value | None]]:
    stacked = [value for value in node.stacked if value is not None]
    return {
        "enter": (node.inits, (*node.parameters, *stacked)),
        "round": ((), (node.counter,)),
        "check": ((node.condition,), ()),
        "fetch": (node.sequences, node.slices),
        "next": ((*node.updates, *node.rows, *stacked), (*node.parameters, *stacked)),
        "exit": ((*node.parameters, *stacked), node.finals),
    }[kind]
