"""The report of `sublet check` on a plan by another tool; the report claims no more than was judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.markup import escape
from rich.text import Text

from sublet.base.bytesize import human, percent
from sublet.base.escape import abbreviated_list, printable
from sublet.cli.console import BAD_INPUT, DOES_NOT_FIT, FITS, UNKNOWN, answer_console
from sublet.foreign import Evidence, ForeignOutcome, ForeignVerdict
from sublet.packing.problem import Buffer, Packing, Problem
from sublet.plan import fragmentation
from sublet.viz.view_model import Picture, picture_of_packing, picture_of_plan

EXIT_STATUS = {ForeignOutcome.RIGHT: FITS, ForeignOutcome.WRONG: DOES_NOT_FIT, ForeignOutcome.PARTLY: UNKNOWN}
assert BAD_INPUT not in EXIT_STATUS.values()
CONDITIONS = {
    Evidence.REPLAY: "in the order of the model",
    Evidence.LIFETIMES: "if these are the lifetimes of the program",
    Evidence.INSTRUCTIONS: "if its operators return what their last arguments name",
}
PICTURE_CLAIMS = {
    Evidence.REPLAY: "",
    Evidence.LIFETIMES: "{}, right by the lifetimes it declares",
    Evidence.INSTRUCTIONS: "{}, right by the instructions of the program",
}
MAX_LISTED = 20
"""Maximum of listed violations and reasons; JSON lists all."""


def print_judgement(verdict: ForeignVerdict) -> None:
    """Print the violations, the verdict, the tensors not judged with reasons, and the distance to the lower bound."""
    console = answer_console()
    for finding in verdict.findings[:MAX_LISTED]:
        console.print(f"[red]violation[/red] {escape(printable(str(finding)))}")
    if len(verdict.findings) > MAX_LISTED:
        console.print(f"and {len(verdict.findings) - MAX_LISTED} more (--json lists all)")
    console.print(
        Text(
            _verdict_line(verdict),
            {ForeignOutcome.RIGHT: "green", ForeignOutcome.WRONG: "red"}.get(verdict.outcome, "yellow"),
        )
    )
    reasons: dict[str, list[str]] = {}
    for name, why in verdict.not_judged.items():
        reasons.setdefault(why, []).append(name)
    for why, names in list(reasons.items())[:MAX_LISTED]:
        console.print(Text(printable(f"not judged: {abbreviated_list(names, 3)}: {why}"), "yellow"))
    if not verdict.findings:
        for region in verdict.regions:
            console.print(Text(printable(f"{region.name}: {_describe_bound(region.nbytes, region.lower_bound_bytes)}")))


def _verdict_line(verdict: ForeignVerdict) -> str:
    """Return the verdict in one line: number of tensors, tool, and method of the judgement."""
    tensors = f"{len(verdict.judged)} tensor{'s' if len(verdict.judged) != 1 else ''} of {printable(verdict.tool)}"
    against = f"judged by {verdict.evidence}"
    if verdict.findings:
        count = len(verdict.findings)
        return f"wrong: {count} violation{'s' if count > 1 else ''} in {tensors}, {against}"
    if verdict.outcome is ForeignOutcome.PARTLY:
        return f"partly judged: right in {tensors}, {against}; {len(verdict.not_judged)} more are not judged"
    return f"right: {tensors}, {against}, {CONDITIONS[verdict.evidence]}"


def _describe_bound(nbytes: int, least: int) -> str:
    """Return the size of a region and the gap to the lower bound, as text."""
    size = f"{nbytes:,} bytes ({human(nbytes)})"
    if nbytes == least:
        return f"{size}; no plan of these tensors that shares the same bytes takes less"
    gap = percent(fragmentation(nbytes, least))
    return f"{size}; a plan of these tensors that shares the same bytes takes at least {least:,} bytes, gap {gap}"


def judgement_json(verdict: ForeignVerdict) -> dict[str, Any]:
    """Return a judgement as a JSON object; sizes are bytes."""
    return {
        "outcome": str(verdict.outcome),
        "right": verdict.outcome is ForeignOutcome.RIGHT,
        "exit_status": EXIT_STATUS[verdict.outcome],
        "tool": verdict.tool,
        "judged_by": str(verdict.evidence),
        "violations": [
            {"rule": finding.rule, "where": finding.where, "what": finding.what, "fix": finding.fix}
            for finding in verdict.findings
        ],
        "judged": list(verdict.judged),
        "not_judged": dict(verdict.not_judged),
        "regions": [
            {
                "name": region.name,
                "bytes": region.nbytes,
                "lower_bound_bytes": None if verdict.findings else region.lower_bound_bytes,
            }
            for region in verdict.regions
        ],
    }


def judgement_picture(verdict: ForeignVerdict) -> Picture:
    """Return the memory map; the heading states the scope of the proof."""
    claimed = {
        ForeignOutcome.RIGHT: PICTURE_CLAIMS[verdict.evidence].format(verdict.tool),
        ForeignOutcome.WRONG: f"the plan of {verdict.tool} is wrong: {len(verdict.findings)} violations",
        ForeignOutcome.PARTLY: f"{verdict.tool}: {len(verdict.not_judged)} tensors are not judged",
    }[verdict.outcome]
    if verdict.plan is not None:
        return picture_of_plan(verdict.plan, claimed)
    problem, packing = _stack_regions(verdict)
    return replace(picture_of_packing(problem, packing, verdict.lower_bound_bytes), claimed=claimed)


def _stack_regions(verdict: ForeignVerdict) -> tuple[Problem, Packing]:
    """Return all regions as a single packing, stacked upwards."""
    if len(verdict.drawn) == 1:
        return verdict.drawn[0]
    buffers: list[Buffer] = []
    offsets: list[int] = []
    base = 0
    for problem, packing in verdict.drawn:
        buffers += problem.buffers
        offsets += [base + offset for offset in packing.offsets]
        base += packing.arena_bytes
    return Problem(tuple(buffers), name=verdict.tool), Packing(tuple(offsets), base, verdict.tool)
