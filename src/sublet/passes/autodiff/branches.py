"""The gradient of a branch is a branch on the same index: arm i of it is the backward of arm i.

    %y = case %i { arm { %a = nn.exp(%x) yield %a } arm { yield %x } }

becomes, with what an arm computed and its backward reads as a further output of the forward branch,

    %dx = case %i { arm { %b = nn.mul(%dy, %y) yield %b } arm { yield %dy } }

An arm that does not compute such an output gives bytes that nobody reads. Where the forward has fallbacks, one more
arm in front, for an index below 0, hands the gradients to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sublet.base.tensor import DType, Spec, TensorSpec
from sublet.ir.graph import CaseOf, Graph, Node, Value
from sublet.ir.walk import captures, made_by
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.passes.accumulate import Contributions
from sublet.passes.autodiff.level import Flow, Level, needed, zeros
from sublet.passes.autodiff.reads import Reads, taken

UNSIGNED = (DType.BOOL, DType.U8, DType.U16, DType.U32, DType.U64)


@dataclass
class _Arm:
    """One arm of the backward: its level, None for the one where no forward arm ran, and the gradients it gives."""

    name: str
    emit: Emitter
    level: Level | None
    grads: list[Value | None]
    nodes: list[Node] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()

    def close(self, wanted: Sequence[Value], kept: Sequence[int]) -> None:
        """Leave what nobody needs away, and give zeros where there is no gradient."""
        grads = [(wanted[i], self.grads[i]) for i in kept]
        self.outputs = tuple(grad if grad is not None else zeros(self.emit, value) for value, grad in grads)
        self.nodes = needed(self.emit.nodes, self.outputs)


@dataclass
class _Slot:
    """A further output of the forward branch: one value of each arm that has one for it."""

    spec: Spec
    values: dict[int, Value]


def branch_gradient(level: Level, node: CaseOf, grads: Sequence[Value | None]) -> list[Flow]:
    """The gradients by what the arms capture and by the fallbacks."""
    active = level.trail.active
    captured = dict.fromkeys(value for arm in node.arms for value in captures(arm))
    wanted = [value for value in dict.fromkeys((*captured, *node.fallbacks)) if value in active]
    arms = [_backward(level, arm, grads, wanted) for arm in node.arms]
    index = node.index
    if node.fallbacks and spec_of(index).dtype not in UNSIGNED:
        arms.insert(0, _none_taken(level, node, grads, wanted))
        low, one = (level.emit.constant(number, index) for number in (-1, 1))
        index = level.emit("nn.add", level.emit("nn.maximum", index, low), one)
    kept = [i for i in range(len(wanted)) if any(arm.grads[i] is not None for arm in arms)]
    if not kept:
        return []
    for arm in arms:
        arm.close(wanted, kept)
    slots = _replace(level, node, [arm for arm in arms if arm.level is not None])
    graphs = tuple(_written(arm, slots) for arm in arms)
    results = tuple(Value(level.emit.names.fresh(f"{level.emit.scope}{wanted[i].name}"), wanted[i].spec) for i in kept)
    level.emit.nodes.append(
        CaseOf(results[0].name, "case", (index,), results, dict(node.attrs), level.emit.source, arms=graphs)
    )
    return [(wanted[i], result, None) for i, result in zip(kept, results, strict=True)]


def _backward(level: Level, arm: Graph, grads: Sequence[Value | None], wanted: Sequence[Value]) -> _Arm:
    inner, found = level.below(arm), Contributions()
    for output, grad in zip(arm.outputs, grads, strict=True):
        if grad is not None and output in level.trail.active:
            found.add(inner.emit, output, grad)
    level.trail.run(inner, arm.nodes, found)
    return _Arm(f"{arm.name}.grad", inner.emit, inner, [found.total(inner.emit, value) for value in wanted])


def _none_taken(level: Level, node: CaseOf, grads: Sequence[Value | None], wanted: Sequence[Value]) -> _Arm:
    emit, found = level.emit.inside(), Contributions()
    for fallback, grad in zip(node.fallbacks, grads, strict=True):
        if grad is not None:
            found.add(emit, fallback, grad)
    return _Arm(f"{node.name}.none.grad", emit, None, [found.total(emit, value) for value in wanted])


def _reads(arm: _Arm, there: dict[Value, Value]) -> Reads:
    assert arm.level is not None
    return Reads(made_by(arm.level.forward.nodes), lambda emit, value: there.get(value))


def _written(arm: _Arm, there: dict[Value, Value]) -> Graph:
    """The arm, reading what the forward branch hands out."""
    if arm.level is None:
        return Graph(arm.name, (), tuple(arm.nodes), arm.outputs)
    emit = arm.emit.inside()
    outputs = _reads(arm, there).write(emit, arm.nodes, arm.outputs)
    return Graph(arm.name, (), tuple(emit.nodes), outputs)


def _replace(level: Level, node: CaseOf, arms: Sequence[_Arm]) -> dict[Value, Value]:
    """Let the forward branch hand out what the arms of the backward read of it. Returns what stands for what."""
    there: dict[Value, Value] = {}
    slots: list[_Slot] = []
    for i, (arm, forward) in enumerate(zip(arms, node.arms, strict=True)):
        assert arm.level is not None
        inner = made_by(arm.level.forward.nodes)
        handed = zip(forward.outputs, node.outputs, strict=True)
        shared = {value: output for value, output in handed if value in inner and output is not None}
        read = taken(Graph(arm.name, (), tuple(arm.nodes), arm.outputs), set(inner))
        for value in _reads(arm, there).stored(read, shared.__contains__):
            _slot_for(slots, value.spec, i).values[i] = value
        there.update(shared)
    results = [Value(level.forward.names.fresh(f"{node.name}.kept"), slot.spec) for slot in slots]
    for slot, result in zip(slots, results, strict=True):
        there.update((value, result) for value in slot.values.values())
    changed, before = _with_slots(level, node, arms, slots)
    level.replace(node, *before, replace(changed, outputs=(*node.outputs, *results)))
    return there


def _slot_for(slots: list[_Slot], spec: Spec, arm: int) -> _Slot:
    """A slot of a spec that has no value of an arm yet."""
    for slot in slots:
        if slot.spec == spec and arm not in slot.values:
            return slot
    slots.append(_Slot(spec, {}))
    return slots[-1]


def _with_slots(
    level: Level, node: CaseOf, arms: Sequence[_Arm], slots: Sequence[_Slot]
) -> tuple[CaseOf, tuple[Node, ...]]:
    """The forward branch whose arms fill the slots, and what must come before it."""
    graphs = []
    for i, (arm, old) in enumerate(zip(arms, node.arms, strict=True)):
        assert arm.level is not None
        emit = arm.level.forward
        more = tuple(slot.values[i] if i in slot.values else _anything(emit, slot.spec) for slot in slots)
        graphs.append(replace(old, nodes=tuple(emit.nodes), outputs=(*old.outputs, *more)))
    before = level.forward.inside()
    fallbacks = tuple(_anything(before, slot.spec) for slot in slots) if node.fallbacks else ()
    return replace(node, arms=tuple(graphs), inputs=(*node.inputs, *fallbacks)), tuple(before.nodes)


def _anything(emit: Emitter, spec: Spec) -> Value:
    """A value of a spec that nobody reads."""
    if isinstance(spec, TensorSpec):
        return emit("nn.undefined", shape=spec.shape, dtype=spec.dtype)  # type: ignore[arg-type]
    return zeros(emit, Value("", spec))
