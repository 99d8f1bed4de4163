"""What would lower an arena, as records: each with the arena that planning the change gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["option", "model", "what-if"]


@dataclass(frozen=True, slots=True)
class Advice:
    """One change, and the arena it gives.

    kind    "option": the same graph, or one that computes the same, by another choice on the command line
            "model": another graph that computes the same (but for rounding where `what` says so), written by the
            one who exports the model
            "what-if": a network, or a kernel, that is not this one: what that would be worth
    what    the change
    how     how to make it
    arena_bytes    the arena of the plan of the changed graph
    saved_bytes    how much less that is than the plan the advice is for; not above 0 where it does not help
    outside_bytes  how many more bytes lie in memory outside the arena (inputs, outputs, weights)
    unplanned      how many more values could not be planned at all: then the arenas do not compare
    """

    kind: Kind
    what: str
    how: str
    arena_bytes: int
    saved_bytes: int
    outside_bytes: int = 0
    unplanned: int = 0


@dataclass(frozen=True, slots=True)
class Advised:
    """All advice about one plan, what saves most first.

    failed    changes that could not be planned, each with the reason
    stopped   why no more changes were tried; "" when all were
    """

    advice: tuple[Advice, ...]
    failed: tuple[str, ...] = ()
    stopped: str = ""

    @property
    def helping(self) -> tuple[Advice, ...]:
        """What needs less; of options that need the same, those that say no more than it takes."""
        known = {(each.how, each.arena_bytes) for each in self.advice}
        better = (each for each in self.advice if each.saved_bytes > 0 and each.unplanned <= 0)
        return tuple(each for each in better if (each.how.rpartition(" --")[0], each.arena_bytes) not in known)

    @property
    def vain(self) -> tuple[Advice, ...]:
        """What needs no less, as far as arenas compare."""
        return tuple(each for each in self.advice if each.saved_bytes <= 0 or each.unplanned > 0)

    @property
    def content(self) -> dict[str, Any]:
        """For programs."""
        names = ("kind", "what", "how", "arena_bytes", "saved_bytes", "outside_bytes", "unplanned")
        return {
            "advice": [{name: getattr(each, name) for name in names} for each in self.advice],
            "advice_failed": list(self.failed),
            "advice_stopped": self.stopped,
        }
