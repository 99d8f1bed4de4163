"""Removal of redundant nodes: common subexpressions, and dead code.

Common subexpression elimination.

Requires a legal graph. Ensures that no two pure nodes of equal op, inputs and attributes remain where one node could
replace both: at the same level, or one node in a sub-graph and one node visible outside of the sub-graph.

    %a = nn.add(%x, %y)                  %a = nn.add(%x, %y)
    %b = nn.add(%x, %y)          ->      %c = nn.mul(%a, %a)
    %c = nn.mul(%a, %b)

Nodes without inputs are exempt: filling in a constant twice costs less than keeping the constant alive. Nodes marked
`again` are exempt too: rematerialization wrote the duplicates on purpose, to save memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from sublet.ir.dataflow import results
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops import lookup
from sublet.passes.rewriting import Rewriter, attribute_key, count_readers, is_pure

COMMUTATIVE = frozenset(
    f"nn.{name}" for name in ("add", "mul", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or")
)
"""Ops of two inputs with bitwise equal results after exchanging the inputs."""


def without_common_subexpressions(graph: Graph) -> Graph:
    """Return the graph with every common subexpression computed once."""
    scopes: list[dict[Hashable, Node]] = [{}]

    def step(node: Node, rewriter: Rewriter) -> Sequence[Node]:
        key = _expression_key(node)
        if key is None:
            return [node]
        for scope in scopes:
            earlier = scope.get(key)
            if earlier is not None and _can_replace(node, earlier, rewriter):
                for old, new in _output_pairs(node, earlier):
                    rewriter.replace_value(old, new)
                return []
        scopes[-1].setdefault(key, node)
        return [node]

    return Rewriter(graph, step, enter=lambda _: scopes.append({}), leave=lambda _: scopes.__delitem__(-1)).run()


def _expression_key(node: Node) -> Hashable | None:
    """Return a key equal for equal expressions; None for a node that must stay."""
    if node.subgraphs or node.again or node.scratch is not None or not node.uses or not lookup(node.op).pure:
        return None
    inputs: tuple[str, ...] = tuple("" if value is None else f"%{value.name}" for value in node.inputs)
    if node.op in COMMUTATIVE:
        inputs = tuple(sorted(inputs))
    return node.op, inputs, attribute_key(node), tuple(str(value.spec) for value in node.defs), len(node.outputs)


def _output_pairs(node: Node, earlier: Node) -> list[tuple[Value, Value]]:
    """Return the pairs (output of `node`, output of `earlier`) with both present."""
    return [(old, new) for old, new in zip(node.outputs, earlier.outputs, strict=True) if old and new]


def _can_replace(node: Node, earlier: Node, rewriter: Rewriter) -> bool:
    """True if `earlier` has every output of `node` and the readers of each output may read `earlier` instead."""
    complete = all(old is None or new is not None for old, new in zip(node.outputs, earlier.outputs, strict=True))
    pairs = _output_pairs(node, earlier)
    return complete and all(rewriter.can_replace(old, rewriter.resolve(new)) for old, new in pairs)


# Dead code elimination.
#
# Requires a legal graph. Ensures: every pure node has an output with a reader; a loop carries, slices and stacks only
# values leading to a live value; a branch has only outputs with readers; and every weight with known elements has a
# reader. Weights without known elements stay, because the caller passes weights by name.
#
#     %a = nn.exp(%x)                      %b = nn.neg(%x)
#     %b = nn.neg(%x)              ->      return %b
#     return %b
#
# A loop counts as pure if the body is pure: a dead loop is removed even if the loop might not terminate.


def without_dead_code(graph: Graph) -> Graph:
    """Return the graph without dead nodes, dead loop-carried values and unread literals."""
    needed = set(results(graph))
    nodes = _live_nodes(graph.nodes, needed)
    changed = replace(graph, nodes=tuple(nodes))
    counts, targets = count_readers(changed), set(graph.updated_values)
    weights = tuple(v for v in graph.weights if v.literal is None or counts[v] or v in targets)
    return replace(changed, weights=weights)


def _live_nodes(nodes: Sequence[Node], needed: set[Value]) -> list[Node]:
    """Return the live nodes, trimmed, in order, and add all values read by live nodes to `needed`."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if is_pure(node) and not any(value in needed for value in node.outputs):
            continue
        if isinstance(node, While):
            node = _trim_loop(node, needed)
        elif isinstance(node, CaseOf):
            node = _trim_branch(node, needed)
        needed.update(node.uses)
        kept.append(node)
    return kept[::-1]


def _trim_branch(node: CaseOf, needed: set[Value]) -> CaseOf:
    """Return the branch without dead outputs."""
    kept = [i for i, value in enumerate(node.outputs) if value in needed]
    if node.fallbacks and not kept:
        kept = [0]  # a branch without outputs and fallbacks would reject an index without an arm
    arms = []
    for arm in node.arms:
        arm_outputs = tuple(arm.outputs[i] for i in kept)
        inside = needed | set(arm_outputs)
        arms.append(replace(arm, nodes=tuple(_live_nodes(arm.nodes, inside)), outputs=arm_outputs))
        needed |= inside
    fallbacks = [node.fallbacks[i] for i in kept] if node.fallbacks else []
    outputs = tuple(node.outputs[i] for i in kept)
    return replace(node, arms=tuple(arms), outputs=outputs, inputs=(node.index, *fallbacks))


def _trim_loop(node: While, needed: set[Value]) -> While:
    """Return the loop without carried pairs, slices and rows that lead to no live value."""
    rows = [i for i, value in enumerate(node.stacked_outputs) if value in needed]
    carried = {i for i, value in enumerate(node.finals) if value in needed}
    while True:
        wanted = {node.condition, *(node.rows[i] for i in rows), *(node.updates[i] for i in carried)}
        inside = needed | wanted
        live_nodes = _live_nodes(node.body.nodes, inside)
        reached = carried | {i for i, value in enumerate(node.parameters) if value in inside}
        if reached == carried:
            break
        carried = reached
    slices = [i for i, value in enumerate(node.slices) if value in inside]
    needed |= inside
    return _rebuild_loop(node, live_nodes, sorted(carried), slices, rows, needed)


def _rebuild_loop(
    node: While, nodes: Sequence[Node], carried: list[int], slices: list[int], rows: list[int], needed: set[Value]
) -> While:
    """Return the loop with the given body nodes and the given positions of carried pairs, slices and rows."""
    early = {inner.name for inner in node.body.nodes[: node.check]}
    body = replace(
        node.body,
        nodes=tuple(nodes),
        inputs=(node.counter, *(node.parameters[i] for i in carried), *(node.slices[i] for i in slices)),
        outputs=(*(node.updates[i] for i in carried), *(node.rows[i] for i in rows)),
    )
    finals = (node.finals[i] if node.finals[i] in needed else None for i in carried)
    return replace(
        node,
        inputs=(*(node.inits[i] for i in carried), *(node.sequences[i] for i in slices)),
        outputs=(*finals, *(node.stacked_outputs[i] for i in rows)),
        body=body,
        check=sum(inner.name in early for inner in nodes),
        carried=len(carried),
        slice_axes=tuple(node.slice_axes[i] for i in slices),
        slice_reversed=tuple(node.slice_reversed[i] for i in slices),
        row_axes=tuple(node.row_axes[i] for i in rows),
        row_reversed=tuple(node.row_reversed[i] for i in rows),
    )
