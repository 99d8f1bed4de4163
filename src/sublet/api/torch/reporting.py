"""What `torch.compile(backend="sublet")` has planned in this process, and what it has left to PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.base.bytesize import human
from sublet.plan import MemoryPlan

_compiled: list[Compiled] = []


@dataclass(frozen=True)
class Compiled:
    """One graph that PyTorch handed over.

    name     "forward and backward", or "forward" where no gradient is asked for
    nodes    operators in it, views not counted
    copied   the operators that give tensors of PyTorch's, each copied to its place: name, and bytes there at once
    plan     None when it was left to PyTorch
    reason   why it was
    parts    so many times it is run, each time for as many of the samples
    whole    why it is not run in parts, where that was tried
    """

    name: str
    nodes: int
    copied: tuple[tuple[str, int], ...] = ()
    plan: MemoryPlan | None = None
    reason: str = ""
    parts: int = 1
    whole: str = ""

    @property
    def share(self) -> float:
        """Of the bytes of all tensors, what is computed where it was planned."""
        if self.plan is None:
            return 0.0
        return 1 - sum(nbytes for _, nbytes in self.copied) / max(1, self.plan.total_bytes)

    def __str__(self) -> str:
        if self.plan is None:
            return f"{self.name}: left to PyTorch: {self.reason}"
        through = sum(nbytes for _, nbytes in self.copied)
        words = f"{self.name}: {self.nodes} operators in {human(self.plan.arena_bytes)}"
        words += f", {self.parts} times for as many parts of the samples" if self.parts > 1 else ""
        return words + (f"; {len(self.copied)} of them give {human(through)} that are copied" if self.copied else "")


def note(compiled: Compiled) -> None:
    """Remember it for `report`."""
    _compiled.append(compiled)


def report() -> tuple[Compiled, ...]:
    """What was handed over since the process began, in order."""
    return tuple(_compiled)
