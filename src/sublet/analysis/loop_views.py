"""Loop views: slices and rows as strided views of the whole, at a different offset in every iteration.

A slice along the leading axis is a contiguous run of bytes of the sequence, and a row a contiguous run of bytes of the
stacked output. A *loop view* owns no bytes: iteration k finds the view at base + k * stride, or from the far end if
reversed. Values sharing bytes with the view within an iteration (a view of the slice, an operand the row is written
over) lie at the same place.

A row stays in place after the iteration. A loop parameter may therefore be renamed and bound to the row of the previous
iteration, and the output of the loop to the row of the last iteration [an LSTM's h].
"""

from __future__ import annotations

from dataclasses import dataclass

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Value, While
from sublet.plan import Stride


@dataclass(frozen=True)
class LoopView:
    """A slice or row as a strided view of the whole, in all body versions with the slice or row.

    kind    "slice" or "row"
    value   the version of the slice or row
    whole   the version of the sequence or of the stacked output
    spans   slot ranges, an iteration each: members of the view must live after the first and up to the second slot
    """

    kind: str
    loop: While
    value: Value
    whole: Value
    axis: int
    backwards: bool
    spans: tuple[tuple[int, int], ...]

    @property
    def is_read_only(self) -> bool:
        """True if the whole still needs the bytes, as for a slice."""
        return self.kind == "slice"

    @property
    def start_offset(self) -> int:
        """The offset of iteration 0 in the whole, in bytes."""
        return self.whole.nbytes - self.value.nbytes if self.backwards else 0

    @property
    def stride(self) -> Stride:
        """The distance from iteration to iteration."""
        return Stride(self.loop.name, self.value.nbytes, self.backwards)

    def contains_ranges(self, pieces: tuple[tuple[int, int], ...]) -> bool:
        """True if every range of `pieces`, in slots, lies within a single iteration."""
        return all(any(first < begin and end <= last for first, last in self.spans) for begin, end in pieces)


def why_not_view(part: Value, whole: Value, axis: int, alignment: int, smallest: int) -> str:
    """Return the reason why a slice or row must or should be copied, or "" if a view of `whole` is possible.

    A view must be contiguous, a multiple of `alignment` bytes long, and at least `smallest` bytes long.
    """
    if not isinstance(whole.spec, TensorSpec):
        return f"%{whole.name} has no place in the plan"
    if not isinstance(part.spec, TensorSpec):
        return f"%{part.name} has no place in the plan"
    extent = whole.spec.shape[axis]
    if any(other != 1 for other in whole.spec.shape[:axis]) or whole.nbytes != extent * part.nbytes:
        return f"its bytes along axis {axis} are not contiguous"
    if part.nbytes % alignment:
        return f"its size of {part.nbytes:,} bytes is no multiple of the alignment, {alignment}"
    if part.nbytes < smallest:
        return f"it has fewer than {smallest:,} bytes, and a copy costs less"
    return ""
