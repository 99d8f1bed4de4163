"""Common sub-expressions: what is computed twice is computed once.

Requires a legal graph. Ensures that no two pure nodes of equal op, inputs and attributes remain where one could
serve for both: at one level, or one in a sub-graph and one visible outside of it.

    %a = nn.add(%x, %y)                  %a = nn.add(%x, %y)
    %b = nn.add(%x, %y)          ->      %c = nn.mul(%a, %a)
    %c = nn.mul(%a, %b)

Nodes without inputs are not common: a constant costs less to fill in again than to keep. Nor is what was written to
compute a value `again`, to save memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup
from sublet.passes.rewriting import Rewriter, attributes

COMMUTATIVE = frozenset(
    f"nn.{name}" for name in ("add", "mul", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or")
)
"""Ops of two inputs that give the same, bit by bit, when these are exchanged."""


def without_common(graph: Graph) -> Graph:
    """The graph with each expression computed once."""
    scopes: list[dict[Hashable, Node]] = [{}]

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        key = _key(node)
        if key is None:
            return [node]
        for scope in scopes:
            found = scope.get(key)
            if found is not None and _serves(node, found, rewriter):
                for old, new in _pairs(node, found):
                    rewriter.be(old, new)
                return []
        scopes[-1].setdefault(key, node)
        return [node]

    return Rewriter(graph, step, enter=lambda _: scopes.append({}), leave=lambda _: scopes.__delitem__(-1)).run()


def _key(node: Node) -> Hashable | None:
    """What equal nodes have in common; None for a node that stays."""
    if node.subgraphs or node.again or node.scratch is not None or not node.uses or not lookup(node.op).pure:
        return None
    inputs: tuple[str, ...] = tuple("" if value is None else f"%{value.name}" for value in node.inputs)
    if node.op in COMMUTATIVE:
        inputs = tuple(sorted(inputs))
    return node.op, inputs, attributes(node), tuple(str(value.spec) for value in node.defs), len(node.outputs)


def _pairs(node: Node, found: Node) -> list[tuple[Value, Value]]:
    return [(old, new) for old, new in zip(node.outputs, found.outputs, strict=True) if old and new]


def _serves(node: Node, found: Node, rewriter: Rewriter) -> bool:
    """Whether `found` has every output of `node`, and each may stand for it."""
    given = all(old is None or new is not None for old, new in zip(node.outputs, found.outputs, strict=True))
    return given and all(rewriter.can_be(old, rewriter.of(new)) for old, new in _pairs(node, found))
