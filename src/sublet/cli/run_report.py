"""The report of `sublet run`: a flat JSON object, or tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sublet.base.bytesize import human
from sublet.base.escape import printable
from sublet.plan.coverage import assumptions
from sublet.plan.statistics import update_statistics
from sublet.plan.verdict import Verdict
from sublet.runtime.executable import Executable
from sublet.runtime.profile import Cost
from sublet.viz.report import recipe_json, verdict_json
from sublet.viz.tables import plain_table
from sublet.viz.verdict import render_verdict

MAX_LISTED = 12
"""Maximum of listed steps and differences."""


@dataclass(frozen=True)
class RunReport:
    """An executable that has run, with the measurements.

    seconds    the time of each timed run, copies of inputs and outputs included
    versions   of the packages in use
    verdicts   "compare" and "poison", if requested: the differences between the runs; empty if the runs agree
    slowest    the points of a profiled run, the longest first
    decision   the verdict on the executed plan under the requested budget
    """

    executable: Executable
    seconds: Sequence[float]
    versions: dict[str, str]
    verdicts: dict[str, tuple[str, ...]]
    slowest: Sequence[Cost] = ()
    decision: Verdict | None = None

    @property
    def is_equal(self) -> bool:
        """True if all compared runs agree."""
        return not any(self.verdicts.values())


def run_json(report: RunReport) -> dict[str, Any]:
    """Return bytes, seconds and verdicts as a JSON object; figures unknown on the machine are None."""
    executable, memory = report.executable, report.executable.memory
    content: dict[str, Any] = {
        "graph": executable.plan.graph,
        "arena_bytes": memory.arena,
        "arenas": {storage.name: storage.nbytes for storage in executable.plan.arenas},
        "lower_bound_bytes": executable.plan.lower_bound_bytes,
        "input_bytes": memory.inputs,
        "output_bytes": memory.outputs,
        "weight_bytes": memory.weights,
        "scratch_bytes": memory.scratch,
        "outside_values": memory.outside_values,
        "outside_bytes": memory.outside,
        "updated": list(executable.updated),
        "updated_bytes": update_statistics(executable.plan).nbytes,
        "workspace_bytes": memory.allocated.total_bytes,
        "held_bytes": memory.allocated.held_bytes,
        "peak_bytes": memory.allocated.peak_bytes,
        "workspace_unknown": memory.allocated.reason,
        "copied_bytes": executable.copied_bytes,
        "seconds": median(report.seconds),
        "least_seconds": min(report.seconds),
        "runs": len(report.seconds),
        "streams": executable.plan.schedule.streams,
        "steps": len(executable.plan.points),
        "nodes": {name or "moves bytes only": count for name, count in executable.nodes_of_backends.items()},
        "remark": executable.remark,
        "versions": report.versions,
        "recipe": recipe_json(executable.plan.recipe),
        "dims": dict(executable.plan.dims),
    }
    if report.decision is not None:
        content |= verdict_json(report.decision)
    for verdict, differences in report.verdicts.items():
        content[verdict] = list(differences)
    if report.verdicts:
        content["equal"] = report.is_equal
    if report.slowest:
        content["slowest"] = [
            {"point": str(cost.point), "op": _op_at(cost), "runs": cost.runs, "seconds": cost.seconds}
            for cost in report.slowest[:MAX_LISTED]
        ]
    return content


def render_run(report: RunReport) -> RenderableType:
    """Return the budget verdict, the figures, the slowest steps of a profile, and the comparison of the runs."""
    parts: list[RenderableType] = []
    if report.decision is not None:
        parts.append(render_verdict(report.decision, report.executable.plan))
    parts.append(_figures_table(report))
    if report.slowest:
        parts += [Text(), _slowest_table(report.slowest)]
    for verdict, differences in report.verdicts.items():
        if not differences:
            parts.append(Text(f"{verdict}: equal, bit for bit", "green"))
        parts += [Text(f"{verdict}: {printable(difference)}", "red") for difference in differences[:MAX_LISTED]]
    return Group(*parts)


def _figures_table(report: RunReport) -> Table:
    executable, memory = report.executable, report.executable.memory
    statistics = update_statistics(executable.plan)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")
    rows = [
        ("arena", human(memory.arena), f"{memory.arena:,} bytes: all planned tensors"),
        ("scratch", human(memory.scratch), "of that: the most requested by one kernel"),
        ("inputs", human(memory.inputs), "bound to memory outside the arena"),
        ("outputs", human(memory.outputs), "bound to memory outside the arena"),
        ("weights", human(memory.weights), "bound to memory outside the arena"),
        ("outside", human(memory.outside), f"{memory.outside_values} values that could not be planned"),
        ("workspace", *_describe_workspace(report)),
        ("updated", human(statistics.nbytes), f"of the above, kept for the next run: {statistics.description}"),
        ("copied", human(executable.copied_bytes), "moved by loops, branches and updates"),
        ("graph", "", printable(executable.plan.recipe.description)),
        ("time", f"{median(report.seconds):.4g} s", _describe_times(report.seconds)),
        ("steps", str(len(executable.plan.points)), _describe_backends(report)),
        ("remark", "", executable.remark),
        ("assumed", "", assumptions(executable.plan)),
    ]
    optional = {"scratch": memory.scratch, "outside": memory.outside_values}
    optional |= {"inputs": memory.inputs, "outputs": memory.outputs, "copied": executable.copied_bytes}
    optional |= {
        "remark": len(executable.remark),
        "assumed": len(executable.plan.assumed_types),
        "updated": statistics.count,
    }
    for name, figure, remark in rows:
        if optional.get(name, 1):
            table.add_row(name, figure, remark)
    return table


def _describe_workspace(report: RunReport) -> tuple[str, str]:
    allocated = report.executable.memory.allocated
    if allocated.total_bytes is None or allocated.held_bytes is None or allocated.peak_bytes is None:
        return "unknown", allocated.reason
    parts = f"{human(allocated.held_bytes)} kept, {human(allocated.peak_bytes)} at times"
    return human(allocated.total_bytes), f"allocated by libraries: {parts}"


def _describe_times(seconds: Sequence[float]) -> str:
    return "one run" if len(seconds) == 1 else f"median of {len(seconds)} runs, the fastest {min(seconds):.4g} s"


def _describe_backends(report: RunReport) -> str:
    streams = report.executable.plan.schedule.streams
    nodes = [
        f"{count} nodes by {name}" if name else f"{count} that only move bytes"
        for name, count in report.executable.nodes_of_backends.items()
    ]
    return ", ".join([*nodes, *([f"{streams} streams"] if streams > 1 else [])])


def _slowest_table(costs: Sequence[Cost]) -> Table:
    total_seconds = sum(cost.seconds for cost in costs) or 1.0
    table = plain_table()
    for name in ("ms", "share", "runs"):
        table.add_column(name, justify="right")
    for name in ("step", "op"):
        table.add_column(name, overflow="fold")
    for cost in costs[:MAX_LISTED]:
        figures = f"{cost.seconds * 1e3:.3f}", f"{cost.seconds / total_seconds:.1%}", str(cost.runs)
        table.add_row(*figures, Text(printable(str(cost.point))), Text(printable(_op_at(cost))))
    return table


def _op_at(cost: Cost) -> str:
    return cost.point.node.op if cost.point.node else ""
