"""Updates come after everything else where that costs no memory, and stay where they are where it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sublet
from sublet import layers, nn
from sublet.analysis.options import Options
from sublet.ir.graph import Graph
from sublet.ops.nn.command import PREFIX
from sublet.planning.pipeline import plan_memory


def step(batch: int, width: int) -> Graph:
    """Three linear layers trained by SGD with momentum: activations of `batch`, weights of `width` squared."""
    g = sublet.Graph("mlp")
    x = g.input("x", (batch, width))
    for _ in range(3):
        x = nn.relu(layers.dense(x, width))
    return sublet.train_step((x * x).mean(), g.parameters, sublet.SGD(0.1, momentum=0.9)).graph


def updating(graph: Graph) -> list[int]:
    """The positions of the nodes of the optimiser."""
    return [i for i, node in enumerate(graph.nodes) if node.op == f"{PREFIX}sgd"]


def is_late(graph: Graph) -> bool:
    """Whether nothing runs after the first node of the optimiser but nodes of it."""
    return updating(graph) == list(range(updating(graph)[0], len(graph.nodes)))


def test_updates_that_cost_nothing_are_late() -> None:
    assert is_late(step(batch=4096, width=8))


def test_updates_that_free_large_gradients_are_early() -> None:
    graph = step(batch=8, width=256)
    assert not is_late(graph)
    late = [node for i, node in enumerate(graph.nodes) if i not in updating(graph)]
    late += [graph.nodes[i] for i in updating(graph)]
    arena = plan_memory(graph, Options(io="bound")).arena_bytes
    assert arena < plan_memory(replace(graph, nodes=tuple(late)), Options(io="bound")).arena_bytes


@pytest.mark.parametrize(("batch", "width"), [(4096, 8), (8, 256)])
def test_no_byte_is_copied_for_it(batch: int, width: int) -> None:
    assert plan_memory(step(batch, width), Options(io="bound", forbid_copies=True)).moves == ()
