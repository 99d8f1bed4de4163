"""Values read and written by the program at each point of a plan, for observers and checkers of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sublet.base.errors import PlanError
from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph, Node, Value, While
from sublet.plan import RUN, UPDATE, Context, MemoryPlan, PlanPoint


@dataclass(frozen=True, slots=True)
class PointAccesses:
    """A point of a plan with its node, and the program values that the point may read and writes.

    Renamed carries are not written: a renamed carry has no bytes. At the end of a branch, `reads` lists the
    results of all arms.
    """

    point: PlanPoint
    node: Node | None
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]

    @property
    def kind(self) -> str:
        """The kind of the point."""
        return self.point.kind

    @property
    def copies(self) -> Context:
        """The versions of the enclosing loop bodies."""
        return self.point.copies

    def __str__(self) -> str:
        return str(self.point)


def accesses_of_points(graph: Graph, plan: MemoryPlan, pointers: frozenset[str]) -> tuple[PointAccesses, ...]:
    """Return the accesses of all points of a plan. Raises PlanError for a point without a node of the graph."""
    nodes = {node.name: node for node in graph.walk()}
    accesses: list[PointAccesses] = []
    for point in plan.points:
        node = nodes.get(point.node)
        if node is None and point.node:
            raise PlanError(f"the plan of {plan.graph!r} has a point for {point.node!r}, which is no node of the graph")
        reads, writes = _reads_and_writes(graph, node, point.kind)
        written = tuple(value for value in writes if value is not None and value.name not in pointers)
        accesses.append(PointAccesses(point, node, tuple(reads), written))
    return tuple(accesses)


def _reads_and_writes(graph: Graph, node: Node | None, kind: str) -> tuple[Iterable[Value], Iterable[Value | None]]:
    """Return the values read and the values written at a point of the given kind."""
    if node is None:
        return {
            UPDATE: ([source for _, source in graph.updates], graph.updated_values),
            "start": ((), (*graph.inputs, *graph.weights)),
        }.get(kind, ((*graph.outputs, *graph.updated_values), ()))
    if isinstance(node, While):
        return _loop_reads_and_writes(node, kind)
    if kind == RUN:
        return node.uses, node.defs
    if kind == "yield":
        return [source for _, sources in assignments(node) for source in sources], node.defs
    return node.uses, ()


def _loop_reads_and_writes(node: While, kind: str) -> tuple[Iterable[Value], Iterable[Value | None]]:
    """Return the values read and the values written at a point of a loop."""
    stacked = [value for value in node.stacked_outputs if value is not None]
    return {
        "enter": (node.inits, (*node.parameters, *stacked)),
        "round": ((), (node.counter,)),
        "check": ((node.condition,), ()),
        "fetch": (node.sequences, node.slices),
        "next": ((*node.updates, *node.rows, *stacked), (*node.parameters, *stacked)),
        "exit": ((*node.parameters, *stacked), node.finals),
    }[kind]
