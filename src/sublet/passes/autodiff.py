"""Reverse-mode differentiation as a pass: gradients are more nodes of the same graph.

In SSA every value is defined once, so its gradient is complete, and summed once, when the walk back
over the nodes arrives at its definition. Only nodes that lie between what is differentiated and what the
gradient is wanted of are visited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.errors import GradientError
from sublet.ir.emitter import Emitter
from sublet.ir.graph import Node, Value
from sublet.ops import lookup
from sublet.ops.nn.shapes import FLOATS
from sublet.tensor import TensorSpec


def backward(
    emit: Emitter, nodes: Sequence[Node], seeds: Mapping[Value, Value], wrt: Sequence[Value]
) -> list[Value | None]:
    """The gradients of `wrt`, when the gradients of some values that `nodes` compute are `seeds`; None for zero.

    The nodes that compute them are appended to `emit`. Raises GradientError for a value that has no gradient, or
    an op on the way that has no rule.
    """
    for value in wrt:
        if not differentiable(value):
            raise GradientError(f"%{value.name} is {value.spec}: only floating-point values have a gradient")
    active = reached(nodes, wrt)
    found: dict[Value, list[Value]] = {value: [grad] for value, grad in seeds.items()}
    scope, source = emit.scope, emit.source
    for node in reversed(nodes):
        if not any(value in active for value in node.uses) or not any(value in found for value in node.defs):
            continue
        emit.scope, emit.source = f"grad/{node.name}/", node.source
        grads = tuple(_summed(emit, found, value) for value in node.outputs)
        for operand, grad in zip(node.inputs, _input_grads(emit, node, grads, active), strict=True):
            if operand is not None and grad is not None and operand in active:
                found.setdefault(operand, []).append(grad)
    emit.scope = f"{scope}grad/"
    results = [_summed(emit, found, value) for value in wrt]
    emit.scope, emit.source = scope, source
    return results


def differentiable(value: Value) -> bool:
    """Whether it may have a gradient: it is of a floating-point type."""
    return isinstance(value.spec, TensorSpec) and value.spec.dtype in FLOATS


def reached(nodes: Sequence[Node], sources: Sequence[Value]) -> set[Value]:
    """The floating-point values that depend on `sources`, these included."""
    active = set(sources)
    for node in nodes:
        if any(value in active for value in node.uses):
            active.update(value for value in node.defs if differentiable(value))
    return active


def _summed(emit: Emitter, found: dict[Value, list[Value]], value: Value | None) -> Value | None:
    """The gradient of a value, its contributions added up; from then on it is one."""
    if value is None or value not in found:
        return None
    total, *others = found[value]
    for other in others:
        total = emit("nn.add", total, other)
    found[value] = [total]
    return total


def _input_grads(emit: Emitter, node: Node, grads: Sequence[Value | None], active: set[Value]) -> list[Value | None]:
    rule = lookup(node.op).gradient
    if rule is None:
        where = f" ({node.source})" if node.source else ""
        raise GradientError(f"node {node.name}{where}: {node.op} has no gradient")
    expand = getattr(rule, "expand", None)
    if expand is None:
        return list(rule(emit, node, tuple(grads)))
    begin = len(emit.nodes)
    outputs = expand(emit, node)
    seeds = {output: grad for output, grad in zip(outputs, grads, strict=True) if grad is not None}
    wrt = [value for value in dict.fromkeys(node.uses) if value in active]
    by_value = dict(zip(wrt, backward(emit, emit.nodes[begin:], seeds, wrt), strict=True))
    # An input given twice has its gradient once.
    return [by_value.pop(value, None) if value is not None else None for value in node.inputs]
