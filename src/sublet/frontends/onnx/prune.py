"""Removing what no output needs: nodes, optional outputs, rows of loops, weights.

The graph is read backwards; a value is needed when an output, an update or a needed node reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from sublet.base.extras import require
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.onnx_outputs import written_outputs

T = TypeVar("T")


def prune(graph: Graph, also: Collection[Value] = ()) -> Graph:
    """The graph without dead nodes and unused weights; inputs, outputs and updates stay, and what is needed `also`."""
    needed = {*graph.outputs, *(value for pair in graph.updates for value in pair), *also}
    nodes = _needed_nodes(graph.nodes, needed)
    weights = tuple(weight for weight in graph.weights if weight in needed)
    return replace(graph, nodes=nodes, weights=weights)


def _needed_nodes(nodes: Sequence[Node], needed: set[Value]) -> tuple[Node, ...]:
    """The nodes that define a needed value; `needed` grows by what they read."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if not any(value in needed for value in node.defs):
            continue
        if isinstance(node, CaseOf):
            node = _prune_case(node, needed)
        elif isinstance(node, While):
            node = _prune_while(node, needed)
        else:
            node = replace(node, outputs=_prune_outputs(node, needed))
        needed.update(node.uses)
        kept.append(node)
    return tuple(reversed(kept))


def _pick(items: Sequence[T], keep: Sequence[int]) -> tuple[T, ...]:
    return tuple(items[i] for i in keep)


def _prune_case(node: CaseOf, needed: set[Value]) -> CaseOf:
    keep = [i for i, value in enumerate(node.outputs) if value is not None and value in needed]
    arms: list[Graph] = []
    for arm in node.arms:
        outputs = _pick(arm.outputs, keep)
        needed.update(outputs)
        arms.append(replace(arm, nodes=_needed_nodes(arm.nodes, needed), outputs=outputs))
    return replace(node, outputs=_pick(node.outputs, keep), arms=tuple(arms))


def _prune_while(node: While, needed: set[Value]) -> While:
    keep = [i for i, value in enumerate(node.stacked) if value is not None and value in needed]
    outputs = (*node.updates, *_pick(node.rows, keep))
    needed.update((*outputs, node.condition))
    rest = _needed_nodes(node.body.nodes[node.check :], needed)
    prefix = _needed_nodes(node.body.nodes[: node.check], needed)
    finals = tuple(value if value in needed else None for value in node.finals)
    return replace(
        node,
        outputs=(*finals, *_pick(node.stacked, keep)),
        body=replace(node.body, nodes=(*prefix, *rest), outputs=outputs),
        check=len(prefix),
        row_axes=_pick(node.row_axes, keep),
        row_reversed=_pick(node.row_reversed, keep),
    )


def _prune_outputs(node: Node, needed: set[Value]) -> tuple[Value | None, ...]:
    """The outputs without optional ones that nobody reads (a mask, indices), unless a kernel writes them anyway.

    Their places stay: by how many a node lists ONNX Runtime picks a kernel, and that of MaxPool with indices takes NaN
    for another number than that without.
    """
    domain, _, op_type = node.op.removeprefix("onnx.").rpartition(".")
    given = [value is not None for value in node.inputs]
    optional = optional_outputs(node.op) - written_outputs(domain, op_type, given, len(node.outputs))
    return tuple(None if i in optional and v not in needed else v for i, v in enumerate(node.outputs))


@lru_cache(maxsize=1024)
def optional_outputs(op: str) -> frozenset[int]:
    """Positions of the outputs that a node of this ONNX operator may leave out."""
    defs = require("onnx.defs", extra="onnx")
    domain, _, name = op.removeprefix("onnx.").rpartition(".")
    try:
        schema = defs.get_schema(name, domain=domain)
    except defs.SchemaError:
        return frozenset()
    option = defs.OpSchema.FormalParameterOption.Optional
    return frozenset(i for i, output in enumerate(schema.outputs) if output.option == option)
