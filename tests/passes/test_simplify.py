"""`compile(graph)` simplifies: less is computed, the results stay, and the plan is made again and proven."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sublet
from sublet import Graph, Options, layers, nn
from sublet.base.errors import PlanError
from sublet.plan.file import from_json, to_json


def written() -> Graph:
    g = Graph()
    x = g.input("x", (4, 6))
    y = layers.dense(x, 5)
    twice = nn.tanh(y) * 1 + nn.tanh(y) + 0
    nn.exp(twice)  # which nobody reads
    g.output("y", nn.relu(twice))
    return g


def weights(g: Graph) -> dict[str, Any]:
    return {name: constant.array() for name, constant in g.model().weights.items()}


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_less_is_computed_and_the_results_stay(backend: str) -> None:
    x = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    plain = sublet.compile(written(), backend=backend, simplify=False)
    less = sublet.compile(written(), backend=backend)
    assert len(less.graph.nodes) < len(plain.graph.nodes)
    assert "nn.exp" not in {node.op for node in less.graph.nodes}
    np.testing.assert_allclose(less(x=x)["y"], plain(x=x)["y"], rtol=1e-6, atol=1e-6)
    assert less.plan.recipe.changed == "simplify"
    assert plain.plan.recipe.changed == ""


def test_only_what_is_written_in_python_is_simplified_unasked() -> None:
    g = written()
    assert sublet.compile(g.model()).plan.recipe.changed == ""
    assert sublet.compile(g.model().graph, weights=weights(g)).graph == g.model().graph
    assert sublet.compile(g.model(), simplify=True).plan.recipe.changed == "simplify"


def test_its_plan_goes_with_the_graph_as_it_was_written() -> None:
    x = np.ones((4, 6), np.float32)
    less = sublet.compile(written(), options=Options(io="bound"))
    plan = from_json(to_json(less.plan))
    again = sublet.with_plan(written(), plan)
    assert np.array_equal(again(x=x)["y"], less(x=x)["y"])
    assert np.array_equal(sublet.compile(written(), plan=plan)(x=x)["y"], less(x=x)["y"])
    with pytest.raises(PlanError, match="simplify=False contradicts the plan"):
        sublet.compile(written(), plan=plan, simplify=False)
    as_written = sublet.plan_memory(written())
    assert sublet.compile(written(), plan=as_written).plan.recipe.changed == ""
    with pytest.raises(PlanError, match="simplify=True contradicts the plan"):
        sublet.compile(written(), plan=as_written, simplify=True)
    other = Graph()
    other.output("y", nn.exp(other.input("x", (4, 6))))
    with pytest.raises(PlanError):
        sublet.with_plan(other, plan)
