"""Orders of a few nodes: `order="less"` plans the best of all orders, nested concatenations included."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from sublet import Options, parse, plan_memory
from sublet.ir.recipe import OWN
from sublet.passes.ordering import few_nodes
from sublet.passes.ordering.few_nodes import promising_orders
from sublet.passes.ordering.order_search import search_order
from sublet.plan.schedule import serial_schedule
from sublet.planning import pipeline
from tests.fuzz_orders import compare_few_nodes
from tests.passes.orders import all_orders, concatenations
from tests.support.interpreter import results_match

NESTED = parse("""
    graph @nested(%x0: u8[1088], %x1: u8[1024]) {
      %v1: u8[1088] = test.relu(%x0)
      %v2: u8[2176] = test.concat(%v1, %x0)
      %v3: u8[1088] = test.relu(%v1)
      %v4: u8[3264] = test.concat(%v2, %v3)
      %v5: u8[2176] = test.relu(%v2)
      %v6: u8[4352] = test.concat(%v5, %v2)
      %v7: u8[2176] = test.relu(%v5)
      %v8: u8[6528] = test.concat(%v6, %v7)
      return %v4, %v8, %v6
    }
    """)
"""%v2 and %v6 are operands in place; in the given order %v4 takes the place in which %v8 would have %v6."""


@pytest.mark.parametrize("first", range(0, 720, 120))
def test_less_is_the_least_over_all_orders(first: int) -> None:
    judged = [compare_few_nodes(seed, most_orders=24) for seed in range(first, first + 120)]
    assert sum(compared for compared, _ in judged) >= 30
    assert sum(gained for _, gained in judged) >= 2


def test_less_is_the_least_where_an_estimate_exceeds_a_plan() -> None:
    for seed in (24239, 60161):
        assert compare_few_nodes(seed, most_orders=200) == (True, True)


@pytest.mark.parametrize("alignment", [4, 64])
def test_nested_concatenations_find_the_order_with_both_in_place(alignment: int) -> None:
    options = Options(alignment=alignment, order="less")
    plan = plan_memory(NESTED, options)
    assert plan_memory(NESTED, replace(options, order="given")).arena_bytes == 11968
    assert (plan.arena_bytes, plan.recipe.order) == (9792, "less")
    assert results_match(NESTED, plan.schedule, plan, Random(0), 3)
    assert plan_memory(NESTED, options) == plan


def test_the_estimate_of_nested_concatenations_is_what_the_best_plan_needs() -> None:
    """The live bytes without places are 7,616, which no plan reaches."""
    estimated = promising_orders(NESTED, (), 4, 1 << 30)
    assert len(estimated) == len(list(all_orders(NESTED))) == 40
    assert {nbytes for nbytes, _ in estimated} == {9792}
    assert search_order(NESTED)[1].live_bytes == 7616


def test_no_plan_needs_less_than_the_estimate() -> None:
    for seed in range(40):
        graph, alignment = concatenations(Random(seed), 6), Random(seed).choice((1, 4, 16))
        for nbytes, order in islice(promising_orders(graph, (), alignment, 1 << 30), 8):
            each = replace(graph, nodes=tuple(graph.nodes[i] for i in order))
            options = Options(alignment=alignment)
            assert plan_memory(each, options, schedule=serial_schedule(each)).arena_bytes >= nbytes


def test_limits_leave_orders_out(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = concatenations(Random(1), 9)
    every = promising_orders(graph, (), 4, 1 << 30)
    assert every == sorted(every)
    monkeypatch.setattr(few_nodes, "MAX_ORDERS", 5)
    assert len(promising_orders(graph, (), 4, 1 << 30)) == 5 < len(every)
    monkeypatch.setattr(few_nodes, "MAX_NODES", 8)
    assert promising_orders(graph, (), 4, 1 << 30) == []
    monkeypatch.setattr(pipeline, "MAX_REPLANNING", 63)
    assert plan_memory(NESTED, Options(alignment=4, order="less")).arena_bytes == 11968


def test_a_given_schedule_stays() -> None:
    schedule = serial_schedule(NESTED)
    for order in ("less", "least"):
        plan = plan_memory(NESTED, Options(alignment=4, order=order), schedule=schedule)
        assert (plan.schedule, plan.recipe.order, plan.arena_bytes) == (schedule, OWN, 11968)
