"""The gradient of a branch: a branch on the same index, with the backward of arm i as arm i.

    %y = case %i { arm { %a = nn.exp(%x) yield %a } arm { yield %x } }

becomes the following branch. Values computed by an arm and read by the backward are additional outputs of the forward
branch.

    %dx = case %i { arm { %b = nn.mul(%dy, %y) yield %b } arm { yield %dy } }

An arm without a value for an additional output returns undefined bytes without a reader. If the forward branch has
fallbacks, an additional first arm, for an index below 0, passes the gradients to the fallbacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sublet.base.tensor import DType, Spec, TensorSpec
from sublet.ir.dataflow import captures, producing_nodes
from sublet.ir.graph import CaseOf, Graph, Node, Value
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff.backward_level import BackwardLevel, Contribution, nodes_needed_for, zero_gradient
from sublet.passes.autodiff.tape import TapeAccess, captured_values
from sublet.passes.gradient_sums import Contributions

UNSIGNED = (DType.BOOL, DType.U8, DType.U16, DType.U32, DType.U64)


@dataclass
class _BackwardArm:
    """An arm of the backward branch, and the gradients returned by the arm.

    `level` is None for the arm of the fallbacks, without a forward arm.
    """

    name: str
    emit: Emitter
    level: BackwardLevel | None
    grads: list[Value | None]
    nodes: list[Node] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()

    def finalize(self, wanted: Sequence[Value], kept: Sequence[int]) -> None:
        """Remove dead nodes, and return zeros for missing gradients."""
        grads = [(wanted[i], self.grads[i]) for i in kept]
        self.outputs = tuple(grad if grad is not None else zero_gradient(self.emit, value) for value, grad in grads)
        self.nodes = nodes_needed_for(self.emit.nodes, self.outputs)


@dataclass
class _ForwardSlot:
    """An additional output of the forward branch: at most one value of each arm, all of the same spec."""

    spec: Spec
    values: dict[int, Value]


def branch_gradient(level: BackwardLevel, node: CaseOf, grads: Sequence[Value | None]) -> list[Contribution]:
    """Return the gradients of the captured values and of the fallbacks of a branch."""
    active = level.context.active
    captured = dict.fromkeys(value for arm in node.arms for value in captures(arm))
    wanted = [value for value in dict.fromkeys((*captured, *node.fallbacks)) if value in active]
    arms = [_backward_arm(level, arm, grads, wanted) for arm in node.arms]
    index = node.index
    if node.fallbacks and spec_of(index).dtype not in UNSIGNED:
        arms.insert(0, _fallback_arm(level, node, grads, wanted))
        low, one = (level.emit.constant(number, index) for number in (-1, 1))
        index = level.emit("nn.add", level.emit("nn.maximum", index, low), one)
    kept = [i for i in range(len(wanted)) if any(arm.grads[i] is not None for arm in arms)]
    if not kept:
        return []
    for arm in arms:
        arm.finalize(wanted, kept)
    slots = _extend_forward_branch(level, node, [arm for arm in arms if arm.level is not None])
    graphs = tuple(_arm_graph(arm, slots) for arm in arms)
    results = tuple(Value(level.emit.names.fresh(f"{level.emit.scope}{wanted[i].name}"), wanted[i].spec) for i in kept)
    level.emit.nodes.append(
        CaseOf(results[0].name, "case", (index,), results, dict(node.attrs), level.emit.source, arms=graphs)
    )
    return [(wanted[i], result, None) for i, result in zip(kept, results, strict=True)]


def _backward_arm(
    level: BackwardLevel, arm: Graph, grads: Sequence[Value | None], wanted: Sequence[Value]
) -> _BackwardArm:
    """Return the backward of an arm."""
    inner, contributions = level.sublevel(arm), Contributions()
    for output, grad in zip(arm.outputs, grads, strict=True):
        if grad is not None and output in level.context.active:
            contributions.add(inner.emit, output, grad)
    level.context.run(inner, arm.nodes, contributions)
    return _BackwardArm(
        f"{arm.name}.grad", inner.emit, inner, [contributions.total(inner.emit, value) for value in wanted]
    )


def _fallback_arm(
    level: BackwardLevel, node: CaseOf, grads: Sequence[Value | None], wanted: Sequence[Value]
) -> _BackwardArm:
    """Return the backward arm for the fallbacks."""
    emit, contributions = level.emit.for_subgraph(), Contributions()
    for fallback, grad in zip(node.fallbacks, grads, strict=True):
        if grad is not None:
            contributions.add(emit, fallback, grad)
    return _BackwardArm(f"{node.name}.none.grad", emit, None, [contributions.total(emit, value) for value in wanted])


def _arm_access(arm: _BackwardArm, there: dict[Value, Value]) -> TapeAccess:
    """Return the access of a backward arm to the values of the forward arm."""
    assert arm.level is not None
    return TapeAccess(producing_nodes(arm.level.forward.nodes), lambda emit, value: there.get(value))


def _arm_graph(arm: _BackwardArm, there: dict[Value, Value]) -> Graph:
    """Return the arm as a graph reading the additional outputs of the forward branch."""
    if arm.level is None:
        return Graph(arm.name, (), tuple(arm.nodes), arm.outputs)
    emit = arm.emit.for_subgraph()
    outputs = _arm_access(arm, there).write_backward(emit, arm.nodes, arm.outputs)
    return Graph(arm.name, (), tuple(emit.nodes), outputs)


def _extend_forward_branch(level: BackwardLevel, node: CaseOf, arms: Sequence[_BackwardArm]) -> dict[Value, Value]:
    """Replace the forward branch by a branch with additional outputs for the values read by the backward arms.

    Returns the output replacing each value of a forward arm.
    """
    replacements: dict[Value, Value] = {}
    slots: list[_ForwardSlot] = []
    for i, (arm, forward) in enumerate(zip(arms, node.arms, strict=True)):
        assert arm.level is not None
        inner = producing_nodes(arm.level.forward.nodes)
        outputs = zip(forward.outputs, node.outputs, strict=True)
        shared = {value: output for value, output in outputs if value in inner and output is not None}
        captured = captured_values(Graph(arm.name, (), tuple(arm.nodes), arm.outputs), set(inner))
        for value in _arm_access(arm, replacements).values_to_store(captured, shared.__contains__):
            _free_slot(slots, value.spec, i).values[i] = value
        replacements.update(shared)
    results = [Value(level.forward.names.fresh(f"{node.name}.kept"), slot.spec) for slot in slots]
    for slot, result in zip(slots, results, strict=True):
        replacements.update((value, result) for value in slot.values.values())
    changed, before = _with_slots(level, node, arms, slots)
    level.replace_node(node, *before, replace(changed, outputs=(*node.outputs, *results)))
    return replacements


def _free_slot(slots: list[_ForwardSlot], spec: Spec, arm: int) -> _ForwardSlot:
    """Return a slot with this spec and without a value of this arm, adding one if necessary."""
    for slot in slots:
        if slot.spec == spec and arm not in slot.values:
            return slot
    slots.append(_ForwardSlot(spec, {}))
    return slots[-1]


def _with_slots(
    level: BackwardLevel, node: CaseOf, arms: Sequence[_BackwardArm], slots: Sequence[_ForwardSlot]
) -> tuple[CaseOf, tuple[Node, ...]]:
    """Return the forward branch with the slots as additional outputs, and the nodes to insert before the branch."""
    graphs = []
    for i, (arm, old) in enumerate(zip(arms, node.arms, strict=True)):
        assert arm.level is not None
        emit = arm.level.forward
        more = tuple(slot.values[i] if i in slot.values else _undefined_value(emit, slot.spec) for slot in slots)
        graphs.append(replace(old, nodes=tuple(emit.nodes), outputs=(*old.outputs, *more)))
    before = level.forward.for_subgraph()
    fallbacks = tuple(_undefined_value(before, slot.spec) for slot in slots) if node.fallbacks else ()
    return replace(node, arms=tuple(graphs), inputs=(*node.inputs, *fallbacks)), tuple(before.nodes)


def _undefined_value(emit: Emitter, spec: Spec) -> Value:
    """Return an undefined value of a spec, for an output without readers."""
    if isinstance(spec, TensorSpec):
        return emit("nn.undefined", shape=spec.shape, dtype=spec.dtype)  # type: ignore[arg-type]
    return zero_gradient(emit, Value("", spec))
