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

from sublet.base.extras import installed, require
from sublet.base.ranges import gaps, merge
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import results
from sublet.ops import lookup, shared
from sublet.packing.problem import round_up
from sublet.passes.order import data_flow
from sublet.passes.ordering.search import least_live
from sublet.plan import MemoryPlan

MOST_NODES = 150
"""Nodes of a region. A larger region keeps its order and offsets."""
FEW_NODES = 48
"""Nodes of a graph solved as a single region, without looking for fixed positions."""
EFFORT = 10.0
"""Limit of CP-SAT for a region, in deterministic time: about seconds."""


@dataclass(frozen=True)
class Joint:
    """A graph in another order, with the offsets of some values in bytes."""

    graph: Graph
    offsets: Mapping[Value, int]


def jointly(graph: Graph, plan: MemoryPlan, outside: Collection[Value], timeout: float | None = None) -> Joint | None:
    """Return an order and offsets that need fewer bytes than `plan`; None if none is found.

    The plan must have a single stream and a single arena, and `graph` must be in the order of the plan. The function
    returns None at once for graphs with control flow or updates, without OR-Tools, and for plans that already reach the
    bound. Values in `outside` have no bytes in the arena. `timeout` limits each region, in seconds, and makes the
    result depend on the clock; without it the result is deterministic.
    """
    if not installed("ortools") or graph.updates or any(node.subgraphs for node in graph.nodes):
        return None
    known = least_live(graph, outside)[1]
    if not known.proven or plan.arena_bytes <= known.bound:
        return None
    nodes, offsets = list(graph.nodes), dict[Value, int]()
    above = _above(plan, known.bound, {node.name: i for i, node in enumerate(nodes)})
    for first, last in _stretches(graph, nodes):
        if not above.isdisjoint(range(first, last + 1)):
            stretch = _Stretch(graph, nodes, first, last, outside, plan.alignment)
            if not stretch.values:
                continue  # no value of the region lies in the arena
            solution = stretch.solved(known.bound, plan.arena_bytes - 1, offsets, timeout)
            if solution is None:
                return None
            nodes[first : last + 1], placed = solution
            offsets |= placed
    return Joint(replace(graph, nodes=tuple(nodes)), offsets) if offsets else None


def _above(plan: MemoryPlan, bound: int, places: Mapping[str, int]) -> set[int]:
    """Return the positions of the nodes at which some value ends beyond `bound` bytes."""
    lives = [piece for place in plan.in_arenas if place.region.end > bound for piece in place.live]
    names = {plan.points[point].node for begin, end in lives for point in range(begin, end)}
    return {places[name] for name in names if name in places}


def _stretches(graph: Graph, nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the regions of nodes to solve: (first, last) positions, both included.

    A region extends between two neighbouring nodes with the same position in every order; regions of MAX_REGION_NODES
    nodes or more are skipped. Nodes that depend on no input may run anywhere, and do not count as positions.
    """
    if len(nodes) <= FEW_NODES:
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
    return [(first, last) for first, last in pairwise(sorted(ends)) if 1 < last - first < MOST_NODES]


class _Stretch:
    """The constraint model of a region of nodes: time is the position of a node in the region."""

    def __init__(
        self, graph: Graph, nodes: Sequence[Node], first: int, last: int, outside: Collection[Value], alignment: int
    ) -> None:
        self.nodes, self.alignment = nodes[first : last + 1], alignment
        self.maker = {value: i for i, node in enumerate(self.nodes) for value in node.defs}
        earlier = {*graph.inputs, *(value for node in nodes[:first] for value in node.defs)}
        later = {*results(graph), *(value for node in nodes[last + 1 :] for value in node.uses)}
        used = later.union(*(node.uses for node in self.nodes))
        known = [value for value in graph.values() if value in self.maker or value in earlier & used]
        self.values = [v for v in known if v.plannable and v.nbytes and v not in outside and v not in graph.weights]
        self.bases = self._bases()
        self.kept = {self.bases[value][0] for value in self.values if value in later}
        self.readers: dict[Value, dict[int, None]] = {value: {} for value in self.values}
        self.wholes: dict[Value, list[tuple[Value, int]]] = {}
        for i, node in enumerate(self.nodes):
            for value in node.uses:
                if value in self.bases:
                    self.readers[self.bases[value][0]][i] = None
            for whole, part, shift in shared(node, lookup(node.op).parts(node)):
                if whole in self.bases and part in self.bases and not shift % self.alignment:
                    self.wholes.setdefault(whole, []).append((part, shift))
        self.offset: dict[Value, Any] = {}
        self.rectangles: list[tuple[Any, Any, int]] = []

    def _bases(self) -> dict[Value, tuple[Value, int]]:
        """Return the base of each value and the offset in the base, in bytes; (value, 0) except for views."""
        bases = {value: (value, 0) for value in self.values}
        for node in self.nodes:
            for view, base, shift in shared(node, lookup(node.op).views(node)):
                if view in bases and base in bases and bases[view] == (view, 0) and not shift % self.alignment:
                    bases[view] = bases[base][0], bases[base][1] + shift
        return bases

    def solved(
        self, least: int, most: int, fixed: Mapping[Value, int], timeout: float | None
    ) -> tuple[list[Node], dict[Value, int]] | None:
        """Return an order of the nodes and the offsets of the values within `most` bytes, or None if none is found.

        The solver stops minimizing at `least` bytes. Values in `fixed` keep their offsets.
        """
        cp = require("ortools.sat.python.cp_model", "exact")
        self.model = model = cp.CpModel()
        shifts = [shift for _, shift in (*self.bases.values(), *(p for parts in self.wholes.values() for p in parts))]
        sizes = [round_up(value.nbytes, self.alignment) for value in self.values]
        self.unit = gcd(*sizes, *shifts, *fixed.values())
        self.most = most // self.unit
        arena = model.new_int_var(min(self.most, -(-least // self.unit)), self.most, "arena")
        self.at = [model.new_int_var(0, len(self.nodes) - 1, node.name) for node in self.nodes]
        self._in_order()
        for value in self.values:
            self.offset[value] = self._place(value, fixed)
        bases = [value for value in self.values if self.bases[value][0] == value and value not in self.wholes]
        self.end = {base: model.new_int_var(0, len(self.nodes), f"end of {base.name}") for base in bases}
        for base in bases:
            self._keep(base)
            self._occupy(self._made(base), self.end[base], self.offset[base], base.nbytes)
        for whole, parts in self.wholes.items():
            self._concatenate(whole, parts)
        times, places, heights = zip(*self.rectangles, strict=True)
        model.add_no_overlap_2d(times, places)
        model.add_cumulative(times, heights, arena)
        for place in places:
            model.add(place.end_expr() <= arena)
        model.minimize(arena)
        solver = cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.max_deterministic_time = EFFORT
        if timeout is not None:
            solver.parameters.max_time_in_seconds = timeout
        if solver.solve(model) not in (cp.OPTIMAL, cp.FEASIBLE):
            return None
        order = sorted(range(len(self.nodes)), key=lambda i: solver.value(self.at[i]))
        offsets = {value: solver.value(offset) * self.unit for value, offset in self.offset.items()}
        return [self.nodes[i] for i in order], offsets

    def _in_order(self) -> None:
        """Constrain nodes to distinct positions after their operands, with the present order as hint."""
        self.model.add_all_different(self.at)
        for i, several in enumerate(data_flow(self.nodes).before):
            for j in several:
                self.model.add(self.at[j] < self.at[i])
        for i, position in enumerate(self.at):
            self.model.add_hint(position, i)

    def _place(self, value: Value, fixed: Mapping[Value, int]) -> Any:
        """Return the offset of a value, in units: a constant, an offset in the base, or a new variable."""
        base, shift = self.bases[value]
        if value in fixed:
            return self.model.new_constant(fixed[value] // self.unit)
        if base != value:
            return self.offset[base] + shift // self.unit
        return self.model.new_int_var(0, self.most, f"offset of {value.name}")

    def _made(self, value: Value) -> Any:
        """Return the position from which on a value is live."""
        return self.at[self.maker[value]] if value in self.maker else 0

    def _keep(self, base: Value) -> None:
        """Constrain the last use of a value: after its last reader, or at a reader that overwrites it with a result."""
        self.model.add(self.end[base] >= self._made(base) + 1)
        if base in self.kept:
            self.model.add(self.end[base] == len(self.nodes))
        for i in self.readers[base]:
            node, over = self.nodes[i], []
            for result, operand, _ in shared(node, lookup(node.op).inplace(node)):
                if operand == base and result in self.offset and result not in self.wholes and base not in self.kept:
                    over.append(self.model.new_bool_var(f"{result.name} over {base.name}"))
                    self.model.add(self.offset[result] == self.offset[base]).only_enforce_if(over[-1])
                    self.model.add(self.end[base] == self.at[i]).only_enforce_if(over[-1])
            self.model.add(self.end[base] >= self.at[i] + 1).only_enforce_if([~each for each in over])

    def _concatenate(self, whole: Value, parts: Sequence[tuple[Value, int]]) -> None:
        """Add the rectangles of a concatenation: each operand lies in place in the result, or is copied into it."""
        count, offset = len(self.nodes), self.offset[whole]
        end = count if whole in self.kept else self.model.new_int_var(0, count, f"end of {whole.name}")
        if whole not in self.kept:
            self.model.add_max_equality(end, [self.at[i] + 1 for i in self.readers[whole]] or [self._made(whole) + 1])
        for part, shift in parts:
            base = self.bases[part][0]
            copied: Any = True
            if base in self.end:
                copied = self.model.new_bool_var(f"{part.name} copied into {whole.name}")
                self.model.add(self.offset[part] == offset + shift // self.unit).only_enforce_if(~copied)
                self.model.add(self.end[base] >= end).only_enforce_if(~copied)
            self._occupy(self._made(whole), end, offset + shift // self.unit, part.nbytes, copied)
        taken = merge([(-1, 0), *((s, s + part.nbytes) for part, s in parts), (whole.nbytes, whole.nbytes + 1)])
        for first, last in gaps(taken):  # the bytes between operands; an operand also takes the rest of its last unit
            begin = -(-first // self.unit)
            if begin * self.unit < last:
                self._occupy(self._made(whole), end, offset + begin, last - begin * self.unit)

    def _occupy(self, start: Any, end: Any, offset: Any, nbytes: int, present: Any = True) -> None:
        """Add a rectangle of time and bytes, taken only if `present`."""
        size = -(-nbytes // self.unit)
        length = self.model.new_int_var(0, len(self.nodes), "")
        x = self.model.new_optional_interval_var(start, length, end, present, "")
        y = self.model.new_optional_fixed_size_interval_var(offset, size, present, "")
        self.rectangles.append((x, y, size))
