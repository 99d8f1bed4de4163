"""What passes are written with: one walk over a program that replaces values, and what a program needs.

A pass that looks at one node at a time gives `Rewriter` a step, `node -> nodes to put in its place`, which may say
that a value is another one. The walk is forward and includes sub-graphs, so a step sees its node with all earlier
replacements made.

Names of the values that enter and leave the program stay what they are: an output is replaced only by a value that
can take over its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.ir.graph import Graph, Node, Value, While
from sublet.ir.walk import mapped, reads, reads_inside, renamed, results, tested, with_inputs, with_results
from sublet.ops import lookup
from sublet.ops.emitter import Emitter, Literals, Names


def known_weights(graph: Graph) -> tuple[Value, ...]:
    """The weights whose elements are known, and stay what they are."""
    return tuple(value for value in graph.constants if value.literal is not None)


def readers(graph: Graph) -> Counter[Value]:
    """How often each value of a program is read; a result of the program counts as read once more."""
    counts: Counter[Value] = Counter(results(graph))
    for node in graph.walk():
        counts.update(reads(node))
    return counts


def attributes(node: Node) -> tuple[tuple[str, str], ...]:
    """The attributes of a node, alike only where they are the same: 1 == True and 0.0 == -0.0, but differ."""
    return tuple(sorted((key, repr(value)) for key, value in node.attrs.items()))


def is_pure(node: Node) -> bool:
    """Whether a node, with its sub-graphs, does nothing but compute its outputs."""
    if node.subgraphs:
        return all(is_pure(inner) for sub in node.subgraphs for inner in sub.nodes)
    return lookup(node.op).pure


Readers = Mapping[Value, Sequence[str]]
"""The nodes of a level that read each value, in order; "" stands for who takes the results or tests the condition."""

Run = Callable[[Sequence[Node], Readers], Sequence[Node]]
"""(nodes that always run one after another, who reads what) -> what stands in their place."""


def by_runs(graph: Graph, change: Run) -> Graph:
    """The program with `change` made to each run of nodes: a level, or what is before or after the check of a loop."""
    nodes = change(graph.nodes, _readers(graph))
    return replace(graph, nodes=tuple(_inside(node, change) for node in nodes))


def _inside(node: Node, change: Run) -> Node:
    if not isinstance(node, While):
        return mapped(node, lambda arm: by_runs(arm, change))
    readers = _readers(node.body, tested(node))
    before = change(node.body.nodes[: node.check], readers)
    after = change(node.body.nodes[node.check :], readers)
    nodes = tuple(_inside(inner, change) for inner in (*before, *after))
    return replace(node, body=replace(node.body, nodes=nodes), check=len(before))


def _readers(graph: Graph, also: Sequence[Value] = ()) -> dict[Value, list[str]]:
    readers: dict[Value, list[str]] = {}
    for node in graph.nodes:
        for value in reads_inside(node):
            readers.setdefault(value, []).append(node.name)
    for value in (*results(graph), *also):
        readers.setdefault(value, []).append("")
    return readers


def settled(graph: Graph, change: Callable[[Graph], Graph], rounds: int) -> Graph:
    """The graph after `change` again and again, until it changes nothing or has been made `rounds` times."""
    for _ in range(rounds):
        before, graph = graph, change(graph)
        if graph == before:
            break
    return graph


Step = Callable[[Node, "Rewriter"], Sequence[Node]]


@dataclass
class Rewriter:
    """One forward walk over a program. `step` gives what stands in the place of each node, sub-graphs done already.

    constants   literals known so far, with those added
    depth       how many sub-graphs the walk is inside of
    """

    graph: Graph
    step: Step
    names: Names = field(init=False)
    literals: Literals = field(init=False)
    depth: int = field(init=False, default=0)
    _now: dict[Value, Value] = field(init=False, default_factory=dict)
    _renamed: dict[Value, Value] = field(init=False, default_factory=dict)
    _fixed: set[Value] = field(init=False)
    _at_root: set[Value] = field(init=False, default_factory=set)
    enter: Callable[[Graph], None] = lambda graph: None
    leave: Callable[[Graph], None] = lambda graph: None

    def __post_init__(self) -> None:
        self.names = Names.of(self.graph)
        self.literals = Literals(self.names, known_weights(self.graph))
        self._fixed = set(self.graph.outputs)

    def run(self) -> Graph:
        """The rewritten program."""
        nodes = self._nodes(self.graph.nodes)
        changed = with_results(replace(self.graph, nodes=tuple(nodes)), self.of)
        changed = replace(changed, weights=(*changed.weights, *self.literals.added))
        return renamed(changed, self._renamed) if self._renamed else changed

    def emitter(self, like: Node) -> Emitter:
        """One that writes nodes in the place of `like`."""
        return Emitter(self.names, self.literals, source=like.source)

    def of(self, value: Value) -> Value:
        """What stands for the value now."""
        while value in self._now:
            value = self._now[value]
        return value

    def can_be(self, old: Value, new: Value) -> bool:
        """Whether every reader of `old` may read `new` instead."""
        if old.spec != new.spec:
            return False
        return old not in self._fixed or (new in self._at_root and new not in self._fixed)

    def foldable(self, value: Value) -> bool:
        """Whether the value may have another name: it does not leave the program."""
        return value not in self._fixed

    def be(self, old: Value, new: Value) -> bool:
        """Let every reader of `old` read `new`, which holds the same. False when that cannot be.

        Once it can, nobody may define `old` any more: the step leaves its node out.
        """
        new = self.of(new)
        if old is new or not self.can_be(old, new):
            return False
        self._now[old] = new
        if old in self._fixed:  # the output keeps its name, whoever computes it
            self._fixed.add(new)
            self._renamed[new] = old
        return True

    def _nodes(self, nodes: Iterable[Node]) -> list[Node]:
        made: list[Node] = []
        for node in nodes:
            made += self._one(node)
        return made

    def _one(self, node: Node) -> Sequence[Node]:
        node = with_inputs(node, self.of)
        node = self._loop(node) if isinstance(node, While) else mapped(node, self._arm)
        put = self.step(node, self)
        self.place(put)
        return put

    def place(self, nodes: Iterable[Node]) -> None:
        """Say that these nodes will stand where the walk is, before a step returns them."""
        if self.depth == 0:
            self._at_root.update(value for node in nodes for value in node.defs)

    def _loop(self, node: While) -> While:
        self.depth += 1
        self.enter(node.body)
        before = self._nodes(node.body.nodes[: node.check])
        condition = self.of(node.condition)
        after = self._nodes(node.body.nodes[node.check :])
        body = with_results(replace(node.body, nodes=(*before, *after)), self.of)
        self.leave(node.body)
        self.depth -= 1
        return replace(node, body=body, condition=condition, check=len(before))

    def _arm(self, arm: Graph) -> Graph:
        self.depth += 1
        self.enter(arm)
        changed = with_results(replace(arm, nodes=tuple(self._nodes(arm.nodes))), self.of)
        self.leave(arm)
        self.depth -= 1
        return changed
