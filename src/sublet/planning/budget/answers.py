"""The result of a budget search, and its text for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sublet.base.bytesize import parse_bytes
from sublet.base.errors import PlanError
from sublet.ir.model import Model
from sublet.ops.nn.conversion import RELOAD
from sublet.passes.recompute.floor import Floor
from sublet.passes.splitting.choose import split_words
from sublet.plan import MemoryPlan


class Outcome(StrEnum):
    """The verdict on a network and a number of bytes: a program fits, none was found, or none exists."""

    FITS = "fits"
    NOT_FOUND = "not_found"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Point:
    """A planned and checked program, with nodes split into pieces or computed again; `seconds` is the time of a run."""

    model: Model
    plan: MemoryPlan
    seconds: float

    @property
    def nbytes(self) -> int:
        """The bytes of the arena in the memory the network runs in."""
        return self.plan.arenas[0].nbytes

    @property
    def away(self) -> int:
        """The bytes of the slow memory."""
        return self.plan.arena_bytes - self.nbytes

    @property
    def brought_back(self) -> int:
        """The number of reloads of values from the slow memory."""
        return sum(node.op == RELOAD for node in self.model.graph.nodes)

    @property
    def again(self) -> int:
        """The number of nodes computed once more, or later."""
        return len(self.model.recipe.again) - self.brought_back

    @property
    def split(self) -> int:
        """The number of nodes split into pieces."""
        return len(self.model.recipe.split)

    @property
    def changed(self) -> bool:
        """True if the program differs from the plain program."""
        return bool(self.model.recipe.again or self.split)

    @property
    def done(self) -> str:
        """The changes to the nodes, for people."""
        said = [split_words(self.model.recipe.split)] if self.split else []
        if self.again:
            said.append(f"{self.again} nodes are computed once more, or later")
        if self.brought_back:
            said.append(f"{self.brought_back} values brought back from {self.away:,} bytes of slow memory")
        return "; ".join(said) or "nothing is computed again"


@dataclass(frozen=True)
class Answer:
    """The result of a budget: the cheapest program found within the budget, or the program with the fewest bytes.

    floor        the lower bound on any program of the given nodes
    split_floor  the smallest such bound of all splits tried; None if none was tried
    least_seconds  a lower bound on the time of every program in the same order, each node run at its position; None if
                   unknown, or if the program found is not of this kind and takes less time
    """

    budget: int
    outcome: Outcome
    point: Point
    plain: Point
    floor: Floor
    costs: str
    least_seconds: float | None = None
    ended_early: bool = False
    finer: Floor | None = None

    @property
    def least_extra(self) -> float | None:
        """The lower bound on `extra_time` in the same order, each node run at its position; None if unknown."""
        if self.least_seconds is None or not self.plain.seconds:
            return None
        return self.least_seconds / self.plain.seconds - 1

    @property
    def extra(self) -> float:
        """The time beyond the plain program, as a share of the plain program's time."""
        return self.point.seconds / self.plain.seconds - 1 if self.plain.seconds else 0.0

    @property
    def words(self) -> str:
        """The result, for people."""
        least = f"{self.point.nbytes:,} bytes"
        if self.outcome is Outcome.IMPOSSIBLE:
            return f"{self.budget:,} bytes are impossible: {self.claim}"
        if self.outcome is Outcome.NOT_FOUND:
            found = f"the least found needs {least}, with {self.extra:.1%} more time predicted ({self.costs})"
            ended = " before the search was ended" if self.ended_early else ""
            return f"no program within {self.budget:,} bytes was found{ended}; {found}; {self.claim}"
        if not self.point.changed:
            return f"the arena fits: {least}, nothing is computed again"
        text = f"the arena fits: {least} instead of {self.plain.nbytes:,}; {self.point.done}"
        bound = "" if self.least_extra is None else f", no less than {self.least_extra:.1%} in this order"
        return f"{text}: {self.extra:.1%} more time predicted{bound} ({self.costs})"

    @property
    def claim(self) -> str:
        """The lower bounds, and the nodes they hold for, for people."""
        if self.finer is None:
            return self.floor.words
        return f"{self.floor.words}; of the ways tried to do nodes in pieces, {self.finer.words}"


def most(budget: int | str) -> int:
    """Return the bytes of a budget, a number or text such as "400MiB". Raises PlanError for anything else."""
    nbytes = parse_bytes(budget) if isinstance(budget, str) else budget
    if type(nbytes) is not int or nbytes < 0:
        raise PlanError(f"budget={budget!r} must be a number of bytes, or text such as '400MiB'")
    return nbytes
