"""Orders of graphs of which little or nothing lies in the arena, whatever lies there: weights, inputs and outputs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.networks.irregular import concatenated_cells
from sublet.analysis.options import Options
from sublet.api.sources import read_source
from sublet.checker import judge
from sublet.planning.pipeline import plan_memory

onnx = pytest.importorskip("onnx")
pytest.importorskip("ortools", reason="the extra that decides order, sharing and places at once")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

PLACES = [dict(zip(("io", "weights"), each, strict=True)) for each in product(("arena", "bound"), repeat=2)]


def two_results() -> onnx.ModelProto:
    """A weight that is a result as well, and a result that the caller owns."""
    x, a, b = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xab")
    nodes = [helper.make_node("Identity", ["w"], ["a"]), helper.make_node("Sub", ["x", "w"], ["b"])]
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], [a, b], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("make", [two_results, lambda: concatenated_cells(3, ((4, 8),), 8)], ids=["results", "cells"])
def test_an_order_is_searched_wherever_values_lie(make, places) -> None:  # type: ignore[no-untyped-def]
    """A stretch of nodes with no value in the arena once was divided by the greatest common divisor of no sizes."""
    model = read_source(make())
    for order in ("less", "least"):
        plan = plan_memory(model, Options(order=order, **places))
        assert judge(model.graph, plan.schedule, plan).findings == ()
