"""Records of the graphs planned by `torch.compile(backend="sublet")` in this process, and of graphs left to PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.base.formatting import human
from sublet.integrations.torch.compile.inductor_memory import PassMemory, StepMemory, step_memory
from sublet.integrations.torch.dialect import LINEAR_LOSS
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
        words += _grouped_losses(sum(node.op == LINEAR_LOSS for node in self.plan.nodes))
        return words + (f"; {self.remark}" if self.remark else "")


@dataclass
class Lowering:
    """The passes of a graph as lowered or compiled by Inductor.

    passes   memory of the forward pass and, if any, of the backward pass; None for an unknown memory
    saved    position of each saved result of the forward pass, by name of the argument of the backward pass
    results  number of results of the caller; None for an inference
    nodes    number of operators of the lowered passes
    """

    passes: list[PassMemory | None] = field(default_factory=list)
    saved: dict[str, int] = field(default_factory=dict)
    results: int | None = None
    nodes: int = 0

    @property
    def pass_names(self) -> str:
        """ "forward", or "forward and backward"."""
        return "forward" if self.results is None else "forward and backward"

    @property
    def why_unknown(self) -> str:
        """The reason for an unknown memory; "" for a known memory."""
        if any(each is None for each in self.passes):
            return "Inductor's allocations could not be read"
        if any(each.dynamic for each in self.passes if each):
            return "extents change from call to call"
        if self.results is not None and len(self.passes) == 1:
            return "PyTorch compiles the backward pass at its first run"
        expected = 1 if self.results is None else 2
        return "" if len(self.passes) == expected else f"Inductor generated {len(self.passes)} functions"

    @property
    def memory(self) -> StepMemory | None:
        """The live bytes of both passes; None if unknown."""
        known = [each for each in self.passes if each is not None]
        if self.why_unknown:
            return None
        backward = None if self.results is None else known[1]
        return step_memory(known[0], backward, self.saved, self.results or 0)


@dataclass(frozen=True)
class CompiledByInductor(Compiled):
    """The record of a graph with kernels of Inductor.

    lowering        the compiled passes; the backward pass joins at its first run, or before with a budget
    inductor_saved  bytes saved for the backward pass by Inductor's own division of the same graph, with the same losses
                    in groups of rows; None for an inference
    division        the origin of the chosen division, see `Division`
    again           stored tensors computed again by the search
    losses          losses computed in groups of rows, see `loss_rows.py`
    """

    lowering: Lowering = field(default_factory=Lowering)
    inductor_saved: int | None = None
    division: str = ""
    again: int = 0
    losses: int = 0

    @property
    def peak_bytes(self) -> int | None:
        """The peak of live bytes of both passes, without arguments, results of the caller and gradients.

        The peak is read from Inductor's allocations; None if unknown.
        """
        memory = self.lowering.memory
        return memory.peak if memory else None

    @property
    def saved_bytes(self) -> int:
        """The bytes saved by the forward pass; 0 if unknown."""
        memory = self.lowering.memory
        return memory.saved if memory else 0

    def __str__(self) -> str:
        if self.reason:
            return f"{self.name}: left to Inductor alone: {self.reason}"
        words = f"{self.name}: {self.nodes} operators by Inductor's kernels"
        if self.peak_bytes is None:
            return f"{words}, peak unknown: {self.lowering.why_unknown}"
        words += f", peak {human(self.peak_bytes)}"
        if self.inductor_saved is not None:
            words += f", {human(self.saved_bytes)} saved for the backward instead of {human(self.inductor_saved)}"
        words += f"; {self.again} tensors are computed again" if self.again else ""
        return words + _grouped_losses(self.losses)


def _grouped_losses(count: int) -> str:
    """Return words on losses computed in groups of rows; "" without such a loss."""
    return f"; {count} losses are computed in groups of rows" if count else ""


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
