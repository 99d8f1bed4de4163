"""Records of advice to lower an arena: each change with the arena of the changed graph, measured by planning."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

Kind = Literal["option", "model", "what-if"]


@dataclass(frozen=True, slots=True)
class Advice:
    """A change, and the arena planned for the changed graph.

    kind    "option": the same graph, or an equivalent graph, by another choice on the command line
            "model": another graph with the same results (but for rounding where `what` says so), to be written by the
            exporter of the model
            "what-if": another network or kernel; the figures show the value of the change
    what    the change
    how     instructions for the change
    arena_bytes    the arena of the plan of the changed graph
    saved_bytes    the reduction against the plan under advice; <= 0 for a change without benefit
    outside_bytes  the increase of memory outside the arena (inputs, outputs, weights)
    unplanned      the increase of unplannable values: if above 0, the arenas are not comparable
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
    """All advice about one plan, the largest saving first.

    failed    changes without a plan, each with the reason
    stopped   why the search for changes ended early; "" for a complete search
    """

    advice: tuple[Advice, ...]
    failed: tuple[str, ...] = ()
    stopped: str = ""

    def _repr_html_(self) -> str:
        """Return a table for a notebook. Only a notebook loads the code that draws."""
        return str(import_module("sublet.viz.notebook").advice_html(self))

    @property
    def helpful(self) -> tuple[Advice, ...]:
        """The changes with a smaller arena; of options with equal arenas only the shortest."""
        known = {(each.how, each.arena_bytes) for each in self.advice}
        better = (each for each in self.advice if each.saved_bytes > 0 and each.unplanned <= 0)
        return tuple(each for each in better if (each.how.rpartition(" --")[0], each.arena_bytes) not in known)

    @property
    def unhelpful(self) -> tuple[Advice, ...]:
        """The changes without a smaller arena, or with arenas that are not comparable."""
        return tuple(each for each in self.advice if each.saved_bytes <= 0 or each.unplanned > 0)

    @property
    def content(self) -> dict[str, Any]:
        """The advice as a JSON-serialisable dict."""
        names = ("kind", "what", "how", "arena_bytes", "saved_bytes", "outside_bytes", "unplanned")
        return {
            "advice": [{name: getattr(each, name) for name in names} for each in self.advice],
            "advice_failed": list(self.failed),
            "advice_stopped": self.stopped,
        }
