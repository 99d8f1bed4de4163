"""Constant folding: what can be known before the run is not computed in it.

Requires a legal graph. Ensures that no pure nn command remains whose inputs all have known elements, when its
results are small; that a branch whose index is known is its arm; that a loop which makes no round is gone, and a
parameter that never changes is its initial value.

    weights %two: f32[] = [2.0]               weights %two: f32[] = [2.0], %const: f32[] = [4.0]
    %four = nn.mul(%two, %two)          ->
    %y = nn.mul(%x, %four)                    %y = nn.mul(%x, %const)

    %y = case %no { arm @a { yield %x } arm @b { yield %z } }, %no = [false]    ->    %x for %y

Known elements are computed by the NumPy reference of the command. Those of a weight that a run updates are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ir.walk import renamed
from sublet.passes.literals import Elements, computed
from sublet.passes.rewriting import Rewriter, known_weights

ROUNDS = 100
"""Loops may nest, and what an inner one turns out not to change an outer one need not carry: each takes a round."""


def folded(graph: Graph) -> Graph:
    """The graph with everything computed that is known."""
    for _ in range(ROUNDS):
        before, graph = graph, _once(_without_idle_carries(graph))
        if graph == before:
            break
    return graph


def _once(graph: Graph) -> Graph:
    known: dict[Value, Elements] = {v: v.literal for v in known_weights(graph) if v.literal is not None}

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        if isinstance(node, CaseOf):
            return _branch(node, rewriter, known)
        if isinstance(node, While):
            return _loop(node, rewriter, known)
        return _fold(node, rewriter, known)

    return Rewriter(graph, step).run()


def _fold(node: Node, rewriter: Rewriter, known: dict[Value, Elements]) -> Sequence[Node]:
    if not node.uses:
        return [node]  # a constant already
    made = computed(node, known)
    outputs = [value for value in node.outputs if value is not None]
    if made is None or not all(rewriter.foldable(value) for value in outputs):
        return [node]
    for value, elements in zip(outputs, made, strict=True):
        assert isinstance(value.spec, TensorSpec)
        literal = rewriter.literals.of(elements, value.spec)
        known[literal] = elements
        rewriter.be(value, literal)
    return []


def _branch(node: CaseOf, rewriter: Rewriter, known: dict[Value, Elements]) -> Sequence[Node]:
    """The nodes of the arm that a known index chooses."""
    if node.index not in known:
        return [node]
    index = int(known[node.index][0])
    if index >= len(node.arms) or (index < 0 and not node.fallbacks):
        return [node]  # an error at run time
    results = node.fallbacks if index < 0 else node.arms[index].outputs
    nodes = () if index < 0 else node.arms[index].nodes
    return _instead(node, nodes, results, rewriter)


def _instead(node: Node, nodes: Sequence[Node], results: Sequence[Value], rewriter: Rewriter) -> Sequence[Node]:
    """`nodes` for the node, its outputs being `results`; the node itself where an output cannot be renamed."""
    rewriter.place(nodes)
    pairs = [(old, rewriter.of(new)) for old, new in zip(node.outputs, results, strict=True) if old is not None]
    renamed = [new for old, new in pairs if not rewriter.foldable(old)]
    if len(set(renamed)) < len(renamed) or not all(rewriter.can_be(old, new) for old, new in pairs):
        return [node]
    for old, new in pairs:
        rewriter.be(old, new)
    return nodes


def _loop(node: While, rewriter: Rewriter, known: dict[Value, Elements]) -> Sequence[Node]:
    """Nothing for a loop whose condition is false at the first check."""
    if any(value is not None for value in node.stacked) or not _never_runs(node, known):
        return [node]
    return _instead(node, (), node.inits, rewriter)


def _never_runs(node: While, known: dict[Value, Elements]) -> bool:
    first = dict(known)
    first[node.counter] = (0,)
    first.update((p, known[init]) for p, init in zip(node.parameters, node.inits, strict=True) if init in known)
    for inner in node.body.nodes[: node.check]:
        made = None if inner.subgraphs else computed(inner, first)
        for value, elements in zip(inner.defs, made or (), strict=False):
            first[value] = elements
    return node.condition in first and not first[node.condition][0]


def _without_idle_carries(graph: Graph) -> Graph:
    """Loops read a value that they carry and never change where it is; `dead_code` then stops carrying it."""

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        if not isinstance(node, While):
            return [node]
        carries = zip(node.parameters, node.inits, node.updates, strict=True)
        idle = {parameter: init for parameter, init, update in carries if update in (parameter, init)}
        finals = list(node.finals)
        for k, parameter in enumerate(node.parameters):
            final = finals[k]
            if final is not None and parameter in idle and rewriter.be(final, idle[parameter]):
                finals[k] = None
        condition = idle.get(node.condition, node.condition)
        body = renamed(node.body, idle, definitions=False)
        return [replace(node, outputs=(*finals, *node.stacked), body=body, condition=condition)]

    return Rewriter(graph, step).run()
