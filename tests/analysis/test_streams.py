"""Schedules for several streams: how many there can be, and how large a program with them."""

from __future__ import annotations

import random

import pytest

from sublet.analysis.options import Options
from sublet.analysis.streams import MAX_NODES, assign_streams
from sublet.base.errors import ProblemError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.text import parse
from sublet.plan.schedule import happens_before
from sublet.planning.pipeline import plan_memory


def wide(nodes: int) -> Graph:
    """Each node reads two of the latest twenty values."""
    rng = random.Random(nodes)
    lines = ["graph @wide(%v0: f32[16]) {"]
    for i in range(1, nodes + 1):
        a, b = (rng.randrange(max(0, i - 20), i) for _ in range(2))
        lines.append(f"  %v{i}: f32[{rng.randrange(1, 64)}] = onnx.Foo(%v{a}, %v{b})")
    return parse("\n".join([*lines, f"  return %v{nodes}", "}"]))


def test_more_streams_than_nodes_are_no_more_use() -> None:
    graph = wide(30)
    assert assign_streams(graph, 10**9) == assign_streams(graph, 30)
    plan = plan_memory(graph, Options(streams=10**9, strategy="first_fit"))
    assert plan.lower_bound_bytes <= plan.arena_bytes


def test_more_streams_never_need_fewer_bytes_at_best() -> None:
    graph = wide(200)
    options = [Options(streams=streams, strategy="first_fit") for streams in (1, 2, 4)]
    bounds = [plan_memory(graph, each).lower_bound_bytes for each in options]
    assert bounds[0] <= min(bounds[1:])


def test_all_dependencies_are_ordered() -> None:
    graph = wide(100)
    schedule = assign_streams(graph, 3)
    assert schedule.streams == 3
    position = {step.node: i for i, step in enumerate(schedule.steps)}
    before = happens_before(schedule)
    producer = {value.name: node.name for node in graph.nodes for value in node.defs}
    for node in graph.nodes:
        for value in node.uses:
            if value.name in producer:
                assert before[position[node.name]] >> position[producer[value.name]] & 1


def test_a_program_too_large_for_several_streams_is_refused() -> None:
    spec, nodes = TensorSpec(DType.F32, (16,)), []
    x = value = Value("x", spec)
    for i in range(MAX_NODES + 1):
        nodes.append(Node(f"n{i}", "onnx.Relu", (value,), (value := Value(f"v{i}", spec),), {}))
    with pytest.raises(ProblemError, match="streams"):
        assign_streams(Graph("long", (x,), tuple(nodes), (value,)), 2)
