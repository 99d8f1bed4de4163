"""Kernels of collectives. A kernel starts a collective and waits for completion; a wait node only copies the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.base.errors import RunError
from sublet.ir.graph import Node
from sublet.ops.aten import COLLECTIVES, WAIT
from sublet.ops.aten.registry import find_operator
from sublet.runtime.backends.torch.aten import call_operands, operand_tensor
from sublet.runtime.backends.torch.bound_call import BoundTorchCall
from sublet.runtime.backends.torch.kernel import torch
from sublet.runtime.kernel import Array, Call, Operand

IN_PLACE_FORMS = {"all_reduce", "broadcast"}
"""Collectives with a form working on the argument."""

OUT_FORMS = {"all_gather_into_tensor", "reduce_scatter_tensor"}
"""Collectives with a form writing to a given tensor."""


@dataclass(frozen=True)
class CollectiveKernel:
    """A kernel for a collective of the process group named by the arguments, run in the current process."""

    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the call of the collective.

        Raises RunError if PyTorch lacks the operator. The call raises RunError if the process group does not exist.
        """
        if find_operator(self.node.op) is None:
            raise RunError(f"node {self.node.name}: PyTorch {torch().__version__} has no operator {self.node.op[:80]}")
        results, args, kwargs = call_operands(
            self.node, list(map(operand_tensor, inputs)), map(operand_tensor, outputs)
        )
        name = self.node.op.removeprefix(COLLECTIVES).partition(".")[0]
        if self.node.op == WAIT:  # the collective's kernel has already waited
            return BoundTorchCall(partial(results[0].copy_, args[0]), results, self.node)
        return BoundTorchCall(_CollectiveCall(self.node, name, results, args, kwargs), results, self.node)


@dataclass(frozen=True)
class _CollectiveCall:
    node: Node
    name: str
    results: Sequence[Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def __call__(self) -> None:
        functional = torch().ops._c10d_functional
        place, (first, *rest) = self.results[0], self.args
        try:
            if self.name in IN_PLACE_FORMS and place.is_contiguous():
                place.copy_(first)
                begun = getattr(functional, f"{self.name}_")(place, *rest, **self.kwargs)
            elif self.name in OUT_FORMS and place.is_contiguous():
                begun = getattr(functional, f"{self.name}_out")(first.contiguous(), *rest, **self.kwargs, out=place)
            else:
                begun = getattr(functional, self.name)(first, *rest, **self.kwargs)
        except RuntimeError as error:
            if torch().distributed.is_initialized():
                raise
            words = str(error).splitlines()[0]
            raise RunError(
                f"node {self.node.name}: {self.name} needs a process group of torch.distributed: {words}"
            ) from None
        for result, pending in zip(self.results, begun if isinstance(begun, list | tuple) else [begun], strict=True):
            complete = functional.wait_tensor(pending)
            if complete.data_ptr() != result.data_ptr():
                result.copy_(complete)
