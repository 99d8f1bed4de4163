"""The backend of suspension points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sublet.ir.graph import Node, Value
from sublet.ops.cuts import CUT
from sublet.runtime.kernel import Array, Call, Kernel, Operand

__all__ = ["CUT", "Cuts"]


@dataclass(frozen=True)
class Cuts:
    """The backend of suspension points."""

    name: str = "cut"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return a kernel without work for a suspension point; None for other nodes."""
        return _Cut() if node.op == CUT else None


@dataclass(frozen=True)
class _Cut:
    """The kernel of a suspension point: a separate call that does nothing."""

    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        return lambda: None
