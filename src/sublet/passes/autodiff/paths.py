"""What lies between what is differentiated and what the gradient is wanted of, through loops and branches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sublet.ir.graph import CaseOf, Node, Value, While
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.nn.shapes import FLOATS


def differentiable(value: Value) -> bool:
    """Whether it may have a gradient: it is of a floating-point type. So may rows stacked outside the plan."""
    return value.spec.dtype in FLOATS


def reached(nodes: Sequence[Node], sources: Iterable[Value]) -> set[Value]:
    """The floating-point values that depend on `sources`, these included, in sub-graphs too."""
    active = set(sources)
    spread(nodes, active)
    return active


def spread(nodes: Sequence[Node], active: set[Value]) -> None:
    """Add to `active` what `nodes` compute from it."""
    for node in nodes:
        if isinstance(node, While):
            _through_loop(node, active)
        elif isinstance(node, CaseOf):
            for arm in node.arms:
                spread(arm.nodes, active)
            for sources in (*(arm.outputs for arm in node.arms), node.fallbacks):
                _pass(zip(sources, node.outputs, strict=False), active)
        elif node.op != STOP_GRADIENT and any(value in active for value in node.uses):
            active.update(value for value in node.defs if differentiable(value))


def _through_loop(node: While, active: set[Value]) -> None:
    _pass(zip(node.sequences, node.slices, strict=True), active)
    _pass(zip(node.inits, node.parameters, strict=True), active)
    before = -1
    while before != len(active):
        before = len(active)
        spread(node.body.nodes, active)
        _pass(zip(node.updates, node.parameters, strict=True), active)
    _pass(zip((*node.parameters, *node.rows), node.outputs, strict=True), active)


def _pass(pairs: Iterable[tuple[Value, Value | None]], active: set[Value]) -> None:
    active.update([to for source, to in pairs if to is not None and source in active and differentiable(to)])


def _gather(nodes: Sequence[Node], wanted: set[Value]) -> None:
    """Add to `wanted` the floating-point values that `nodes` compute it from, in sub-graphs too."""
    for node in reversed(nodes):
        if not any(value in wanted for value in node.defs):
            continue
        if isinstance(node, While):
            _back_through_loop(node, wanted)
        elif isinstance(node, CaseOf):
            for sources in (*(arm.outputs for arm in node.arms), node.fallbacks):
                _back(zip(sources, node.outputs, strict=False), wanted)
            for arm in node.arms:
                _gather(arm.nodes, wanted)
        elif node.op != STOP_GRADIENT:
            wanted.update(value for value in node.uses if differentiable(value))


def _back_through_loop(node: While, wanted: set[Value]) -> None:
    _back(zip((*node.parameters, *node.rows), node.outputs, strict=True), wanted)
    before = -1
    while before != len(wanted):
        before = len(wanted)
        _back(zip(node.updates, node.parameters, strict=True), wanted)
        _gather(node.body.nodes, wanted)
    _back(zip(node.inits, node.parameters, strict=True), wanted)
    _back(zip(node.sequences, node.slices, strict=True), wanted)


def _back(pairs: Iterable[tuple[Value, Value | None]], wanted: set[Value]) -> None:
    wanted.update([source for source, to in pairs if to is not None and to in wanted and differentiable(source)])


def carries_between(node: While, targets: Iterable[Value]) -> set[int]:
    """The carried pairs of a loop whose parameter leads to `targets`, values of the body, in this or a later round."""
    wanted = set(targets)
    found: set[int] = set()
    while True:
        _gather(node.body.nodes, wanted)
        more = {i for i, value in enumerate(node.parameters) if value in wanted}
        if more == found:
            return found
        found = more
        wanted.update(node.updates[i] for i in found if differentiable(node.updates[i]))
