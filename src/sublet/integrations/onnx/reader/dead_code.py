"""Dead-code elimination: removes unneeded nodes, optional outputs, stacked rows of loops, and weights.

The graph is read backwards; a value is needed when an output, an update or a needed node reads the value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from sublet.base.optional_imports import require
from sublet.integrations.onnx.dialect import always_written_outputs
from sublet.ir.graph import CaseOf, Graph, Node, Value, While

T = TypeVar("T")


def remove_dead_code(graph: Graph, also: Collection[Value] = ()) -> Graph:
    """Return the graph without dead nodes and unused weights.

    Inputs, outputs, updates, and the values in `also` stay.
    """
    needed = {*graph.outputs, *(value for pair in graph.updates for value in pair), *also}
    nodes = _live_nodes(graph.nodes, needed)
    weights = tuple(weight for weight in graph.weights if weight in needed)
    return replace(graph, nodes=nodes, weights=weights)


def _live_nodes(nodes: Sequence[Node], needed: set[Value]) -> tuple[Node, ...]:
    """Return the nodes defining a needed value, and add the values read by the returned nodes to `needed`."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if not any(value in needed for value in node.defs):
            continue
        if isinstance(node, CaseOf):
            node = _prune_case(node, needed)
        elif isinstance(node, While):
            node = _prune_while(node, needed)
        else:
            node = replace(node, outputs=_live_outputs(node, needed))
        needed.update(node.uses)
        kept.append(node)
    return tuple(reversed(kept))


def _items_at(items: Sequence[T], keep: Sequence[int]) -> tuple[T, ...]:
    """Return the items at the positions in `keep`."""
    return tuple(items[i] for i in keep)


def _prune_case(node: CaseOf, needed: set[Value]) -> CaseOf:
    """Remove unneeded outputs from the branch and dead nodes from the arms."""
    keep = [i for i, value in enumerate(node.outputs) if value is not None and value in needed]
    arms: list[Graph] = []
    for arm in node.arms:
        outputs = _items_at(arm.outputs, keep)
        needed.update(outputs)
        arms.append(replace(arm, nodes=_live_nodes(arm.nodes, needed), outputs=outputs))
    return replace(node, outputs=_items_at(node.outputs, keep), arms=tuple(arms))


def _prune_while(node: While, needed: set[Value]) -> While:
    """Remove unneeded outputs and rows from the loop and dead nodes from the body."""
    keep = [i for i, value in enumerate(node.stacked_outputs) if value is not None and value in needed]
    outputs = (*node.updates, *_items_at(node.rows, keep))
    needed.update((*outputs, node.condition))
    rest = _live_nodes(node.body.nodes[node.check :], needed)
    prefix = _live_nodes(node.body.nodes[: node.check], needed)
    finals = tuple(value if value in needed else None for value in node.finals)
    return replace(
        node,
        outputs=(*finals, *_items_at(node.stacked_outputs, keep)),
        body=replace(node.body, nodes=(*prefix, *rest), outputs=outputs),
        check=len(prefix),
        row_axes=_items_at(node.row_axes, keep),
        row_reversed=_items_at(node.row_reversed, keep),
    )


def _live_outputs(node: Node, needed: set[Value]) -> tuple[Value | None, ...]:
    """Return the outputs without unread optional outputs (a mask, indices), unless a kernel writes the output anyway.

    The positions of removed outputs stay, as None. ONNX Runtime picks a kernel by the number of listed outputs, and
    MaxPool with indices computes another result from NaN than MaxPool without indices.
    """
    domain, _, op_type = node.op.removeprefix("onnx.").rpartition(".")
    present = [value is not None for value in node.inputs]
    optional = optional_outputs(node.op) - always_written_outputs(domain, op_type, present, len(node.outputs))
    return tuple(None if i in optional and v not in needed else v for i, v in enumerate(node.outputs))


@lru_cache(maxsize=1024)
def optional_outputs(op: str) -> frozenset[int]:
    """Return the positions of the optional outputs of an ONNX operator."""
    defs = require("onnx.defs", extra="onnx")
    domain, _, name = op.removeprefix("onnx.").rpartition(".")
    try:
        schema = defs.get_schema(name, domain=domain)
    except defs.SchemaError:
        return frozenset()
    option = defs.OpSchema.FormalParameterOption.Optional
    return frozenset(i for i, output in enumerate(schema.outputs) if output.option == option)
