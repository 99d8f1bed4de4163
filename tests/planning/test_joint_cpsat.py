"""Order, sharing and places at once: less than each by itself reaches, proven by the checker and run in poison."""

from __future__ import annotations

import random

import numpy as np
import pytest

import sublet
from benchmarks.networks.irregular import concatenated_cells
from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.api.sources import read_source
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.text import parse
from sublet.passes.ordering import few_nodes
from sublet.planning import advice as told
from sublet.planning import joint_cpsat as module
from sublet.planning import pipeline
from sublet.planning.advice import bound_all_orders
from sublet.planning.joint_cpsat import solve_jointly
from sublet.planning.pipeline import plan_memory, values_outside_arena
from sublet.runtime.differential import compare
from tests.passes.test_few_nodes import NESTED
from tests.support import dialect
from tests.support.interpreter import results_match

onnx = pytest.importorskip("onnx")
pytest.importorskip("ortools", reason="the extra that decides order, sharing and places at once")
assert dialect.OPS

LESS = Options(order="least")


def alone(graph: Graph, options: Options) -> sublet.MemoryPlan:
    """The plan without OR-Tools."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "is_installed", lambda name: False)
        return plan_memory(graph, options)


def cells(seed: int) -> onnx.ModelProto:
    return concatenated_cells(seed, ((12, 32), (8, 16)), 56)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_concatenations_of_shared_operands_need_no_more_than_any_order_does(seed: int) -> None:
    model = read_source(cells(seed))
    plan = plan_memory(model, LESS)
    said = bound_all_orders(model, LESS, plan)
    assert said.is_optimal
    assert "The order is optimal" in said.words
    assert alone(model.graph, LESS).arena_bytes > plan.arena_bytes
    assert plan_memory(model, LESS) == plan, "the answer does not depend on the clock"


def test_they_run_as_unplanned() -> None:
    proto = cells(3)
    planned = compile(proto, options=LESS)
    assert planned.plan.arena_bytes < compile(proto).plan.arena_bytes
    unplanned = compile(proto, options=Options(strategy="no_reuse", share=False))
    image = np.random.default_rng(0).random((1, 3, 56, 56), np.float32)
    assert not compare(unplanned, planned, {"image": image}).differences


def concatenating(seed: int) -> Graph:
    """Nodes that read one of the last results, or a concatenation of some of them."""
    rng = random.Random(seed)
    made = [Value("x", TensorSpec(DType.U8, (16,)))]
    nodes: list[Node] = []

    def result(op: str, operands: list[Value], nbytes: int) -> Value:
        value = Value(f"v{len(nodes)}", TensorSpec(DType.U8, (nbytes,)))
        nodes.append(Node(f"n{len(nodes)}", op, tuple(operands), (value,)))
        return value

    for _ in range(rng.randrange(8, 16)):
        near = rng.sample(made[-5:], min(len(made), rng.choice((1, 2, 2, 3))))
        whole = result("test.concat", near, sum(value.nbytes for value in near)) if len(near) > 1 else near[0]
        made.append(result("test.matmul", [whole], rng.choice((8, 16, 24, 32, 48))))
        if rng.random() < 0.5:
            made[-1] = result("test.relu", made[-1:], made[-1].nbytes)
    read = {value for node in nodes for value in node.uses}
    last = [value for value in made if value not in read]
    end = result("test.matmul", last, 8)
    return Graph(f"concatenating_{seed}", (made[0],), tuple(nodes), (end,))


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_generated_programs_need_no_more_and_run_right(first: int) -> None:
    gained = 0
    for seed in range(first, first + 10):
        graph, options = concatenating(seed), Options(order="least", alignment=random.Random(seed).choice((1, 4, 8)))
        without, plan = alone(graph, options), plan_memory(graph, options)
        assert plan.arena_bytes <= without.arena_bytes, seed
        assert results_match(graph, plan.schedule, plan, random.Random(seed), 3), seed
        if plan.arena_bytes < without.arena_bytes:
            gained += 1
            assert plan.recipe.order == "less"
    assert gained >= 5


def test_an_interrupt_keeps_the_best_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_source(cells(3))
    without = alone(model.graph, LESS)

    def interrupted(*asked: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "solve_jointly", interrupted)
    plan = plan_memory(model, LESS)
    assert (plan.arena_bytes, plan.stopped) == (without.arena_bytes, "interrupt")


def test_what_is_not_asked() -> None:
    graph = parse("""
    graph @net(%x: f32[8], %s: f32[8]) {
      %a: f32[16] = onnx.Opaque(%x)
      %b: f32[16] = onnx.Opaque(%x)
      %t: f32[8] = onnx.Opaque(%a, %b, %s)
      %y: f32[8] = onnx.Opaque(%a)
      update %s = %t
      return %y
    }
    """)
    plan = plan_memory(graph)
    assert solve_jointly(graph, plan, values_outside_arena(graph, Options())) is None


def test_without_the_extra_it_is_named_where_it_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    model = read_source(cells(3))
    plan = alone(model.graph, LESS)
    assert "sublet[exact]" not in bound_all_orders(model, LESS, plan).words
    monkeypatch.setattr(told, "is_installed", lambda name: False)
    said = bound_all_orders(model, LESS, plan)
    assert not said.is_optimal
    assert "sublet[exact]" in said.words


def test_nested_concatenations_lie_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the joint search alone, without the orders of a few nodes."""
    monkeypatch.setattr(few_nodes, "MAX_NODES", 0)
    assert alone(NESTED, Options(order="least", alignment=4)).arena_bytes == 11968
    assert plan_memory(NESTED, Options(order="least", alignment=4)).arena_bytes == 9792
