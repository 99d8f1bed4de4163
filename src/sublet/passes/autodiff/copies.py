"""Copies of nodes and graphs with fresh names for all definitions, including sub-graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sublet.ir.graph import Graph, Node, Value
from sublet.ir.walk import mapped, renamed, renamed_in
from sublet.ops.emitter import Names


def copied(node: Node, names: Names, scope: str, now: Mapping[Value, Value]) -> tuple[Node, dict[Value, Value]]:
    """Return a copy of the node with operands replaced by `now`, and the new outputs by the old outputs."""
    made = {value: _fresh(value, names, scope) for value in node.outputs if value is not None}
    inside = {v: _fresh(v, names, scope) for sub in node.subgraphs for v in sub.values()}
    copy = renamed_in(node, {**now, **inside, **made}, definitions=True)
    name = next((value.name for value in made.values()), node.name)
    return replace(_named(copy, names), name=name), made


def copied_graph(graph: Graph, names: Names) -> Graph:
    """Return a copy of a sub-graph with fresh names."""
    own = {value: _fresh(value, names, "") for value in graph.values()}
    return _named_graph(renamed(graph, own), names)


def _fresh(value: Value, names: Names, scope: str) -> Value:
    return replace(value, name=names.fresh(f"{scope}{value.name}"))


def _named(node: Node, names: Names) -> Node:
    return mapped(node, lambda sub: _named_graph(sub, names))


def _named_graph(graph: Graph, names: Names) -> Graph:
    nodes = tuple(replace(_named(node, names), name=names.fresh(node.name)) for node in graph.nodes)
    return replace(graph, name=names.fresh(graph.name), nodes=nodes)
