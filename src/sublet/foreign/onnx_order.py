"""The nodes of an ONNX file in the order of a plan."""

from __future__ import annotations

from typing import Any

from sublet.foreign.onnx_metadata import graphs_of
from sublet.frontends.onnx.order import reads
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule

BEFORE_ALL = -1


def reorder(graph: Any, plan: MemoryPlan) -> None:
    """Put the nodes of a graph, and of those within it, into the order in which the plan runs what they compute.

    A node that the plan does not have stays behind what it reads: it is a constant, or another name for something.
    """
    positions: dict[str, int] = {}
    _number(plan.schedule, positions)
    makers = {place.value: positions[place.producer] for place in plan.placements if place.producer in positions}
    for one, _ in graphs_of(graph):
        known: dict[str, int] = {}
        order: list[tuple[int, int]] = []
        for i, node in enumerate(one.node):
            own = [makers[name] for name in node.output if name in makers]
            at = max(own or (known[name] for name in reads(node) if name in known), default=BEFORE_ALL)
            known.update((name, at) for name in node.output if name)
            order.append((at, i))
        if order != sorted(order):
            nodes = [type(node)() for node in one.node]
            for made, node in zip(nodes, one.node, strict=True):
                made.CopyFrom(node)
            del one.node[:]
            one.node.extend(nodes[i] for _, i in sorted(order))


def _number(schedule: Schedule, positions: dict[str, int]) -> None:
    """The position of each step in a run, those of sub-graphs behind their node."""
    for step in schedule.steps:
        positions[step.node] = len(positions)
        for body in schedule.bodies.get(step.node, ()):
            _number(body, positions)
