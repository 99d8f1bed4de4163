"""An order of fewer bytes, level by level, and what no order goes below.

The search begins with the better of the order given and of the greedy ones (`passes/order.py`). It looks where the peak
is: windows of nodes around it, narrow ones first, are searched for an order in which fewer bytes are alive
(`core/descent.cpp`), up to the whole stretch between nodes that come at the same place in every order. Where that one
is refuted, no order needs less. A minimum cut at the node where most is alive (`core/cut.cpp`) often says so at once.
Sets of nodes are counted, not seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import results
from sublet.passes.order import constrained, data_flow, greedy, reordered
from sublet.passes.ordering.account import Account, account_of

EFFORT = 200_000
"""Sets of nodes that are visited for one level."""

Stop = Callable[[], bool]


@dataclass(frozen=True)
class LeastLive:
    """What is known of all orders of a program's nodes.

    live_bytes  alive at the peak of the order found
    bound       no order has fewer bytes alive at its peak: views and concatenations in place, results over operands
    node        where any order needs so many; "" for the start, or where a search says so
    searched    a search has refuted every peak below the bound; otherwise it is a minimum cut at the node
    steps       sets of nodes visited
    proven      whether plans of no order can have fewer bytes alive than the bound; else it is of an estimate
    """

    live_bytes: int
    bound: int
    node: str
    searched: bool
    steps: int
    proven: bool

    @property
    def exact(self) -> bool:
        """Whether no order has fewer bytes alive than the one found."""
        return self.bound == self.live_bytes


def never() -> bool:
    """Never stop."""
    return False


def orders_of_less(graph: Graph, outside: Collection[Value] = ()) -> tuple[Graph, ...]:
    """Orders that may need less: by the account that bounds all plans, and by the one that is nearer to most."""
    return tuple(least_live(graph, outside, in_all=in_all)[0] for in_all in (True, False))


def least_live(
    graph: Graph,
    outside: Collection[Value] = (),
    effort: int = EFFORT,
    stop: Stop = never,
    *,
    in_all: bool = True,
) -> tuple[Graph, LeastLive]:
    """The graph in the best order found, and what is known of all orders of its root level."""
    known: list[LeastLive] = []

    def choose(
        level: Graph, nodes: Sequence[Node], wanted: Sequence[Value], extra: dict[str, int]
    ) -> tuple[tuple[Node, ...], int]:
        nodes = greedy(level, nodes, wanted, extra)[0]
        account = account_of(level, nodes, wanted, extra, constrained(level, nodes), outside, in_all=in_all)
        order, peak, bound, node, searched, steps = account.problem().improved(range(len(nodes)), effort, stop)
        name = "" if node < 0 else nodes[node].name
        known.append(LeastLive(peak, bound, name, searched, steps, in_all and account.proves))
        return tuple(nodes[i] for i in order), peak

    found = reordered(graph, choose)
    return found, known[-1]


def account_in_order(graph: Graph, outside: Collection[Value] = ()) -> Account:
    """The account of a graph's root level, in its own order."""
    return account_of(graph, graph.nodes, results(graph), {}, data_flow(graph.nodes), outside)


def live_bytes(graph: Graph, outside: Collection[Value] = ()) -> int:
    """The bytes alive at the peak of a graph without control flow, in its own order."""
    problem = account_in_order(graph, outside).problem()
    return max([problem.at_start(), *problem.curve(range(len(graph.nodes)))])
