"""`sublet.fewer_rows`: a batch of n <= N rows in the memory of N, without planning, proven by the checker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sublet
from benchmarks.models.builder import Builder
from sublet import Graph, Options, nn
from sublet.base.errors import SpecError
from sublet.nn.modules import (
    BatchNorm,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    LayerNorm,
    MaxPool,
    Residual,
    Sequential,
    TransformerBlock,
)

SHORTCUT = Residual(Conv(6, 3), then=nn.relu)
IMAGES = Sequential(Conv(6, 3, bias=False), BatchNorm(), nn.relu, MaxPool(2), SHORTCUT, GlobalAvgPool(), Dense(4))
WORDS = Sequential(TransformerBlock(2), LayerNorm(), Flatten(), Dense(3))


def written(net: Any, rows: int, shape: tuple[int, ...]) -> Graph:
    g = Graph("net", training=False)
    x = g.input("x", (rows, *shape))
    g.output("y", nn.softmax(net(x)))
    return g


@pytest.mark.parametrize("io", ["arena", "bound"])
@pytest.mark.parametrize(("net", "shape"), [(IMAGES, (3, 8, 8)), (WORDS, (5, 8))], ids=["images", "words"])
def test_fewer_rows_are_those_of_a_graph_for_so_many(net: Any, shape: tuple[int, ...], io: Any) -> None:
    x = np.random.default_rng(1).normal(size=(8, *shape)).astype(np.float32)
    large = sublet.compile(written(net, 8, shape), options=Options(io=io))
    for rows in (1, 3):
        few = sublet.fewer_rows(large, rows)
        own = sublet.compile(written(net, rows, shape), weights=large.weights)
        assert few.arena_bytes <= large.arena_bytes
        assert sublet.check(few.graph, few.plan.schedule, few.plan) == ()
        np.testing.assert_allclose(few(x=x[:rows])["y"], own(x=x[:rows])["y"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sublet.run_poisoned(few, {"x": x[:rows]})["y"], few(x=x[:rows])["y"])
        np.testing.assert_allclose(large(x=x)["y"][:rows], few(x=x[:rows])["y"], rtol=1e-5, atol=1e-6)
    name = next(iter(large.weights))
    assert np.shares_memory(few.weights.lend_weight(name), large.weights.lend_weight(name))
    assert np.shares_memory(few.bytes_of(few.graph.nodes[0].defs[0]), large.bytes_of(large.graph.nodes[0].defs[0]))


def test_a_model_of_onnx_computes_fewer_rows_too() -> None:
    b = Builder("rows")
    y = b.op("Relu", b.conv_norm(b.input("x", (4, 3, 9, 9)), 6, 3, 2))
    y = b.op("Add", b.pool("MaxPool", y, 2, 1), b.random_weight(6, 1, 1))
    proto = b.model(y=b.op("GlobalAveragePool", y))
    large, x = sublet.compile(proto, optimize="none"), np.random.default_rng(0).normal(size=(4, 3, 9, 9)).astype("f4")
    few = sublet.fewer_rows(large, 3)
    assert sublet.check(few.graph, few.plan.schedule, few.plan) == ()
    np.testing.assert_allclose(few(x=x[:3])["y"], large(x=x)["y"][:3], rtol=1e-5, atol=1e-6)
    across = Builder("across")
    last = across.op("Softmax", across.input("x", (4, 6)), axis=0)
    with pytest.raises(SpecError, match=r"onnx\.Softmax is not known to compute row by row"):
        sublet.fewer_rows(sublet.compile(across.model(y=last)), 2)


def test_a_gradient_summed_over_rows_is_refused() -> None:
    """Fewer rows of a sum over all rows are no rows of the sum."""
    g = Graph()
    x, dy, scale = g.input("x", (4, 4)), g.input("dy", (4, 4)), g.parameter("scale", (4,), initial=1.0)
    _, mean, rstd = nn.layer_norm(x, scale, scale)
    g.output("dscale", nn.layer_norm_gradient(dy, x, scale, mean, rstd)[1])
    with pytest.raises(SpecError, match="not known to compute row by row"):
        sublet.fewer_rows(sublet.compile(g), 2)


def test_what_sees_more_than_a_row_is_refused_by_name() -> None:
    def compiled(compute: Any) -> Any:
        g = Graph()
        g.output("y", compute(g, g.input("x", (4, 6))))
        return sublet.compile(g)

    for compute, why in (
        (lambda g, x: x - x.mean(0), "nn.mean is not known to compute row by row"),
        (lambda g, x: x + g.constant(np.ones((4, 6), np.float32)), "nn.add is not known"),
        (lambda g, x: x.transpose(1, 0), "nn.transpose is not known"),
        (lambda g, x: x @ g.input("w", (6, 2)), "all inputs must have the same first extent"),
    ):
        with pytest.raises(SpecError, match=why):
            sublet.fewer_rows(compiled(compute), 2)
    with pytest.raises(SpecError, match="rows = 5 must be 1 to 4"):
        sublet.fewer_rows(compiled(lambda g, x: nn.relu(x)), 5)
    g = Graph()
    count = g.state("count", ())
    g.update(count, count + g.input("x", (4,)).sum())
    with pytest.raises(SpecError, match="updates %count"):
        sublet.fewer_rows(sublet.compile(g), 2)
