"""The reference backend: slow, complete, independent of all other backends.

Commands of the nn dialect run by their NumPy definition, operators of an integration by its reference kernels; results
are copied to their outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from sublet.base.errors import RunError
from sublet.integrations.registry import resolve_entry
from sublet.ir.graph import Node, Value
from sublet.ops import nn
from sublet.ops.nn.command import PREFIX as NN
from sublet.ops.nn.command import Command
from sublet.runtime.kernel import Array, Call, Kernel, Operand, UnplannedCell, no_op, store

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class ReferenceBackend:
    """The reference backend; `opsets` gives the version of each ONNX operator set, "" for the default domain."""

    opsets: Mapping[str, int] = field(default_factory=dict)
    name: str = "reference"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the reference kernel of a command, or of an operator with one; None for all others."""
        if node.op.startswith(NN):
            return _DefinitionKernel(node, nn.command(node.op))
        make_kernel = resolve_entry("reference_kernels", node.op.partition(".")[0])
        kernel: Kernel | None = make_kernel(node, self.opsets) if make_kernel is not None else None
        return kernel


@dataclass(frozen=True)
class _DefinitionKernel:
    """The kernel of a command of the nn dialect, run by its NumPy definition."""

    node: Node
    command: Command
    scratch: int = 0
    keeps: bool = True

    def takes_strides(self, inputs: Collection[int], outputs: Collection[int]) -> bool:
        return True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        if not any(value.nbytes or not value.plannable for value in self.node.defs):
            return no_op  # all outputs are empty
        compute, attrs = self.command.compute, dict(self.node.attrs)

        def run() -> None:
            with np.errstate(all="ignore"):  # a number may overflow its type
                found = compute(*map(_widen_half, inputs), **attrs)
                results = found if isinstance(found, tuple) else (found,)
                if len(results) != len(outputs):
                    raise RunError(
                        f"{self.node.op} computed {len(results)} results, but the node has {len(outputs)} outputs"
                    )
                fresh = [np.array(result, copy=True) for result in results] if len(results) > 1 else results
                for result, output, value in zip(fresh, outputs, self.node.outputs, strict=True):
                    if output is not None:
                        rounded = result if isinstance(output, UnplannedCell) else np.asarray(result, output.dtype)
                        store(rounded, output, value)

        return run


def _widen_half(operand: Operand | None) -> Any:
    """Return an input as expected by a NumPy definition: 16-bit floats widened to f32."""
    if isinstance(operand, UnplannedCell):
        return operand.content
    if operand is not None and operand.dtype in HALVES:
        return operand.astype(np.float32)
    return operand
