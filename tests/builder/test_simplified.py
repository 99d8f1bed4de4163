"""`compile(graph, simplify=True)`: less is computed, the results stay, and the plan is made again and proven."""

from __future__ import annotations

import numpy as np
import pytest

import sublet
from sublet import Graph, Options, layers, nn
from sublet.errors import PlanError
from sublet.plan.file import from_json, to_json


def written() -> Graph:
    g = Graph()
    x = g.input("x", (4, 6))
    y = layers.dense(x, 5)
    twice = nn.tanh(y) * 1 + nn.tanh(y) + 0
    nn.exp(twice)  # which nobody reads
    g.output("y", nn.relu(twice))
    return g


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_less_is_computed_and_the_results_stay(backend: str) -> None:
    x = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    plain = sublet.compile(written(), backend=backend)
    less = sublet.compile(written(), backend=backend, simplify=True)
    assert len(less.graph.nodes) < len(plain.graph.nodes)
    assert "nn.exp" not in {node.op for node in less.graph.nodes}
    np.testing.assert_allclose(less(x=x)["y"], plain(x=x)["y"], rtol=1e-6, atol=1e-6)
    assert less.plan.recipe.changed == "simplify"
    assert plain.plan.recipe.changed == ""


def test_its_plan_goes_with_the_graph_as_it_was_written() -> None:
    x = np.ones((4, 6), np.float32)
    less = sublet.compile(written(), simplify=True, options=Options(io="bound"))
    plan = from_json(to_json(less.plan))
    again = sublet.with_plan(written(), plan)
    assert np.array_equal(again(x=x)["y"], less(x=x)["y"])
    assert np.array_equal(sublet.compile(written(), plan=plan)(x=x)["y"], less(x=x)["y"])
    other = Graph()
    other.output("y", nn.exp(other.input("x", (4, 6))))
    with pytest.raises(PlanError):
        sublet.with_plan(other, plan)
