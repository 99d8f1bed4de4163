"""The check of a schedule: every node runs once, and data flow is ordered.

Rules: unknown-step, scheduled-twice, unscheduled-node, bad-stream, bad-wait, missing-body (the schedule belongs to
another graph, and the replay is impossible); missing-wait, check-order (a read may come before the write).
"""

from __future__ import annotations

from collections.abc import Iterator

from sublet.base.errors import Finding
from sublet.ir.dataflow import required_values
from sublet.ir.graph import Graph, While
from sublet.plan.schedule import Schedule, happens_before

MOST_STREAMS = 1 << 16
"""Streams of one graph. A step in a higher stream is a finding (bad-stream)."""


def check_form(graph: Graph, schedule: Schedule) -> Iterator[Finding]:
    """Yield findings for a schedule of another graph, sub-graphs included."""
    where = f"schedule of {graph.name}"
    nodes = {node.name for node in graph.nodes}
    seen: set[str] = set()
    for step in schedule.steps:
        if step.node not in nodes:
            yield Finding("unknown-step", where, f"runs {step.node}, which is no node of the graph")
        if step.node in seen:
            yield Finding("scheduled-twice", where, f"runs node {step.node} twice")
        for wait in step.waits:
            if wait not in seen:
                what = f"step {step.node} waits for {wait}, which is no earlier step of the graph"
                yield Finding("bad-wait", where, what)
        seen.add(step.node)
        if not 0 <= step.stream < MOST_STREAMS:
            yield Finding(
                "bad-stream", where, f"runs {step.node} in stream {step.stream}", f"expected 0 to {MOST_STREAMS - 1}"
            )
    for name in schedule.bodies:
        if name not in nodes:
            yield Finding(
                "missing-body", where, f"has schedules for the sub-graphs of {name}, which is no node of the graph"
            )
    for node in graph.nodes:
        if node.name not in seen:
            yield Finding("unscheduled-node", where, f"never runs node {node.name}")
        bodies = schedule.bodies.get(node.name, ())
        if len(bodies) != len(node.subgraphs):
            what = f"has {len(bodies)} schedules for the {len(node.subgraphs)} sub-graphs of {node.name}"
            yield Finding("missing-body", where, what)
        for sub, body in zip(node.subgraphs, bodies, strict=False):
            yield from check_form(sub, body)


def check_order(graph: Graph, schedule: Schedule) -> Iterator[Finding]:
    """Yield findings for reads without an order after the write, in the graph and its sub-graphs."""
    yield from _missing_waits(graph, schedule, happens_before(schedule))
    for node in graph.nodes:
        for sub, body in zip(node.subgraphs, schedule.bodies.get(node.name, ()), strict=True):
            yield from check_order(sub, body)
            if isinstance(node, While):
                yield from _check_exit_test(node, body)


def _missing_waits(graph: Graph, schedule: Schedule, before: list[int]) -> Iterator[Finding]:
    """Yield findings for reads of values without an order between producer and reader."""
    position = {step.node: i for i, step in enumerate(schedule.steps)}
    producer = {value.name: node for node in graph.nodes for value in node.defs}
    for node in graph.nodes:
        i = position[node.name]
        for value in required_values(node):
            source = producer.get(value.name)
            if source is not None and not before[i] >> position[source.name] & 1:
                what = f"reads {value} without being ordered after its producer, node {source.name}"
                yield Finding("missing-wait", f"node {node.name}", what, f"wait for {source.name}")


def _check_exit_test(node: While, body: Schedule) -> Iterator[Finding]:
    """Yield findings for nodes of a body not ordered after all nodes before the exit test."""
    before = happens_before(body)
    position = {step.node: i for i, step in enumerate(body.steps)}
    needed = 0
    for early in node.body.nodes[: node.check]:
        needed |= 1 << position[early.name]
    for late in node.body.nodes[node.check :]:
        missing = needed & ~before[position[late.name]]
        if missing:
            first = body.steps[(missing & -missing).bit_length() - 1].node
            what = f"is not ordered after node {first}, which runs before the condition of loop {node.name}"
            yield Finding("check-order", f"node {late.name}", what, f"wait for {first}")
