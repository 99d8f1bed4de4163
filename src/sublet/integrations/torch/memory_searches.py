"""Searches over steps without bytes: the frontier of bytes and predicted time, and the largest batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from sublet.base.errors import ModelError
from sublet.base.formatting import human, parse_bytes
from sublet.base.optional_imports import require
from sublet.integrations.torch.compile.backend import KERNELS
from sublet.integrations.torch.eager_memory import fake_call, measure_eager
from sublet.integrations.torch.estimate import META, Estimate, Loss, device_of_step, estimate
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.sublet_memory import COMPILE, planned_by
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


MAX_BATCH = 1 << 24
"""Largest batch tried by `largest_batch`."""

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
    step: str = COMPILE,
    progress: Callable[[int], None] = lambda budget: None,
) -> MemoryFrontier:
    """Return bytes against predicted time of a step by Sublet, for budgets in percent of the plain arena.

    Each budget is one of `torch.compile(module, backend="sublet", options={"budget": ...})`, or of
    `train_step(..., budget=...)`. A call with several graphs has the frontier of the graph with the largest arena. All
    other arguments are those of `estimate`.

    Args:
        percents: budgets in percent of the plain arena.
        progress: called with each budget in bytes before the search for it.

    Raises:
        ModelError: see `estimate`; and for a graph without a plan.
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    place = device_of_step(module, device)
    with fake_call(module, loss, optimizer, arguments, tuple(targets), place, amp) as call:
        planned = planned_by(step)(call, measure_eager(call), place)
        search = planned.search
        plain = search.plain.nbytes
        results = search.frontier([plain * percent // 100 for percent in percents], progress)
    return MemoryFrontier(results, planned.outside + planned.other_arenas)


@dataclass(frozen=True)
class LargestBatch:
    """The largest batches within a number of bytes; 0 if one sample does not fit.

    memory     the bytes for all together
    eager      for eager PyTorch
    sublet     for the plain plans; None if a graph has no plan
    budgeted   with values recomputed; None if not asked for
    reason     the reason for no plan
    """

    memory: int
    eager: int
    sublet: int | None
    budgeted: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        counts = {"eager": self.eager, "Sublet": self.sublet, "with budget": self.budgeted}
        said = ", ".join(f"{name} {count}" for name, count in counts.items() if count is not None)
        return f"largest batch in {human(self.memory)}: {said}" + (f"; {self.reason}" if self.reason else "")


def largest_batch(
    module: Any,
    loss: Loss | None,
    optimizer: Any,
    inputs: Any,
    targets: Sequence[Any] = (),
    *,
    memory: int | str,
    device: str | None = None,
    amp: Any = None,
    recompute: bool = False,
    kernels: str = KERNELS[0],
    step: str = COMPILE,
    progress: Callable[[str], object] = lambda line: None,
) -> LargestBatch:
    """Return the largest batch within `memory`, for eager PyTorch and for Sublet, by bisection.

    The batch is the first extent of the first tensor of `inputs`. Each tensor whose first extent is a multiple of the
    batch grows with the batch. Both the batch found and the next larger one are estimated. All other arguments are
    those of `estimate`.

    Args:
        memory: bytes for all together, a number or a text such as "24GiB".
        recompute: True also searches the largest batch with values recomputed, in minutes.
        kernels: as for `estimate`; with "inductor", each estimate takes seconds to minutes.
        progress: called with a line about each estimate, such as `print`.

    Raises:
        ModelError: see `estimate`; and for inputs without a tensor with axes.
    """
    limit = parse_bytes(memory) if isinstance(memory, str) else memory
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    batch = _batch_of(arguments)

    def estimate_for(count: int, plan: bool, memory: int | None = None) -> Estimate:
        given, wanted = _with_batch((arguments, tuple(targets)), batch, count)
        options = {"device": device, "amp": amp, "plan": plan, "kernels": kernels, "step": step}
        return estimate(module, loss, optimizer, given, wanted, memory=memory, **options)

    def eager_bytes(count: int) -> float:
        return estimate_for(count, False).eager.peak_bytes

    def sublet_bytes(count: int) -> float:
        found = estimate_for(count, True).sublet
        return inf if found is None else found.peak_bytes

    def budgeted_bytes(count: int) -> float:
        return 0 if estimate_for(count, True, limit).fits else inf

    def largest(side: str, bytes_of: Callable[[int], float], start: int) -> int:
        def report_bytes(count: int) -> float:
            nbytes = bytes_of(count)
            progress(f"{side}: a batch of {count} {'fits' if nbytes <= limit else 'does not fit'} {human(limit)}")
            return nbytes

        return _largest_count(report_bytes, limit, start)

    eager = largest("eager", eager_bytes, batch)
    first = estimate_for(batch, True)
    if first.sublet is None:
        return LargestBatch(limit, eager, None, reason=first.reason)
    sublet = largest("Sublet", sublet_bytes, max(1, eager))
    budgeted = largest("with budget", budgeted_bytes, max(1, sublet)) if recompute else None
    return LargestBatch(limit, eager, sublet, budgeted)


def _largest_count(bytes_of: Callable[[int], float], limit: int, start: int) -> int:
    """Return the largest count with at most `limit` bytes; bytes grow with the count.

    Bisection, each time at the count where a line through both ends reaches the limit.
    """
    low, high = (0, 0.0), (MAX_BATCH, inf)
    count = start
    while high[0] - low[0] > 1:
        nbytes = bytes_of(count)
        if nbytes <= limit:
            low = count, nbytes
        else:
            high = count, nbytes
        if high[1] < inf and low[1] > 0:
            count = low[0] + int((limit - low[1]) * (high[0] - low[0]) / (high[1] - low[1]))
        elif high[0] == MAX_BATCH:
            count = 2 * low[0]
        else:
            count = (low[0] + high[0]) // 2
        count = min(max(count, low[0] + 1), high[0] - 1)
    return low[0]


def _batch_of(arguments: Any) -> int:
    """Return the first extent of the first tensor with axes. Raises ModelError without such a tensor."""
    t, pytree = torch(), require("torch.utils._pytree", extra="torch")
    tensors = (each for each in pytree.tree_leaves(arguments) if isinstance(each, t.Tensor) and each.dim())
    first = next(tensors, None)
    if first is None or not first.shape[0]:
        raise ModelError("inputs: no tensor with a first axis, so there is no batch to change")
    return int(first.shape[0])


def _with_batch(tree: Any, batch: int, count: int) -> Any:
    """Return arguments on `meta` for `count` samples instead of `batch`; axes keep their order in memory."""
    t, pytree = torch(), require("torch.utils._pytree", extra="torch")

    def resize(tensor: Any) -> Any:
        if not isinstance(tensor, t.Tensor) or not tensor.dim() or tensor.shape[0] % batch:
            return tensor
        order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
        extents = (tensor.shape[0] // batch * count, *tensor.shape[1:])
        made = t.empty([extents[axis] for axis in order], dtype=tensor.dtype, device=META)
        return made.permute([order.index(axis) for axis in range(tensor.dim())])

    return pytree.tree_map(resize, tree)
