"""Rewriting a program for a smaller batch: the same commands on the leading rows of all values with rows.

Requires a legal graph whose inputs with at least one axis all have the rows as the first axis. Ensures that the results
for the leading rows of the inputs are the leading rows of the original results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from sublet.base.errors import SpecError
from sublet.ir.dataflow import rename_values, required_values
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.nn.command import spec_of
from sublet.passes.splitting.batch_axis import attrs_of_part, common_row_count, depends_on_whole_batch


def with_fewer_rows(graph: Graph, rows: int) -> Graph:
    """Return the graph for `rows` rows.

    Raises SpecError for a number of rows above the batch of the graph or below 1, for a graph with updates, and, naming
    the node, for a node not known to compute row by row.
    """
    if graph.updates:
        raise SpecError(
            f"fewer rows: the graph updates %{graph.updated_values[0].name}. Build the graph for that number of rows."
        )
    share = Fraction(rows, _row_count(graph, rows))
    part = {value: _part_value(value, share) for value in graph.inputs if spec_of(value).shape}
    nodes = []
    for node in graph.nodes:
        if any(value in part for value in required_values(node)):
            nodes.append(_node_of_part(node, part, share))
            part.update((value, _part_value(value, share)) for value in node.defs)
        else:
            nodes.append(node)
    return rename_values(replace(graph, nodes=tuple(nodes)), part)


def _row_count(graph: Graph, rows: int) -> int:
    """Return the number of rows of the graph."""
    inputs = [value for value in graph.inputs if spec_of(value).shape]
    there = common_row_count(inputs, "fewer rows: all inputs must have the same first extent")
    if not 1 <= rows <= there:
        raise SpecError(f"rows = {rows} must be 1 to {there}, the rows of the graph")
    return there


def _node_of_part(node: Node, part: Mapping[Value, Value], share: Fraction) -> Node:
    """Return the node with attributes for the share of rows. Raises SpecError unless computed row by row."""
    along = {i for i, value in enumerate(node.inputs) if value in part}
    attrs = None if node.subgraphs or depends_on_whole_batch(node) else attrs_of_part(node, along, share)
    if attrs is None:
        what = f"{node.op} is not known to compute row by row, along the first axis"
        raise SpecError(f"fewer rows: node {node.label}: {what}")
    return replace(node, attrs=attrs)


def _part_value(value: Value, share: Fraction) -> Value:
    """Return the value with the share of rows."""
    spec = spec_of(value)
    first, *rest = spec.shape
    return replace(value, spec=replace(spec, shape=(int(first * share), *rest)))
