"""The reference kernels of the nn dialect: the NumPy definition of each command, copied to where results lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from sublet.errors import RunError
from sublet.ir.graph import Node, Value
from sublet.ops.nn import command
from sublet.ops.nn.command import PREFIX, Command
from sublet.runtime.kernel import Array, Call, Cell, Kernel, Operand
from sublet.runtime.moves import nothing

HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class NnReference:
    """Computes every command of the nn dialect, slowly; each call allocates its results."""

    name: str = "reference"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """The reference kernel of a command; None for ops of other dialects."""
        return _ReferenceKernel(node, command(node.op)) if node.op.startswith(PREFIX) else None


@dataclass(frozen=True)
class _ReferenceKernel:
    node: Node
    command: Command
    scratch: int = 0
    keeps: bool = True

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """A call that computes the results and copies them."""
        if not any(value.nbytes or not value.plannable for value in self.node.defs):
            return nothing  # there is nothing to write
        compute, attrs = self.command.compute, dict(self.node.attrs)

        def run() -> None:
            with np.errstate(all="ignore"):
                found = compute(*map(_widened, inputs), **attrs)
            results = found if isinstance(found, tuple) else (found,)
            if len(results) != len(outputs):
                raise RunError(f"{self.node.op} computed {len(results)} results, the node has {len(outputs)}")
            fresh = [np.array(result, copy=True) for result in results] if len(results) > 1 else results
            with np.errstate(all="ignore"):  # a number may be too large for its type
                for result, output in zip(fresh, outputs, strict=True):
                    if isinstance(output, Cell):
                        output.content = result
                    elif output is not None:
                        output[...] = result

        return run


def _widened(operand: Operand | None) -> Any:
    if isinstance(operand, Cell):
        return operand.content
    if operand is not None and operand.dtype in HALVES:
        return operand.astype(np.float32)
    return operand
