"""What a caller gets: computed in memory of its own, or copied as it is computed, so that no arena has to keep it; and
what it gives to a second call, which has no place before that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.base.arrays import array_of, torch_name
from sublet.frontends.torch.tensors import torch
from sublet.ir.graph import Node, Value
from sublet.ops.aten import Strided, Use, decode
from sublet.ops.nn.command import spec_of
from sublet.ops.op import Op, register
from sublet.runtime.backends.torch.backend import Torch, over, seen
from sublet.runtime.cuts import CUT
from sublet.runtime.kernel import Array, Call, Kernel, Operand

TAKE = "take.result"
"""The op of a node that gives its input to the caller."""

COMPUTE = "take.computed"
"""The op of a node that computes what the caller gets, and nothing else."""

GIVE = "take.given"
"""The op of a node that gives a copy of what the caller gives to the second call."""

LEAST = 1 << 14
"""Bytes from which on a result that nobody else reads is computed where the caller gets it."""

register("take", lambda name: Op(name, pure=False, outputs=(1, 1) if name == GIVE else (0, 0)))

Computed = dict[str, tuple[Node, Node]]
"""By name of a node: what it computes, and what was to take that."""


def computed_for_callers(nodes: Sequence[Node], staying: Collection[Value]) -> tuple[list[Node], Computed]:
    """The nodes, those whose only result is only taken, in the same piece, as one with that; no result that stays."""
    readers: dict[Value, int] = dict.fromkeys(staying, 2)
    taken: dict[Value, Node] = {}
    alive: set[Value] = set()
    for node in nodes:
        alive = set() if node.op == CUT else alive
        alive.update(node.defs)
        for read in set(node.uses):
            readers[read] = readers.get(read, 0) + 1
        if node.op == TAKE and node.uses[0] in alive and _all_of(node):
            taken[node.uses[0]] = node
    found: Computed = {}
    left: list[Node] = []
    for node in nodes:
        value = node.outputs[0] if len(node.outputs) == 1 else None
        if value is not None and value in taken and readers[value] == 1 and value.nbytes >= LEAST and _known(node):
            found[node.name] = (node, taken[value])
            left.append(Node(node.name, COMPUTE, node.inputs, (), {"op": node.op}, node.source))
        else:
            left.append(node)
    merged = {take.name for _, take in found.values()}
    return [node for node in left if node.name not in merged], found


def _known(node: Node) -> bool:
    """Whether PyTorch has a kernel for it."""
    return not node.subgraphs and node.scratch is None and Torch().kernel(node, {}) is not None


def _all_of(node: Node) -> bool:
    """Whether it takes every element of a value, once."""
    (use,) = _use(node)
    (value,) = node.uses
    return use.layout is None or (use.layout.is_dense and use.layout.elements == spec_of(value).size)


def _use(node: Node) -> list[Use]:
    return list(decode(node).uses())


def _position(take: Node) -> int:
    found = take.attrs["position"]
    assert isinstance(found, int)
    return found


@dataclass
class Taking:
    """The backend of such nodes; what a run gave lies in `taken`, by position, and before it where that is to be, and
    what the second call is given in `given`."""

    computed: Computed
    name: str = "take"
    taken: dict[int, Any] = field(default_factory=dict)
    given: dict[int, Any] = field(default_factory=dict)

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Gives tensors that lie as the value is seen."""
        if node.op == COMPUTE:
            made, take = self.computed[node.name]
            inner = Torch().kernel(made, constants)
            assert inner is not None
            return _Compute(self.taken, made, take, inner)
        if node.op == GIVE:
            return _Give(self.given, node)
        return _Take(self.taken, node) if node.op == TAKE else None


@dataclass(frozen=True)
class _Give:
    given: Mapping[int, Any]
    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        (layout,), given, position = decode(self.node).outputs, self.given, _position(self.node)
        place = seen(over(outputs[0]), layout)

        def give() -> None:
            place.copy_(given[position])

        return give


@dataclass(frozen=True)
class _Take:
    taken: dict[int, Any]
    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        (use,) = _use(self.node)
        source, taken, position = seen(over(inputs[0]), use.layout), self.taken, _position(self.node)

        def take() -> None:
            place = taken.get(position)
            taken[position] = source.clone() if place is None else place.copy_(source)

        return take


@dataclass(frozen=True)
class _Compute:
    taken: dict[int, Any]
    node: Node
    take: Node
    inner: Kernel

    @property
    def scratch(self) -> int:
        return self.inner.scratch

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Every call computes in a new tensor, or where the caller has a place that lies as the result does."""
        (use,), position, spec = _use(self.take), _position(self.take), spec_of(self.node.defs[0])
        dtype, taken, bind = getattr(torch(), torch_name(spec.dtype)), self.taken, self.inner.bind

        def compute() -> None:
            place = taken.get(position)
            whole = None if place is None else _whole(place, spec.shape, use.layout)
            made = torch().empty(spec.shape, dtype=dtype, device="cpu") if whole is None else whole
            bind(inputs, [array_of(made, "a result")], scratch)()
            result = seen(made, use.layout)
            taken[position] = place.copy_(result) if place is not None and whole is None else result

        return compute


def _whole(place: Any, shape: tuple[int, ...], layout: Strided | None) -> Any:
    """The tensor of a shape that is a place when it is seen so; None where the place lies otherwise."""
    whole = place.as_strided(shape, Strided.contiguous(shape).stride, place.storage_offset())
    view = seen(whole, layout)
    return whole if (view.shape, view.stride()) == (place.shape, place.stride()) else None
