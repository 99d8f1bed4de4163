"""The result of a budget search, and its text for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sublet.base.errors import PlanError
from sublet.base.formatting import parse_bytes
from sublet.ir.model import Model
from sublet.ops.nn.conversion import RELOAD
from sublet.passes.recompute.memory_bound import MemoryBound
from sublet.passes.splitting.propose_splits import describe_splits
from sublet.plan import MemoryPlan

FRONTIER_PERCENTS = (100, 90, 80, 70, 60, 50, 40, 30, 25, 20)
"""The budgets of a frontier, in percent of the plain arena."""


class SearchOutcome(StrEnum):
    """The verdict on a network and a number of bytes: a program fits, none was found, or none exists."""

    FITS = "fits"
    NOT_FOUND = "not_found"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class PlannedProgram:
    """A planned and checked program, with nodes split into pieces or computed again; `seconds` is the time of a run."""

    model: Model
    plan: MemoryPlan
    seconds: float

    @property
    def nbytes(self) -> int:
        """The bytes of the arena in the memory the network runs in."""
        return self.plan.arenas[0].nbytes

    @property
    def slow_bytes(self) -> int:
        """The bytes of the slow memory."""
        return self.plan.arena_bytes - self.nbytes

    @property
    def reload_count(self) -> int:
        """The number of reloads of values from the slow memory."""
        return sum(node.op == RELOAD for node in self.model.graph.nodes)

    @property
    def recompute_count(self) -> int:
        """The number of nodes computed once more, or later."""
        return len(self.model.recipe.again) - self.reload_count

    @property
    def split_count(self) -> int:
        """The number of nodes split into pieces."""
        return len(self.model.recipe.split)

    @property
    def is_changed(self) -> bool:
        """True if the program differs from the plain program."""
        return bool(self.model.recipe.again or self.split_count)

    @property
    def changes_in_words(self) -> str:
        """The changes to the nodes, for people."""
        said = [describe_splits(self.model.recipe.split)] if self.split_count else []
        if self.recompute_count:
            said.append(f"{self.recompute_count} nodes are recomputed or delayed")
        if self.reload_count:
            said.append(f"{self.reload_count} values are reloaded from {self.slow_bytes:,} bytes of slow memory")
        return "; ".join(said) or "nothing is recomputed"


@dataclass(frozen=True)
class BudgetResult:
    """The result of a budget: the cheapest program found within the budget, or the program with the fewest bytes.

    floor        the lower bound on any program of the given nodes
    split_floor  the smallest such bound of all splits tried; None if none was tried
    least_seconds  a lower bound on the time of every program in the same order, each node run at its position; None if
                   unknown, or if the program found is not of this kind and takes less time
    """

    budget: int
    outcome: SearchOutcome
    program: PlannedProgram
    plain: PlannedProgram
    floor: MemoryBound
    cost_source: str
    least_seconds: float | None = None
    ended_early: bool = False
    split_floor: MemoryBound | None = None

    @property
    def least_extra_time(self) -> float | None:
        """The lower bound on `extra_time` in the same order, each node run at its position; None if unknown."""
        if self.least_seconds is None or not self.plain.seconds:
            return None
        return self.least_seconds / self.plain.seconds - 1

    @property
    def extra_time(self) -> float:
        """The time beyond the plain program, as a share of the plain program's time."""
        return self.program.seconds / self.plain.seconds - 1 if self.plain.seconds else 0.0

    @property
    def words(self) -> str:
        """The result, for people."""
        least = f"{self.program.nbytes:,} bytes"
        if self.outcome is SearchOutcome.IMPOSSIBLE:
            return f"an arena of {self.budget:,} bytes is impossible: {self.bound_in_words}"
        if self.outcome is SearchOutcome.NOT_FOUND:
            ended = " before the search ended" if self.ended_early else ""
            time = f"with {self.extra_time:.1%} more time predicted ({self.cost_source})"
            found = f"the smallest found needs {least}, {time if self.program.is_changed else 'as without a budget'}"
            return f"no program within {self.budget:,} bytes was found{ended}; {found}; {self.bound_in_words}"
        if not self.program.is_changed:
            return f"the arena fits: {least}, nothing is recomputed"
        text = f"the arena fits: {least} instead of {self.plain.nbytes:,}; {self.program.changes_in_words}"
        bound = "" if self.least_extra_time is None else f", at least {self.least_extra_time:.1%} in this order"
        return f"{text}: {self.extra_time:.1%} more time predicted{bound} ({self.cost_source})"

    @property
    def bound_in_words(self) -> str:
        """The lower bounds, and the nodes they hold for, for people."""
        if self.split_floor is None:
            return self.floor.description
        if self.split_floor == self.floor:
            return f"{self.floor.description}; also with nodes split in the tried ways"
        return f"{self.floor.description}; with nodes split in the tried ways, {self.split_floor.description}"


def parse_budget(budget: int | str) -> int:
    """Return the bytes of a budget, a number or text such as "400MiB". Raises PlanError for anything else."""
    nbytes = parse_bytes(budget) if isinstance(budget, str) else budget
    if type(nbytes) is not int or nbytes < 0:
        raise PlanError(f"budget={budget!r} must be a number of bytes, or text such as '400MiB'")
    return nbytes
