"""Random graphs: what the search says of all orders, held against all orders, and against plans.

python -m tests.fuzz_orders --count 2000 [--first 0] [--few-nodes 24]
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from itertools import islice

from sublet import Options, plan_memory
from sublet.ir.graph import Graph
from sublet.ops.verify import verify
from sublet.passes.ordering.order_search import atom_model_in_order, peak_live_bytes, search_order
from sublet.plan.schedule import serial_schedule
from tests.passes.orders import all_orders, concatenations, in_random_order
from tests.support.programs import program

MOST_ORDERS = 1500


def compare(seed: int) -> tuple[bool, bool]:
    """Assert all that is said of one graph. Whether it was held against plans, and against all orders."""
    rng = random.Random(seed)
    graph = program(rng, rng.choice((5, 7, 9, 14)), control=False)
    outside = frozenset(graph.weights)
    account = atom_model_in_order(graph, outside)
    found, known = search_order(graph, outside)
    verify(found)
    assert sorted(node.name for node in found.nodes) == sorted(node.name for node in graph.nodes)
    assert known.bound <= known.live_bytes
    if not account.is_bound:
        assert not known.proven
        return False, False
    assert known.proven
    assert peak_live_bytes(found, outside) == known.live_bytes <= peak_live_bytes(graph, outside)
    for order in (graph, found, in_random_order(graph, rng)):
        assert known.bound <= peak_live_bytes(order, outside) <= _arena(order)
    few = list(islice(all_orders(graph), MOST_ORDERS + 1))
    if len(few) > MOST_ORDERS:
        return True, False
    problem = account.compiled_problem()
    assert min(max([problem.at_start(), *problem.curve(order)]) for order in few) == known.live_bytes == known.bound
    if len(few) <= 24:  # the claim itself: no order of these nodes is planned in fewer bytes
        plans = [replace(graph, nodes=tuple(graph.nodes[i] for i in order)) for order in few]
        assert all(_arena(each) >= known.bound for each in plans)
    return True, True


def compare_few_nodes(seed: int, most_orders: int) -> tuple[bool, bool]:
    """Assert that `order="less"` plans the best of all orders. Whether compared, and whether less than as given.

    Graphs with more than `most_orders` orders are left out.
    """
    rng = random.Random(seed)
    count, alignment = rng.randint(5, 9), rng.choice((1, 4, 8, 64))
    graph = concatenations(rng, count) if seed % 3 else program(rng, count, control=False)
    few = list(islice(all_orders(graph), most_orders + 1))
    if graph.updates or len(few) > most_orders:
        return False, False
    orders = [replace(graph, nodes=tuple(graph.nodes[i] for i in order)) for order in few]
    least = min(_arena(each, alignment) for each in orders)
    plan = plan_memory(graph, Options(alignment=alignment, order="less"))
    assert plan.arena_bytes == least, f"seed {seed}: {plan.arena_bytes} bytes, {least} in another order"
    return True, least < plan_memory(graph, Options(alignment=alignment)).arena_bytes


def _arena(graph: Graph, alignment: int = 1) -> int:
    return plan_memory(graph, Options(alignment=alignment), schedule=serial_schedule(graph)).arena_bytes


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--count", type=int, default=2000)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--few-nodes", type=int, default=0, metavar="N", help="graphs with at most N orders")
    chosen = asked.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.count)
    if chosen.few_nodes:
        judged = [compare_few_nodes(seed, chosen.few_nodes) for seed in seeds]
        print(f"{sum(c for c, _ in judged):,} graphs planned in all orders; {sum(less for _, less in judged):,} gained")
        return
    found = [compare(seed) for seed in seeds]
    print(f"{len(found):,} graphs; {sum(p for p, _ in found):,} against plans, {sum(o for _, o in found):,} all orders")


if __name__ == "__main__":
    main()
