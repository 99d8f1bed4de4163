"""Groups of nodes in a picture: by op, and by scope, the part of the network containing the node.

The scope comes from names: "/layer1/0/conv/Conv" lies in "layer1/0". Exporters and people write the path of a module
into the names of nodes, with "/" or "." between the parts, or note the path separately. A picture groups nodes by the
first parts of the path, with as many parts as give distinguishable groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sublet.plan import RUN, NodeDescription, PlanPoint

MAX_GROUPS = 16
"""Maximum of distinguishable groups in a picture."""

MIN_GROUPS = 3
"""Minimum of groups: with fewer groups, a picture by scope is useless."""

_SEPARATOR = re.compile(r"[/.]")
_MODULE = re.compile(r"in ([^,]+)")


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """Op, scope and source by point and by placement; "" if unknown."""

    point_ops: tuple[str, ...] = ()
    point_scopes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


NO_GROUPS = NodeGroups()


def group_nodes(points: Sequence[PlanPoint], nodes: Sequence[NodeDescription], producers: Sequence[str]) -> NodeGroups:
    """Return the groups of points by the nodes running there, and of placements by the producing nodes."""
    by_name = {node.name: node for node in nodes}
    scope_of = dict(zip(by_name, scopes_of(list(by_name.values())), strict=True))
    running = [by_name.get(point.node) if point.kind == RUN else None for point in points]
    producing = [by_name.get(name) for name in producers]
    return NodeGroups(
        tuple(_op_name(node) for node in running),
        tuple(scope_of[node.name] if node else "" for node in running),
        tuple(_op_name(node) for node in producing),
        tuple(scope_of[node.name] if node else "" for node in producing),
        tuple(node.source if node else "" for node in producing),
    )


def _op_name(node: NodeDescription | None) -> str:
    """Return the op without its dialect: "FusedConv" for "onnx.com.microsoft.FusedConv"."""
    return node.op.rpartition(".")[2] if node else ""


def scopes_of(nodes: Sequence[NodeDescription]) -> tuple[str, ...]:
    """Return the scope of each node; "" for a node without a scope, and for all nodes if there are too few scopes.

    The scopes are cut to the number of parts with the most distinguishable groups.
    """
    paths = [_module_path(node) for node in nodes]
    deepest = max(map(len, paths), default=0)
    selected = [""] * len(nodes)
    for depth in range(1, deepest + 1):
        prefixes = ["/".join(path[:depth]) for path in paths]
        count = _count_groups(prefixes)
        if depth > 1 and count > MAX_GROUPS:
            break
        selected = prefixes
    return tuple(selected) if _count_groups(selected) >= MIN_GROUPS else ("",) * len(nodes)


def _module_path(node: NodeDescription) -> tuple[str, ...]:
    """Return the path of the module noted by the front-end, or the name of the node without the last part."""
    module = _MODULE.match(node.source)
    parts = _SEPARATOR.split(module[1]) if module else _SEPARATOR.split(node.name)[:-1]
    return tuple(part for part in parts if part)


def _count_groups(scopes_: Iterable[str]) -> int:
    """Return the number of distinct scopes."""
    return len({scope for scope in scopes_ if scope})
