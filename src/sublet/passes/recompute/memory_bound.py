"""A memory bound for all orders and rematerializations: the node whose operands and results alone need the most bytes.

Counted are the bytes necessarily in the arena while a live node runs: values read and defined with separate bytes, and
inputs with a later reader, because no node can recompute an input. Not counted are results that may overwrite an
operand, and values that may lie outside the arena (in memory of a weight without later readers, or in an output buffer
of the caller). Views and parts of a tensor count as the largest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sublet.base.disjoint_sets import DisjointSets
from sublet.ir.dataflow import required_values, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup, present_shares
from sublet.ops.op import Share
from sublet.passes.recompute.rematerialize import values_read_by_clone
from sublet.passes.reordering import data_flow
from sublet.passes.rewriting import is_pure

START, END = "", "return"


@dataclass(frozen=True)
class MemoryBound:
    """A bound: any program of the nodes needs at least `nbytes` when `node` runs, with `values` in the arena.

    node    "" for the start, with all inputs live; "return" for the end, with all outputs live
    source  the source of the node, if known; see `Node.source`
    values  (name, bytes) of each counted value
    steady  bytes of constants in the arena throughout, included in `nbytes`
    """

    nbytes: int
    node: str
    values: tuple[tuple[str, int], ...]
    steady: int = 0
    source: str = field(default="", compare=False)

    @property
    def description(self) -> str:
        """The bound as a sentence."""
        node = f"{self.node} ({self.source})" if self.source else self.node
        where = {START: "at the start", END: "at the end"}.get(self.node, f"at node {node}")
        named = ", ".join(f"{name} ({nbytes:,})" for name, nbytes in self.values)
        throughout = f"; constants take {self.steady:,} throughout" if self.steady else ""
        return f"any program of these nodes needs at least {self.nbytes:,} bytes {where}: {named}{throughout}"


def memory_bound_of(graph: Graph, *, io_bound: bool, weights_bound: bool, offloading: bool = False) -> MemoryBound:
    """Return the bytes needed by any order and any rematerialization of the nodes.

    With `offloading`, the bound also holds for programs that offload values: waiting inputs then count nothing.
    """
    steady = 0 if weights_bound else sum(value.nbytes for value in graph.constants)
    level = _BoundLevel(graph, io_bound, offloading)
    bounds = [level.bound_at_start(), level.bound_at_end(), *(level.bound_at(i) for i in level.needed)]
    highest = max(bounds, key=lambda each: each.nbytes)
    return replace(highest, nbytes=highest.nbytes + steady, steady=steady)


class _BoundLevel:
    """The root level of a graph, prepared for bounds at each node."""

    def __init__(self, graph: Graph, io_bound: bool, offloading: bool) -> None:
        self.graph, self.nodes, self.io_bound = graph, graph.nodes, io_bound
        self.wait_here = not (io_bound or offloading)
        flow = data_flow(graph.nodes)
        self.after = [0] * len(self.nodes)
        """By node, the transitive successors as bits."""
        for i in reversed(range(len(self.nodes))):
            for j in flow.after[i]:
                self.after[i] |= self.after[j] | 1 << j
        self.readers: dict[Value, int] = {}
        for i, node in enumerate(self.nodes):
            for value in required_values(node):
                self.readers[value] = self.readers.get(value, 0) | 1 << i
        wanted = set(results(graph))
        final = sum(1 << i for i, node in enumerate(self.nodes) if not is_pure(node) or wanted & set(node.defs))
        run = [i for i in range(len(self.nodes)) if (self.after[i] | 1 << i) & final]
        self.needed = [i for i in run if not self.nodes[i].subgraphs]
        """The live nodes. Loops and branches are left out: the bound says nothing about bytes inside them."""
        running = sum(1 << i for i in run)
        self.after = [bits & running for bits in self.after]
        self.readers = {value: bits & running for value, bits in self.readers.items()}
        self.same, self.linked = self._alias_sets()
        self.outside: dict[Value, list[Value]] = {}
        """By set of linked values, the values with memory outside the arena, able to hold other values of the set."""
        free = [target for target in graph.updated_values if target in graph.weights or io_bound]
        for value in (*free, *((*graph.outputs, *graph.inputs) if io_bound else ())):
            self.outside.setdefault(self.linked.find(value), []).append(value)
        fixed = (*graph.weights, *((*graph.inputs, *graph.outputs) if io_bound else ()))
        self.fixed = {self.same.find(value) for value in fixed}

    def _alias_sets(self) -> tuple[DisjointSets[Value], DisjointSets[Value]]:
        """Return two partitions of the values: by views and parts, and additionally by in-place results and updates."""
        same, linked = DisjointSets[Value](), DisjointSets[Value]()
        for node in self.nodes:
            if node.subgraphs:
                same.union(*required_values(node), *node.defs)
                linked.union(*required_values(node), *node.defs)
                continue
            op = lookup(node.op)
            for sets, facts in ((same, (op.views, op.parts)), (linked, (op.views, op.parts, op.inplace))):
                for output, operand in _alias_pairs(node, facts):
                    sets.union(output, operand)
        for target, source in self.graph.updates:
            linked.union(target, source)
        return same, linked

    def bound_at(self, i: int) -> MemoryBound:
        """Return the bound at node `i`."""
        node, later = self.nodes[i], self.after[i]
        over = {output for output, _ in _alias_pairs(node, (lookup(node.op).inplace,))}
        read = [value for value in values_read_by_clone(node) if not self._may_be_outside(value, later | 1 << i)]
        made = [value for value in node.defs if value not in over and not self._may_be_outside(value, later)]
        waiting = [v for v in self.graph.inputs if self.wait_here and self.readers.get(v, 0) & (later | 1 << i)]
        return replace(self._bound_of(node.name, (*read, *made, *waiting)), source=node.source)

    def bound_at_start(self) -> MemoryBound:
        """Return the bound at the start: all inputs in the arena with a reader."""
        there = [] if self.io_bound else [value for value in self.graph.inputs if self.readers.get(value)]
        return self._bound_of(START, there)

    def bound_at_end(self) -> MemoryBound:
        """Return the bound at the end: all outputs in the arena."""
        return self._bound_of(END, [value for value in self.graph.outputs if not self._may_be_outside(value, 0)])

    def _may_be_outside(self, value: Value, waiting: int) -> bool:
        """True if a value may lie outside the arena while the nodes `waiting` (as bits) have not run."""
        if not value.plannable or self.same.find(value) in self.fixed:
            return True
        candidates = self.outside.get(self.linked.find(value), ())
        return any(
            other.nbytes >= value.nbytes
            and not (other in self.graph.updated_values and self.readers.get(other, 0) & waiting)
            for other in candidates
        )

    def _bound_of(self, name: str, values: Sequence[Value]) -> MemoryBound:
        """Return the bound counting the largest value of each set."""
        largest: dict[Value, Value] = {}
        for value in sorted(values, key=lambda value: (value.nbytes, value.name)):
            if value.nbytes:
                largest[self.same.find(value)] = value
        chosen = sorted(largest.values(), key=lambda value: (-value.nbytes, value.name))
        return MemoryBound(
            sum(value.nbytes for value in chosen), name, tuple((value.name, value.nbytes) for value in chosen)
        )


def _alias_pairs(node: Node, facts: Iterable[Callable[[Node], tuple[Share, ...]]]) -> list[tuple[Value, Value]]:
    """Return the pairs (output, operand) that may share bytes by the given facts of the op."""
    return [(output, operand) for fact in facts for output, operand, _ in present_shares(node, fact(node))]
