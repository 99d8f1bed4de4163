"""The rules of legal graphs. Every rule has a number and a name; `findings` reports all violations.

 1 unique-name      names of values are unique in the whole program, names of nodes too; no name is empty
 2 undefined-value  a value is used after its definition, in the same graph or a nested sub-graph
 3 literal          a literal has an element for each element of the tensor
 4 weights          only the root graph has weights
 5 unknown-op       every op is known to its dialect
 6 arity            an op has an allowed number of inputs and outputs
 7 arm              an arm has no inputs and as many outputs as the node, with equal specs
 8 index            a branch index is one element, bool or integer; a branch has an arm
 9 fallback         each output has a fallback with equal spec, or no output has a fallback
10 loop-arity       a body takes the counter, the carries and the slices; a body gives the carries, then the rows
11 counter          a loop's counter is an i64 scalar
12 condition        a loop's condition is one bool element, ready after the first `check` nodes
13 carry            initial value, parameter, update and final value of a carry have equal specs
14 slice            a slice is the sequence without the sliced axis, and is not read before the check
15 row              a stacked output is the row with one more axis
16 depth            sub-graphs nest at most MAX_DEPTH deep, loops at most MAX_LOOPS: every analysis recurses, and the
                    checker replays each iteration of a loop twice
17 update           only the root graph has updates; a target is an input or weight, updated once, without a literal,
                    and is no output; the source is a value of the root graph; both are plannable, with equal specs
18 spec             outputs have the specs inferred by the op from inputs and attributes, if the op has inference
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sublet.base.errors import Finding, GraphError, SubletError
from sublet.base.tensor import INTEGERS, DType, TensorSpec
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops import lookup
from sublet.ops.op import Infer

MAX_DEPTH = 100
MAX_LOOPS = 12

CONTROL_OPS = frozenset({"while", "case"})


def findings(graph: Graph) -> tuple[Finding, ...]:
    """Return every violated rule of the program, in program order; empty for a legal graph.

    For too deep nesting, only the violation of rule 16 is returned.
    """
    too_deep = tuple(_depth(graph))
    if too_deep:
        return too_deep  # the other rules recurse into sub-graphs
    return (
        *_names(graph),
        *_literals(graph),
        *_scopes(graph, set()),
        *_updates(graph),
        *(finding for node in graph.walk() for finding in _node(node)),
    )


def verify(graph: Graph) -> None:
    """Raise GraphError with all findings unless the graph is legal."""
    violations = findings(graph)
    if violations:
        raise GraphError(violations)


def _depth(graph: Graph) -> Iterator[Finding]:
    """Yield a finding for too deep nesting; iterate by level, to refuse a program of any depth without recursion."""
    level: list[tuple[Graph, int]] = [(graph, 0)]
    for depth in range(MAX_DEPTH + 1):
        for outer, loops in level:
            if loops > MAX_LOOPS:
                what = f"loops nest more than {MAX_LOOPS} deep"
                yield Finding("depth", f"graph @{outer.name}", what, "merge some of them")
                return
            if depth == MAX_DEPTH and any(node.subgraphs for node in outer.nodes):
                what = f"sub-graphs nest more than {MAX_DEPTH} deep"
                yield Finding("depth", f"graph @{outer.name}", what, "merge some of them")
                return
        level = [
            (sub, loops + isinstance(node, While))
            for outer, loops in level
            for node in outer.nodes
            for sub in node.subgraphs
        ]


def _names(graph: Graph) -> Iterator[Finding]:
    seen: set[str] = set()
    for value in graph.values():
        if not value.name or value.name in seen:
            what = f"%{value.name} is defined twice" if value.name else "a value has an empty name"
            yield Finding("unique-name", f"graph @{graph.name}", what, "rename one of them")
        seen.add(value.name)
    nodes: set[str] = set()
    for node in graph.walk():
        if not node.name or node.name in nodes:
            yield Finding(
                "unique-name", _location_of(node), f"another node has the name @{node.name}", "rename one of them"
            )
        nodes.add(node.name)


def _literals(graph: Graph) -> Iterator[Finding]:
    for value in graph.values():
        if value.literal is None:
            continue
        if not isinstance(value.spec, TensorSpec) or len(value.literal) != value.spec.size:
            what = f"the literal of %{value.name} has {len(value.literal)} elements, but its type is {value.spec}"
            yield Finding("literal", f"graph @{graph.name}", what)


def _scopes(graph: Graph, outer: set[Value]) -> Iterator[Finding]:
    visible = outer | set(graph.inputs) | set(graph.weights)
    for node in graph.nodes:
        if not visible.issuperset(node.uses):
            yield from _undefined_values(node.uses, visible, _location_of(node))
        for sub in node.subgraphs:
            if sub.weights:
                yield Finding(
                    "weights", _location_of(node), f"sub-graph @{sub.name} has weights", "move them to the root graph"
                )
            if sub.updates:
                yield Finding(
                    "update", _location_of(node), f"sub-graph @{sub.name} has updates", "move them to the root graph"
                )
            yield from _scopes(sub, visible)
        if isinstance(node, While):
            yield from _check_visibility(node, visible)
        visible |= set(node.defs)
    yield from _undefined_values(graph.outputs, visible, f"graph @{graph.name} outputs")


def _undefined_values(values: Iterable[Value], visible: set[Value], where: str) -> Iterator[Finding]:
    for value in values:
        if value not in visible:
            fix = "define it first, or move the use below its definition"
            yield Finding("undefined-value", where, f"%{value.name} is not defined here", fix)


def _updates(graph: Graph) -> Iterator[Finding]:
    """Yield the findings of rule 17."""
    where = f"graph @{graph.name} updates"
    there = {*graph.inputs, *graph.weights}
    defined = there.union(*(node.defs for node in graph.nodes))
    seen: set[Value] = set()
    for target, source in graph.updates:
        if target not in there:
            yield Finding("update", where, f"{target} is no input or weight", "only inputs and weights can be updated")
        if target in seen:
            yield Finding("update", where, f"{target} is updated twice", "drop one of its updates")
        seen.add(target)
        if target.literal is not None:
            what = f"{target} has a literal, which must not change"
            yield Finding(
                "update", where, what, "use a weight without a literal, and pass its first content with the weights"
            )
        if target in graph.outputs:
            fix = f"return {source} for the new content, or a copy of it (nn.copy, onnx.Identity) for the old"
            yield Finding("update", where, f"{target} is updated and also an output", fix)
        yield from _undefined_values((source,), defined, where)
        if target.spec != source.spec:
            yield Finding("update", where, f"{target} is {target.spec}, its source {source} is {source.spec}")
        elif not target.plannable:
            what = f"{target} is {target.spec}, which cannot be planned"
            yield Finding("update", where, what, "only values of known type and shape can be updated")


def _check_visibility(node: While, outer: set[Value]) -> Iterator[Finding]:
    """Yield the findings of rules 12 and 14: the values visible to the evaluation nodes of a loop."""
    before = node.body.nodes[: node.check]
    visible = outer | set(node.body.inputs[: 1 + node.carried]) | {v for n in before for v in n.defs}
    if node.condition not in visible:
        fix = "move the check below the node that computes it"
        yield Finding("condition", _location_of(node), f"%{node.condition.name} is not defined at the check", fix)
    slices = set(node.slices)
    for early in before:
        for value in early.uses:
            if value in slices:
                fix = "read slices after the check only"
                yield Finding("slice", _location_of(early), f"%{value.name} is read before the check", fix)


def _node(node: Node) -> Iterator[Finding]:
    if isinstance(node, While):
        yield from _while(node)
    elif isinstance(node, CaseOf):
        yield from _case(node)
    else:
        yield from _op(node)


def _op(node: Node) -> Iterator[Finding]:
    if node.op in CONTROL_OPS:
        yield Finding("unknown-op", _location_of(node), f"{node.op!r} needs a node of its own class (While or CaseOf)")
        return
    try:
        op = lookup(node.op)
    except SubletError as error:
        yield Finding("unknown-op", _location_of(node), str(error))
        return
    for what, count, allowed in (
        ("inputs", len(node.inputs), op.inputs),
        ("outputs", len(node.outputs), op.outputs),
    ):
        if allowed is not None and not allowed[0] <= count <= allowed[1]:
            yield Finding(
                "arity", _location_of(node), f"{node.op} has {count} {what}, expected {allowed[0]} to {allowed[1]}"
            )
            return
    if op.infer is not None:
        yield from _spec_mismatches(node, op.infer)


def _spec_mismatches(node: Node, infer: Infer) -> Iterator[Finding]:
    outside = [value for value in (*node.uses, *node.defs) if not isinstance(value.spec, TensorSpec)]
    if outside:
        return  # unplannable values have no spec to compare; kernels accept any content
    try:
        specs = infer([v.spec if v and isinstance(v.spec, TensorSpec) else None for v in node.inputs], node.attrs)
    except SubletError as error:
        yield Finding("spec", _location_of(node), f"{node.op}: {error}")
        return
    if len(specs) < len(node.outputs):
        yield Finding(
            "arity", _location_of(node), f"{node.op} has {len(node.outputs)} outputs, but computes {len(specs)}"
        )
    for value, spec in zip(node.outputs, specs, strict=False):
        if value is not None and value.spec != spec:
            yield Finding("spec", _location_of(node), f"%{value.name} is {value.spec}, but {node.op} gives {spec}")


def _case(node: CaseOf) -> Iterator[Finding]:
    if not node.uses:
        yield Finding("index", _location_of(node), "a branch needs an index")
        return
    spec = node.index.spec
    if not isinstance(spec, TensorSpec) or spec.dtype not in (DType.BOOL, *INTEGERS) or spec.size != 1:
        yield Finding(
            "index", _location_of(node), f"the index %{node.index.name} is {spec}, expected one bool or integer"
        )
    if not node.arms:
        yield Finding("index", _location_of(node), "a branch needs at least one arm")
    for arm in node.arms:
        if arm.inputs or len(arm.outputs) != len(node.outputs):
            what = f"arm @{arm.name} has {len(arm.inputs)} inputs and {len(arm.outputs)} outputs"
            yield Finding("arm", _location_of(node), what, f"give it 0 inputs and {len(node.outputs)} outputs")
            continue
        for output, result in zip(node.outputs, arm.outputs, strict=True):
            yield from _unequal_specs("arm", node, f"output of arm @{arm.name}", output, result)
    if node.fallbacks and len(node.fallbacks) != len(node.outputs):
        what = f"{len(node.fallbacks)} fallbacks for {len(node.outputs)} outputs"
        yield Finding("fallback", _location_of(node), what, "pass one fallback for each output, or none")
        return
    for output, fallback in zip(node.outputs, node.fallbacks, strict=False):
        yield from _unequal_specs("fallback", node, "fallback", output, fallback)


def _while(node: While) -> Iterator[Finding]:
    slices, rows = len(node.slice_axes), len(node.row_axes)
    expected = (
        ("inputs", len(node.uses), node.carried + slices),
        ("outputs", len(node.outputs), node.carried + rows),
        ("body inputs", len(node.body.inputs), 1 + node.carried + slices),
        ("body outputs", len(node.body.outputs), node.carried + rows),
        ("directions of slices", len(node.slice_reversed), slices),
        ("directions of rows", len(node.row_reversed), rows),
    )
    wrong = [f"{count} {what}, expected {right}" for what, count, right in expected if count != right]
    if wrong or not 0 <= node.check <= len(node.body.nodes):
        what = (
            "; ".join(wrong) or f"the check is after node {node.check}, but the body has {len(node.body.nodes)} nodes"
        )
        yield Finding("loop-arity", _location_of(node), what)
        return
    if node.counter.spec != TensorSpec(DType.I64):
        yield Finding(
            "counter", _location_of(node), f"the counter %{node.counter.name} is {node.counter.spec}, expected i64[]"
        )
    condition = node.condition.spec
    if not isinstance(condition, TensorSpec) or condition.dtype is not DType.BOOL or condition.size != 1:
        yield Finding("condition", _location_of(node), f"%{node.condition.name} is {condition}, expected one bool")
    yield from _carries(node)
    for value, sequence, axis in zip(node.slices, node.sequences, node.slice_axes, strict=True):
        yield from _wrong_slices("slice", node, value, sequence, axis)
    for row, stacked, axis in zip(node.rows, node.stacked_outputs, node.row_axes, strict=True):
        if stacked is not None:
            yield from _wrong_slices("row", node, row, stacked, axis)


def _carries(node: While) -> Iterator[Finding]:
    for parameter, init, update, final in zip(node.parameters, node.inits, node.updates, node.finals, strict=True):
        yield from _unequal_specs("carry", node, "initial value", parameter, init)
        yield from _unequal_specs("carry", node, "update", parameter, update)
        yield from _unequal_specs("carry", node, "final value", parameter, final)


def _unequal_specs(rule: str, node: Node, role: str, expected: Value | None, actual: Value | None) -> Iterator[Finding]:
    if expected is None or actual is None or not (expected.plannable and actual.plannable):
        return
    if expected.spec != actual.spec:
        what = f"{role} %{actual.name} is {actual.spec}, %{expected.name} is {expected.spec}"
        yield Finding(rule, _location_of(node), what, "their specs must be equal")


def _wrong_slices(rule: str, node: Node, part: Value, whole: Value, axis: int) -> Iterator[Finding]:
    if not isinstance(part.spec, TensorSpec) or not isinstance(whole.spec, TensorSpec):
        return
    shape = whole.spec.shape
    fits = 0 <= axis < len(shape) and part.spec == TensorSpec(whole.spec.dtype, shape[:axis] + shape[axis + 1 :])
    if not fits:
        what = f"%{part.name} is {part.spec}, expected one slice of %{whole.name}, {whole.spec}, along axis {axis}"
        yield Finding(rule, _location_of(node), what)


def _location_of(node: Node) -> str:
    return f"node @{node.label}"
