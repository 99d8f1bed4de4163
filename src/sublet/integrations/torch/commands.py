"""The commands for PyTorch: `sublet plan --ranks` and `--train`, and `sublet check` on a memory snapshot.

The first prints a table of ranks, the second the estimate of a step, the third the allocator's memory against a planned
arena.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.markup import escape
from rich.text import Text

from sublet.analysis.options import Options
from sublet.base.errors import ModelError, PlanError, SubletError
from sublet.base.formatting import human, parse_bytes, percent, printable
from sublet.cli.check import MAX_LISTED
from sublet.cli.console import answer_console, budget_progress, packing_progress, print_json
from sublet.cli.show import print_memory_map, write_pictures
from sublet.integrations.torch.compile.backend import KERNELS
from sublet.integrations.torch.estimate import Estimate, estimate
from sublet.integrations.torch.memory_searches import frontier
from sublet.integrations.torch.ranks import RankPlans, load_build_function, rank_plans
from sublet.integrations.torch.reader.exported_program import error_summary
from sublet.integrations.torch.reader.traced_tensor import torch
from sublet.integrations.torch.snapshot import Snapshot, read_snapshot
from sublet.ir.recipe import LESS
from sublet.packing import PackingReport, pack
from sublet.viz.summary import plain_table
from sublet.viz.view_model import picture_of_packing


def show_ranks(
    function_path: Path,
    count: int,
    options: Options,
    device: str,
    budget: str | None,
    in_json: bool,
    files: Sequence[Path | None],
) -> NoReturn:
    """Plan all ranks, print the table, and exit.

    Exit status: 0 all ranks fit, 1 a rank needs more than the budget, 3 unknown because some graph has no plan. Raises
    PlanError if `files` names an output file.
    """
    if any(files):
        raise PlanError("--ranks prints a table of many plans: no --out, --html or --png")
    budget_bytes = None if budget is None else parse_bytes(budget)
    as_compiled = replace(options, order=LESS)  # the order used for torch.compile
    rank_results = rank_plans(load_build_function(str(function_path)), count, as_compiled, device)
    if in_json:
        print_json(
            {
                "arena_bytes": rank_results.arena_bytes,
                "imbalance": rank_results.imbalance,
                "ranks": [
                    {
                        "rank": each.rank, "arena_bytes": each.arena_bytes, "weight_bytes": each.weights,
                        "graphs": [0 if graph.plan is None else graph.plan.arena_bytes for graph in each.graphs],
                        "not_planned": list(each.left),
                    }
                    for each in rank_results.ranks
                ],
            }
        )  # fmt: skip
    else:
        _print_ranks(rank_results, budget_bytes)
    above = budget_bytes is not None and rank_results.arena_bytes > budget_bytes
    raise typer.Exit(1 if above else 3 if any(each.left for each in rank_results.ranks) else 0)


def _print_ranks(rank_results: RankPlans, budget_bytes: int | None) -> None:
    """Print the table, the largest arena, and the graphs without a plan."""
    table = plain_table()
    for title in ("rank", "arena", "graphs", "weights"):
        table.add_column(title, justify="right")
    for each in rank_results.ranks:
        count = str(len(each.graphs) - len(each.left))
        table.add_row(str(each.rank), human(each.arena_bytes), count, human(each.weights))
    answer_console().print(table)
    answer_console().print(
        Text(f"largest {human(rank_results.arena_bytes)}, {rank_results.imbalance:.1%} above the mean")
    )
    if budget_bytes is not None and rank_results.arena_bytes > budget_bytes:
        answer_console().print(Text(f"more than the budget of {human(budget_bytes)}", "red"))
    for each in rank_results.ranks:
        for why in each.left:
            answer_console().print(Text(f"rank {each.rank}: a graph has no plan and is not counted: {why}", "yellow"))


def show_step(
    function_path: Path,
    device: str,
    budget: str | None,
    kernels: str,
    step: str,
    with_frontier: bool,
    in_json: bool,
    files: Sequence[Path | None],
) -> NoReturn:
    """Estimate the memory of a step built by a script, print the estimate or the frontier, and exit.

    Exit status: 0 Sublet's step fits, 1 no program within the budget is known, 3 unknown because a graph has no plan.
    Raises ModelError for a function without the parts of a step, and PlanError for an output file of another command.
    """
    out, page, png = files
    if out is not None or png is not None or (page is not None and not with_frontier):
        raise PlanError("--train writes no plan: of --out, --html and --png only --html, with --frontier")
    if with_frontier and kernels != KERNELS[0]:
        raise PlanError(f"--frontier is a curve of plans for Sublet's kernels: drop --kernels {kernels}")
    parts = _built_step(str(function_path), device)
    if with_frontier:
        with budget_progress() as progress:
            curve = frontier(*parts, step=step, progress=progress)
        if page is not None:
            curve.write_html(page)
        print_json({"rows": curve.rows, "outside_bytes": curve.outside}) if in_json else answer_console().print(
            Text(str(curve))
        )
        raise typer.Exit(0)
    found = estimate(*parts, memory=budget, kernels=kernels, step=step)
    print_json(_estimate_json(found)) if in_json else answer_console().print(Text(str(found)))
    raise typer.Exit(3 if found.sublet is None else 1 if found.fits is False else 0)


def _built_step(place: str, device: str) -> tuple[Any, ...]:
    """Return module, loss, optimizer, inputs and, if given, targets of the step that a script builds."""
    build: Any = load_build_function(place)
    try:
        with torch().device(device):
            parts = tuple(build())
    except SubletError:
        raise
    except Exception as error:  # user code raises errors of any type
        raise ModelError(f"{place}: {error_summary(error)}") from error
    if len(parts) not in (4, 5):
        raise ModelError(f"{place} returns {len(parts)} parts: expected module, loss, optimizer, inputs[, targets]")
    return parts


def _estimate_json(found: Estimate) -> dict[str, Any]:
    """Return an estimate as a JSON object; bytes."""

    def need_to_json(each: Any) -> Any:
        if each is None:
            return None
        names = ("peak_bytes", "arena_bytes", "allocated_bytes", "extra_time", "words", "budget", "step")
        live = [dict(zip(("module", "source", "nbytes"), entry, strict=True)) for entry in each.live_in_arena]
        return {**{name: getattr(each, name) for name in names}, "live": live}

    eager = {**asdict(found.eager), "live": [asdict(each) for each in found.eager.live]}
    return {
        "eager": eager, "sublet": need_to_json(found.sublet), "budgeted": need_to_json(found.budgeted),
        "memory": found.memory, "fits": found.fits, "reason": found.reason,
    }  # fmt: skip


def replay_snapshot(path: Path, timeout: float, html: Path | None, png: Path | None, *, in_json: bool) -> None:
    """Replay the allocations of each device, pack the same lifetimes, and print the report.

    Exits with status 1 if allocations with overlapping lifetimes overlap in memory. Raises PlanError for a picture of
    several devices.
    """
    devices = read_snapshot(path)
    if len(devices) > 1 and (html is not None or png is not None):
        raise PlanError(f"{path} has {len(devices)} devices; a picture shows one. Drop --html and --png to report all")
    reports = []
    for device in devices:
        with packing_progress() as progress:
            reports.append(pack(device.problem, "auto", timeout, progress))
    reported = list(zip(devices, reports, strict=True))
    if in_json:
        print_json(
            {
                "devices": [_device_json(*one) for one in reported],
                "right": not any(device.findings for device in devices),
            }
        )
    for device, report in reported:
        picture = picture_of_packing(device.problem, report.packing, report.bound.bytes, report.bound.kind)
        write_pictures(picture, html, png)
        if not in_json:
            _print_device(device, report)
            print_memory_map(picture)
    if any(device.findings for device in devices):
        raise typer.Exit(1)


def _print_device(device: Snapshot, report: PackingReport) -> None:
    """Print the figures of one device: the allocator's bytes, and the best packing of the same lifetimes."""
    console, needed = answer_console(), report.packing.arena_bytes
    for finding in device.findings[:MAX_LISTED]:
        console.print(f"[red]violation[/red] {escape(printable(str(finding)))}")
    console.print(f"device {device.device}: {len(device.problem.buffers):,} allocations, replayed in their order")
    reserved = device.reserved_bytes
    for name, nbytes in (("reserved at its peak", reserved), ("allocated at its peak", device.allocated_bytes)):
        console.print(f"  {name:<22}{nbytes:>18,} bytes ({human(nbytes)})")
    gap = percent(report.gap)
    packing_words = f"by {report.packing.strategy}, lower bound {report.bound.bytes:,} bytes, gap {gap}"
    console.print(f"  {'a plan needs':<22}{needed:>18,} bytes ({human(needed)}), {packing_words}")
    if report.stopped:
        console.print(f"  the search was stopped by {report.stopped}: the best so far", style="yellow")
    if reserved > needed:
        saving = f"{human(reserved - needed)} less than was reserved"
        console.print(Text(f"  {saving}, if the lifetimes are known before the run", "green"))


def _device_json(device: Snapshot, report: PackingReport) -> dict[str, object]:
    return {
        "device": device.device,
        "allocations": len(device.problem.buffers),
        "reserved_bytes": device.reserved_bytes,
        "allocated_bytes": device.allocated_bytes,
        "plan_bytes": report.packing.arena_bytes,
        "lower_bound_bytes": report.bound.bytes,
        "strategy": report.packing.strategy,
        "stopped": report.stopped,
        "violations": [str(finding) for finding in device.findings],
    }
