"""Every file of tests/cases: a graph in text form, and what its folder's stage makes of it.

UPDATE_EXPECT=1 rewrites the expectations; read the diff before you commit it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sublet.analysis.control_flow_builder import build_control_flow
from sublet.analysis.liveness import compute_live_ranges
from sublet.analysis.options import Options
from sublet.analysis.sharing import share_buffers
from sublet.base.errors import TextError
from sublet.checker import judge
from sublet.ir.text import parse, to_text
from sublet.ops.verify import findings
from sublet.plan import Context, Placement
from sublet.plan.schedule import serial_schedule
from sublet.planning.pipeline import plan_memory
from tests.support import dialect
from tests.support.plan_changes import changed

assert dialect.OPS

CASES = Path(__file__).parents[1] / "cases"
DIVIDER = "--- expect\n"


def parsed(text: str) -> str:
    """The text form again, or the error; a graph that parses must survive the round trip."""
    try:
        graph = parse(text, "case")
    except TextError as error:
        return f"{error}\n"
    assert parse(to_text(graph)) == graph
    return to_text(graph)


def verified(text: str) -> str:
    return "".join(f"{finding}\n" for finding in findings(parse(text, "case"))) or "legal\n"


def live(text: str) -> str:
    graph = parse(text, "case")
    timeline = build_control_flow(graph, serial_schedule(graph))
    ranges = compute_live_ranges(timeline)
    lines = [f"{t}: {point} -> {list(timeline.successors[t])}" for t, point in enumerate(timeline.points)]
    for value in graph.values():
        pieces = " ".join(f"{begin}-{end}" for begin, end in ranges.point_ranges(value))
        lines.append(f"{value} {pieces}")
    return "\n".join(lines) + "\n"


def shared(text: str) -> str:
    graph = parse(text, "case")
    timeline = build_control_flow(graph, serial_schedule(graph))
    homes = {value: (f"%{value.name}", value in graph.updated_values) for value in graph.weights}
    lines = []
    for buffer in share_buffers(graph, timeline, compute_live_ranges(timeline), homes=homes):
        members = ", ".join(
            f"{m.value}@{m.offset}" + (f" {m.how} {m.shares}" if m.shares else "") for m in buffer.members
        )
        lines.append(f"{buffer.nbytes}{' in ' + buffer.bound_storage if buffer.bound_storage else ''}: {members}")
    return "\n".join(lines) + "\n"


def planned(text: str) -> str:
    made = plan_memory(parse(text, "case"), Options(alignment=4))
    lines = [f"arena {made.arena_bytes} bound {made.lower_bound_bytes} total {made.total_bytes} peak {made.peak_point}"]
    for place in made.placements:
        region = place.region
        lines.append(
            f"%{place.value} {region.storage} {region.offset}+{region.nbytes} {place.how} {place.shares}".rstrip()
        )
    lines += [f"%{outside.value} outside: {outside.reason}" for outside in made.outside]
    return "\n".join(lines) + "\n"


def laid_out(text: str) -> str:
    """What a plan says that follows from analysis: copies, copies of bodies, what is the same bytes and when.

    A comment `# options {...}` says how to plan.
    """
    chosen = next((line[10:] for line in text.splitlines() if line.startswith("# options ")), "{}")
    made = plan_memory(parse(text, "case"), Options(**{"alignment": 1, "in_place_from": 0, **json.loads(chosen)}))
    lines = [f"arena {made.arena_bytes} bound {made.lower_bound_bytes}"]
    lines += [f"{m.edge}: {m.nbytes} bytes from %{m.source} to %{m.destination}: {m.why}" for m in made.moves]
    for record in made.rolled:
        lines.append(f"{record.loop}{_within(record.within)}: {record.first} copies, then {record.ring} in turn")
        for jump in record.jumps:
            ways = " and ".join(f"{name} by way {way}" for name, way in jump.ways) or "always"
            lines.append(f"  from {jump.copy} to {jump.next}: {ways}")
    for place in made.placements:
        copies = " or".join(map(_within, place.copies))
        if place.how == "pointer":
            lines.append(f"%{place.value} stands for {', '.join(place.stands_for)}")
            continue
        strides = "".join(f" {stride.step:+} in {stride.loop}" for stride in place.strides)
        first = min(other.region.offset for other in made.placements if _block(other) == _block(place))
        live = ", ".join(f"{begin}-{end}" for begin, end in place.live)
        where = f"{_block(place)} at {place.region.offset - first}{strides}"
        lines.append(f"%{place.value}{copies}: {where}, {' '.join((place.how, place.shares)).strip()}, live {live}")
    return "\n".join(lines) + "\n"


def _block(place: Placement) -> str:
    return f"buffer {place.buffer}" if place.buffer >= 0 else place.region.storage


def _within(context: Context) -> str:
    return "".join(f" in copy {copy} of {loop}" for loop, copy in context)


def judged(text: str) -> str:
    """What the checker says of the plan of a program, in which something else is said; options come before that."""
    program, _, changes = text.partition("--- change\n")
    first, _, others = changes.partition("\n")
    chosen = json.loads(first.removeprefix("options "))
    graph = parse(program, "case")
    made = changed(plan_memory(graph, Options(**{"alignment": 1, "in_place_from": 0, **chosen})), others)
    judgement = judge(graph, made.schedule, made)
    lines = [str(finding) for finding in judgement.findings] or ["accepted"]
    lines += [f"not proven: {name}: {why}" for name, why in judgement.unproven.items()]
    return "\n".join(lines) + "\n"


STAGES: dict[str, Callable[[str], str]] = {
    "parse": parsed,
    "verify": verified,
    "liveness": live,
    "sharing": shared,
    "plan": planned,
    "layouts": laid_out,
    "checker": judged,
}


@pytest.mark.parametrize("case", sorted(CASES.rglob("*.txt")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case(case: Path) -> None:
    text, divider, expected = case.read_text(encoding="utf-8").partition(DIVIDER)
    actual = STAGES[case.parent.name](text)
    if os.environ.get("UPDATE_EXPECT"):
        case.write_text(text + DIVIDER + actual, encoding="utf-8")
    else:
        assert divider, f"{case} has no expectation: run with UPDATE_EXPECT=1 and read what it writes"
        assert actual == expected


def test_every_folder_has_a_stage() -> None:
    assert {path.name for path in CASES.iterdir()} == set(STAGES)
