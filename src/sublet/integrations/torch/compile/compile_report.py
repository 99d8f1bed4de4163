"""Records of the graphs planned by `torch.compile(backend="sublet")` in this process, and of graphs left to PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from sublet.base.formatting import human
from sublet.plan import MemoryPlan

_records: list[Compiled] = []


@dataclass(frozen=True)
class Compiled:
    """The record of one graph handed over by PyTorch.

    name     "forward and backward", or "forward" for a graph without gradients; " on DEVICE" for a device
    nodes    number of operators, views not counted
    copied   operators whose results PyTorch allocates and Sublet copies: (name, bytes at once)
    plan     the plan; None for a graph left to PyTorch
    reason   the reason for leaving the graph to PyTorch
    parts    number of micro-batches; 1 for all samples at once
    whole    the reason for a single part, if micro-batches were tried
    remark   the restriction of the plan for a version of PyTorch without measured facts
    """

    name: str
    nodes: int
    copied: tuple[tuple[str, int], ...] = ()
    plan: MemoryPlan | None = None
    reason: str = ""
    parts: int = 1
    whole: str = ""
    remark: str = ""

    @property
    def share(self) -> float:
        """Fraction of the bytes of all tensors computed directly in the arena, from 0 to 1; 0 without a plan."""
        if self.plan is None:
            return 0.0
        return 1 - sum(nbytes for _, nbytes in self.copied) / max(1, self.plan.total_bytes)

    def __str__(self) -> str:
        if self.plan is None:
            return f"{self.name}: left to PyTorch: {self.reason}"
        through = sum(nbytes for _, nbytes in self.copied)
        words = f"{self.name}: {self.nodes} operators in {human(self.plan.arena_bytes)}"
        words += f", {self.parts} times for as many parts of the samples" if self.parts > 1 else ""
        words += f"; {len(self.copied)} of them give {human(through)} that are copied" if self.copied else ""
        return words + (f"; {self.remark}" if self.remark else "")


def add_record(compiled: Compiled) -> None:
    """Add a record to `report`."""
    _records.append(compiled)


def remove_record(compiled: Compiled) -> None:
    """Remove the record of a discarded plan."""
    _records[:] = [each for each in _records if each is not compiled]


def report() -> tuple[Compiled, ...]:
    """Return a record for each graph planned or left to PyTorch in this process, in the order of the first calls.

    A graph with changing extents has one record for each plan kept, at most 32.
    """
    return tuple(_records)
