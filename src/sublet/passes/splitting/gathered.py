"""Gradients that are sums of products, added up in the momentum that takes them up: so they need no other bytes.

    %s1 = nn.matmul(%dy1, %x1)                                  %v0 = nn.mul(%v, 0.9)
    %s2 = nn.gemm(%dy2, %x2, %s1)                       ->      %v1 = nn.gemm(%dy1, %x1, %v0)
    %w', %v' = nn.sgd(%w, %s2, %lr, %v) momentum=0.9            %v' = nn.gemm(%dy2, %x2, %v1)
                                                                %w' = nn.sgd(%w, %v', %lr)

A weight that every step of a recurrent network reads has such a gradient: a sum that would be there from the first
term to the last. The momentum must be of the gradient alone: no dampening, no decay, and not Nesterov's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sublet.base.errors import PlanError
from sublet.base.tensor import DType
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import made_by
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.gradients import operand, result
from sublet.passes.rewriting import readers

Terms = tuple[Node, ...]
"""Products of matrices that are added up one after the other, in order; at least two."""

WHOLE = {"alpha": 1.0, "beta": 1.0}
"""The factors of a product and of the sum that it is added to."""


def gathered(graph: Graph, updates: Collection[str]) -> tuple[Graph, set[str]]:
    """The graph in which the momentum of each of these updates takes up its gradient, and the last terms by name.

    Raises PlanError for an update that cannot be written so.
    """
    chains = gatherable(graph) if updates else {}
    emit = Emitter.of(graph)
    instead: dict[str, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node.name in updates and node.name in chains:
            emit.nodes.clear()
            instead.update(_written(emit, node, chains[node.name]))
    for name in updates:
        if name not in instead:
            raise PlanError(f"{name!r} is no update whose momentum could take up the gradient term by term")
    nodes = tuple(each for node in graph.nodes for each in instead.get(node.name, (node,)))
    made = replace(graph, nodes=nodes, weights=(*graph.weights, *emit.literals.added))
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
                found |= {node.name: terms} if len(terms) > 1 else {}
    return found


def _of_the_gradient_alone(node: Node) -> bool:
    """Whether the new momentum is momentum * old + gradient, in a type that sums are kept in."""
    alone = node.attrs["momentum"] and not any(node.attrs[key] for key in ("dampening", "decay", "nesterov"))
    return bool(alone) and None not in node.outputs and spec_of(operand(node, 3)).dtype in (DType.F32, DType.F64)


def _terms(gradient: Value, maker: Mapping[Value, Node], read: Mapping[Value, int]) -> Terms:
    """The products that a value is the sum of; none where it is another sum, or somebody else reads a part of it."""
    found: list[Node] = []
    total: Value | None = gradient
    while total is not None:
        node = maker.get(total)
        if node is None or read[total] != 1 or node.op not in ("nn.gemm", "nn.matmul"):
            return ()
        if total.spec != gradient.spec or any(node.attrs.get(key, one) != one for key, one in WHOLE.items()):
            return ()
        found.append(node)
        total = operand(node, 2) if node.op == "nn.gemm" else None
    ranks = {len(spec_of(value).shape) for value in found[-1].uses}
    return tuple(found[::-1]) if ranks == {2} else ()


def _written(emit: Emitter, update: Node, terms: Terms) -> dict[str, tuple[Node, ...]]:
    """What stands in the place of the update, its first term and its last."""
    w, _, rate, momentum = (operand(update, i) for i in range(4))
    moved, gathered = update.outputs
    emit.scope, emit.source = f"{update.name}.", update.source
    begun = emit("nn.mul", momentum, emit.constant(pick(update.attrs, "momentum"), momentum))
    first = replace(terms[0], op="nn.gemm", inputs=(*terms[0].inputs, begun), attrs={**WHOLE, **terms[0].attrs})
    return {
        first.name: (*emit.nodes, first),
        terms[-1].name: (replace(terms[-1], outputs=(gathered,)),),
        update.name: (
            replace(update, inputs=(w, gathered, rate), outputs=(moved,), attrs={**update.attrs, "momentum": 0.0}),
        ),
    }
