"""Orders that are searched for, held against all orders, against plans, and against what is known of small networks."""

from __future__ import annotations

import random

import pytest

import sublet
from benchmarks.orders import random_graph
from sublet import Options, parse
from sublet.base.errors import CapacityError, PlanError
from sublet.ir.model import as_model
from sublet.ops.verify import verify
from sublet.packing import MemoryRegion
from sublet.passes.ordering.order_search import atom_model_in_order, peak_live_bytes, search_order
from sublet.passes.reordering import with_lower_peak
from sublet.planning.advice import bound_all_orders
from sublet.planning.pipeline import candidate_schedules
from tests.fuzz_orders import compare
from tests.passes.networks import training_step
from tests.passes.orders import in_random_order
from tests.passes.programs import program, same


@pytest.mark.parametrize("first", [0, 12])
def test_what_is_said_of_all_orders_holds_for_all_of_them(first: int) -> None:
    found = [compare(seed) for seed in range(first, first + 12)]
    assert sum(all_orders for _, all_orders in found) >= 2


def test_the_cut_at_a_node_is_the_least_over_all_orders() -> None:
    """At every node, not only at the peak."""
    for seed in range(4):
        graph = random_graph(seed, 6)
        problem = atom_model_in_order(graph).compiled_problem()
        rng = random.Random(seed)
        least = [problem.least_during(i) for i in range(len(graph.nodes))]
        lowest = [1 << 60] * len(least)
        names = [node.name for node in graph.nodes]
        for _ in range(150):
            order = [names.index(node.name) for node in in_random_order(graph, rng).nodes]
            for i, nbytes in zip(order, problem.curve(order), strict=True):
                lowest[i] = min(lowest[i], nbytes)
        assert all(bound <= seen for bound, seen in zip(least, lowest, strict=True))
        assert sum(bound == seen for bound, seen in zip(least, lowest, strict=True)) >= len(least) - 1


def test_a_greedy_order_is_made_better() -> None:
    better = 0
    for seed in range(4):
        graph = random_graph(seed, 30)
        greedy = peak_live_bytes(with_lower_peak(graph))
        found, known = search_order(graph)
        verify(found)
        assert known.bound <= known.live_bytes == peak_live_bytes(found) <= greedy
        better += known.live_bytes < greedy
    assert better >= 1


def test_no_effort_keeps_an_order_and_a_bound() -> None:
    graph = random_graph(3, 200)
    for known in (search_order(graph, effort=0)[1], search_order(graph, stop=lambda: True)[1]):
        assert known.live_bytes <= peak_live_bytes(graph)
        assert not known.is_optimal


def test_loops_and_updates_keep_what_they_compute() -> None:
    for graph in (*(program(seed, 20) for seed in (1, 2)), training_step((8,) * 3)):
        found, known = search_order(graph)
        verify(found)
        assert known.proven == atom_model_in_order(graph).is_bound
        same(graph, found, runs=2, tolerance=1e-6)


TWO_BRANCHES = """
    graph @g(%x: f32[8]) {
      %a: f32[64,8] = nn.broadcast_to(%x) {shape = [64, 8]}
      %b: f32[32,8] = nn.broadcast_to(%x) {shape = [32, 8]}
      %c: f32[] = nn.sum(%a) {axes = [], keepdims = 0}
      %d: f32[] = nn.sum(%b) {axes = [], keepdims = 0}
      %e: f32[] = nn.add(%c, %d)
      return %e
    }
    """


def test_equal_operands_of_a_concatenation_are_copies_that_may_be_the_same_bytes() -> None:
    """%b is [%x, %x], and so is %d: the copies of %x above it are equal, so that one may be the other."""
    graph = parse("""
    graph @net(%x: u8[8]) {
      %a: u8[8], %m: u8[8] = test.drop(%x)
      %b: u8[16] = test.concat(%x, %a)
      %c: u8[4] = test.matmul(%x)
      %d: u8[16] = test.concat(%a, %a)
      %y: u8[4] = test.matmul(%b, %d, %c, %m)
      return %y
    }
    """)
    assert not search_order(graph)[1].proven


def test_a_plan_is_called_optimal_only_where_no_order_needs_less() -> None:
    model = as_model(parse(TWO_BRANCHES))
    options = Options(alignment=4, order="less")
    made = sublet.plan_memory(model, options)
    said = bound_all_orders(model, options, made)
    assert said.is_optimal
    assert said.nbytes == made.arena_bytes == 32 + 64 * 32 + 4
    given = bound_all_orders(model, options, sublet.plan_memory(model, Options(alignment=4)))
    assert given.nbytes == said.nbytes
    assert not given.is_optimal
    elsewhere = bound_all_orders(model, Options(order="less", io="bound"), made)
    assert elsewhere.nbytes is None
    assert not elsewhere.is_optimal


@pytest.mark.parametrize(("seed", "size", "failing"), [(423, 14, 1), (7, 25, 0)])
def test_an_order_that_cannot_be_planned_leaves_the_others(seed: int, size: int, failing: int) -> None:
    """Of two orders one moves bytes, which is forbidden."""
    graph, options = program(seed, size), Options(forbid_copies=True, order="less")
    orders = candidate_schedules(graph, options)
    assert len(orders) == 2
    with pytest.raises(PlanError, match="copies are forbidden"):
        sublet.plan_memory(graph, options, schedule=orders[failing])
    fits = sublet.plan_memory(graph, options, schedule=orders[1 - failing])
    made = sublet.plan_memory(graph, options)
    assert made.arena_bytes == fits.arena_bytes
    assert made.recipe.order == ("given", "less")[1 - failing]


def test_where_no_order_can_be_planned_the_given_one_says_why() -> None:
    model = as_model(parse(TWO_BRANCHES))
    words = []
    for order in ("given", "less"):
        with pytest.raises(CapacityError) as told:
            sublet.plan_memory(model, Options(regions=(MemoryRegion("only", 1024),), order=order))
        words.append(str(told.value))
    assert words[0] == words[1]
