"""Orders of irregular networks: bytes of real plans in the order given, in the best greedy order, after the search, and
as `--order least` plans them (order, sharing and offsets at once where these need more), beside what none goes below.

Every figure of an arena is a plan that the checker has proven. `exact` says that the bytes alive at the peak of the
order found are those of the bound, `by` how the bound was found: a minimum cut at one node, or a search that refuted
all below. Sets of nodes are counted: EFFORT of them at most.

    make bench-order       (or: python -m benchmarks.orders [--only TEXT] [--effort N] [--large N])
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter

from rich.console import Console
from rich.table import Table

from benchmarks.models.convolutional import googlenet, unet
from benchmarks.networks.irregular import WIRINGS, concatenated_cells, darts, nasnet_a, randwire
from sublet.analysis.options import Options
from sublet.api.sources import read_source
from sublet.base.optional_imports import version_of
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Node, Value
from sublet.passes.ordering.order_search import MAX_VISITED_SETS, candidate_orders, search_order
from sublet.passes.reordering import with_lower_peak
from sublet.passes.sinking import with_late_invariants
from sublet.plan.schedule import serial_schedule
from sublet.planning.pipeline import plan_memory, values_outside_arena

SEEDS = (1, 2, 3)
OPTIONS = Options()


def networks(large: int) -> Iterator[tuple[str, Callable[[], Graph]]]:
    """Names, and what makes the graphs."""
    for kind in WIRINGS:
        for seed in SEEDS:
            yield f"RandWire {kind} {seed}", lambda kind=kind, seed=seed: _graph(randwire(kind, seed))
    yield "NASNet-A mobile", lambda: _graph(nasnet_a())
    yield "DARTS", lambda: _graph(darts())
    for seed in SEEDS:
        yield f"concatenations {seed}", lambda seed=seed: _graph(concatenated_cells(seed))
    yield "GoogLeNet", lambda: _graph(googlenet())
    yield "U-Net", lambda: _graph(unet())
    for seed in SEEDS:
        yield f"random, {large:,} nodes, {seed}", lambda seed=seed: random_graph(seed, large)


def _graph(model: object) -> Graph:
    return read_source(model).graph


def random_graph(seed: int, count: int) -> Graph:
    """Nodes of one to three operands among those shortly before, of very different sizes."""
    rng = random.Random(seed)
    made = [Value("x", TensorSpec(DType.F32, (1024,)))]
    nodes = []
    for i in range(count):
        near = made[-40:]
        operands = tuple(rng.sample(near, min(len(near), rng.choice((1, 2, 2, 3)))))
        out = Value(f"v{i}", TensorSpec(DType.F32, (16 * rng.choice((1, 4, 16, 64, 64, 256)),)))
        nodes.append(Node(f"n{i}", "onnx.Opaque", operands, (out,)))
        made.append(out)
    read = {value for node in nodes for value in node.uses}
    return Graph(f"random_{seed}", (made[0],), tuple(nodes), tuple(value for value in made if value not in read))


def row(name: str, graph: Graph, effort: int) -> tuple[str, ...]:
    """One line of the table."""
    given = with_late_invariants(graph)
    lie_outside = values_outside_arena(graph, OPTIONS)
    began = perf_counter()
    found, known = search_order(given, lie_outside, effort)
    searched = perf_counter() - began
    greedy, other = with_late_invariants(with_lower_peak(given)), candidate_orders(given, lie_outside)[1]
    began = perf_counter()
    arenas = [
        plan_memory(graph, OPTIONS, schedule=serial_schedule(each)).arena_bytes
        for each in (given, greedy, found, other)
    ]
    planned = perf_counter() - began
    began = perf_counter()
    arenas.append(plan_memory(graph, replace(OPTIONS, order="least")).arena_bytes)
    asked = perf_counter() - began
    best = min(arenas)
    assert best == arenas[-1]
    assert known.bound <= best
    return (
        name,
        f"{len(graph.nodes):,}",
        *(f"{arena:,}" for arena in arenas),
        f"{best / arenas[0]:.1%}",
        f"{known.live_bytes:,}",
        f"{known.bound:,}",
        "yes" if known.is_optimal else f"{known.live_bytes / known.bound - 1:.1%} above",
        "search" if known.searched else "cut",
        "optimal" if best == known.bound else f"{best / known.bound - 1:.1%} above",
        f"{known.steps:,}",
        f"{searched:.1f}",
        f"{planned:.1f}",
        f"{asked:.1f}",
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", default="", help="networks whose name holds this")
    asked.add_argument("--effort", type=int, default=MAX_VISITED_SETS, help="sets of nodes visited for a level")
    asked.add_argument("--large", type=int, default=5000, help="nodes of the largest graphs")
    chosen = asked.parse_args()
    ortools = version_of("ortools") or "is not installed (pip install ortools)"
    table = Table(title=f"Orders, {chosen.effort:,} sets of nodes at most; OR-Tools {ortools}")
    plans = ("given", "greedy", "searched", "other", "less", "of given")
    proof = ("live", "bound", "exact", "by", "arena", "sets", "search, s", "plans, s", "less, s")
    for title in ("network", "nodes", *plans, *proof):
        table.add_column(title, justify="left" if title == "network" else "right")
    for name, make in networks(chosen.large):
        if chosen.only in name:
            table.add_row(*row(name, make(), chosen.effort))
    Console(width=240).print(table)


if __name__ == "__main__":
    main()
