"""Fusion: a group of commands that one command computes becomes that command.

Requires a legal graph. Ensures that none of these groups remains in which every value between the commands has one
reader (the softmax of the first may have others: the fused command gives it, too):

    categorical_cross_entropy(softmax(x), labels)        softmax_cross_entropy(x, labels)
    binary_cross_entropy(sigmoid(x), t)                  sigmoid_binary_cross_entropy(x, t)
    add(matmul(x, w), b)                                 linear(x, w, b), gemm(x, w, b)
    add(linear(x, w), b)                                 linear(x, w, b)
    add(conv(x, w), b)                                   conv(x, w, b)
    matmul(softmax(matmul(q, k^T) * c + mask), v)        attention(q, k, v, mask)

An activation after a convolution stays: it is computed in place, and oneDNN's convolution with one was not faster
through PyTorch.

The fused command runs where the first of its group did if all it reads is there by then, so that no value lives
longer; otherwise only a group with nothing between its members is fused. [NNC fuses the first two.]
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.ir.graph import Graph, Node
from sublet.passes.patterns import PATTERNS, Group, Level
from sublet.passes.rewriting import Readers, by_runs, settled

ROUNDS = 10
"""Fused commands may be fused again."""


def fused(graph: Graph) -> Graph:
    """The graph with fused commands."""
    return settled(graph, lambda before: by_runs(before, _fused_run), ROUNDS)


def _fused_run(nodes: Sequence[Node], readers: Readers) -> Sequence[Node]:
    level = Level(nodes, readers)
    gone: set[str] = set()
    put: dict[int, list[Node]] = {}
    for node in nodes:
        if node.op not in PATTERNS or node.name in gone:
            continue
        group = PATTERNS[node.op](node, level)
        if group is None or any(member.name in gone for member in group.members):
            continue
        position = _position(group, level)
        if position is not None:
            gone.update(member.name for member in group.members)
            put.setdefault(position, []).extend(group.made)
    placed: list[Node] = []
    for i, node in enumerate(nodes):
        placed += put.get(i, ())
        if node.name not in gone:
            placed.append(node)
    return placed


def _position(group: Group, level: Level) -> int | None:
    """Where the fused command goes so that nothing lives longer: before the node at this position; None for nowhere."""
    places = sorted(level.at[member.name] for member in group.members)
    first, last = places[0], places[-1]
    inside = {value for node in group.made for value in node.defs}
    ready = max((level.maker_at(v) for node in group.made for v in node.uses if v not in inside), default=-1)
    held = min(member.defs[0].nbytes for member in group.members[:-1])
    if ready < first and group.members[-1].defs[0].nbytes <= held:
        return first
    return last if places == list(range(first, last + 1)) and group.alone else None
