"""Late constants: a tensor that needs no operand to compute, zeros mostly, is filled in right before it is needed.

Requires a legal graph. Ensures that a pure node without inputs stands right before the first node that reads its
result, inside the arm that does when only one arm of one branch does; and that equal ones are one where both would
live at the same time anyway and nobody would overwrite either.

    %z = nn.fill() {value = 0.0}         %a = nn.exp(%x)
    %a = nn.exp(%x)              ->      %z = nn.fill() {value = 0.0}
    %b = nn.add(%z, %a)                  %b = nn.add(%z, %a)

[NNC: the zero initialisation that compiling injects.] A constant is not moved into a loop, which would fill it in
every round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ir.walk import reads_inside, renamed, results
from sublet.ops import lookup
from sublet.passes.rewriting import attributes


def with_late_constants(graph: Graph) -> Graph:
    """The graph with its constants where they are needed first."""
    return _late(graph, len(graph.nodes), ())[0]


def _late(graph: Graph, check: int, tested: Sequence[Value]) -> tuple[Graph, int]:
    """One level and those below, and how many nodes now come before the check of the loop, which tests `tested`."""
    graph, check = _into_arms(graph, check, tested)
    early = {node.name for node in graph.nodes[:check]}
    constants = {node.outputs[0]: node for node in graph.nodes if _constant(node)}
    others = [node for node in graph.nodes if not _constant(node)]
    boundary = sum(node.name in early for node in others)
    read = [reads_inside(node) for node in others]
    read.insert(boundary, set(tested))  # the check, as one more reader
    read.append(set(results(graph)))
    end = [len(read) - 1]
    spans = {v: [i for i, several in enumerate(read) if v in several] or end for v in constants if v is not None}
    shared = _shared({v: constants[v] for v in spans}, spans, [*others[:boundary], None, *others[boundary:]])
    before = _placed(others[:boundary], constants, spans, shared, range(boundary + 1))
    after = _placed(others[boundary:], constants, spans, shared, range(boundary + 1, len(read)))
    nodes = tuple(_inside(node) for node in (*before, *after))
    return renamed(replace(graph, nodes=nodes), shared, definitions=False), len(before)


def _placed(
    others: Sequence[Node],
    constants: dict[Value | None, Node],
    spans: dict[Value, list[int]],
    shared: dict[Value, Value],
    moments: range,
) -> list[Node]:
    """Nodes with each constant before its first reader; `moments` are theirs, and that of what comes after them."""
    at: dict[int, list[Node]] = {}
    for value, span in spans.items():
        if value not in shared:
            at.setdefault(span[0], []).append(constants[value])
    placed: list[Node] = []
    for moment, node in zip(moments, [*others, None], strict=True):
        placed += at.get(moment, ())
        placed += [node] if node is not None else []
    return placed


def _constant(node: Node) -> bool:
    return not node.inputs and not node.subgraphs and node.scratch is None and len(node.defs) == 1 and _pure(node)


def _pure(node: Node) -> bool:
    return lookup(node.op).pure


def _inside(node: Node) -> Node:
    if isinstance(node, While):
        body, check = _late(node.body, node.check, (node.condition,))
        return replace(node, body=body, check=check)
    if isinstance(node, CaseOf):
        return replace(node, arms=tuple(_late(arm, len(arm.nodes), ())[0] for arm in node.arms))
    return node


def _shared(
    constants: dict[Value, Node], spans: dict[Value, list[int]], nodes: Sequence[Node | None]
) -> dict[Value, Value]:
    """The constants that an equal one, needed before and after, stands for; none that a reader may overwrite."""
    shared: dict[Value, Value] = {}
    open_until: dict[object, tuple[Value, int]] = {}
    for value in sorted(spans, key=lambda v: spans[v][:1]):
        span, node = spans[value], constants[value]
        readers = [nodes[i] for i in span if i < len(nodes)]
        if len(readers) < len(span) or any(reader and _overwrites(reader, value) for reader in readers):
            continue
        key = (node.op, str(value.spec), attributes(node))
        first, last = open_until.get(key, (value, -1))
        if span[0] <= last:
            shared[value] = first
            open_until[key] = (first, max(last, span[-1]))
        else:
            open_until[key] = (value, span[-1])
    return shared


def _overwrites(node: Node, value: Value) -> bool:
    """Whether the node, or one inside of it, may write over the value."""
    if node.subgraphs:
        return True
    return any(node.inputs[share.input] == value for share in lookup(node.op).inplace(node))


def _into_arms(graph: Graph, check: int, tested: Sequence[Value]) -> tuple[Graph, int]:
    """Constants that one arm of one branch needs, and nobody else, moved into it."""
    wanted = {node.outputs[0]: node for node in graph.nodes if _constant(node)}
    if not wanted or not any(isinstance(node, CaseOf) for node in graph.nodes):
        return graph, check
    places: dict[Value, list[tuple[str, int]]] = {value: [] for value in wanted if value is not None}
    for value in (*results(graph), *tested):
        places.get(value, []).append(("", -1))
    for node in graph.nodes:
        for position, several in _reads_by_place(node):
            for value in places.keys() & several:
                places[value].append((node.name, position))
    moved: dict[tuple[str, int], list[Node]] = {}
    for value, found in places.items():
        if len(found) == 1 and found[0][1] >= 0:
            moved.setdefault(found[0], []).append(wanted[value])
    gone = {node.name for nodes in moved.values() for node in nodes}
    nodes = tuple(_with_moved(node, moved) for node in graph.nodes if node.name not in gone)
    return replace(graph, nodes=nodes), check - sum(node.name in gone for node in graph.nodes[:check])


def _reads_by_place(node: Node) -> list[tuple[int, set[Value]]]:
    """What is read by the arms of a branch, each, and at -1 what the node reads otherwise."""
    if not isinstance(node, CaseOf):
        return [(-1, reads_inside(node))]
    arms = [(i, reads_inside(replace(node, inputs=(), arms=(arm,)))) for i, arm in enumerate(node.arms)]
    return [(-1, set(node.uses)), *arms]


def _with_moved(node: Node, moved: dict[tuple[str, int], list[Node]]) -> Node:
    if not isinstance(node, CaseOf):
        return node
    arms = (replace(arm, nodes=(*moved.get((node.name, i), ()), *arm.nodes)) for i, arm in enumerate(node.arms))
    return replace(node, arms=tuple(arms))
