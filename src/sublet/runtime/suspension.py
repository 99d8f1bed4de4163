"""The backend of suspension points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sublet.ir.graph import Node, Value
from sublet.ops.op import SUSPEND
from sublet.runtime.kernel import Array, Call, Kernel, Operand

__all__ = ["SUSPEND", "SuspensionBackend"]


@dataclass(frozen=True)
class SuspensionBackend:
    """The backend of suspension points."""

    name: str = "cut"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return a kernel without work for a suspension point; None for other nodes."""
        return _SuspensionKernel() if node.op == SUSPEND else None


@dataclass(frozen=True)
class _SuspensionKernel:
    """The kernel of a suspension point: a separate call that does nothing."""

    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        return lambda: None
