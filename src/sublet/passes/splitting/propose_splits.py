"""Proposals of nodes to split so that a smaller memory budget may suffice.

A value is large if larger than a share of the budget. Nodes defining or reading large values of samples are split by
samples; nodes defining or reading large gradients of weights are split by rows of the result; an addition of an
embedding gradient adds the looked-up rows in place. A node without a split rule stays whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sublet.base.formatting import abbreviated_list
from sublet.ir.dataflow import producing_nodes
from sublet.ir.graph import Graph, Node, Value
from sublet.passes.rewriting import count_readers
from sublet.passes.splitting.split_nodes import Splits, added_lookup_gradient, split_nodes
from sublet.passes.splitting.split_rules import (
    BATCH,
    EARLY,
    MOMENTUM,
    ONTO,
    OPTIMIZERS,
    POINTWISE,
    RESULT,
    SplitRule,
    fitting_rule,
    split_rules,
)
from sublet.passes.splitting.weight_updates import accumulable_terms

SHARES = (4, 8)
"""A value is large if larger than the budget divided by one of these numbers."""

MAX_PIECES = 64
"""Maximum number of pieces of a node."""

STAGES = ((BATCH,), (RESULT,), (BATCH, RESULT))


def propose_splits(graph: Graph, budget: int, share: int) -> list[tuple[tuple[str, str, int], ...]]:
    """Return distinct proposals of splits with no piece larger than `budget // share` bytes."""
    chooser, largest = _SplitChooser(graph), budget // share
    found = (tuple(chooser.choose_splits(largest, kinds)) for kinds in STAGES)
    updates = [node for node in graph.nodes if node.op.removeprefix("nn.") in OPTIMIZERS]
    early = tuple((node.name, chooser.early_kind(node, largest), 1) for node in updates)
    if split_nodes(graph, early).graph.nodes == graph.nodes:
        early = ()
    return [splits for splits in dict.fromkeys((early, *found)) if splits]


@dataclass
class _SplitChooser:
    """Chooser of splits for the nodes of a graph."""

    graph: Graph

    def __post_init__(self) -> None:
        self.of_weights = _weight_gradients(self.graph)
        self.read = count_readers(self.graph)
        self.terms = accumulable_terms(self.graph)
        self.given = {*self.graph.inputs, *self.graph.weights}

    def choose_splits(self, largest: int, kinds: Sequence[str]) -> list[tuple[str, str, int]]:
        """Return splits of the given kinds with no piece of a large value above `largest` bytes."""
        large = [v for node in self.graph.nodes for v in node.defs if v.nbytes > largest and v not in self.given]
        of_weights = {v for v in large if v in self.of_weights}
        chosen: dict[str, tuple[str, int]] = {}
        if BATCH in kinds:
            self._split_accessors({v for v in large if v not in of_weights}, largest, BATCH, chosen)
        if RESULT in kinds:
            accumulating = {name for name, terms in self.terms.items() if of_weights & set(terms[-1].defs)}
            chosen.update(dict.fromkeys(accumulating, (MOMENTUM, 1)))
            self._split_accessors(of_weights - self._accumulated_values(accumulating), largest, RESULT, chosen)
        for node in self.graph.nodes:
            if node.name not in chosen and of_weights & set(node.defs):
                added = added_lookup_gradient(self.graph, node, self.read)
                if added is not None:
                    chosen[node.name] = ONTO, 1
                    chosen.pop(added.name, None)
        return [(node.name, *chosen[node.name]) for node in self.graph.nodes if node.name in chosen]

    def early_kind(self, update: Node, largest: int) -> str:
        """Return the kind of early update: MOMENTUM if the gradient is large or a sum of several terms, else EARLY."""
        terms = self.terms.get(update.name, ())
        return MOMENTUM if len(terms) > 1 or (terms and terms[-1].defs[0].nbytes > largest) else EARLY

    def _accumulated_values(self, updates: Collection[str]) -> set[Value]:
        """Return the values with few or no bytes when the momentum of these updates accumulates the gradients."""
        nodes = [node for name in updates for node in self.terms[name]]
        nodes += [node for node in self.graph.nodes if node.name in updates]
        return {value for node in nodes for value in (*node.uses, *node.defs)}

    def _split_accessors(self, large: set[Value], largest: int, kind: str, chosen: dict[str, tuple[str, int]]) -> None:
        """Add splits of all nodes accessing values of `large`, into a common number of pieces, to `chosen`."""
        if not large:
            return
        touching = [node for node in self.graph.nodes if large & {*node.uses, *node.defs}]
        least = -(-max(value.nbytes for value in large) // max(1, largest))
        rules = [(node, split_rules(node, kind)) for node in touching]
        pieces = _piece_count(rules, min(least, MAX_PIECES))
        for node, known in rules:
            if fitting_rule(node, known, pieces) is not None:
                chosen[node.name] = kind, pieces


def _piece_count(nodes: Sequence[tuple[Node, Sequence[SplitRule]]], min_count: int) -> int:
    """Return the number of pieces to split the most nodes, equally if possible; 0 if none can be split.

    `nodes` have their rules. The numbers from `min_count` to `2 * min_count` are tried first, then smaller numbers.
    """
    best, most = 0, (0, 0)
    for count in [*range(max(2, min_count), 2 * min_count + 1), *range(max(2, min_count) - 1, 1, -1)]:
        rules = [rule for node, known in nodes if (rule := fitting_rule(node, known, count)) is not None]
        score = len(rules), sum(rule.extent % count == 0 for rule in rules)
        if score > most:
            best, most = count, score
    return best


def _weight_gradients(graph: Graph) -> set[Value]:
    """Return the gradients of weights, their element-wise operands, and the results of optimisers."""
    maker = producing_nodes(graph.nodes)
    found: set[Value] = set()
    todo: list[Value] = [source for _, source in graph.updates]
    pointwise = {*POINTWISE, *OPTIMIZERS, "reshape"}
    while todo:
        value = todo.pop()
        node = maker.get(value)
        if value in found or node is None:
            continue
        found.add(value)
        if node.op.removeprefix("nn.") in pointwise:
            todo += [each for each in node.uses if each.nbytes == value.nbytes]
            found.update(node.defs)
    return found


def describe_splits(splits: Splits) -> str:
    """Return a description of the splits for users, naming the first node of each kind."""
    found: dict[tuple[str, int], list[str]] = {}
    for name, kind, count in splits:
        found.setdefault((kind, count), []).append(name)
    return ", ".join(_describe_kind(kind, count, names) for (kind, count), names in found.items())


def _describe_kind(kind: str, count: int, names: Sequence[str]) -> str:
    """Return a description of the splits of a kind."""
    named = abbreviated_list(names, 1)
    if kind == EARLY:
        return f"{named} run as early as possible"
    if kind == MOMENTUM:
        return f"{named} run as early as possible, and their momentum accumulates the gradient term by term"
    if kind == ONTO:
        return f"{named} adds the gradient of looked-up rows in place"
    rows = "rows of the batch" if kind == BATCH else "rows of the result"
    verb = "are" if len(names) > 1 else "is"
    return f"{named} {verb} split into {count} pieces by {rows}"
