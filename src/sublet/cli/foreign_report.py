"""The report of `sublet check` on a plan by another tool; the report claims no more than was judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.markup import escape
from rich.text import Text

from sublet.base.bytesize import human, percent
from sublet.base.printable import listed, printable
from sublet.cli.console import BAD_INPUT, DOES_NOT_FIT, FITS, UNKNOWN, answers
from sublet.foreign import By, Judgement, Outcome
from sublet.packing.problem import Buffer, Packing, Problem
from sublet.plan import fragmentation
from sublet.viz.rectangles import Picture, packing_rectangles, rectangles

STATUS = {Outcome.RIGHT: FITS, Outcome.WRONG: DOES_NOT_FIT, Outcome.PARTLY: UNKNOWN}
assert BAD_INPUT not in STATUS.values()
WHOLE = {
    By.REPLAY: "in the order of the model",
    By.LIFETIMES: "if these are the lifetimes of the program",
    By.INSTRUCTIONS: "if its operators return what their last arguments name",
}
DRAWN = {
    By.REPLAY: "",
    By.LIFETIMES: "{}, right by the lifetimes it tells",
    By.INSTRUCTIONS: "{}, right by the instructions of the program",
}
SHOWN = 20
"""Maximum of listed violations and reasons; JSON lists all."""


def show_foreign(found: Judgement) -> None:
    """Print the violations, the verdict, the tensors not judged with reasons, and the distance to the lower bound."""
    console = answers()
    for finding in found.findings[:SHOWN]:
        console.print(f"[red]violation[/red] {escape(printable(str(finding)))}")
    if len(found.findings) > SHOWN:
        console.print(f"and {len(found.findings) - SHOWN} more (--json lists all)")
    console.print(Text(_verdict(found), {Outcome.RIGHT: "green", Outcome.WRONG: "red"}.get(found.outcome, "yellow")))
    reasons: dict[str, list[str]] = {}
    for name, why in found.not_judged.items():
        reasons.setdefault(why, []).append(name)
    for why, names in list(reasons.items())[:SHOWN]:
        console.print(Text(printable(f"not judged: {listed(names, 3)}: {why}"), "yellow"))
    if not found.findings:
        for region in found.regions:
            console.print(Text(printable(f"{region.name}: {_bound(region.nbytes, region.lower_bound_bytes)}")))


def _verdict(found: Judgement) -> str:
    """Return the verdict in one line: number of tensors, tool, and method of the judgement."""
    tensors = f"{len(found.judged)} tensor{'s' if len(found.judged) != 1 else ''} of {printable(found.tool)}"
    against = f"judged by {found.by}"
    if found.findings:
        count = len(found.findings)
        return f"wrong: {count} violation{'s' if count > 1 else ''} in {tensors}, {against}"
    if found.outcome is Outcome.PARTLY:
        return f"partly judged: right in {tensors}, {against}; nothing is said of {len(found.not_judged)} more"
    return f"right: {tensors}, {against}, {WHOLE[found.by]}"


def _bound(nbytes: int, least: int) -> str:
    """Return the size of a region and the gap to the lower bound, as text."""
    size = f"{nbytes:,} bytes ({human(nbytes)})"
    if nbytes == least:
        return f"{size}; no plan of these tensors that shares the same bytes takes less"
    gap = percent(fragmentation(nbytes, least))
    return f"{size}; a plan of these tensors that shares the same bytes takes at least {least:,} bytes, gap {gap}"


def foreign_json(found: Judgement) -> dict[str, Any]:
    """Return a judgement as a JSON object; sizes are bytes."""
    return {
        "outcome": str(found.outcome),
        "right": found.outcome is Outcome.RIGHT,
        "exit_status": STATUS[found.outcome],
        "tool": found.tool,
        "judged_by": str(found.by),
        "violations": [
            {"rule": finding.rule, "where": finding.where, "what": finding.what, "fix": finding.fix}
            for finding in found.findings
        ],
        "judged": list(found.judged),
        "not_judged": dict(found.not_judged),
        "regions": [
            {
                "name": region.name,
                "bytes": region.nbytes,
                "lower_bound_bytes": None if found.findings else region.lower_bound_bytes,
            }
            for region in found.regions
        ],
    }


def foreign_picture(found: Judgement) -> Picture:
    """Return the memory map; the heading states the scope of the proof."""
    claimed = {
        Outcome.RIGHT: DRAWN[found.by].format(found.tool),
        Outcome.WRONG: f"the plan of {found.tool} is wrong: {len(found.findings)} violations",
        Outcome.PARTLY: f"{found.tool}: {len(found.not_judged)} tensors are not judged",
    }[found.outcome]
    if found.plan is not None:
        return rectangles(found.plan, claimed)
    problem, packing = _side_by_side(found)
    return replace(packing_rectangles(problem, packing, found.lower_bound_bytes), claimed=claimed)


def _side_by_side(found: Judgement) -> tuple[Problem, Packing]:
    """Return all regions as a single packing, stacked upwards."""
    if len(found.drawn) == 1:
        return found.drawn[0]
    buffers: list[Buffer] = []
    offsets: list[int] = []
    base = 0
    for problem, packing in found.drawn:
        buffers += problem.buffers
        offsets += [base + offset for offset in packing.offsets]
        base += packing.arena_bytes
    return Problem(tuple(buffers), name=found.tool), Packing(tuple(offsets), base, found.tool)
