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

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import results
from sublet.passes.order import constrained, data_flow, greedy, reordered
from sublet.passes.ordering.account import Account, account_of

EFFORT = 200_000
"""Maximum number of visited sets of nodes for one level."""

Stop = Callable[[], bool]


@dataclass(frozen=True)
class LeastLive:
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
    def exact(self) -> bool:
        """True if no order has fewer live bytes than the order found."""
        return self.bound == self.live_bytes


def never() -> bool:
    """Return False: never stop."""
    return False


def orders_of_less(graph: Graph, outside: Collection[Value] = ()) -> tuple[Graph, ...]:
    """Return two candidate orders: one by the bounding model, and one by the model closer to most plans."""
    return tuple(least_live(graph, outside, in_all=in_all)[0] for in_all in (True, False))


def least_live(
    graph: Graph,
    outside: Collection[Value] = (),
    effort: int = EFFORT,
    stop: Stop = never,
    *,
    in_all: bool = True,
) -> tuple[Graph, LeastLive]:
    """Return the graph in the best order found, and the search result for the root level."""
    results_by_level: list[LeastLive] = []

    def choose(
        level: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int]
    ) -> tuple[tuple[Node, ...], int]:
        nodes = greedy(level, nodes, wanted, extra)[0]
        account = account_of(level, nodes, wanted, extra, constrained(level, nodes), outside, in_all=in_all)
        order, peak, bound, node, searched, steps = account.problem().improved(range(len(nodes)), effort, stop)
        name = "" if node < 0 else nodes[node].name
        results_by_level.append(LeastLive(peak, bound, name, searched, steps, in_all and account.proves))
        return tuple(nodes[i] for i in order), peak

    reordered_graph = reordered(graph, choose)
    return reordered_graph, results_by_level[-1]


def account_in_order(graph: Graph, outside: Collection[Value] = ()) -> Account:
    """Return the model of the root level of a graph, in the given order."""
    return account_of(graph, graph.nodes, results(graph), {}, data_flow(graph.nodes), outside)


def live_bytes(graph: Graph, outside: Collection[Value] = ()) -> int:
    """Return the live bytes at the peak of a graph without control flow, in the given order."""
    problem = account_in_order(graph, outside).problem()
    return max([problem.at_start(), *problem.curve(range(len(graph.nodes)))])
