"""Common subexpression elimination.

Requires a legal graph. Ensures that no two pure nodes of equal op, inputs and attributes remain where one node could
replace both: at the same level, or one node in a sub-graph and one node visible outside of the sub-graph.

    %a = nn.add(%x, %y)                  %a = nn.add(%x, %y)
    %b = nn.add(%x, %y)          ->      %c = nn.mul(%a, %a)
    %c = nn.mul(%a, %b)

Nodes without inputs are exempt: filling in a constant twice costs less than keeping the constant alive. Nodes marked
`again` are exempt too: rematerialization wrote the duplicates on purpose, to save memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup
from sublet.passes.rewriting import Rewriter, attribute_key

COMMUTATIVE = frozenset(
    f"nn.{name}" for name in ("add", "mul", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or")
)
"""Ops of two inputs with bitwise equal results after exchanging the inputs."""


def without_common_subexpressions(graph: Graph) -> Graph:
    """Return the graph with every common subexpression computed once."""
    scopes: list[dict[Hashable, Node]] = [{}]

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        key = _expression_key(node)
        if key is None:
            return [node]
        for scope in scopes:
            earlier = scope.get(key)
            if earlier is not None and _can_replace(node, earlier, rewriter):
                for old, new in _output_pairs(node, earlier):
                    rewriter.replace_value(old, new)
                return []
        scopes[-1].setdefault(key, node)
        return [node]

    return Rewriter(graph, step, enter=lambda _: scopes.append({}), leave=lambda _: scopes.__delitem__(-1)).run()


def _expression_key(node: Node) -> Hashable | None:
    """Return a key equal for equal expressions; None for a node that must stay."""
    if node.subgraphs or node.again or node.scratch is not None or not node.uses or not lookup(node.op).pure:
        return None
    inputs: tuple[str, ...] = tuple("" if value is None else f"%{value.name}" for value in node.inputs)
    if node.op in COMMUTATIVE:
        inputs = tuple(sorted(inputs))
    return node.op, inputs, attribute_key(node), tuple(str(value.spec) for value in node.defs), len(node.outputs)


def _output_pairs(node: Node, earlier: Node) -> list[tuple[Value, Value]]:
    """Return the pairs (output of `node`, output of `earlier`) with both present."""
    return [(old, new) for old, new in zip(node.outputs, earlier.outputs, strict=True) if old and new]


def _can_replace(node: Node, earlier: Node, rewriter: Rewriter) -> bool:
    """True if `earlier` has every output of `node` and the readers of each output may read `earlier` instead."""
    complete = all(old is None or new is not None for old, new in zip(node.outputs, earlier.outputs, strict=True))
    pairs = _output_pairs(node, earlier)
    return complete and all(rewriter.can_replace(old, rewriter.resolve(new)) for old, new in pairs)
