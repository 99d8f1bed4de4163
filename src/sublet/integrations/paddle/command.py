"""The command `sublet transpile`: rewrite a Paddle program, and report as text, tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from sublet.base.errors import PlanError, PlanViolation
from sublet.base.files import write
from sublet.base.formatting import abbreviated_list, printable
from sublet.cli import options as shared
from sublet.cli.console import DOES_NOT_FIT, UNKNOWN, answer_console, print_json, refuse_overwriting
from sublet.cli.options import command_from, parse_dims, parse_extents, parse_max_trips
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.integrations.paddle.peaks.control_flow import live_lines
from sublet.integrations.paddle.peaks.memory import PredictedMemory
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from sublet.integrations.paddle.transpile import (
    POLICIES,
    ArenaReport,
    Transpiled,
    TranspileReport,
    TranspileRequest,
    names_to_keep,
    transpile,
)
from sublet.viz.summary import plain_table

MAX_LISTED = 5
"""Maximum of listed findings and names."""


def reports_of_policies(
    program: PaddleProgram, request: TranspileRequest, transpiled: Transpiled
) -> tuple[TranspileReport, ...]:
    """Return the reports of all policies; the report of a policy rejected by the checker holds the findings."""
    reports = []
    for policy in POLICIES:
        if policy == transpiled.report.policy and not request.arena:
            reports.append(transpiled.report)
            continue
        try:
            reports.append(
                transpile(program, replace(request, policy=policy, arena=False), transpiled.report.before).report
            )
        except PlanViolation as refused:
            judgement = (
                None
                if transpiled.report.judgement is None
                else replace(transpiled.report.judgement, findings=refused.findings)
            )
            reports.append(replace(transpiled.report, policy=policy, after=None, judgement=judgement))
    return tuple(reports)


def print_transpile_report(
    out: Path | None, report: TranspileReport, policy_reports: Sequence[TranspileReport]
) -> None:
    """Print the report on a rewritten program, the table of policies in `policy_reports`, and the written file."""
    console = answer_console()
    before, after = report.before, report.after
    if before is not None and after is not None:
        console.print(
            f"{report.policy}: {before.collected.peak:,} -> {after.collected.peak:,} bytes at the peak "
            f"({_describe_change(before, after)}), predicted for Paddle's garbage collection in program order",
            markup=False,
        )
        lagging = after.collected.lagging
        if lagging > after.collected.peak:
            console.print(f"  up to {lagging:,} while the garbage collector thread lags", markup=False)
        for block, trips in before.collected.trips.items():
            kept = before.collected.kept.get(block)
            keeps = (
                ""
                if kept is None
                else f", keeps {kept:,} bytes an iteration (now {after.collected.kept.get(block, 0):,})"
            )
            console.print(f"  the loop of block {block} runs {trips} times{keeps}", markup=False)
    else:
        console.print(Text(printable(f"{report.policy}: bytes unknown: {report.unknown_bytes}"), "yellow"))
    console.print(checker_verdict(report))
    for finding in report.findings[:MAX_LISTED]:
        console.print(Text(printable(f"  {finding}"), "red"))
    if report.arena is not None:
        console.print(*_describe_arena(report.arena), sep="\n")
    if len(report.findings) > MAX_LISTED:
        console.print(f"  and {len(report.findings) - MAX_LISTED} more")
    if report.left_alone:
        each = ", ".join(f"{name} ({count})" for name, count in report.left_alone.items())
        console.print(Text(printable(f"left unchanged, as no rule describes them: {each}"), "dim"))
    if report.completed:
        completed_words = (
            f"data type added, without which Paddle does not parse the program: {_list_names(report.completed)}"
        )
        console.print(Text(printable(completed_words), "yellow"))
    console.print(Text(printable(f"available after a run: {_list_names(report.kept)}"), "dim"))
    if policy_reports:
        console.print(policy_table(policy_reports))
    if out is not None:
        console.print(printable(f"wrote {out}"), markup=False)


def _list_names(names: Sequence[str]) -> str:
    """Return the first few names as text, or "persistable variables only" without names."""
    return abbreviated_list(names, MAX_LISTED) if names else "persistable variables only"


def _describe_arena(arena_form: ArenaReport) -> list[Text]:
    """Return lines on the arena form: variables, bytes, lower bound, and the result of the proof."""
    optimal = "its lower bound" if arena_form.bytes == arena_form.bound else f"lower bound {arena_form.bound:,}"
    outside = f"{len(arena_form.outside)} outside"
    summary = f"arena form: {arena_form.placed} variables in {arena_form.bytes:,} bytes ({optimal}), {outside}"
    words = [Text(f"{summary}; run it with FLAGS_new_executor_sequential_run=1")]
    if arena_form.is_proven:
        return [*words, Text("the arena form is proven too", "green")]
    first = arena_form.judgement.findings[:1] if arena_form.judgement is not None else ()
    why = f": the checker cannot follow the rewrite: {first[0]}" if first else ""
    return [*words, Text(printable(f"the arena form itself is NOT proven{why}"), "yellow")]


def checker_verdict(report: TranspileReport) -> Text:
    """Return the checker's verdict as text, with the scope of the proof."""
    judgement = report.judgement
    if judgement is None:
        return Text(printable(f"not proven: the checker could not run both programs: {report.unjudged}"), "yellow")
    if not judgement.equal:
        return Text("NOT the same: the checker refuses the rewritten program", "bold red")
    branch_words = "every path through branches" if judgement.every_way else "many paths through branches, not all"
    trip_words = (
        f", {', '.join(map(str, judgement.trips))} iterations of loops with a trip count unknown to the program"
        if judgement.trips
        else ""
    )
    scope = "" if report.arena is None else ", before variables are placed"
    paths = f"{report.proven_for}, for {branch_words}{trip_words}"
    return Text(printable(f"proven{scope}: persistable and kept variables have the same results{paths}"), "green")


def policy_table(reports: Sequence[TranspileReport]) -> RenderableType:
    """Return a table with one row a policy."""
    result = plain_table()
    result.add_column("policy")
    for name in ("bytes predicted", "without collection", "bound", "gap"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("checker")
    before = next((report.before for report in reports if report.before is not None), None)
    if before is not None:
        result.add_row("original", *_memory_figures(before), "")
    for report in reports:
        figures = ("?",) * 4 if report.after is None else _memory_figures(report.after)
        checked = "not run" if report.judgement is None else "the same" if report.is_proven else "REFUSED"
        result.add_row(report.policy, *figures, checked)
    return result


def _memory_figures(memory: PredictedMemory) -> tuple[str, str, str, str]:
    peak, bound = memory.collected.peak, memory.bound
    gap = f"{(peak - bound) / bound:.1%}" if bound else "-"
    return f"{peak:,}", f"{memory.uncollected:,}", f"{bound:,}", gap


def _describe_change(before: PredictedMemory, after: PredictedMemory) -> str:
    was, now = before.collected.peak, after.collected.peak
    if was == now:
        return "no change"
    return f"{abs(was - now) / was:.1%} {'less' if now < was else 'more'}"


def transpile_json(report: TranspileReport, policy_reports: Sequence[TranspileReport]) -> dict[str, Any]:
    """Return the report, and the reports of other policies in `policy_reports`, as one JSON object."""
    content = _report_json(report)
    if report.before is not None:
        content["before"] = _memory_json(report.before)
    if report.arena is not None:
        form = report.arena
        content["arena"] = {
            "bytes": form.bytes,
            "lower_bound_bytes": form.bound,
            "placed": form.placed,
            "outside": {str(place): why for place, why in form.outside.items()},
            "proven": form.is_proven,
        }
    if policy_reports:
        content["policies"] = {each.policy: _report_json(each) for each in policy_reports}
    return content


def _report_json(report: TranspileReport) -> dict[str, Any]:
    judgement = report.judgement
    return {
        "policy": report.policy,
        "after": None if report.after is None else _memory_json(report.after),
        "unknown_bytes": report.unknown_bytes,
        "proven": report.is_proven and (report.arena is None or report.arena.is_proven),
        "every_way": judgement is not None and judgement.every_way,
        "rounds": [] if judgement is None else list(judgement.trips),
        "findings": [str(finding) for finding in report.findings],
        "not_judged": report.unjudged,
        "kept": list(report.kept),
        "left_alone": dict(report.left_alone),
        "completed": list(report.completed),
    }


def _memory_json(memory: PredictedMemory) -> dict[str, Any]:
    run = memory.collected
    return {
        "predicted_bytes": run.peak,
        "predicted_lagging_bytes": run.lagging,
        "at": {"block": run.at[0], "operator": run.at[1]},
        "without_collection": memory.uncollected,
        "lower_bound_bytes": memory.bound,
        "trips": {str(block): trips for block, trips in run.trips.items()},
        "kept_a_trip": {str(block): kept for block, kept in run.kept.items()},
    }


# The command `sublet transpile`: rewrite a Paddle program to use less memory, and report the savings and the proof.


class Policy(StrEnum):
    """The names of the rewriting policies, as in `POLICIES`."""

    seed = "seed"
    level0 = "level0"
    level1 = "level1"
    sublet = "sublet"


@dataclass(frozen=True)
class TranspileOptions:
    """The argument and the options of `sublet transpile`."""

    program: Annotated[
        Path, typer.Argument(help="A ProgramDesc of Paddle, for training or inference.", show_default=False)
    ]
    out: Annotated[Path | None, typer.Option("--out", help="Write the rewritten program.")] = None
    policy: Annotated[Policy, typer.Option(help="The rewriting policy: Sublet's own, or a baseline.")] = Policy.sublet
    in_arena: Annotated[bool, typer.Option("--arena", help="Place tensors in one arena, at planned offsets.")] = False
    lasting: Annotated[bool, typer.Option("--lasting", help="With --arena: keep the arena from run to run.")] = False
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A variable to fetch after a run; losses are kept anyway. Repeat for more."),
    ] = None
    dim: shared.Dim = None
    shape: shared.Shape = None
    max_trips: shared.MaxTrips = None
    report: Annotated[bool, typer.Option("--report", help="Show all policies side by side.")] = False
    live: Annotated[bool, typer.Option("--live", help="Print uses, definitions and live sets, and exit.")] = False
    in_json: shared.Json = False


@command_from(TranspileOptions)
def transpile_(options: TranspileOptions) -> None:
    """Rewrite a Paddle program to need less memory in the ordinary executor; prove the results unchanged.

    Exit status: 0 proven, or not judged (the report says why); 1 the program of a baseline policy computes other
    results; 2 bad input; 3 the arena form is not proven.
    """
    if options.live and (options.out is not None or options.report or options.in_json):
        raise PlanError("--live prints the live sets of the program and rewrites nothing: drop the other options")
    refuse_overwriting(options.program, options.out)
    read, keep = decode_program(options.program.read_bytes(), str(options.program)), tuple(options.keep or ())
    if options.live:
        for line in live_lines(read, [ScopedVariable(0, name) for name in names_to_keep(read, keep)]):
            answer_console().print(printable(line), markup=False)
        return
    dims = parse_extents(options.program, options.shape, parse_dims(options.dim))
    trips = parse_max_trips(options.max_trips)
    request = TranspileRequest(options.policy.value, dims, trips, keep, arena=options.in_arena, lasting=options.lasting)
    transpiled = transpile(read, request)
    if options.out is not None:
        write(options.out, encode_program(transpiled.program))
    policy_reports = reports_of_policies(read, request, transpiled) if options.report else ()
    if options.in_json:
        print_json({"program": str(options.program), **transpile_json(transpiled.report, policy_reports)})
    else:
        print_transpile_report(options.out, transpiled.report, policy_reports)
    if transpiled.report.findings:
        raise typer.Exit(DOES_NOT_FIT)
    if transpiled.report.arena is not None and not transpiled.report.arena.is_proven:
        raise typer.Exit(UNKNOWN)
