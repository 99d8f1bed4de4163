"""Results computed in, or copied to, memory of the caller, and arguments of the backward pass copied in during the run.

The arena keeps no result until the end of a run: each result leaves the arena as soon as computed. A backward argument
has no place in the arena before the point of the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sublet.base.arrays import array_of, torch_name
from sublet.integrations.torch.dialect import StridedLayout, TensorArgument, decode
from sublet.integrations.torch.kernels.backend import BoundTorchCall, TorchBackend, operand_tensor, strided_tensor
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import spec_of
from sublet.ops.op import SUSPEND, Op, register
from sublet.runtime.kernel import Array, Call, Kernel, Operand

if TYPE_CHECKING:
    from torch import Tensor

COPY_OUT = "take.result"
"""The op of a node copying its input to the caller."""

COMPUTE_OUT = "take.computed"
"""The op of a node computing a result in the caller's memory."""

COPY_IN = "take.given"
"""The op of a node copying an argument of the backward pass into the arena."""

MIN_COMPUTED_BYTES = 1 << 14
"""Minimum bytes of a result computed in the caller's memory. Smaller results are copied."""

register("take", lambda name: Op(name, pure=False, outputs=(1, 1) if name == COPY_IN else (0, 0)))

ComputedOutputs = dict[str, tuple[Node, Node]]
"""By node name: the computing node, and the copy-out node fused with it."""


def fuse_computed_outputs(nodes: Sequence[Node], staying: Collection[Value]) -> tuple[list[Node], ComputedOutputs]:
    """Return the nodes with results computed directly in the caller's memory, and the fused pairs by node name.

    A node is fused with the copy-out node of the node's result if no further node of the same pass reads the result,
    and PyTorch has a kernel for the node. `staying` are results never fused: they stay in the arena.
    """
    readers: dict[Value, int] = dict.fromkeys(staying, 2)
    taken: dict[Value, Node] = {}
    alive: set[Value] = set()
    for node in nodes:
        alive = set() if node.op == SUSPEND else alive
        alive.update(node.defs)
        for read in set(node.uses):
            readers[read] = readers.get(read, 0) + 1
        if node.op == COPY_OUT and node.uses[0] in alive and _takes_all_elements(node):
            taken[node.uses[0]] = node
    fused: ComputedOutputs = {}
    kept: list[Node] = []
    for node in nodes:
        value = node.outputs[0] if len(node.outputs) == 1 else None
        if (
            value is not None
            and value in taken
            and readers[value] == 1
            and value.nbytes >= MIN_COMPUTED_BYTES
            and _has_torch_kernel(node)
        ):
            fused[node.name] = (node, taken[value])
            kept.append(Node(node.name, COMPUTE_OUT, node.inputs, (), {"op": node.op}, node.source))
        else:
            kept.append(node)
    merged = {take.name for _, take in fused.values()}
    return [node for node in kept if node.name not in merged], fused


def _has_torch_kernel(node: Node) -> bool:
    """True if PyTorch has a kernel for the node, without scratch memory and without subgraphs."""
    return not node.subgraphs and node.scratch is None and TorchBackend().kernel(node, {}) is not None


def _takes_all_elements(node: Node) -> bool:
    """True if a copy-out node takes every element of a value exactly once."""
    (use,) = _tensor_arguments(node)
    (value,) = node.uses
    return use.layout is None or (use.layout.is_dense and use.layout.elements == spec_of(value).size)


def _tensor_arguments(node: Node) -> list[TensorArgument]:
    """Return the tensor arguments of a copy-out node."""
    return list(decode(node).tensor_arguments())


def _position_of(take: Node) -> int:
    """Return the result or argument position of a copy-out or copy-in node."""
    position = take.attrs["position"]
    assert isinstance(position, int)
    return position


@dataclass
class CallerOutputs:
    """The backend of copy-out, compute-out and copy-in nodes.

    computed  the fused pairs of `fuse_computed_outputs`
    results   tensors by result position: before a run the caller's places, if any; after a run the results
    arguments the arguments of the backward pass by position
    """

    computed: ComputedOutputs
    name: str = "take"
    results: dict[int, Tensor] = field(default_factory=dict)
    arguments: dict[int, Tensor] = field(default_factory=dict)

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of a copy-out, compute-out or copy-in node; None for any other node."""
        if node.op == COMPUTE_OUT:
            made, take = self.computed[node.name]
            inner = TorchBackend().kernel(made, constants)
            assert inner is not None
            return _ComputeOutKernel(self.results, made, take, inner)
        if node.op == COPY_IN:
            return _CopyInKernel(self.arguments, node)
        return _CopyOutKernel(self.results, node) if node.op == COPY_OUT else None


@dataclass(frozen=True)
class _CopyInKernel:
    """Copies an argument of the backward pass into the arena."""

    arguments: Mapping[int, Tensor]
    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return a call copying the caller's argument into the arena."""
        (layout,), given, position = decode(self.node).outputs, self.arguments, _position_of(self.node)
        place = strided_tensor(operand_tensor(outputs[0]), layout)

        def give() -> None:
            place.copy_(given[position])

        return give


@dataclass(frozen=True)
class _CopyOutKernel:
    """Copies a result from the arena to the caller's place, or to a new tensor."""

    results: dict[int, Tensor]
    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return a call copying the result to the caller's place, or to a new tensor."""
        (use,) = _tensor_arguments(self.node)
        source, taken, position = (
            strided_tensor(operand_tensor(inputs[0]), use.layout),
            self.results,
            _position_of(self.node),
        )

        def take() -> None:
            place = taken.get(position)
            taken[position] = source.clone() if place is None else place.copy_(source)

        return take


@dataclass(frozen=True)
class _ComputeOutKernel:
    """Computes a result in the caller's place, or in a new tensor."""

    results: dict[int, Tensor]
    node: Node
    copy_out: Node
    inner: Kernel

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory of the inner kernel."""
        return self.inner.scratch

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return a call computing in a new tensor, or in the caller's place.

        If the place has another layout than the result, the call computes in a new tensor and copies.
        """
        (use,), position, spec = (
            _tensor_arguments(self.copy_out),
            _position_of(self.copy_out),
            spec_of(self.node.defs[0]),
        )
        t, taken, layout = torch(), self.results, use.layout
        dtype, write = (
            getattr(t, torch_name(spec.dtype)),
            _write_to_new_place(partial(self.inner.bind, inputs), scratch),
        )

        def compute() -> None:
            place = taken.get(position)
            whole = None if place is None else _whole_tensor_of(place, spec.shape, layout)
            tensor = t.empty(spec.shape, dtype=dtype, device="cpu") if whole is None else whole
            write(tensor)
            result = strided_tensor(tensor, layout)
            taken[position] = place.copy_(result) if place is not None and whole is None else result

        return compute


def _write_to_new_place(
    bind: Callable[[Sequence[Operand], Array | None], Call], scratch: Array | None
) -> Callable[[Tensor], None]:
    """Return a function running the call of a kernel with the result in a given tensor.

    Binding takes longer than many calls: later runs make only the arguments over the result again, if all are known.
    """
    inference_mode = torch().inference_mode()  # entered again by every run
    template: list[
        Callable[[Tensor], Call] | None
    ] = []  # after the first run, the template; None if each run has to bind

    def write(tensor: Tensor) -> None:
        if template and template[0] is not None:
            with inference_mode:
                template[0](tensor)()
            return
        call = bind([array_of(tensor, "a result")], scratch)
        call()
        if not template:
            template.append(call.template(tensor) if isinstance(call, BoundTorchCall) else None)

    return write


def _whole_tensor_of(place: Tensor, shape: tuple[int, ...], layout: StridedLayout | None) -> Tensor | None:
    """Return the tensor of `shape` seen through `layout` as `place`; None if `place` has another layout."""
    whole = place.as_strided(shape, StridedLayout.contiguous(shape).stride, place.storage_offset())
    view = strided_tensor(whole, layout)
    return whole if (view.shape, view.stride()) == (place.shape, place.stride()) else None
