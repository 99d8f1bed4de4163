"""Slices read, and rows written, where they lie in the whole: at its beginning in round 0, a step further every round.

A slice along the leading axis is a run of bytes of its sequence, and a row one of its stacked output. As a *window*
it has no bytes of its own: round k finds it at base + k * stride, or from the far end when it is reversed. What
shares its bytes within the round (a view of the slice; what the row is computed over) lies there with it.

A row stays where it is. So a parameter of the loop may be a pointer to it: it stands for the row of the round before,
and the output of the loop for the row of the last round [an LSTM's h].
"""

from __future__ import annotations

from dataclasses import dataclass

from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Value, While
from sublet.plan import Stride


@dataclass(frozen=True)
class Window:
    """The place of a slice or a row in the copies of a loop's body that have it.

    kind    "slice" or "row"
    value   the instance that could lie in `whole`, the instance of the sequence or of the stacked output
    spans   half points: whatever lies in the window must live after the first and up to the second of one of these
    """

    kind: str
    loop: While
    value: Value
    whole: Value
    axis: int
    backwards: bool
    spans: tuple[tuple[int, int], ...]

    @property
    def read_only(self) -> bool:
        """Whether the bytes are still needed as those of the whole."""
        return self.kind == "slice"

    @property
    def start(self) -> int:
        """Where round 0 finds it in the whole."""
        return self.whole.nbytes - self.value.nbytes if self.backwards else 0

    @property
    def stride(self) -> Stride:
        """How it moves from round to round."""
        return Stride(self.loop.name, self.value.nbytes, self.backwards)

    def holds(self, pieces: tuple[tuple[int, int], ...]) -> bool:
        """Whether a value that lives in these half points lives within one round."""
        return all(any(first < begin and end <= last for first, last in self.spans) for begin, end in pieces)


def obstacle(part: Value, whole: Value, axis: int, alignment: int, smallest: int) -> str:
    """Why a slice or row cannot lie in the whole, or should not; "" if it may."""
    if not isinstance(whole.spec, TensorSpec):
        return f"%{whole.name} has no place in the plan"
    if not isinstance(part.spec, TensorSpec):
        return f"%{part.name} has no place in the plan"
    extent = whole.spec.shape[axis]
    if any(other != 1 for other in whole.spec.shape[:axis]) or whole.nbytes != extent * part.nbytes:
        return f"along axis {axis} its bytes are not one run"
    if part.nbytes % alignment:
        return f"its bytes are no multiple of the alignment of {alignment}"
    if part.nbytes < smallest:
        return f"below {smallest:,} bytes a copy costs less"
    return ""
