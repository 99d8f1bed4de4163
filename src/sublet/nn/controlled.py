"""What a graph has whether it is written or computes at once: loops, branches, and whether layers train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from sublet.nn.control import Branch, Loop
from sublet.nn.levels import Levels
from sublet.nn.tensor import Tensor


class Controlled(Protocol):
    """A graph with control flow.

    training   what layers and modules ask for that differ in use: normalisation, dropout
    """

    training: bool

    def _written(self) -> Levels:
        """What the next loop or branch is written in."""

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Inside, layers are as in use: running statistics normalise, nothing is dropped."""
        before, self.training = self.training, False
        try:
            yield
        finally:
            self.training = before

    def while_(
        self,
        carried: Mapping[str, Tensor] | None = None,
        *,
        over: Mapping[str, Tensor] | None = None,
        rounds: int | None = None,
        max_trips: int | None = None,
        backwards: bool = False,
        name: str = "loop",
    ) -> Loop:
        """A loop, see `Loop`: `with g.while_({"h": h0}, over={"x": xs}) as loop: ... loop.next(h=...)`.

        carried    initial values by name; each round must say what comes next
        over       sequences by name; a round sees one step along axis 0
        rounds     how many there are, where that is known; the length of `over` when nothing is said
        max_trips  how many there are at most, where a check decides
        backwards  take the steps of `over` from the end, and stack rows from the end
        """
        return Loop(self._written(), dict(carried or {}), dict(over or {}), rounds, max_trips, backwards, name)

    def case_of(self, index: Tensor, fallback: Sequence[Tensor] = (), name: str = "case") -> Branch:
        """A branch, see `Branch`: arm i is taken when the index is i; False is 0, True is 1.

        An index below 0 takes no arm, and the results are `fallback`.
        """
        return Branch(self._written(), index, tuple(fallback), name)
