"""The order of nodes, measured with the planner itself."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import sublet
from sublet import Options, parse
from sublet.ir.graph import Node
from sublet.ops.op import SUSPEND
from sublet.ops.verify import verify
from sublet.passes.live_bytes import blocks_of
from sublet.passes.ordering.order_search import candidate_orders
from sublet.passes.reordering import ORDERS, data_flow, with_lower_peak
from sublet.plan.schedule import serial_schedule
from tests.passes.networks import training_step
from tests.passes.programs import program, same
from tests.passes.text import becomes, stays


def test_a_gradient_is_consumed_when_it_is_complete() -> None:
    graph = training_step((64,) * 9)
    changed = with_lower_peak(graph)
    before, after = sublet.plan_memory(graph), sublet.plan_memory(changed)
    assert after.lower_bound_bytes < before.lower_bound_bytes / 3
    same(graph, changed, tolerance=1e-6)
    at = [node.op for node in changed.nodes]
    last = max(i for i, op in enumerate(at) if op == "nn.matmul")
    assert at[:last].count("nn.sgd") >= 7


def test_what_updates_a_weight_waits_for_all_that_read_it() -> None:
    changed = with_lower_peak(training_step((64,) * 9))
    position = {node.name: i for i, node in enumerate(changed.nodes)}
    maker = {value: node for node in changed.nodes for value in node.defs}
    for target, source in changed.updates:
        for node in changed.nodes:
            assert target not in node.uses or position[node.name] <= position[maker[source].name]
    assert sublet.plan_memory(changed, Options(forbid_copies=True))


def test_an_exchange_of_two_weights_is_no_deadlock() -> None:
    """Each is updated from a reader of the other."""
    graph = parse("""
        graph @g(%x: f32[4]) {
          weights %a: f32[4], %b: f32[4]
          %c: f32[4] = nn.add(%a, %x)
          %d: f32[4] = nn.sub(%b, %c)
          %e: f32[4] = nn.add(%a, %d)
          update %a = %e, %b = %d
          return %c
        }
        """)
    changed = with_lower_peak(graph)
    verify(changed)
    same(graph, changed)


def test_branches_of_a_tree_one_after_another() -> None:
    """Each branch widens its operand for a moment; it should be narrow again before the next one is begun."""
    becomes(
        with_lower_peak,
        """
        graph @g(%x: f32[8]) {
          %a: f32[64,8] = nn.broadcast_to(%x) {shape = [64, 8]}
          %b: f32[32,8] = nn.broadcast_to(%x) {shape = [32, 8]}
          %c: f32[] = nn.sum(%a) {axes = [], keepdims = 0}
          %d: f32[] = nn.sum(%b) {axes = [], keepdims = 0}
          %e: f32[] = nn.add(%c, %d)
          return %e
        }
        """,
        """
        graph @g(%x: f32[8]) {
          %a: f32[64,8] = nn.broadcast_to(%x) {shape = [64, 8]}
          %c: f32[] = nn.sum(%a) {axes = [], keepdims = 0}
          %b: f32[32,8] = nn.broadcast_to(%x) {shape = [32, 8]}
          %d: f32[] = nn.sum(%b) {axes = [], keepdims = 0}
          %e: f32[] = nn.add(%c, %d)
          return %e
        }
        """,
    )


def test_an_order_that_is_good_stays() -> None:
    stays(
        with_lower_peak,
        """
        graph @g(%x: f32[8]) {
          %a: f32[8] = nn.exp(%x)
          %b: f32[8] = nn.neg(%x)
          %c: f32[8] = nn.sub(%a, %b)
          return %c
        }
        """,
    )


@pytest.mark.parametrize("seed", range(30))
def test_all_greedy_orders_respect_the_data_flow(seed: int) -> None:
    graph = program(seed, 40)
    nodes = graph.nodes
    blocks, flow = blocks_of(graph, nodes, graph.outputs, {}), data_flow(nodes)
    for make in ORDERS:
        order = make(blocks, flow, range(len(nodes)))
        assert sorted(order) == list(range(len(nodes)))
        place = {i: position for position, i in enumerate(order)}
        assert all(place[j] < place[i] for i, before in enumerate(flow.before) for j in before)


@pytest.mark.parametrize("seed", range(4))
def test_no_node_moves_over_a_barrier(seed: int) -> None:
    """A node that reads and gives nothing is where a run stops: who looks then finds what was done before it."""
    graph = training_step((8, 64, 16, 64, 4))
    at = random.Random(seed).randrange(1, len(graph.nodes))
    barrier = Node("barrier", SUSPEND, (), ())
    cut = replace(graph, nodes=(*graph.nodes[:at], barrier, *graph.nodes[at:]))
    for found in (with_lower_peak(cut), *candidate_orders(cut)):
        names = [node.name for node in found.nodes]
        assert {*names[: names.index("barrier")]} == {node.name for node in graph.nodes[:at]}


def test_the_estimate_is_the_planner_s_peak_where_nothing_is_moved() -> None:
    """Of straight-line programs the planner can do no better than what is counted, and seldom worse."""
    exact = 0
    for seed in range(30):
        graph = program(seed, 12)
        if any(node.subgraphs for node in graph.nodes):
            continue
        sources = [source for _, source in graph.updates]
        estimate, _ = blocks_of(graph, graph.nodes, (*graph.outputs, *sources), {}).peak(range(len(graph.nodes)))
        found = sublet.plan_memory(graph, Options(alignment=1), schedule=serial_schedule(graph)).peak
        exact += found is not None and found.nbytes == estimate
    assert exact
