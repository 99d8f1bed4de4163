"""Reordering of the nodes of an ONNX file into the order of a plan."""

from __future__ import annotations

from typing import Any

from sublet.foreign.onnx_metadata import graphs_of
from sublet.frontends.onnx.topological_order import names_read_by
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule

BEFORE_ALL = -1


def sort_into_plan_order(graph: Any, plan: MemoryPlan) -> None:
    """Sort the nodes of a graph, and of all nested graphs, into the order of the plan's schedule.

    A node missing from the plan (a constant, or an alias of another value) keeps its place after its operands.
    """
    positions: dict[str, int] = {}
    _number_steps(plan.schedule, positions)
    makers = {place.value: positions[place.producer] for place in plan.placements if place.producer in positions}
    for subgraph, _ in graphs_of(graph):
        step_of: dict[str, int] = {}
        order: list[tuple[int, int]] = []
        for i, node in enumerate(subgraph.node):
            steps = [makers[name] for name in node.output if name in makers]
            at = max(steps or (step_of[name] for name in names_read_by(node) if name in step_of), default=BEFORE_ALL)
            step_of.update((name, at) for name in node.output if name)
            order.append((at, i))
        if order != sorted(order):
            nodes = [type(node)() for node in subgraph.node]
            for copy, node in zip(nodes, subgraph.node, strict=True):
                copy.CopyFrom(node)
            del subgraph.node[:]
            subgraph.node.extend(nodes[i] for _, i in sorted(order))


def _number_steps(schedule: Schedule, positions: dict[str, int]) -> None:
    """Number the steps of a schedule in execution order; the steps of nested bodies follow their node."""
    for step in schedule.steps:
        positions[step.node] = len(positions)
        for body in schedule.bodies.get(step.node, ()):
            _number_steps(body, positions)
