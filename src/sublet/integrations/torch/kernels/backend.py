"""The backend of the nn, aten and collective dialects on PyTorch: ATen functions with `out=` into the arena."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from sublet.base.tensor import DType
from sublet.integrations.torch.dialect import COLLECTIVES, EMBEDDING_SUM, LINEAR_LOSS, LOGITS_GRADIENT
from sublet.integrations.torch.dialect import PREFIX as ATEN
from sublet.integrations.torch.kernels.aten import (
    AtenKernel,
    CollectiveKernel,
    EmbeddingSum,
    LinearLoss,
    LogitsGradient,
    meta_tensor,
    operand_tensor,
    strided_tensor,
)
from sublet.integrations.torch.kernels.bound_call import BoundTorchCall
from sublet.integrations.torch.kernels.device import (
    CallRecorder,
    DeviceBackend,
    DeviceKernel,
    DeviceMemory,
    SegmentCall,
)
from sublet.integrations.torch.kernels.kernel import SingleCallKernel, TorchKernel, tensor_over, torch
from sublet.ir.graph import Node, Value
from sublet.ir.model import Model
from sublet.ops.nn import FAMILIES, command
from sublet.ops.nn.command import PREFIX, spec_of
from sublet.runtime.kernel import Array, Call, Compute, Kernel, Operand, sequence_calls

__all__ = [
    "KERNELS",
    "AtenKernel",
    "BoundTorchCall",
    "BoundTorchKernel",
    "CallRecorder",
    "DeviceBackend",
    "DeviceKernel",
    "DeviceMemory",
    "SegmentCall",
    "TorchBackend",
    "meta_tensor",
    "operand_tensor",
    "strided_tensor",
]  # fmt: skip

KERNELS: Mapping[str, TorchKernel] = {
    name: fast for family in FAMILIES for name, fast in import_module(f"{__package__}.{family}").KERNELS.items()
}
"""The kernels by the name of the command."""


@dataclass(frozen=True)
class TorchBackend:
    """The backend on ATen. Kernels run in PyTorch of the current process, with the configured number of threads."""

    name: str = "torch"

    @property
    def threads(self) -> int:
        """The number of threads of PyTorch. Measured times depend on the number."""
        return int(torch().get_num_threads())

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of a node if all operands are plannable and a kernel supports the node; else None."""
        if not node.plannable:
            return None
        if node.op.startswith(ATEN):
            return AtenKernel(node)
        if node.op.startswith(COLLECTIVES):
            return CollectiveKernel(node)
        if node.op == LOGITS_GRADIENT:
            return LogitsGradient(node)
        if node.op == EMBEDDING_SUM:
            return EmbeddingSum(node)
        if node.op == LINEAR_LOSS:
            return LinearLoss(node)
        if not node.op.startswith(PREFIX):
            return None
        fast = KERNELS.get(node.op.removeprefix(PREFIX))
        return (
            BoundTorchKernel(node, fast)
            if fast is not None and _aten_supports(node, fast) and fast.supports(node)
            else None
        )


WIDE_UNSIGNED = (DType.U16, DType.U32, DType.U64)


def _aten_supports(node: Node, fast: TorchKernel) -> bool:
    """True if ATen supports the operands: all outputs are present, no tensor is empty, and ATen has all types.

    ATen functions treat empty tensors inconsistently.
    """
    inferred = command(node.op).infer([None if value is None else spec_of(value) for value in node.inputs], node.attrs)
    values = (*node.uses, *node.defs)
    if len(inferred) != len(node.defs) or not all(value.nbytes for value in values):
        return False
    return fast.only_moves or not any(spec_of(value).dtype in WIDE_UNSIGNED for value in values)


@dataclass(frozen=True)
class BoundTorchKernel:
    """A kernel on ATen, bound to a node of a command."""

    node: Node
    record: TorchKernel

    @property
    def scratch(self) -> int:
        return self.record.scratch(self.node)

    @property
    def keeps(self) -> bool:
        return self.record.keeps

    def takes_strides(self, inputs: Collection[int], outputs: Collection[int]) -> bool:
        return self.record.strided(self.node, inputs)

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the bound call. The first run raises RunError if a function did not write to the planned place."""
        given, results = list(map(operand_tensor, inputs)), list(map(operand_tensor, outputs))
        calls = self.record.make(self.node, given, results, operand_tensor(scratch))
        return BoundTorchCall(calls if callable(calls) else sequence_calls(calls), results, self.node, given)

    def library_view(self, array: Array) -> Any:
        return tensor_over(array)

    def at_once(self) -> Compute:
        make, node = self.record.make, self.node
        if isinstance(make, SingleCallKernel):
            return make.at_once(node)

        def compute(inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
            calls = make(node, inputs, outputs, scratch)
            for call in (calls,) if callable(calls) else calls:
                call()

        return compute


def backend_for(model: Model) -> TorchBackend:
    """Return the backend, which is the same for all models."""
    return TorchBackend()
