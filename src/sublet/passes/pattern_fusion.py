"""Pattern fusion: replace a group of commands by an equivalent command.

Requires a legal graph. Ensures that none of the following groups remains with a single reader of every inner value. The
softmax of the first group may have more readers: the fused command also returns the softmax.

    categorical_cross_entropy(softmax(x), labels)        softmax_cross_entropy(x, labels)
    binary_cross_entropy(sigmoid(x), t)                  sigmoid_binary_cross_entropy(x, t)
    add(matmul(x, w), b)                                 linear(x, w, b), gemm(x, w, b)
    add(linear(x, w), b)                                 linear(x, w, b)
    add(conv(x, w), b)                                   conv(x, w, b)
    matmul(softmax(matmul(q, k^T) * c + mask), v)        attention(q, k, v, mask)

An activation after a convolution is not fused: the planner computes the activation in place, and oneDNN's convolution
with a fused activation was not faster through PyTorch.

The fused command runs at the position of the first member if all operands are defined there, and then extends no live
range; otherwise the pass fuses only adjacent members. [NNC fuses the first two.]
"""

from __future__ import annotations

from collections.abc import Sequence

from sublet.ir.graph import Graph, Node
from sublet.passes.fusion_patterns import PATTERNS, FusionGroup, FusionLevel
from sublet.passes.rewriting import Readers, rewrite_runs, run_to_fixpoint

MAX_REPEATS = 10
"""Maximum number of repetitions: a fused command may be a member of a further group."""


def with_fused_patterns(graph: Graph) -> Graph:
    """Return the graph after pattern fusion to a fixpoint."""
    return run_to_fixpoint(graph, lambda before: rewrite_runs(before, _fuse_patterns_in_run), MAX_REPEATS)


def _fuse_patterns_in_run(nodes: Sequence[Node], readers: Readers) -> Sequence[Node]:
    """Return the nodes of one run with every matched group replaced."""
    level = FusionLevel(nodes, readers)
    replaced: set[str] = set()
    insertions: dict[int, list[Node]] = {}
    for node in nodes:
        if node.op not in PATTERNS or node.name in replaced:
            continue
        group = PATTERNS[node.op](node, level)
        if group is None or any(member.name in replaced for member in group.members):
            continue
        position = _insert_position(group, level)
        if position is not None:
            replaced.update(member.name for member in group.members)
            insertions.setdefault(position, []).extend(group.fused)
    rewritten: list[Node] = []
    for i, node in enumerate(nodes):
        rewritten += insertions.get(i, ())
        if node.name not in replaced:
            rewritten.append(node)
    return rewritten


def _insert_position(group: FusionGroup, level: FusionLevel) -> int | None:
    """Return a position for the fused command, to insert before, without longer live ranges; None if impossible."""
    places = sorted(level.position_of[member.name] for member in group.members)
    first, last = places[0], places[-1]
    inside = {value for node in group.fused for value in node.defs}
    ready = max((level.maker_position(v) for node in group.fused for v in node.uses if v not in inside), default=-1)
    held = min(member.defs[0].nbytes for member in group.members[:-1])
    if ready < first and group.members[-1].defs[0].nbytes <= held:
        return first
    return last if places == list(range(first, last + 1)) and group.internal_only else None
