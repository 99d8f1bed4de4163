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

from sublet.ir.emitter import Emitter, Literals, Names
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops import lookup

Updates = tuple[tuple[Value, Value], ...]


def updates_of(graph: Graph) -> Updates:
    """The (target, source) pairs assigned when a run ends."""
    return graph.updates


def results(graph: Graph) -> tuple[Value, ...]:
    """What a graph is computed for: its outputs, and the sources of its updates."""
    return (*graph.outputs, *(source for _, source in updates_of(graph)))


def with_results(graph: Graph, of: Callable[[Value], Value]) -> Graph:
    """The graph with `of(value)` in place of each output and source of an update."""
    changed = replace(graph, outputs=tuple(map(of, graph.outputs)))
    updates = tuple((target, of(source)) for target, source in updates_of(graph))
    return replace(changed, updates=updates) if updates else changed


def constants_of(graph: Graph) -> tuple[Value, ...]:
    """The weights whose elements are known, and stay what they are."""
    targets = {target for target, _ in updates_of(graph)}
    return tuple(value for value in graph.weights if value.literal is not None and value not in targets)


def reads(node: Node) -> tuple[Value, ...]:
    """What a node reads at its own level: inputs, and what its sub-graphs give or test."""
    if isinstance(node, While):
        return (*node.uses, *node.body.outputs, node.condition)
    return (*node.uses, *(value for sub in node.subgraphs for value in sub.outputs))


def readers(graph: Graph) -> Counter[Value]:
    """How often each value of a program is read; a result of the program counts as read once more."""
    counts: Counter[Value] = Counter(results(graph))
    for node in graph.walk():
        counts.update(reads(node))
    return counts


def reads_inside(node: Node) -> set[Value]:
    """All that a node and the nodes of its sub-graphs read, what is defined in there included."""
    found = set(reads(node))
    for sub in node.subgraphs:
        for inner in sub.nodes:
            found |= reads_inside(inner)
    return found


def is_pure(node: Node) -> bool:
    """Whether a node, with its sub-graphs, does nothing but compute its outputs."""
    if node.subgraphs:
        return all(is_pure(inner) for sub in node.subgraphs for inner in sub.nodes)
    return lookup(node.op).pure


def with_inputs(node: Node, of: Callable[[Value], Value]) -> Node:
    """The node with `of(value)` in place of each of its inputs."""
    inputs = tuple(None if value is None else of(value) for value in node.inputs)
    return node if inputs == node.inputs else replace(node, inputs=inputs)


def _with_subgraphs(node: Node, change: Callable[[Graph], Graph]) -> Node:
    if isinstance(node, While):
        return replace(node, body=change(node.body))
    if isinstance(node, CaseOf):
        return replace(node, arms=tuple(map(change, node.arms)))
    return node


Readers = Mapping[Value, Sequence[str]]
"""The nodes of a level that read each value, in order; "" stands for who takes the results or tests the condition."""

Run = Callable[[Sequence[Node], Readers], Sequence[Node]]
"""(nodes that always run one after another, who reads what) -> what stands in their place."""


def by_runs(graph: Graph, change: Run) -> Graph:
    """The program with `change` made to each run of nodes: a level, or what is before or after the check of a loop."""
    nodes = change(graph.nodes, _readers(graph))
    return replace(graph, nodes=tuple(_inside(node, change) for node in nodes))


def _inside(node: Node, change: Run) -> Node:
    if isinstance(node, CaseOf):
        return replace(node, arms=tuple(by_runs(arm, change) for arm in node.arms))
    if not isinstance(node, While):
        return node
    readers = _readers(node.body, (node.condition,))
    before = change(node.body.nodes[: node.check], readers)
    after = change(node.body.nodes[node.check :], readers)
    nodes = tuple(_inside(inner, change) for inner in (*before, *after))
    return replace(node, body=replace(node.body, nodes=nodes), check=len(before))


def _readers(graph: Graph, tested: Sequence[Value] = ()) -> dict[Value, list[str]]:
    readers: dict[Value, list[str]] = {}
    for node in graph.nodes:
        for value in reads_inside(node):
            readers.setdefault(value, []).append(node.name)
    for value in (*results(graph), *tested):
        readers.setdefault(value, []).append("")
    return readers


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
        self.names = Names([v.name for v in self.graph.values()] + [n.name for n in self.graph.walk()])
        self.literals = Literals(self.names, constants_of(self.graph))
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
        if isinstance(node, While):
            node = self._loop(node)
        elif isinstance(node, CaseOf):
            node = replace(node, arms=tuple(map(self._arm, node.arms)))
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


def renamed(graph: Graph, names: Mapping[Value, Value], *, definitions: bool = True) -> Graph:
    """The graph with other values in the place of some, where they are read and, if so wished, defined."""

    def of(value: Value) -> Value:
        return names.get(value, value)

    def level(graph: Graph) -> Graph:
        inputs = tuple(map(of, graph.inputs)) if definitions else graph.inputs
        return with_results(replace(graph, nodes=tuple(map(one, graph.nodes)), inputs=inputs), of)

    def one(node: Node) -> Node:
        node = with_inputs(node, of)
        if definitions:
            node = replace(node, outputs=tuple(None if value is None else of(value) for value in node.outputs))
        if isinstance(node, While):
            return replace(node, condition=of(node.condition), body=level(node.body))
        return _with_subgraphs(node, level)

    return level(graph)
