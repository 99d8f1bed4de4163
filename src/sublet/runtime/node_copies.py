"""Execution of nodes that only copy bytes, from the facts of their ops; views and operands in place are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sublet.ir.graph import Node, Value
from sublet.ops.op import lookup, present_shares
from sublet.runtime.array_ops import address_of, copy_elements
from sublet.runtime.calls import no_op
from sublet.runtime.kernel import Call
from sublet.runtime.memory import Raw, ValuePlaces

Copy = tuple[Value, int, Value, int, int]
"""Bytes [b, b + n) of the first value become bytes [d, d + n) of the second: (first, b, second, d, n)."""


def byte_copies(node: Node) -> list[Copy] | None:
    """Return the copies computing the node, if views or parts cover every byte of the outputs; else None."""
    if not node.plannable:
        return None
    op = lookup(node.op)
    views = present_shares(node, op.views(node))
    copies: list[Copy] = [(base, offset, output, 0, output.nbytes) for output, base, offset in views]
    if not copies:
        parts = present_shares(node, op.parts(node))
        copies = [(part, 0, output, offset, part.nbytes) for output, part, offset in parts]
    if not copies and not op.pure:
        return None  # the op has side effects
    return copies if _covers_outputs([value for value in node.outputs if value is not None], copies) else None


def _covers_outputs(outputs: Sequence[Value], copies: list[Copy]) -> bool:
    """True if the copies write every byte of every output exactly once."""
    for output in outputs:
        end = 0
        for _, _, _, begin, nbytes in sorted((c for c in copies if c[2] == output), key=lambda copy: copy[3]):
            if begin != end:
                return False
            end += nbytes
        if end != output.nbytes:
            return False
    return True


def bind_copies(copies: Sequence[Copy], places: ValuePlaces) -> Call:
    """Return a call for the copies not already in place."""
    pairs: list[tuple[Raw, Raw]] = []
    values: list[tuple[str, str]] = []
    for source, begin, output, at, nbytes in copies:
        read = places.bytes_of(source)[begin : begin + nbytes]
        write = places.bytes_of(output)[at : at + nbytes]
        if nbytes and address_of(read) != address_of(write):
            pairs.append((read, write))
            values.append((source.name, output.name))
    return ByteCopies(tuple(pairs), tuple(values)) if pairs else no_op


@dataclass(frozen=True)
class ByteCopies:
    """A call copying bytes. `pairs` are (source, target) arrays; `values` the (source, target) names."""

    pairs: tuple[tuple[Raw, Raw], ...]
    values: tuple[tuple[str, str], ...]

    @property
    def addresses(self) -> list[int]:
        """The source and target addresses of each copy."""
        return [raw.ctypes.data for pair in self.pairs for raw in pair]

    def __call__(self) -> None:
        for read, write in self.pairs:
            copy_elements(read, write)
