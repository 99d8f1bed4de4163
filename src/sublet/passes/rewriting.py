"""Infrastructure for passes: a forward walk replacing values, and queries on purity and readers.

A pass examining one node at a time passes `Rewriter` a step, `node -> replacing nodes`. The step may also replace one
value by another. The walk is forward and includes sub-graphs: a step sees a node with all earlier replacements
applied.

The inputs and outputs of the program keep their names: an output is replaced only by a value able to take over the
name of the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.base.names import NameGenerator
from sublet.ir.dataflow import (
    all_names,
    conditions_of,
    map_subgraphs,
    reads,
    reads_inside,
    rename_values,
    results,
    with_inputs,
    with_results,
)
from sublet.ir.graph import Graph, Node, Value, While
from sublet.ops import lookup
from sublet.ops.emitter import Emitter, LiteralPool


def literal_weights(graph: Graph) -> tuple[Value, ...]:
    """Return the weights with known elements and without updates."""
    return tuple(value for value in graph.constants if value.literal is not None)


def count_readers(graph: Graph) -> Counter[Value]:
    """Return how often each value of a program is read. Being a result of the program counts as one read."""
    counts: Counter[Value] = Counter(results(graph))
    for node in graph.walk():
        counts.update(reads(node))
    return counts


def attribute_key(node: Node) -> tuple[tuple[str, str], ...]:
    """Return the attributes of a node as a comparable key. 1 differs from True, and 0.0 from -0.0."""
    return tuple(sorted((key, repr(value)) for key, value in node.attrs.items()))


def is_pure(node: Node) -> bool:
    """True if the node, including sub-graphs, has no effect besides computing its outputs."""
    if node.subgraphs:
        return all(is_pure(inner) for sub in node.subgraphs for inner in sub.nodes)
    return lookup(node.op).pure


Readers = Mapping[Value, Sequence[str]]
"""The names of the nodes of a level reading each value, in order; "" is the caller or the check of the loop."""

RewriteRun = Callable[[Sequence[Node], Readers], Sequence[Node]]
"""(nodes always running one after another, readers) -> the replacing nodes."""


def rewrite_runs(graph: Graph, change: RewriteRun) -> Graph:
    """Return the program with `change` applied to each run of nodes.

    A run is a whole level, or the nodes of a loop before or after the check.
    """
    nodes = change(graph.nodes, _readers_in_level(graph))
    return replace(graph, nodes=tuple(_rewrite_runs_inside(node, change) for node in nodes))


def _rewrite_runs_inside(node: Node, change: RewriteRun) -> Node:
    """Return the node with `change` applied to the runs of the sub-graphs."""
    if not isinstance(node, While):
        return map_subgraphs(node, lambda arm: rewrite_runs(arm, change))
    readers = _readers_in_level(node.body, conditions_of(node))
    before = change(node.body.nodes[: node.check], readers)
    after = change(node.body.nodes[node.check :], readers)
    nodes = tuple(_rewrite_runs_inside(inner, change) for inner in (*before, *after))
    return replace(node, body=replace(node.body, nodes=nodes), check=len(before))


def _readers_in_level(graph: Graph, also: Sequence[Value] = ()) -> dict[Value, list[str]]:
    """Return the readers of each value of a level. `also` lists values read by the condition."""
    readers: dict[Value, list[str]] = {}
    for node in graph.nodes:
        for value in reads_inside(node):
            readers.setdefault(value, []).append(node.name)
    for value in (*results(graph), *also):
        readers.setdefault(value, []).append("")
    return readers


def run_to_fixpoint(graph: Graph, change: Callable[[Graph], Graph], rounds: int) -> Graph:
    """Return the graph after applying `change` to a fixpoint, at most `rounds` times."""
    for _ in range(rounds):
        before, graph = graph, change(graph)
        if graph == before:
            break
    return graph


Step = Callable[[Node, "Rewriter"], Sequence[Node]]
"""(node, rewriter) -> the replacing nodes."""


@dataclass
class Rewriter:
    """One forward walk over a program. `step` returns the replacement of each node, after processing the sub-graphs.

    literals    literals known so far, including new literals
    depth       nesting depth of the walk: 0 at the root level
    enter       called before the walk enters a sub-graph
    leave       called after the walk leaves a sub-graph
    """

    graph: Graph
    step: Step
    names: NameGenerator = field(init=False)
    literals: LiteralPool = field(init=False)
    depth: int = field(init=False, default=0)
    _replacements: dict[Value, Value] = field(init=False, default_factory=dict)
    _renamed: dict[Value, Value] = field(init=False, default_factory=dict)
    _fixed: set[Value] = field(init=False)
    _at_root: set[Value] = field(init=False, default_factory=set)
    enter: Callable[[Graph], None] = lambda graph: None
    leave: Callable[[Graph], None] = lambda graph: None

    def __post_init__(self) -> None:
        self.names = NameGenerator(all_names(self.graph))
        self.literals = LiteralPool(self.names, literal_weights(self.graph))
        self._fixed = set(self.graph.outputs)

    def run(self) -> Graph:
        """Return the rewritten program."""
        nodes = self._rewrite_nodes(self.graph.nodes)
        changed = with_results(replace(self.graph, nodes=tuple(nodes)), self.resolve)
        changed = replace(changed, weights=(*changed.weights, *self.literals.added))
        return rename_values(changed, self._renamed) if self._renamed else changed

    def emitter_for(self, like: Node) -> Emitter:
        """Return an emitter writing nodes with the source of `like`."""
        return Emitter(self.names, self.literals, source=like.source)

    def resolve(self, value: Value) -> Value:
        """Return the current replacement of a value, or the value."""
        while value in self._replacements:
            value = self._replacements[value]
        return value

    def can_replace(self, old: Value, new: Value) -> bool:
        """True if every reader of `old` may read `new` instead."""
        if old.spec != new.spec:
            return False
        return old not in self._fixed or (new in self._at_root and new not in self._fixed)

    def can_rename(self, value: Value) -> bool:
        """True if the value may be renamed, because the value is no output of the program."""
        return value not in self._fixed

    def replace_value(self, old: Value, new: Value) -> bool:
        """Make every reader of `old` read `new`, a value with the same content. Return False if impossible.

        After a successful replacement no node may define `old`: the step leaves the defining node out.
        """
        new = self.resolve(new)
        if old is new or not self.can_replace(old, new):
            return False
        self._replacements[old] = new
        if old in self._fixed:  # the output keeps its name: rename the new definition at the end
            self._fixed.add(new)
            self._renamed[new] = old
        return True

    def _rewrite_nodes(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the replacements of a list of nodes."""
        made: list[Node] = []
        for node in nodes:
            made += self._rewrite_node(node)
        return made

    def _rewrite_node(self, node: Node) -> Sequence[Node]:
        """Return the replacement of one node, after processing the sub-graphs."""
        node = with_inputs(node, self.resolve)
        node = self._rewrite_loop(node) if isinstance(node, While) else map_subgraphs(node, self._rewrite_arm)
        put = self.step(node, self)
        self.mark_placed(put)
        return put

    def mark_placed(self, nodes: Iterable[Node]) -> None:
        """Declare that `nodes` will stand at the position of the walk. Called by a step before returning."""
        if self.depth == 0:
            self._at_root.update(value for node in nodes for value in node.defs)

    def _rewrite_loop(self, node: While) -> While:
        """Return the loop with a rewritten body."""
        self.depth += 1
        self.enter(node.body)
        before = self._rewrite_nodes(node.body.nodes[: node.check])
        condition = self.resolve(node.condition)
        after = self._rewrite_nodes(node.body.nodes[node.check :])
        body = with_results(replace(node.body, nodes=(*before, *after)), self.resolve)
        self.leave(node.body)
        self.depth -= 1
        return replace(node, body=body, condition=condition, check=len(before))

    def _rewrite_arm(self, arm: Graph) -> Graph:
        """Return the arm of a branch, rewritten."""
        self.depth += 1
        self.enter(arm)
        changed = with_results(replace(arm, nodes=tuple(self._rewrite_nodes(arm.nodes))), self.resolve)
        self.leave(arm)
        self.depth -= 1
        return changed
