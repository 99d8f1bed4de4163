"""The report on a rewritten Paddle program, as text, tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from sublet.base.errors import PlanViolation
from sublet.base.printable import listed, printable
from sublet.cli.console import answers
from sublet.frontends.paddle.format.program import Program
from sublet.frontends.paddle.peaks.memory import Memory
from sublet.frontends.paddle.transpile import POLICIES, Asked, InArena, Report, Transpiled, transpile
from sublet.viz.tables import plain_table

MOST_TOLD = 5
"""Maximum of listed findings and names."""


def compared(program: Program, asked: Asked, made: Transpiled) -> tuple[Report, ...]:
    """Return the reports of all policies; the report of a policy rejected by the checker holds the findings."""
    reports = []
    for policy in POLICIES:
        if policy == made.report.policy and not asked.arena:
            reports.append(made.report)
            continue
        try:
            reports.append(transpile(program, replace(asked, policy=policy, arena=False), made.report.before).report)
        except PlanViolation as refused:
            judgement = (
                None if made.report.judgement is None else replace(made.report.judgement, findings=refused.findings)
            )
            reports.append(replace(made.report, policy=policy, after=None, judgement=judgement))
    return tuple(reports)


def show_transpiled(out: Path | None, report: Report, beside: Sequence[Report]) -> None:
    """Print the report on a rewritten program, the table of policies in `beside`, and the written file."""
    console = answers()
    before, after = report.before, report.after
    if before is not None and after is not None:
        console.print(
            f"{report.policy}: {before.collected.peak:,} -> {after.collected.peak:,} bytes at the peak "
            f"({_change(before, after)}), predicted for Paddle's garbage collection in program order",
            markup=False,
        )
        lagging = after.collected.lagging
        if lagging > after.collected.peak:
            console.print(f"  up to {lagging:,} while the thread that frees comes late", markup=False)
        for block, trips in before.collected.trips.items():
            kept = before.collected.kept.get(block)
            keeps = (
                "" if kept is None else f", keeps {kept:,} bytes a trip (now {after.collected.kept.get(block, 0):,})"
            )
            console.print(f"  the loop of block {block} runs {trips} times{keeps}", markup=False)
    else:
        console.print(Text(printable(f"{report.policy}: bytes are not known: {report.unknown_bytes}"), "yellow"))
    console.print(verdict(report))
    for finding in report.findings[:MOST_TOLD]:
        console.print(Text(printable(f"  {finding}"), "red"))
    if report.arena is not None:
        console.print(*_arena_words(report.arena), sep="\n")
    if len(report.findings) > MOST_TOLD:
        console.print(f"  and {len(report.findings) - MOST_TOLD} more")
    if report.left_alone:
        each = ", ".join(f"{name} ({count})" for name, count in report.left_alone.items())
        console.print(Text(printable(f"left alone, as nothing is known of them: {each}"), "dim"))
    if report.completed:
        completed_words = (
            f"given the data type without which Paddle does not parse the program: {_names(report.completed)}"
        )
        console.print(Text(printable(completed_words), "yellow"))
    console.print(Text(printable(f"there after a run: {_names(report.kept)}"), "dim"))
    if beside:
        console.print(table(beside))
    if out is not None:
        console.print(printable(f"wrote {out}"), markup=False)


def _names(names: Sequence[str]) -> str:
    """Return the first few names as text, or "persistable variables only" without names."""
    return listed(names, MOST_TOLD) if names else "persistable variables only"


def _arena_words(form: InArena) -> list[Text]:
    """Return lines on the arena form: variables, bytes, lower bound, and the result of the proof."""
    optimal = "its lower bound" if form.bytes == form.bound else f"lower bound {form.bound:,}"
    summary = f"arena form: {form.placed} variables in {form.bytes:,} bytes ({optimal}), {len(form.outside)} outside"
    words = [Text(f"{summary}; run it with FLAGS_new_executor_sequential_run=1")]
    if form.proven:
        return [*words, Text("proven of the arena form, too", "green")]
    first = form.judgement.findings[:1] if form.judgement is not None else ()
    why = f": the checker does not follow it: {first[0]}" if first else ""
    return [*words, Text(printable(f"the arena form itself is NOT proven{why}"), "yellow")]


def verdict(report: Report) -> Text:
    """Return the checker's verdict as text, with the scope of the proof."""
    judgement = report.judgement
    if judgement is None:
        return Text(printable(f"not proven: the checker could not run both programs: {report.unjudged}"), "yellow")
    if not judgement.equal:
        return Text("NOT the same: the checker refuses the rewritten program", "bold red")
    branch_words = "every way through branches" if judgement.every_way else "many ways through branches, not all"
    trip_words = (
        f", {', '.join(map(str, judgement.trips))} rounds of loops whose count is not in the program"
        if judgement.trips
        else ""
    )
    scope = "" if report.arena is None else ", before variables are placed"
    return Text(
        f"proven{scope}: what persists and what is kept comes out the same, for {branch_words}{trip_words}", "green"
    )


def table(reports: Sequence[Report]) -> RenderableType:
    """Return a table with one row a policy."""
    result = plain_table()
    result.add_column("policy")
    for name in ("bytes predicted", "without collection", "bound", "gap"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("checker")
    before = next((report.before for report in reports if report.before is not None), None)
    if before is not None:
        result.add_row("as it is", *_figures(before), "")
    for report in reports:
        figures = ("?",) * 4 if report.after is None else _figures(report.after)
        checked = "not run" if report.judgement is None else "the same" if report.proven else "REFUSED"
        result.add_row(report.policy, *figures, checked)
    return result


def _figures(memory: Memory) -> tuple[str, str, str, str]:
    peak, bound = memory.collected.peak, memory.bound
    gap = f"{(peak - bound) / bound:.1%}" if bound else "-"
    return f"{peak:,}", f"{memory.uncollected:,}", f"{bound:,}", gap


def _change(before: Memory, after: Memory) -> str:
    was, now = before.collected.peak, after.collected.peak
    if was == now:
        return "no change"
    return f"{abs(was - now) / was:.1%} {'less' if now < was else 'more'}"


def in_json(report: Report, beside: Sequence[Report]) -> dict[str, Any]:
    """Return the report, and the reports of other policies in `beside`, as one JSON object."""
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
            "proven": form.proven,
        }
    if beside:
        content["policies"] = {each.policy: _report_json(each) for each in beside}
    return content


def _report_json(report: Report) -> dict[str, Any]:
    judgement = report.judgement
    return {
        "policy": report.policy,
        "after": None if report.after is None else _memory_json(report.after),
        "unknown_bytes": report.unknown_bytes,
        "proven": report.proven and (report.arena is None or report.arena.proven),
        "every_way": judgement is not None and judgement.every_way,
        "rounds": [] if judgement is None else list(judgement.trips),
        "findings": [str(finding) for finding in report.findings],
        "not_judged": report.unjudged,
        "kept": list(report.kept),
        "left_alone": dict(report.left_alone),
        "completed": list(report.completed),
    }


def _memory_json(memory: Memory) -> dict[str, Any]:
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
