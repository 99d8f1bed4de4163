"""What nodes are grouped by in a picture: their op, and the part of the network they belong to.

The latter, their scope, is known as far as names tell: "/layer1/0/conv/Conv" lies in "layer1/0".
Exporters and people write the path of a module into the names of nodes, with "/" or "." between its parts, or note it
beside. A picture groups nodes by the first parts of that path, so many that the groups can be told apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sublet.plan import RUN, Described, Point

MOST_GROUPS = 16
"""Groups that a picture still tells apart."""

FEWEST_GROUPS = 3
"""With fewer a picture by scope tells nothing; one part more of each path is looked at."""

_BETWEEN = re.compile(r"[/.]")
_MODULE = re.compile(r"in ([^,]+)")


@dataclass(frozen=True, slots=True)
class Groups:
    """Op, scope and source by point and by placement; "" where there is none."""

    point_ops: tuple[str, ...] = ()
    point_scopes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


NO_GROUPS = Groups()


def groups(points: Sequence[Point], nodes: Sequence[Described], producers: Sequence[str]) -> Groups:
    """The groups of points by the nodes that run there, and of placements by those that make them."""
    by_name = {node.name: node for node in nodes}
    scope_of = dict(zip(by_name, scopes(list(by_name.values())), strict=True))
    ran = [by_name.get(point.node) if point.kind == RUN else None for point in points]
    made = [by_name.get(name) for name in producers]
    return Groups(
        tuple(_op(node) for node in ran),
        tuple(scope_of[node.name] if node else "" for node in ran),
        tuple(_op(node) for node in made),
        tuple(scope_of[node.name] if node else "" for node in made),
        tuple(node.source if node else "" for node in made),
    )


def _op(node: Described | None) -> str:
    """The op without its dialect: of "onnx.com.microsoft.FusedConv" what people call it."""
    return node.op.rpartition(".")[2] if node else ""


def scopes(nodes: Sequence[Described]) -> tuple[str, ...]:
    """The scope of each node; "" of one that lies in none. All are "" where nobody noted any.

    The scopes are cut to the number of parts that gives the most groups a picture can tell apart.
    """
    paths = [_path(node) for node in nodes]
    deepest = max(map(len, paths), default=0)
    chosen = [""] * len(nodes)
    for depth in range(1, deepest + 1):
        cut = ["/".join(path[:depth]) for path in paths]
        groups = _groups(cut)
        if depth > 1 and groups > MOST_GROUPS:
            break
        chosen = cut
    return tuple(chosen) if _groups(chosen) >= FEWEST_GROUPS else ("",) * len(nodes)


def _path(node: Described) -> tuple[str, ...]:
    """The parts of the module's path that the front-end knows, or of the node's name but the last, its own."""
    module = _MODULE.match(node.source)
    parts = _BETWEEN.split(module[1]) if module else _BETWEEN.split(node.name)[:-1]
    return tuple(part for part in parts if part)


def _groups(scopes_: Iterable[str]) -> int:
    return len({scope for scope in scopes_ if scope})
