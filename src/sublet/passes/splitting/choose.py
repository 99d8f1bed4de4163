"""Which nodes to do in pieces so that less than a number of bytes may do: proposals, the fewest pieces first.

A value is large that takes more than a share of the budget. Nodes that make or read large values of samples are cut by
samples, those that make or read large gradients of weights by rows of the result; an addition of a looked-up
gradient adds its rows in place. What nobody knows how to cut stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sublet.base.printable import listed
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import made_by
from sublet.passes.rewriting import readers
from sublet.passes.splitting.gathered import gatherable
from sublet.passes.splitting.pieces import Splits, onto, splitted
from sublet.passes.splitting.ways import BATCH, BY_RESULT, EARLY, MOMENTUM, ONTO, POINTWISE, RESULT, way

SHARES = (4, 8)
"""A value is large that takes more than one of these of the budget."""

MOST = 64
"""Pieces of a node at most."""

OPTIMIZERS = frozenset(BY_RESULT) - frozenset(POINTWISE) - {"matmul", "embedding_gradient", "reshape"}

STAGES = ((BATCH,), (RESULT,), (BATCH, RESULT))


def proposals(graph: Graph, budget: int, share: int) -> list[tuple[tuple[str, str, int], ...]]:
    """Splits of some nodes so that no piece takes more than one of so many shares of the budget; each once."""
    chooser, largest = _Chooser(graph), budget // share
    found = (tuple(chooser.splits(largest, kinds)) for kinds in STAGES)
    updates = [node for node in graph.nodes if node.op.removeprefix("nn.") in OPTIMIZERS]
    early = tuple((node.name, chooser.early(node, largest), 1) for node in updates)
    if splitted(graph, early).graph.nodes == graph.nodes:
        early = ()
    return [splits for splits in dict.fromkeys((early, *found)) if splits]


@dataclass
class _Chooser:
    graph: Graph

    def __post_init__(self) -> None:
        self.of_weights = _of_weights(self.graph)
        self.read = readers(self.graph)
        self.terms = gatherable(self.graph)
        self.given = {*self.graph.inputs, *self.graph.weights}

    def splits(self, largest: int, kinds: Sequence[str]) -> list[tuple[str, str, int]]:
        """What to cut so that no value in pieces takes more."""
        large = [v for node in self.graph.nodes for v in node.defs if v.nbytes > largest and v not in self.given]
        ours = {v for v in large if v in self.of_weights}
        chosen: dict[str, tuple[str, int]] = {}
        if BATCH in kinds:
            self._cut({v for v in large if v not in ours}, largest, BATCH, chosen)
        if RESULT in kinds:
            taken = {name for name, terms in self.terms.items() if ours & set(terms[-1].defs)}
            chosen.update(dict.fromkeys(taken, (MOMENTUM, 1)))
            self._cut(ours - self._taken_up(taken), largest, RESULT, chosen)
        for node in self.graph.nodes:
            if node.name not in chosen and ours & set(node.defs):
                added = onto(self.graph, node, self.read)
                if added is not None:
                    chosen[node.name] = ONTO, 1
                    chosen.pop(added.name, None)
        return [(node.name, *chosen[node.name]) for node in self.graph.nodes if node.name in chosen]

    def early(self, update: Node, largest: int) -> str:
        """How an update runs early: a momentum takes up a gradient that is large, or waits for several terms."""
        terms = self.terms.get(update.name, ())
        return MOMENTUM if len(terms) > 1 or (terms and terms[-1].defs[0].nbytes > largest) else EARLY

    def _taken_up(self, updates: Collection[str]) -> set[Value]:
        """What needs no bytes of its own, or as few as can be, where these updates take up their gradients."""
        nodes = [node for name in updates for node in self.terms[name]]
        nodes += [node for node in self.graph.nodes if node.name in updates]
        return {value for node in nodes for value in (*node.uses, *node.defs)}

    def _cut(self, large: set[Value], largest: int, kind: str, chosen: dict[str, tuple[str, int]]) -> None:
        if not large:
            return
        touching = [node for node in self.graph.nodes if large & {*node.uses, *node.defs}]
        least = -(-max(value.nbytes for value in large) // max(1, largest))
        pieces = _pieces(touching, kind, min(least, MOST))
        for node in touching:
            if pieces and way(node, kind, pieces) is not None:
                chosen[node.name] = kind, pieces


def _pieces(nodes: Sequence[Node], kind: str, least: int) -> int:
    """The number of pieces that most nodes can be cut into, alike as far as possible, from `least` on; 0 for none."""
    best, most = 0, (0, 0)
    for count in [*range(max(2, least), 2 * least + 1), *range(max(2, least) - 1, 1, -1)]:
        ways = [found for node in nodes if (found := way(node, kind, count)) is not None]
        score = len(ways), sum(found.extent % count == 0 for found in ways)
        if score > most:
            best, most = count, score
    return best


def _of_weights(graph: Graph) -> set[Value]:
    """Gradients of weights and what they are made of element by element, and what optimisers make of them."""
    maker = made_by(graph.nodes)
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


def split_words(splits: Splits) -> str:
    """What is done in pieces, for people: the first node of each kind by name."""
    found: dict[tuple[str, int], list[str]] = {}
    for name, kind, count in splits:
        found.setdefault((kind, count), []).append(name)
    return ", ".join(_words(kind, count, names) for (kind, count), names in found.items())


def _words(kind: str, count: int, names: Sequence[str]) -> str:
    told = listed(names, 1)
    if kind == EARLY:
        return f"{told} run as soon as they can"
    if kind == MOMENTUM:
        return f"{told} run as soon as they can, their momentum takes up the gradient term by term"
    if kind == ONTO:
        return f"{told} adds looked-up rows in place"
    rows = "rows of the batch" if kind == BATCH else "rows of the result"
    verb = "are" if len(names) > 1 else "is"
    return f"{told} {verb} done in {count} pieces by {rows}"
