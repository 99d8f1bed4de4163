"""Memory that changes hands when a run has ended: what a plan says of that makes sense, and what it means for a run.

In a cycle (w, v, u) w gets the memory that v had, v that of u, u that of w. So what a run leaves in memory of v is
the next content of w: a run is right if it is one of a graph whose updates go where their targets will be. All else
that is proven is proven of that graph.

Rules: false-exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from sublet.base.errors import Finding
from sublet.ir.graph import Graph
from sublet.plan import MemoryPlan, bound_to

MOST_TURNS = 64
"""A program is bound anew for each run until all memory has its first names again; longer is not followed."""


def check_exchange(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """The cycles are of updated values of one type, each in memory of its own, none of them twice."""
    specs = {value.name: value.spec for value in graph.updated}
    bound = {storage.name for storage in plan.storages}
    times = Counter(name for cycle in plan.exchanged for name in cycle)
    for cycle in plan.exchanged:
        strangers = [name for name in cycle if name not in specs or bound_to(name) not in bound or times[name] > 1]
        if strangers:
            what = f"exchanges memory of %{strangers[0]}, which is not updated in memory of its own, or is named twice"
            yield Finding("false-exchange", "the plan", what)
        elif len(cycle) < 2 or len({specs[name] for name in cycle}) > 1:
            names = ", ".join(f"%{name}" for name in cycle) or "nothing"
            yield Finding(
                "false-exchange", "the plan", f"exchanges memory of {names}, which are not of one type, or one"
            )
    turns = lcm(*(len(cycle) or 1 for cycle in plan.exchanged))
    if turns > MOST_TURNS:
        what = f"exchanges memory in cycles that come round after {turns} runs, which is more than {MOST_TURNS}"
        yield Finding("false-exchange", "the plan", what)


def as_exchanged(graph: Graph, plan: MemoryPlan) -> Graph:
    """The graph of which a run is one: every update goes to the value whose memory its target gets."""
    becomes = owners(plan)
    sources = {target.name: source for target, source in graph.updates}
    return replace(
        graph, updates=tuple((value, sources[becomes.get(value.name, value.name)]) for value in graph.updated)
    )


def owners(plan: MemoryPlan) -> dict[str, str]:
    """For each value of a cycle the one that gets its memory: the one before it, of the first the last."""
    return {name: cycle[i - 1] for cycle in plan.exchanged for i, name in enumerate(cycle)}
