"""Updates of weights with fewer live gradients: accumulation in the momentum, and early updates.

Momentum accumulation: add each term of a weight gradient to the momentum directly, so the gradient needs no bytes.

    %s1 = nn.matmul(%dy1, %x1)                                  %v1 = nn.gemm(%dy1, %x1, %v) beta=0.9
    %s2 = nn.gemm(%dy2, %x2, %s1)                       ->      %v' = nn.gemm(%dy2, %x2, %v1)
    %w', %v' = nn.sgd(%w, %s2, %lr, %v) momentum=0.9            %w' = nn.sgd(%w, %v', %lr)

A gradient is a product, or a sum beginning with a product: the gradient of a weight read by every step of a recurrent
network would be live from the first term to the last. The momentum must depend on the gradient alone: no dampening, no
decay, no Nesterov momentum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

from sublet.base.errors import PlanError
from sublet.base.tensor import DType
from sublet.ir.dataflow import producer_positions, producing_nodes, required_values, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.rules import operand, result
from sublet.passes.rewriting import count_readers

Terms = tuple[Node, ...]
"""A product of matrices, and the nodes adding further terms, in order."""

UNIT_FACTORS = {"alpha": 1.0, "beta": 1.0}
"""The neutral factors of a product, and of the sum to which the product is added."""

TERM_OPS = ("nn.matmul", "nn.gemm", "nn.add")
"""Ops of the terms of a sum."""


def with_momentum_accumulation(graph: Graph, updates: Collection[str]) -> tuple[Graph, set[str]]:
    """Return the graph with the gradients of `updates` accumulated in the momentums, and the names of the last terms.

    Raises PlanError for an update without accumulable terms.
    """
    chains = accumulable_terms(graph) if updates else {}
    for name in updates:
        if name not in chains:
            raise PlanError(f"{name!r} is no update with a momentum that can accumulate the gradient term by term")
    replacements: dict[str, Node] = {}
    for node in graph.nodes:
        if node.name in updates:
            replacements.update((each.name, each) for each in _accumulating_nodes(node, chains[node.name]))
    made = replace(graph, nodes=tuple(replacements.get(node.name, node) for node in graph.nodes))
    return made, {chains[name][-1].name for name in updates}


def accumulable_terms(graph: Graph) -> dict[str, Terms]:
    """Return, by update, the terms of the gradient accumulable in the momentum."""
    maker, read = producing_nodes(graph.nodes), count_readers(graph)
    target = {source: target for target, source in graph.updates}
    found: dict[str, Terms] = {}
    for node in graph.nodes:
        if node.op == "nn.sgd" and _is_pure_momentum(node):
            momentum = operand(node, 3)
            if read[momentum] == 1 and target.get(result(node, 1)) == momentum:
                terms = _sum_terms(operand(node, 1), maker, read)
                found |= {node.name: terms} if terms else {}
    return found


def _is_pure_momentum(node: Node) -> bool:
    """True if the new momentum is momentum * old + gradient, in a type precise enough for sums (F32 or F64)."""
    alone = node.attrs["momentum"] and not any(node.attrs[key] for key in ("dampening", "decay", "nesterov"))
    return bool(alone) and None not in node.outputs and spec_of(operand(node, 3)).dtype in (DType.F32, DType.F64)


def _sum_terms(gradient: Value, maker: Mapping[Value, Node], read: Mapping[Value, int]) -> Terms:
    """Return the terms of a sum, from the first product on; () if the sum has no such form or a further reader."""
    found: list[Node] = []
    total: Value | None = gradient
    while total is not None:
        node = maker.get(total)
        if node is None or node.op not in TERM_OPS or read[total] != 1 or total.spec != gradient.spec:
            return ()
        if any(node.attrs.get(key, one) != one for key, one in UNIT_FACTORS.items()):
            return ()
        found.append(node)
        total = _partial_sum_operand(node, maker)
    ranks = {len(spec_of(value).shape) for value in found[-1].uses}
    return tuple(found[::-1]) if ranks == {2} else ()


def _partial_sum_operand(node: Node, maker: Mapping[Value, Node]) -> Value | None:
    """Return the operand of the node holding the sum so far; None for a plain product."""
    if node.op == "nn.add":
        return next((v for v in node.uses if v in maker and maker[v].op in TERM_OPS), node.uses[0])
    return node.inputs[2] if len(node.inputs) > 2 else None


def _accumulating_nodes(update: Node, terms: Terms) -> list[Node]:
    """Return the replacements of the first term, of the last term, and of the update."""
    w, _, rate, momentum = (operand(update, i) for i in range(4))
    moved, taken = update.outputs
    factors = {**UNIT_FACTORS, "beta": pick(update.attrs, "momentum")}
    first = replace(terms[0], op="nn.gemm", inputs=(*terms[0].uses, momentum), attrs={**terms[0].attrs, **factors})
    last = replace(first if len(terms) == 1 else terms[-1], outputs=(taken,))
    attrs = {**update.attrs, "momentum": 0.0}
    return [first, last, replace(update, inputs=(w, taken, rate), outputs=(moved,), attrs=attrs)]


# Early updates: run each update right after the gradient of the weight, so the gradient is not kept to the end.
#
# Nodes serving a single update move along. If a gradient is a sum, such as the gradient of a weight read by every step
# of a recurrent network, each term is added as soon as computed, and the operands of the term die early too.

Readers = Mapping[Value, Sequence[Node]]
"""The nodes reading each value."""


def early_order(graph: Graph, updates: Set[str]) -> list[Node]:
    """Return the nodes of the root level with `updates`, and nodes serving a single update, as early as possible.

    A node overwriting an operand runs as soon as legal, after all readers of the overwritten bytes. A node defining new
    bytes stays in place, unless a reader now runs earlier.
    """
    reading: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in required_values(node):
            reading.setdefault(value, []).append(node)
    owner = _served_updates(graph, updates, reading)
    moved = [node for node in graph.nodes if node.name in owner]
    place = _early_positions(graph, moved, updates, reading)
    after: dict[int, list[Node]] = {}
    for node in moved:
        after.setdefault(place[node.name], []).append(node)
    made = list(after.get(-1, ()))
    for i, node in enumerate(graph.nodes):
        made += [] if node.name in owner else [node]
        made += after.get(i, ())
    return made


def _served_updates(graph: Graph, updates: Set[str], reading: Readers) -> dict[str, str]:
    """Return, by node, the single update served by the node. An update serves itself."""
    wanted = set(results(graph))
    owner: dict[str, str] = {}
    for node in reversed(graph.nodes):
        served = {owner.get(other.name) for value in node.defs for other in reading.get(value, ())}
        if node.name in updates:
            owner[node.name] = node.name
        elif len(served) == 1 and wanted.isdisjoint(node.defs):
            (only,) = served
            if only is not None:
                owner[node.name] = only
    return owner


def _early_positions(graph: Graph, moved: Sequence[Node], updates: Set[str], reading: Readers) -> dict[str, int]:
    """Return, by node, the position to stand after, never later than the original position."""
    target = {source: target for target, source in graph.updates}
    maker = producer_positions(graph.nodes)
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    place = dict(position)

    def soonest(node: Node) -> int:
        """Return the position of the last node that `node` must wait for."""
        waited = [place[graph.nodes[maker[value]].name] for value in required_values(node) if value in maker]
        over = [target[value] for value in node.defs if value in target]
        waited += [place[other.name] for value in over for other in reading.get(value, ()) if other != node]
        return max(waited, default=-1)

    for node in moved:
        place[node.name] = min(soonest(node), position[node.name])
    for node in reversed(moved):
        if node.name not in updates and not _may_overwrite_operand(node):
            asked = [place[other.name] for value in node.defs for other in reading.get(value, ())]
            place[node.name] = min(position[node.name], *asked)
    for node in moved:  # readers of the overwritten bytes may have moved back
        place[node.name] = min(max(place[node.name], soonest(node)), position[node.name])
    return place


def _may_overwrite_operand(node: Node) -> bool:
    """True if the node may overwrite an operand."""
    return not node.subgraphs and bool(lookup(node.op).inplace(node))
