"""Search for an order with fewer live bytes, level by level, and a lower bound for all orders.

The search starts with the better of the given order and the greedy orders (`passes/reordering.py`). For windows of
nodes around the peak, narrow windows first, the compiled search looks for an order with a lower peak
(`core/descent.cpp`). The largest window extends between nodes with the same position in every order; if the search
refutes the largest window, no order has a lower peak. A minimum cut at the node of the peak (`core/cut.cpp`) often
proves the bound without a search. The limit counts visited sets of nodes, not seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sublet.ir.dataflow import results
from sublet.ir.graph import Graph, Node, Value
from sublet.passes.ordering.atom_model import AtomModel, atom_model_of
from sublet.passes.reordering import constrained_data_flow, data_flow, greedy_order, reorder_levels

MAX_VISITED_SETS = 200_000
"""Maximum number of visited sets of nodes for one level."""

Stop = Callable[[], bool]


@dataclass(frozen=True)
class OrderSearchResult:
    """The result of a search over all orders of the nodes of a level.

    live_bytes  live bytes at the peak of the best order found
    bound       no order has fewer live bytes at the peak, with views and concat operands in place and in-place results
    node        the node requiring `bound` bytes in any order; "" for the start or for a bound proved by a search
    searched    True if a search refuted every lower peak; False if the bound is a minimum cut at the node
    steps       number of visited sets of nodes
    proven      True if no plan of any order has fewer live bytes than `bound`; False if the bound rests on an estimate
    """

    live_bytes: int
    bound: int
    node: str
    searched: bool
    steps: int
    proven: bool

    @property
    def is_optimal(self) -> bool:
        """True if no order has fewer live bytes than the order found."""
        return self.bound == self.live_bytes


def never_stop() -> bool:
    """Return False: never stop."""
    return False


def candidate_orders(graph: Graph, outside: Collection[Value] = ()) -> tuple[Graph, ...]:
    """Return two candidate orders: one by the bounding model, and one by the model closer to most plans."""
    return tuple(search_order(graph, outside, in_all=in_all)[0] for in_all in (True, False))


def search_order(
    graph: Graph,
    outside: Collection[Value] = (),
    effort: int = MAX_VISITED_SETS,
    stop: Stop = never_stop,
    *,
    in_all: bool = True,
) -> tuple[Graph, OrderSearchResult]:
    """Return the graph in the best order found, and the search result for the root level."""
    results_by_level: list[OrderSearchResult] = []

    def choose(
        level: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int]
    ) -> tuple[tuple[Node, ...], int]:
        nodes = greedy_order(level, nodes, wanted, extra)[0]
        account = atom_model_of(
            level, nodes, wanted, extra, constrained_data_flow(level, nodes), outside, in_all=in_all
        )
        order, peak, bound, node, searched, steps = account.compiled_problem().improved(range(len(nodes)), effort, stop)
        name = "" if node < 0 else nodes[node].name
        results_by_level.append(OrderSearchResult(peak, bound, name, searched, steps, in_all and account.is_bound))
        return tuple(nodes[i] for i in order), peak

    reordered_graph = reorder_levels(graph, choose)
    return reordered_graph, results_by_level[-1]


def atom_model_in_order(graph: Graph, outside: Collection[Value] = ()) -> AtomModel:
    """Return the model of the root level of a graph, in the given order."""
    return atom_model_of(graph, graph.nodes, results(graph), {}, data_flow(graph.nodes), outside)


def peak_live_bytes(graph: Graph, outside: Collection[Value] = ()) -> int:
    """Return the live bytes at the peak of a graph without control flow, in the given order."""
    problem = atom_model_in_order(graph, outside).compiled_problem()
    return max([problem.at_start(), *problem.curve(range(len(graph.nodes)))])
