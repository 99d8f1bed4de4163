"""Copies of nodes and graphs with fresh names for all definitions, including sub-graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.base.names import NameGenerator
from sublet.ir.dataflow import map_subgraphs, rename_values, rename_values_in_node
from sublet.ir.graph import Graph, Node, Value


def copy_node(
    node: Node, names: NameGenerator, scope: str, now: Mapping[Value, Value]
) -> tuple[Node, dict[Value, Value]]:
    """Return a copy of the node with operands replaced by `now`, and the new outputs by the old outputs."""
    made = {value: _fresh_value(value, names, scope) for value in node.outputs if value is not None}
    inside = {v: _fresh_value(v, names, scope) for sub in node.subgraphs for v in sub.values()}
    copy = rename_values_in_node(node, {**now, **inside, **made}, definitions=True)
    name = next((value.name for value in made.values()), node.name)
    return replace(_with_fresh_names(copy, names), name=name), made


def copy_graph(graph: Graph, names: NameGenerator) -> Graph:
    """Return a copy of a sub-graph with fresh names."""
    own = {value: _fresh_value(value, names, "") for value in graph.values()}
    return _graph_with_fresh_names(rename_values(graph, own), names)


def _fresh_value(value: Value, names: NameGenerator, scope: str) -> Value:
    return replace(value, name=names.fresh(f"{scope}{value.name}"))


def _with_fresh_names(node: Node, names: NameGenerator) -> Node:
    return map_subgraphs(node, lambda sub: _graph_with_fresh_names(sub, names))


def _graph_with_fresh_names(graph: Graph, names: NameGenerator) -> Graph:
    nodes = tuple(replace(_with_fresh_names(node, names), name=names.fresh(node.name)) for node in graph.nodes)
    return replace(graph, name=names.fresh(graph.name), nodes=nodes)
