"""Copies by control flow, and possible bindings of renamed values, derived from the placements of sources and targets.

Rules: false-moves, false-targets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from sublet.base.errors import Finding
from sublet.checker.sharing_reasons import is_at_distance, is_slice_of, slices_and_rows_at
from sublet.checker.state_space import PointState, StateSpace
from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph, Value, While
from sublet.plan import POINTER, UPDATE, CopiedMove, Edge, MemoryPlan, bound_storage_name

# Storage swaps after a run: the validity of the declared cycles, and the graph executed under the swaps.
#
# In a cycle (w, v, u) w gets the storage of v, v the storage of u, u the storage of w. The content left in the storage
# of v is therefore the next content of w: a run is right if it is a run of the graph with each update redirected to the
# next storage of the target. All further proofs refer to this graph.
#
# Rules: false-exchange.

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


CopiesByEdge = dict[tuple[Edge, str], list[tuple[frozenset[str], int]]]
"""(edge, destination): for each copy the names of the source, and the number of bytes."""


def check_moves(plan: MemoryPlan, walk: StateSpace) -> Iterator[Finding]:
    """Yield findings unless the plan lists exactly the copies made by some run."""
    actual: CopiesByEdge = {}
    becomes = next_owners(plan)
    for visit in walk.visits:
        for destination, source, nbytes in copies_at(walk, visit):
            edge, name = walk.moment_of(visit).point.edge, destination.name
            copies = actual.setdefault((edge, becomes.get(name, name) if edge.kind == UPDATE else name), [])
            if (source, nbytes) not in copies:
                copies.append((source, nbytes))
    listed: dict[tuple[Edge, str], list[CopiedMove]] = {}
    for move in plan.moves:
        known = listed.setdefault((move.edge, move.destination), [])
        where = f"edge {move.edge}"
        if any(other.source == move.source for other in known):
            yield Finding("false-moves", where, f"lists the copy of %{move.source} to %{move.destination} twice")
        known.append(move)
        times = actual.get((move.edge, move.destination), ())
        if not any(move.source in source and move.nbytes == nbytes for source, nbytes in times):
            what = f"lists a copy of {move.nbytes} bytes from %{move.source} to %{move.destination}, but makes none"
            yield Finding("false-moves", where, what)
    for (edge, to), times in actual.items():
        named = {move.source for move in listed.get((edge, to), ())}
        for source, nbytes in times:
            if not source & named:
                what = f"copies {nbytes} bytes from %{min(source)} to %{to}, but the plan does not list the copy"
                yield Finding("false-moves", f"edge {edge}", what)


def copies_at(walk: StateSpace, visit: PointState) -> Iterator[tuple[Value, frozenset[str], int]]:
    """Yield the copies at a point state: the destination, the names of the source, and the number of bytes."""
    moment = walk.moment_of(visit)
    for source, to in moment.moves:
        one, other = walk.placement_of(source, visit), walk.placement_of(to, visit)
        if (
            other is not None
            and to.nbytes
            and (one is None or not is_at_distance(walk.placement_by_number(one), walk.placement_by_number(other), 0))
        ):
            yield to, _names_of(walk, source, one), to.nbytes
    for how, part, whole, axis, backwards in slices_and_rows_at(moment.kind, moment.node):
        one, other = walk.placement_of(part, visit), walk.placement_of(whole, visit)
        if not part.nbytes or not isinstance(moment.node, While):
            continue
        places = (
            None if one is None or other is None else (walk.placement_by_number(one), walk.placement_by_number(other))
        )
        if places and is_slice_of(*places, whole, moment.node.name, axis, backwards):
            continue
        if how == "slice":
            yield part, _names_of(walk, whole, other), part.nbytes
        else:
            yield whole, _names_of(walk, part, one), part.nbytes


def _names_of(walk: StateSpace, value: Value, placement: int | None) -> frozenset[str]:
    """Return the name of a value, and of the value bound to it."""
    return frozenset({value.name} if placement is None else {value.name, walk.placement_by_number(placement).value})


def check_possible_bindings(graph: Graph, plan: MemoryPlan) -> Iterator[Finding]:
    """Yield findings for renamed values with declared bindings other than the sources assigned by control flow."""
    assigned = _possible_sources(graph)
    pointers = {place.value for place in plan.placements if place.how == POINTER}
    for place in plan.placements:
        seen: dict[str, None] = {}
        todo = [place.value] if place.how == POINTER else []
        while todo:
            fresh = [name for name in assigned.get(todo.pop(), ()) if name not in seen]
            seen.update(dict.fromkeys(fresh))
            todo += [name for name in fresh if name in pointers]
        meant = [name for name in seen if name not in pointers]
        if set(place.stands_for) != set(meant) or len(place.stands_for) != len(meant):
            declared, derived = ", ".join(place.stands_for) or "nothing", ", ".join(meant) or "nothing"
            what = f"is declared as bound to {declared}, but may be bound to {derived}"
            yield Finding("false-targets", f"value %{place.value}", what)


def _possible_sources(graph: Graph) -> dict[str, list[str]]:
    """Return the possible sources of each value assigned by control flow."""
    pairs = (pair for node in graph.walk() for pair in assignments(node))
    return {to.name: [source.name for source in sources] for to, sources in pairs}
