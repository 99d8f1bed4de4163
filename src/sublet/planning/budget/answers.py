"""What is known of a network and a number of bytes, and how it is said."""

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
    """What is known of a network and a number of bytes."""

    FITS = "fits"
    NOT_FOUND = "not_found"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Point:
    """A program that was planned and checked: with these nodes in pieces or computed again, in so many bytes and
    seconds."""

    model: Model
    plan: MemoryPlan
    seconds: float

    @property
    def nbytes(self) -> int:
        """The bytes of the arena that the network runs in."""
        return self.plan.arenas[0].nbytes

    @property
    def away(self) -> int:
        """The bytes of the slow memory."""
        return self.plan.arena_bytes - self.nbytes

    @property
    def brought_back(self) -> int:
        """How often a value is brought back from the slow memory."""
        return sum(node.op == RELOAD for node in self.model.graph.nodes)

    @property
    def again(self) -> int:
        """How many nodes are computed once more, or later."""
        return len(self.model.recipe.again) - self.brought_back

    @property
    def split(self) -> int:
        """How many nodes are done in pieces."""
        return len(self.model.recipe.split)

    @property
    def changed(self) -> bool:
        """Whether it is another program than the plain one."""
        return bool(self.model.recipe.again or self.split)

    @property
    def done(self) -> str:
        """What was done to the nodes, for people."""
        said = [split_words(self.model.recipe.split)] if self.split else []
        if self.again:
            said.append(f"{self.again} nodes are computed once more, or later")
        if self.brought_back:
            said.append(f"{self.brought_back} values brought back from {self.away:,} bytes of slow memory")
        return "; ".join(said) or "nothing is computed again"


@dataclass(frozen=True)
class Answer:
    """What came of a budget: the cheapest point found within it, or the one that needs fewest bytes.

    floor  what no program of the nodes needs less than, as they are given
    finer  the same of the nodes in pieces, of those tried the one that needs least; None where none was tried
    least_seconds  no program in the order of the point, each node run where it stands, takes less; None where that is
                   not known, or where the point is none of these and takes less
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
        """As `extra`, a bound: no program in this order, each node run where it stands, costs less. None: not known."""
        if self.least_seconds is None or not self.plain.seconds:
            return None
        return self.least_seconds / self.plain.seconds - 1

    @property
    def extra(self) -> float:
        """The seconds more than those of the plain program, as a share of these."""
        return self.point.seconds / self.plain.seconds - 1 if self.plain.seconds else 0.0

    @property
    def words(self) -> str:
        """The answer, for people."""
        least = f"{self.point.nbytes:,} bytes"
        if self.outcome is Outcome.IMPOSSIBLE:
            return f"{self.budget:,} bytes are impossible: {self.claim}"
        if self.outcome is Outcome.NOT_FOUND:
            found = f"the least found needs {least}, with {self.extra:.1%} more time predicted ({self.costs})"
            ended = " before the search was ended" if self.ended_early else ""
            return f"no program within {self.budget:,} bytes was found{ended}; {found}; {self.claim}"
        if not self.point.changed:
            return f"the arena fits: {least}, nothing is computed again"
        told = f"the arena fits: {least} instead of {self.plain.nbytes:,}; {self.point.done}"
        bound = "" if self.least_extra is None else f", no less than {self.least_extra:.1%} in this order"
        return f"{told}: {self.extra:.1%} more time predicted{bound} ({self.costs})"

    @property
    def claim(self) -> str:
        """What cannot be, and of which nodes that is said."""
        if self.finer is None:
            return self.floor.words
        return f"{self.floor.words}; of the ways tried to do nodes in pieces, {self.finer.words}"


def most(budget: int | str) -> int:
    """The bytes of a budget, which may be written as "400MiB". Raises SubletError for what is none."""
    nbytes = parse_bytes(budget) if isinstance(budget, str) else budget
    if type(nbytes) is not int or nbytes < 0:
        raise PlanError(f"budget={budget!r} must be a number of bytes, or text such as '400MiB'")
    return nbytes
