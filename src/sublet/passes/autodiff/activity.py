"""Activity analysis: the values between the inputs and the outputs of differentiation, including loops and branches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sublet.ir.graph import CaseOf, Node, Value, While
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.nn.rules import FLOATS


def is_differentiable(value: Value) -> bool:
    """True if the value is of a floating-point type. Rows stacked outside of the plan count too."""
    return value.spec.dtype in FLOATS


def active_values(nodes: Sequence[Node], sources: Iterable[Value]) -> set[Value]:
    """Return the floating-point values depending on `sources`, including `sources` and values in sub-graphs."""
    active = set(sources)
    propagate_activity(nodes, active)
    return active


def propagate_activity(nodes: Sequence[Node], active: set[Value]) -> None:
    """Add all floating-point values computed by `nodes` from active values to `active`."""
    for node in nodes:
        if isinstance(node, While):
            _propagate_through_loop(node, active)
        elif isinstance(node, CaseOf):
            for arm in node.arms:
                propagate_activity(arm.nodes, active)
            for sources in (*(arm.outputs for arm in node.arms), node.fallbacks):
                _propagate_pairs(zip(sources, node.outputs, strict=False), active)
        elif node.op != STOP_GRADIENT and any(value in active for value in node.uses):
            active.update(value for value in node.defs if is_differentiable(value))


def _propagate_through_loop(node: While, active: set[Value]) -> None:
    """Propagate activity through a loop, to a fixpoint over the loop-carried values."""
    _propagate_pairs(zip(node.sequences, node.slices, strict=True), active)
    _propagate_pairs(zip(node.inits, node.parameters, strict=True), active)
    before = -1
    while before != len(active):
        before = len(active)
        propagate_activity(node.body.nodes, active)
        _propagate_pairs(zip(node.updates, node.parameters, strict=True), active)
    _propagate_pairs(zip((*node.parameters, *node.rows), node.outputs, strict=True), active)


def _propagate_pairs(pairs: Iterable[tuple[Value, Value | None]], active: set[Value]) -> None:
    """Mark the target of each pair (source, target) as active if the source is active."""
    active.update([to for source, to in pairs if to is not None and source in active and is_differentiable(to)])


def _propagate_back(nodes: Sequence[Node], wanted: set[Value]) -> None:
    """Add the floating-point values from which `nodes` compute wanted values to `wanted`, including sub-graphs."""
    for node in reversed(nodes):
        if not any(value in wanted for value in node.defs):
            continue
        if isinstance(node, While):
            _propagate_back_through_loop(node, wanted)
        elif isinstance(node, CaseOf):
            for sources in (*(arm.outputs for arm in node.arms), node.fallbacks):
                _propagate_pairs_back(zip(sources, node.outputs, strict=False), wanted)
            for arm in node.arms:
                _propagate_back(arm.nodes, wanted)
        elif node.op != STOP_GRADIENT:
            wanted.update(value for value in node.uses if is_differentiable(value))


def _propagate_back_through_loop(node: While, wanted: set[Value]) -> None:
    """Propagate `wanted` backwards through a loop, to a fixpoint over the loop-carried values."""
    _propagate_pairs_back(zip((*node.parameters, *node.rows), node.outputs, strict=True), wanted)
    before = -1
    while before != len(wanted):
        before = len(wanted)
        _propagate_pairs_back(zip(node.updates, node.parameters, strict=True), wanted)
        _propagate_back(node.body.nodes, wanted)
    _propagate_pairs_back(zip(node.inits, node.parameters, strict=True), wanted)
    _propagate_pairs_back(zip(node.sequences, node.slices, strict=True), wanted)


def _propagate_pairs_back(pairs: Iterable[tuple[Value, Value | None]], wanted: set[Value]) -> None:
    """Mark the source of each pair (source, target) as wanted if the target is wanted."""
    wanted.update([source for source, to in pairs if to is not None and to in wanted and is_differentiable(source)])


def carries_leading_to(node: While, targets: Iterable[Value]) -> set[int]:
    """Return the positions of the carried pairs whose parameter leads to `targets` in the same or a later iteration.

    `targets` are values of the body.
    """
    wanted = set(targets)
    found: set[int] = set()
    while True:
        _propagate_back(node.body.nodes, wanted)
        more = {i for i, value in enumerate(node.parameters) if value in wanted}
        if more == found:
            return found
        found = more
        wanted.update(node.updates[i] for i in found if is_differentiable(node.updates[i]))
