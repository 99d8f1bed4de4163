"""Joint ordering, coalescing and offset assignment of a region of nodes by CP-SAT (OR-Tools), if installed.

The search for an order counts live bytes, and counts a concatenation operand as part of every concatenation that reads
it. No plan may reach this count: an operand lies in a single place, and buffers leave gaps. If a plan needs more than
the bound on all orders, this module asks for each region of nodes above the bound: is there an order of the nodes, a
choice of the operands in place in their concatenations and of the results written over operands, and an offset for each
value, within fewer bytes? The planner turns the solution into a plan, and the checker proves it like any other plan.

The offset constraints follow Sekiyama et al. 2018, with the order as additional variables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd
from typing import Any

from sublet.base.optional_imports import is_installed, require
from sublet.base.ranges import gaps, merge
from sublet.ir.dataflow import results
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup, present_shares
from sublet.packing.problem import round_up
from sublet.passes.ordering.order_search import search_order
from sublet.passes.reordering import data_flow
from sublet.plan import MemoryPlan

MAX_REGION_NODES = 150
"""Nodes of a region. A larger region keeps its order and offsets."""
WHOLE_GRAPH_NODES = 48
"""Nodes of a graph solved as a single region, without looking for fixed positions."""
SOLVER_EFFORT = 10.0
"""Limit of CP-SAT for a region, in deterministic time: about seconds."""


@dataclass(frozen=True)
class JointSolution:
    """A graph in another order, with the offsets of some values in bytes."""

    graph: Graph
    offsets: Mapping[Value, int]


def solve_jointly(
    graph: Graph, plan: MemoryPlan, outside: Collection[Value], timeout: float | None = None
) -> JointSolution | None:
    """Return an order and offsets that need fewer bytes than `plan`; None if none is found.

    The plan must have a single stream and a single arena, and `graph` must be in the order of the plan. The function
    returns None at once for graphs with control flow or updates, without OR-Tools, and for plans that already reach the
    bound. Values in `outside` have no bytes in the arena. `timeout` limits each region, in seconds, and makes the
    result depend on the clock; without it the result is deterministic.
    """
    if not is_installed("ortools") or graph.updates or any(node.subgraphs for node in graph.nodes):
        return None
    known = search_order(graph, outside)[1]
    if not known.proven or plan.arena_bytes <= known.bound:
        return None
    nodes, offsets = list(graph.nodes), dict[Value, int]()
    above = _nodes_above(plan, known.bound, {node.name: i for i, node in enumerate(nodes)})
    for first, last in _regions_of(graph, nodes):
        if not above.isdisjoint(range(first, last + 1)):
            stretch = _RegionModel(graph, nodes, first, last, outside, plan.alignment)
            if not stretch.values:
                continue  # no value of the region lies in the arena
            solution = stretch.solve(known.bound, plan.arena_bytes - 1, offsets, timeout)
            if solution is None:
                return None
            nodes[first : last + 1], placed = solution
            offsets |= placed
    return JointSolution(replace(graph, nodes=tuple(nodes)), offsets) if offsets else None


def _nodes_above(plan: MemoryPlan, bound: int, places: Mapping[str, int]) -> set[int]:
    """Return the positions of the nodes at which some value ends beyond `bound` bytes."""
    lives = [piece for place in plan.in_arenas if place.region.end > bound for piece in place.live]
    names = {plan.points[point].node for begin, end in lives for point in range(begin, end)}
    return {places[name] for name in names if name in places}


def _regions_of(graph: Graph, nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the regions of nodes to solve: (first, last) positions, both included.

    A region extends between two neighbouring nodes with the same position in every order; regions of MAX_REGION_NODES
    nodes or more are skipped. Nodes that depend on no input may run anywhere, and do not count as positions.
    """
    if len(nodes) <= WHOLE_GRAPH_NODES:
        return [(0, len(nodes) - 1)]
    flow = data_flow(nodes)
    before = [0] * len(nodes)
    fed = 0
    for i, node in enumerate(nodes):
        for j in flow.before[i]:
            before[i] |= before[j] | 1 << j
        if before[i] & fed or not {*graph.inputs}.isdisjoint(node.uses):
            fed |= 1 << i
    every = [i for i in range(len(nodes)) if fed >> i & 1]
    ends = {0, len(nodes) - 1}
    for k, i in enumerate(every):
        if (before[i] & fed).bit_count() == k and all(before[j] >> i & 1 for j in every[k + 1 :]):
            ends.add(i)
    return [(first, last) for first, last in pairwise(sorted(ends)) if 1 < last - first < MAX_REGION_NODES]


class _RegionModel:
    """The constraint model of a region of nodes: time is the position of a node in the region."""

    def __init__(
        self, graph: Graph, nodes: Sequence[Node], first: int, last: int, outside: Collection[Value], alignment: int
    ) -> None:
        self.nodes, self.alignment = nodes[first : last + 1], alignment
        self.defining_position = {value: i for i, node in enumerate(self.nodes) for value in node.defs}
        earlier = {*graph.inputs, *(value for node in nodes[:first] for value in node.defs)}
        later = {*results(graph), *(value for node in nodes[last + 1 :] for value in node.uses)}
        used = later.union(*(node.uses for node in self.nodes))
        known = [value for value in graph.values() if value in self.defining_position or value in earlier & used]
        self.values = [v for v in known if v.plannable and v.nbytes and v not in outside and v not in graph.weights]
        self.view_base = self._find_view_bases()
        self.live_out = {self.view_base[value][0] for value in self.values if value in later}
        self.readers: dict[Value, dict[int, None]] = {value: {} for value in self.values}
        self.concat_operands: dict[Value, list[tuple[Value, int]]] = {}
        for i, node in enumerate(self.nodes):
            for value in node.uses:
                if value in self.view_base:
                    self.readers[self.view_base[value][0]][i] = None
            for whole, part, shift in present_shares(node, lookup(node.op).parts(node)):
                if whole in self.view_base and part in self.view_base and not shift % self.alignment:
                    self.concat_operands.setdefault(whole, []).append((part, shift))
        self.offset_variable: dict[Value, Any] = {}
        self.rectangles: list[tuple[Any, Any, int]] = []

    def _find_view_bases(self) -> dict[Value, tuple[Value, int]]:
        """Return the base of each value and the offset in the base, in bytes; (value, 0) except for views."""
        bases = {value: (value, 0) for value in self.values}
        for node in self.nodes:
            for view, base, shift in present_shares(node, lookup(node.op).views(node)):
                if view in bases and base in bases and bases[view] == (view, 0) and not shift % self.alignment:
                    bases[view] = bases[base][0], bases[base][1] + shift
        return bases

    def solve(
        self, smallest_arena: int, most: int, fixed: Mapping[Value, int], timeout: float | None
    ) -> tuple[list[Node], dict[Value, int]] | None:
        """Return an order of the nodes and the offsets of the values within `most` bytes, or None if none is found.

        The solver stops minimizing at `smallest_arena` bytes. Values in `fixed` keep their offsets.
        """
        cp = require("ortools.sat.python.cp_model", "exact")
        self.model = model = cp.CpModel()
        shifts = [
            shift
            for _, shift in (*self.view_base.values(), *(p for parts in self.concat_operands.values() for p in parts))
        ]
        sizes = [round_up(value.nbytes, self.alignment) for value in self.values]
        self.unit = gcd(*sizes, *shifts, *fixed.values())
        self.arena_limit = most // self.unit
        arena = model.new_int_var(min(self.arena_limit, -(-smallest_arena // self.unit)), self.arena_limit, "arena")
        self.position_of = [model.new_int_var(0, len(self.nodes) - 1, node.name) for node in self.nodes]
        self._constrain_order()
        for value in self.values:
            self.offset_variable[value] = self._make_offset(value, fixed)
        bases = [value for value in self.values if self.view_base[value][0] == value]
        self.last_use = {base: model.new_int_var(0, len(self.nodes), f"end of {base.name}") for base in bases}
        for base in bases:
            self._constrain_last_use(base)
            if base not in self.concat_operands:
                begin, end = self._definition_of(base), self.last_use[base]
                self._add_rectangle(begin, end, self.offset_variable[base], base.nbytes)
        for whole, parts in self.concat_operands.items():
            self._add_concatenation(whole, parts)
        times, places, heights = zip(*self.rectangles, strict=True)
        model.add_no_overlap_2d(times, places)
        model.add_cumulative(times, heights, arena)
        for place in places:
            model.add(place.end_expr() <= arena)
        model.minimize(arena)
        solver = cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = SOLVER_EFFORT
        if timeout is not None:
            solver.parameters.max_time_in_seconds = timeout
        if solver.solve(model) not in (cp.OPTIMAL, cp.FEASIBLE):
            return None
        order = sorted(range(len(self.nodes)), key=lambda i: solver.value(self.position_of[i]))
        offsets = {value: solver.value(offset) * self.unit for value, offset in self.offset_variable.items()}
        return [self.nodes[i] for i in order], offsets

    def _constrain_order(self) -> None:
        """Constrain nodes to distinct positions after their operands, with the present order as hint."""
        self.model.add_all_different(self.position_of)
        for i, several in enumerate(data_flow(self.nodes).before):
            for j in several:
                self.model.add(self.position_of[j] < self.position_of[i])
        for i, position in enumerate(self.position_of):
            self.model.add_hint(position, i)

    def _make_offset(self, value: Value, fixed: Mapping[Value, int]) -> Any:
        """Return the offset of a value, in units: a constant, an offset in the base, or a new variable."""
        base, shift = self.view_base[value]
        if value in fixed:
            return self.model.new_constant(fixed[value] // self.unit)
        if base != value:
            return self.offset_variable[base] + shift // self.unit
        return self.model.new_int_var(0, self.arena_limit, f"offset of {value.name}")

    def _definition_of(self, value: Value) -> Any:
        """Return the position from which on a value is live."""
        return self.position_of[self.defining_position[value]] if value in self.defining_position else 0

    def _constrain_last_use(self, base: Value) -> None:
        """Constrain the last use of a value: after its last reader, or at a reader that overwrites it with a result."""
        self.model.add(self.last_use[base] >= self._definition_of(base) + 1)
        if base in self.live_out:
            self.model.add(self.last_use[base] == len(self.nodes))
        for i in self.readers[base]:
            node, over = self.nodes[i], []
            for result, operand, _ in present_shares(node, lookup(node.op).inplace(node)):
                if (
                    operand == base
                    and result in self.offset_variable
                    and result not in self.concat_operands
                    and base not in self.live_out
                ):
                    over.append(self.model.new_bool_var(f"{result.name} over {base.name}"))
                    self.model.add(self.offset_variable[result] == self.offset_variable[base]).only_enforce_if(over[-1])
                    self.model.add(self.last_use[base] == self.position_of[i]).only_enforce_if(over[-1])
            self.model.add(self.last_use[base] >= self.position_of[i] + 1).only_enforce_if([~each for each in over])

    def _add_concatenation(self, whole: Value, parts: Sequence[tuple[Value, int]]) -> None:
        """Add the rectangles of a concatenation: each operand lies in place in the result, or is copied into it.

        An operand in place is live as long as the result; it may be a concatenation with operands in place itself.
        """
        offset, end = self.offset_variable[whole], self.last_use[whole]
        for part, shift in parts:
            copied = self.model.new_bool_var(f"{part.name} copied into {whole.name}")
            self.model.add(self.offset_variable[part] == offset + shift // self.unit).only_enforce_if(~copied)
            self.model.add(self.last_use[self.view_base[part][0]] >= end).only_enforce_if(~copied)
            self._add_rectangle(self._definition_of(whole), end, offset + shift // self.unit, part.nbytes, copied)
        taken = merge([(-1, 0), *((s, s + part.nbytes) for part, s in parts), (whole.nbytes, whole.nbytes + 1)])
        for first, last in gaps(taken):  # the bytes between operands; an operand also takes the rest of its last unit
            begin = -(-first // self.unit)
            if begin * self.unit < last:
                self._add_rectangle(self._definition_of(whole), end, offset + begin, last - begin * self.unit)

    def _add_rectangle(self, start: Any, end: Any, offset: Any, nbytes: int, present: Any = True) -> None:
        """Add a rectangle of time and bytes, taken only if `present`."""
        size = -(-nbytes // self.unit)
        length = self.model.new_int_var(0, len(self.nodes), "")
        x = self.model.new_optional_interval_var(start, length, end, present, "")
        y = self.model.new_optional_fixed_size_interval_var(offset, size, present, "")
        self.rectangles.append((x, y, size))
