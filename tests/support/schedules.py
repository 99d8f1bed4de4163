"""Random schedules with several streams, right by construction."""

from __future__ import annotations

import random

from sublet.ir.dataflow import captures
from sublet.ir.graph import Graph, Node, Value, While
from sublet.plan.schedule import Schedule, ScheduleStep


def random_schedule(rng: random.Random, graph: Graph, streams: int, check: int = 0) -> Schedule:
    """Nodes in random streams and a random order that respects data; a wait for each dependency.

    The first `check` nodes run before all others, as in the body of a loop.
    """
    makers = {value.name: node.name for node in graph.nodes for value in node.defs}
    early = [node.name for node in graph.nodes[:check]]
    needed = {node.name: _makers(node, makers) + (early if i >= check else []) for i, node in enumerate(graph.nodes)}
    steps: list[ScheduleStep] = []
    waiting = {node.name: node for node in graph.nodes}
    while waiting:
        ready = [name for name in waiting if all(other not in waiting for other in needed[name])]
        chosen = rng.choice(ready)
        del waiting[chosen]
        steps.append(ScheduleStep(chosen, rng.randrange(streams), tuple(dict.fromkeys(needed[chosen]))))
    return Schedule(tuple(steps), {node.name: _bodies(rng, node, streams) for node in graph.nodes if node.subgraphs})


def _bodies(rng: random.Random, node: Node, streams: int) -> tuple[Schedule, ...]:
    check = node.check if isinstance(node, While) else 0
    return tuple(random_schedule(rng, sub, streams, check) for sub in node.subgraphs)


def _makers(node: Node, makers: dict[str, str]) -> list[str]:
    read: list[Value] = list(node.uses)
    for sub in node.subgraphs:
        read += captures(sub)
    if isinstance(node, While):
        read.append(node.condition)
    return [makers[value.name] for value in read if value.name in makers]
