"""Reverse-mode differentiation as a pass: gradients are more nodes of the same graph.

In SSA every value is defined once, so its gradient is complete, and summed once, when the walk back over the nodes
arrives at its definition. Only nodes that lie between what is differentiated and what the gradient is wanted of are
visited, in loops and branches too. The gradient of a loop is a loop and that of a branch a branch: what a pass has
differentiated can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sublet.base.errors import GradientError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ir.walk import needs
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.op import ByParts
from sublet.passes.accumulate import Box, Contributions, box_of
from sublet.passes.autodiff.branches import branch_gradient
from sublet.passes.autodiff.level import Flow, Level, Trail, makers_of, needed, refuse
from sublet.passes.autodiff.paths import differentiable, reached, spread
from sublet.passes.autodiff.schedules import Checkpoints, checked
from sublet.passes.autodiff.segments import cut_gradient


def gradients(
    graph: Graph,
    of: Sequence[Value],
    wrt: Sequence[Value],
    seeds: Sequence[Value] | None = None,
    checkpoint: Checkpoints = None,
) -> tuple[Graph, tuple[Value, ...]]:
    """The graph with the gradients of `of` by `wrt` as further nodes and outputs, and these gradients.

    `of` and `wrt` are floating-point values of the root graph: inputs, weights, or what its nodes compute. `seeds` are
    values of the graph, the gradients of `of`; ones when they are not given, so that the sum of all elements of `of`
    is differentiated. What `of` does not depend on has zeros. Each gradient has the spec of its value. `checkpoint`
    says which rounds of loops are stored, see `sublet.gradients`.
    Raises GradientError for a value that is no floating-point number, is random, or is not of the root graph, and for
    an op on the way that has no gradient; the message has the line that the node comes from.
    """
    known = {*graph.inputs, *graph.weights, *(value for node in graph.nodes for value in node.defs)}
    for value in (*of, *wrt, *(seeds or ())):
        if value not in known:
            raise GradientError(
                f"%{value.name} is not a value of the graph @{graph.name} outside its loops and branches"
            )
    for value in of:
        if not differentiable(value) or not isinstance(value.spec, TensorSpec):
            raise GradientError(f"%{value.name} is {value.spec}: only floating-point tensors have a gradient")
    emit = Emitter.of(graph)
    emit.scope = "grad/"
    given = seeds if seeds is not None else [emit.filled(1, spec_of(value)) for value in of]
    emit.scope = ""
    starts = _seeds(emit, of, given)
    found = backward(emit, graph.nodes, starts, wrt, checkpoint)
    emit.scope = "grad/"
    grads = tuple(with_zeros(emit, found, wrt))
    weights = (*graph.weights, *emit.literals.added)
    return replace(graph, nodes=tuple(emit.nodes), outputs=(*graph.outputs, *grads), weights=weights), grads


def _seeds(emit: Emitter, of: Sequence[Value], given: Sequence[Value]) -> dict[Value, Value]:
    if len(of) != len(given):
        raise GradientError(f"{len(given)} seeds are given for {len(of)} values: give one for each")
    found = Contributions()
    for value, seed in zip(of, given, strict=True):
        if seed.spec != value.spec:
            raise GradientError(f"the seed %{seed.name} of %{value.name} is {seed.spec}, but must be {value.spec}")
        found.add(emit, value, seed)
    totals = ((value, found.total(emit, value)) for value in dict.fromkeys(of))
    return {value: total for value, total in totals if total is not None}


def backward(
    emit: Emitter,
    nodes: Sequence[Node],
    seeds: Mapping[Value, Value],
    wrt: Sequence[Value],
    checkpoint: Checkpoints = None,
) -> list[Value | None]:
    """The gradients of `wrt`, when the gradients of some values that `nodes` compute are `seeds`; None for zero.

    `emit` holds `nodes`. Those that compute the gradients are appended, and a loop or branch that must hand out more
    for them is replaced there by another of the same name and values. Raises GradientError for a value that has no
    gradient, or an op on the way that has no rule.
    """
    before = {node.name for node in emit.nodes}
    there = [value for node in emit.nodes for value in node.defs]
    makers = makers_of(nodes)
    for value in (*wrt, *seeds):
        _check(value, makers)
    trail = Trail(reached(nodes, wrt), makers, _walk_back, checked(checkpoint))
    found = Contributions()
    scope, source = emit.scope, emit.source
    for value, grad in seeds.items():
        found.add(emit, value, grad)
    emit.scope = f"{scope}grad/"
    _walk_back(Level(emit, emit, trail), nodes, found)
    emit.scope = f"{scope}grad/"
    results = [found.total(emit, value) for value in wrt]
    emit.nodes[:] = needed(emit.nodes, [*there, *(grad for grad in results if grad is not None)], before)
    emit.scope, emit.source = scope, source
    return results


def with_zeros(emit: Emitter, found: Sequence[Value | None], wrt: Sequence[Value]) -> list[Value]:
    """The gradients of values outside of loops that `backward` found, and zeros of their own for the others."""
    return [emit.filled(0, spec_of(value)) if grad is None else grad for value, grad in zip(wrt, found, strict=True)]


def _check(value: Value, makers: Mapping[Value, Node]) -> None:
    """Raise unless a value may have a gradient."""
    maker = makers.get(value)
    where = f" ({maker.source})" if maker is not None and maker.source else ""
    if not differentiable(value) or not isinstance(value.spec, TensorSpec):
        raise GradientError(f"%{value.name}{where} is {value.spec}: only floating-point values have a gradient")
    if maker is None or maker.subgraphs or not maker.uses or maker.op == STOP_GRADIENT:
        return
    if lookup(maker.op).gradient is None:
        raise GradientError(f"%{value.name}{where} is made by {maker.op}, which has no gradient")


def _walk_back(level: Level, nodes: Sequence[Node], found: Contributions) -> None:
    """Add to `found` what the gradients in it of values that `nodes` compute say of what these depend on."""
    emit, active = level.emit, level.trail.active
    scope, source = emit.scope, emit.source
    for node in reversed(nodes):
        flowing = any(value in active and value in found for value in node.defs)
        if not flowing or not any(value in active for value in needs(node)):
            continue
        emit.scope, emit.source = f"grad/{node.name}/", node.source
        for value, grad, box in _flows(level, node, found):
            found.add(emit, value, grad, box)
    emit.scope, emit.source = scope, source


def _flows(level: Level, node: Node, found: Contributions) -> list[Flow]:
    """What a node contributes to the gradients of what it reads."""
    if isinstance(node, While | CaseOf):
        node = level.current(node)
    grads = [found.total(level.emit, value) for value in node.outputs]
    if isinstance(node, While):
        return cut_gradient(level, node, grads, found)
    if isinstance(node, CaseOf):
        return branch_gradient(level, node, grads)
    parts = _parts(node)
    if parts is not None:
        flows: list[Flow] = []
        for grad, box in zip(grads, parts, strict=True):
            if grad is not None:
                shape = tuple(end - begin for begin, end in box)
                grad = grad if spec_of(grad).shape == shape else level.emit("nn.reshape", grad, shape=shape)
                flows.append((node.uses[0], grad, box))
        return flows
    operands = zip(node.inputs, _input_grads(level, node, grads), strict=True)
    return [
        (operand, grad, None)
        for operand, grad in operands
        if operand is not None and grad is not None and operand in level.trail.active
    ]


def _parts(node: Node) -> list[Box] | None:
    """The box of input 0 that each output is, for a node that only takes parts; else None."""
    if node.op == "nn.slice" and all(step == 1 for step in pick(node.attrs, "steps")):
        return [tuple(zip(pick(node.attrs, "starts"), pick(node.attrs, "ends"), strict=True))]
    if node.op == "nn.split":
        whole = box_of(spec_of(node.uses[0]))
        axis, begin, boxes = pick(node.attrs, "axis") % len(whole), 0, list[Box]()
        for size in pick(node.attrs, "sizes"):
            boxes.append((*whole[:axis], (begin, begin + size), *whole[axis + 1 :]))
            begin += size
        return boxes
    if node.op == "nn.select" and node.uses[1].literal is not None:
        whole = box_of(spec_of(node.uses[0]))
        row = int(node.uses[1].literal[0])
        return [((row, row + 1), *whole[1:])] if 0 <= row < whole[0][1] else None
    return None


def _input_grads(level: Level, node: Node, grads: Sequence[Value | None]) -> list[Value | None]:
    """The gradients by the inputs, as the rule of the op has it."""
    rule, emit = lookup(node.op).gradient, level.emit
    if rule is None:
        raise refuse(node, f"{node.op} has no gradient")
    if not isinstance(rule, ByParts):
        return list(rule(emit, node, tuple(grads)))
    begin = len(emit.nodes)
    outputs = rule.expand(emit, node)
    nodes = tuple(emit.nodes[begin:])
    spread(nodes, level.trail.active)
    found = Contributions()
    for output, grad in zip(outputs, grads, strict=True):
        if grad is not None:
            found.add(emit, output, grad)
    _walk_back(Level(emit, emit, level.trail), nodes, found)
    seen: set[Value] = set()
    results: list[Value | None] = []
    for value in node.inputs:  # an input given twice has its gradient once
        results.append(None if value in seen else found.total(emit, value))
        seen.update({value} if value is not None else ())
    return results
