"""The backend of cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sublet.ir.graph import Node, Value
from sublet.ops.cuts import CUT
from sublet.runtime.kernel import Array, Call, Kernel, Operand

__all__ = ["CUT", "Cuts"]


@dataclass(frozen=True)
class Cuts:
    """The backend of cuts."""

    name: str = "cut"

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Does nothing, as a call of its own."""
        return _Cut() if node.op == CUT else None


@dataclass(frozen=True)
class _Cut:
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        return lambda: None
