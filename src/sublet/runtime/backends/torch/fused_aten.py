"""Kernels of fused aten operators: PyTorch operators called in sequence on a few rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.base.errors import RunError
from sublet.ir.graph import Node
from sublet.ops.aten import version_mismatch
from sublet.ops.nn.command import spec_of
from sublet.runtime.backends.torch.aten import call_operands, operand_tensor
from sublet.runtime.backends.torch.bound_call import BoundTorchCall
from sublet.runtime.backends.torch.chunked import CHUNK_BYTES
from sublet.runtime.backends.torch.kernel import Tensor, scratch_tensor, torch
from sublet.runtime.calls import sequence_calls
from sublet.runtime.kernel import Array, Call, Operand


@dataclass(frozen=True)
class LogitsGradient:
    """A kernel for the gradient of a cross entropy with respect to logits [N, C].

    The kernel holds the gradient with respect to log_softmax only for a few rows.
    """

    node: Node

    @property
    def scratch(self) -> int:
        """The bytes of the log_softmax gradient of the rows computed at a time."""
        rows, row = self._rows_and_bytes
        return rows * row

    @property
    def _rows_and_bytes(self) -> tuple[int, int]:
        """The number of rows computed at a time, and the bytes of a row."""
        spec = spec_of(self.node.defs[0])
        count, row = spec.shape[0], spec.nbytes // max(1, spec.shape[0])
        return min(count, max(1, CHUNK_BYTES // max(1, row))), row

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the bound call.

        Raises RunError if PyTorch is not the version of the facts: a plan may come from a file.
        """
        wrong = version_mismatch(torch().__version__)
        if wrong:
            raise RunError(f"node {self.node.name}: {wrong}")
        (dx,), args, _ = call_operands(
            self.node, [operand_tensor(each) for each in inputs], map(operand_tensor, outputs)
        )
        return BoundTorchCall(sequence_calls(list(self._calls(dx, args, operand_tensor(scratch)))), [dx], self.node)

    def _calls(self, dx: Tensor, args: Sequence[Any], scratch: Tensor) -> Iterator[Call]:
        dy, y, labels, weight, reduction, ignored, total = args
        step, _ = self._rows_and_bytes
        aten = torch().ops.aten
        for begin in range(0, dx.shape[0], max(1, step)):
            rows = slice(begin, begin + step)
            from_above = dy[rows] if dy.dim() else dy
            piece = scratch_tensor(scratch, dx.dtype, dx[rows].shape)
            loss = (from_above, y[rows], labels[rows], weight, reduction, ignored, total)
            yield partial(aten.nll_loss_backward.grad_input, *loss, grad_input=piece)
            yield partial(aten._log_softmax_backward_data.out, piece, y[rows], 1, dx.dtype, out=dx[rows])
