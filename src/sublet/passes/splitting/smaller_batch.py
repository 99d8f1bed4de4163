"""Rewriting a program for a smaller batch: the same commands on the leading rows of all values with rows.

Requires a legal graph whose inputs with at least one axis all have the rows as the first axis. Ensures that the results
for the leading rows of the inputs are the leading rows of the original results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from sublet.base.errors import SpecError
from sublet.ir.dataflow import rename_values, required_values
from sublet.ir.graph import Attr, Graph, Node, Value
from sublet.ops import slice_maps_of
from sublet.ops.nn.command import PREFIX, pick, spec_of
from sublet.ops.slice_maps import are_leading

# Commands computing sample by sample, with the same results for leading rows alone as for all rows.
#
# A value has rows if the first axis is the axis of samples, or a multiple of the axis: the first k-th of the value
# belongs to the first k-th of the samples. The split rules of a command provide the answer.

MEAN, SUM = "mean", "sum"
BATCH_NORM = "nn.batch_norm"
"""The statistics of a part differ from the statistics of the whole batch. The caller decides on splitting."""


def attrs_of_part(
    node: Node, rows: Collection[int], share: Fraction, *, exact: bool = True
) -> Mapping[str, Attr] | None:
    """Return the attributes of a node computing `share` of the rows, or None if no slice map allows the part.

    `rows` are the positions of the operands with rows. With `exact` False, a part of the rows may have other results
    alone than in the whole batch.
    """
    results = outputs_with_rows(node)
    extents = {(shape_of(value) or (0,))[0] for value in results}
    if any(not extent or (extent * share).denominator > 1 for extent in extents):
        return None
    for found in slice_maps_of(node):
        along = {i for i, axes in enumerate(found.inputs) if axes is not None}
        given = {value for value, axes in zip(node.outputs, found.outputs, strict=False) if axes is not None}
        contiguous = are_leading(*found.inputs, *found.outputs)
        if contiguous and along == set(rows) and given.issuperset(results) and (found.exact or not exact):
            return found.attrs(node.attrs, 0, int(found.extent * share))
    return None


def common_row_count(inputs: Sequence[Value], why: str) -> int:
    """Return the common number of rows of the inputs. Raises SpecError, beginning with `why`, if different."""
    extents = {spec_of(value).shape[0] for value in inputs}
    if len(extents) != 1:
        named = ", ".join(f"%{value.name}: {value.spec}" for value in inputs) or "none"
        raise SpecError(f"{why}; got {named}")
    return extents.pop()


def outputs_with_rows(node: Node) -> tuple[Value, ...]:
    """Return the outputs with rows, given an operand with rows."""
    return node.defs[:1] if node.op == BATCH_NORM else node.defs


def row_reduction(node: Node) -> str | None:
    """Return MEAN or SUM for a command reducing over all rows, else None."""
    name = node.op.removeprefix(PREFIX)
    if name not in (MEAN, SUM) or node.op == name:
        return None
    axes, rank = pick(node.attrs, "axes"), len(shape_of(node.uses[0]) or ())
    return name if rank and (not axes or 0 in {axis % rank for axis in axes}) else None


def shape_of(value: Value | None) -> tuple[int, ...] | None:
    """Return the extents of a value; None for an absent value."""
    return None if value is None else spec_of(value).shape


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
    attrs = None if node.subgraphs else attrs_of_part(node, along, share)
    if attrs is None:
        what = f"{node.op} is not known to compute row by row, along the first axis"
        raise SpecError(f"fewer rows: node {node.label}: {what}")
    return replace(node, attrs=attrs)


def _part_value(value: Value, share: Fraction) -> Value:
    """Return the value with the share of rows."""
    spec = spec_of(value)
    first, *rest = spec.shape
    return replace(value, spec=replace(spec, shape=(int(first * share), *rest)))
