"""Gradients of weights that a momentum takes up as they are computed, so that they need no bytes of their own.

    %s1 = nn.matmul(%dy1, %x1)                                  %v1 = nn.gemm(%dy1, %x1, %v) beta=0.9
    %s2 = nn.gemm(%dy2, %x2, %s1)                       ->      %v' = nn.gemm(%dy2, %x2, %v1)
    %w', %v' = nn.sgd(%w, %s2, %lr, %v) momentum=0.9            %w' = nn.sgd(%w, %v', %lr)

A gradient is one product, or a sum that begins with one: of a weight that every step of a recurrent network reads, it
would be there from the first term to the last. The momentum must be of the gradient alone: no dampening, no decay, and
not Nesterov's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sublet.base.errors import PlanError
from sublet.base.tensor import DType
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import made_by
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.gradients import operand, result
from sublet.passes.rewriting import readers

Terms = tuple[Node, ...]
"""A product of matrices, and those that add something to it, one after the other."""

WHOLE = {"alpha": 1.0, "beta": 1.0}
"""The factors of a product and of the sum that it is added to."""

LINKS = ("nn.matmul", "nn.gemm", "nn.add")


def gathered(graph: Graph, updates: Collection[str]) -> tuple[Graph, set[str]]:
    """The graph in which the momentum of each of these updates takes up its gradient, and the last terms by name.

    Raises PlanError for an update that cannot be written so.
    """
    chains = gatherable(graph) if updates else {}
    for name in updates:
        if name not in chains:
            raise PlanError(f"{name!r} is no update whose momentum could take up the gradient term by term")
    instead: dict[str, Node] = {}
    for node in graph.nodes:
        if node.name in updates:
            instead.update((each.name, each) for each in _written(node, chains[node.name]))
    made = replace(graph, nodes=tuple(instead.get(node.name, node) for node in graph.nodes))
    return made, {chains[name][-1].name for name in updates}


def gatherable(graph: Graph) -> dict[str, Terms]:
    """By update the terms of a gradient that its momentum can take up."""
    maker, read = made_by(graph.nodes), readers(graph)
    target = {source: target for target, source in graph.updates}
    found: dict[str, Terms] = {}
    for node in graph.nodes:
        if node.op == "nn.sgd" and _of_the_gradient_alone(node):
            momentum = operand(node, 3)
            if read[momentum] == 1 and target.get(result(node, 1)) == momentum:
                terms = _terms(operand(node, 1), maker, read)
                found |= {node.name: terms} if terms else {}
    return found


def _of_the_gradient_alone(node: Node) -> bool:
    """Whether the new momentum is momentum * old + gradient, in a type that sums are kept in."""
    alone = node.attrs["momentum"] and not any(node.attrs[key] for key in ("dampening", "decay", "nesterov"))
    return bool(alone) and None not in node.outputs and spec_of(operand(node, 3)).dtype in (DType.F32, DType.F64)


def _terms(gradient: Value, maker: Mapping[Value, Node], read: Mapping[Value, int]) -> Terms:
    """What a value is the sum of, from its first product on; none where that is none, or somebody else reads a part."""
    found: list[Node] = []
    total: Value | None = gradient
    while total is not None:
        node = maker.get(total)
        if node is None or node.op not in LINKS or read[total] != 1 or total.spec != gradient.spec:
            return ()
        if any(node.attrs.get(key, one) != one for key, one in WHOLE.items()):
            return ()
        found.append(node)
        total = _sum_before(node, maker)
    ranks = {len(spec_of(value).shape) for value in found[-1].uses}
    return tuple(found[::-1]) if ranks == {2} else ()


def _sum_before(node: Node, maker: Mapping[Value, Node]) -> Value | None:
    """What the node adds something to; None where it is a product alone."""
    if node.op == "nn.add":
        return next((v for v in node.uses if v in maker and maker[v].op in LINKS), node.uses[0])
    return node.inputs[2] if len(node.inputs) > 2 else None


def _written(update: Node, terms: Terms) -> list[Node]:
    """What stands in the place of the first term, the last, and the update."""
    w, _, rate, momentum = (operand(update, i) for i in range(4))
    moved, taken = update.outputs
    factors = {**WHOLE, "beta": pick(update.attrs, "momentum")}
    first = replace(terms[0], op="nn.gemm", inputs=(*terms[0].uses, momentum), attrs={**terms[0].attrs, **factors})
    last = replace(first if len(terms) == 1 else terms[-1], outputs=(taken,))
    attrs = {**update.attrs, "momentum": 0.0}
    return [first, last, replace(update, inputs=(w, taken, rate), outputs=(moved,), attrs=attrs)]
