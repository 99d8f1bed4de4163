"""The frontier of bytes and predicted time of a training step compiled by Sublet; no tensor gets bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sublet.base.formatting import human
from sublet.integrations.torch.eager_memory import fake_call, measure_eager
from sublet.integrations.torch.estimate import Loss, PlannedCall, device_of_step
from sublet.planning.budget.result import FRONTIER_PERCENTS, BudgetResult, SearchOutcome
from sublet.viz.frontier import frontier_of
from sublet.viz.page import write_html


@dataclass(frozen=True)
class MemoryFrontier:
    """Bytes against predicted time, from the plain plan down to the smallest program found.

    results  the results for the budgets of the arena, largest budget first
    outside  bytes beside this arena at the peak: weights, gradients, optimizer state, results, arenas of other graphs
    """

    results: tuple[BudgetResult, ...]
    outside: int

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows of the table: budget of the arena, arena, share of the plain arena, peak of all, extra time."""
        plain = self.results[0].plain.nbytes
        rows: list[tuple[str, ...]] = []
        for each in self.results:
            nbytes = each.program.nbytes
            figures = (human(nbytes), f"{nbytes / plain:.1%}", human(nbytes + self.outside), f"{each.extra_time:+.1%}")
            missed = (each.outcome.value.replace("_", " "), "", "", "")
            rows.append((human(each.budget), *(figures if each.outcome is SearchOutcome.FITS else missed)))
        return rows

    def __str__(self) -> str:
        lines = [f"{a:>10} {b:>10} {c:>8} {d:>10} {e:>10}" for a, b, c, d, e in (_TITLES, *self.rows)]
        return "\n".join([*lines, self.results[-1].bound_in_words])

    def _repr_html_(self) -> str:
        """Return the table as HTML, for notebooks."""
        head = "".join(f"<th>{title}</th>" for title in _TITLES)
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in self.rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def write_html(self, path: str | Path) -> None:
        """Write a page with the curve, and the memory map of each point. Raises SubletError for an unwritable file."""
        curve, (first, *others) = frontier_of(self.results)
        write_html(first, path, others, curve)


_TITLES = ("budget", "arena", "of plain", "all", "extra time")


def frontier(
    module: Any,
    loss: Loss | None,
    optimizer: Any,
    inputs: Any,
    targets: Sequence[Any] = (),
    *,
    percents: Sequence[int] = FRONTIER_PERCENTS,
    device: str | None = None,
    amp: Any = None,
    progress: Callable[[int], None] = lambda budget: None,
) -> MemoryFrontier:
    """Return bytes against predicted time of a step compiled by Sublet, for budgets in percent of the plain arena.

    Each budget is one of `torch.compile(module, backend="sublet", options={"budget": ...})`. A call with several graphs
    has the frontier of the graph with the largest arena. All other arguments are those of `estimate`.

    Args:
        percents: budgets in percent of the plain arena.
        progress: called with each budget in bytes before the search for it.

    Raises:
        ModelError: see `estimate`; and for a graph without a plan.
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    place = device_of_step(module, device)
    with fake_call(module, loss, optimizer, arguments, tuple(targets), place, amp) as call:
        planned = PlannedCall(call, measure_eager(call), place)
        search = planned.search
        plain = search.plain.nbytes
        results = search.frontier([plain * percent // 100 for percent in percents], progress)
    return MemoryFrontier(results, planned.outside + planned.other_arenas)
