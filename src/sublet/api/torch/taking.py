"""What a caller gets: a copy made where the value is computed, so that the arena need not keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sublet.ir.graph import Node, Value
from sublet.ops.aten import decode
from sublet.ops.op import Op, register
from sublet.runtime.backends.torch.backend import over, seen
from sublet.runtime.kernel import Array, Call, Kernel, Operand

TAKE = "take.result"
"""The op of a node that gives its input to the caller."""

register("take", lambda name: Op(name, pure=False, inputs=(1, 1), outputs=(0, 0)))


@dataclass
class Taking:
    """The backend of such nodes; what a run gave lies in `taken`, by position."""

    name: str = "take"
    taken: dict[int, Any] = field(default_factory=dict)

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Copies, as a tensor that lies as the value is seen."""
        return _Take(self.taken, node) if node.op == TAKE else None


@dataclass(frozen=True)
class _Take:
    taken: dict[int, Any]
    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        (use,) = decode(self.node).uses()
        source, taken, position = seen(over(inputs[0]), use.layout), self.taken, self.node.attrs["position"]

        def take() -> None:
            taken[position] = source.clone()  # type: ignore[index]

        return take
