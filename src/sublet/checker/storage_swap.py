"""Storage swaps after a run: the validity of the declared cycles, and the graph executed under the swaps.

In a cycle (w, v, u) w gets the storage of v, v the storage of u, u the storage of w. The content left in the storage
of v is therefore the next content of w: a run is right if it is a run of the graph with each update redirected to the
next storage of the target. All further proofs refer to this graph.

Rules: false-exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from sublet.base.errors import Finding
from sublet.ir.graph import Graph
from sublet.plan import MemoryPlan, bound_storage_name

MOST_TURNS = 64
"""Runs until all storages have their first names again: an executor binds one program a run. More is a finding."""


def check_storage_swaps(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Yield findings for cycles of values not updated, not bound, of different types, or listed twice."""
    specs = {value.name: value.spec for value in graph.updated_values}
    bound = {storage.name for storage in plan.storages}
    times = Counter(name for cycle in plan.exchanged for name in cycle)
    for cycle in plan.exchanged:
        strangers = [
            name for name in cycle if name not in specs or bound_storage_name(name) not in bound or times[name] > 1
        ]
        if strangers:
            what = f"swaps the storage of %{strangers[0]}, which is not updated in its own storage, or is listed twice"
            yield Finding("false-exchange", "the plan", what)
        elif len(cycle) < 2 or len({specs[name] for name in cycle}) > 1:
            names = ", ".join(f"%{name}" for name in cycle) or "nothing"
            yield Finding(
                "false-exchange", "the plan", f"swaps the storages of {names}, expected two or more values of one type"
            )
    turns = lcm(*(len(cycle) or 1 for cycle in plan.exchanged))
    if turns > MOST_TURNS:
        what = f"swaps storages in cycles that repeat after {turns} runs, more than {MOST_TURNS}"
        yield Finding("false-exchange", "the plan", what)


def redirect_updates(graph: Graph, plan: MemoryPlan) -> Graph:
    """Return the graph with every update redirected to the value with the next storage of the target."""
    becomes = next_owners(plan)
    sources = {target.name: source for target, source in graph.updates}
    return replace(
        graph, updates=tuple((value, sources[becomes.get(value.name, value.name)]) for value in graph.updated_values)
    )


def next_owners(plan: MemoryPlan) -> dict[str, str]:
    """Return, for each value of a cycle, the next owner of the value's storage: the predecessor in the cycle."""
    return {name: cycle[i - 1] for cycle in plan.exchanged for i, name in enumerate(cycle)}
