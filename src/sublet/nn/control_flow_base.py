"""Shared interface of symbolic and dynamic graphs: loops, branches, and the switch between training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from sublet.nn.control import Branch, Loop
from sublet.nn.level_stack import LevelStack
from sublet.nn.tensor import Tensor


class ControlFlowWriter(Protocol):
    """A graph with control flow.

    training   True for layers in training mode: batch normalisation and dropout depend on the mode
    """

    training: bool

    def _level_stack(self) -> LevelStack:
        """Return the stack of levels for the next loop or branch."""

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Set evaluation mode inside `with`: normalise by running statistics, drop nothing."""
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
        """Return a loop, see `Loop`: `with g.while_({"h": h0}, over={"x": xs}) as loop: ... loop.next(h=...)`.

        carried    initial values by name, of any shape; each iteration must set the next values
        over       sequences by name, all of equal length; an iteration reads one step along axis 0
        rounds     the number of iterations, if known; the length of `over` by default
        max_trips  the maximum number of iterations of a loop ended by a check, for planning stacked rows
        backwards  read the steps of `over` from the end, and stack rows from the end
        name       the prefix of names in the loop

        Raises SpecError for sequences of different lengths, a number of iterations that is not an integer, and a name
        both in `carried` and in `over`.
        """
        return Loop(self._level_stack(), dict(carried or {}), dict(over or {}), rounds, max_trips, backwards, name)

    def case_of(self, index: Tensor, fallback: Sequence[Tensor] = (), name: str = "case") -> Branch:
        """Return a branch, see `Branch`: arm i runs when `index`, one bool or integer, is i; False is 0, True is 1.

        With an index below 0 no arm runs, and the results are `fallback`. Raises SpecError for an index of another type
        or of several elements.
        """
        return Branch(self._level_stack(), index, tuple(fallback), name)
