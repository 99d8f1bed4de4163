"""The report of `sublet check` on a PyTorch memory snapshot: the allocator's memory against a planned arena."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.markup import escape
from rich.text import Text

from sublet.base.errors import PlanError
from sublet.base.formatting import human, percent, printable
from sublet.cli.check import MAX_LISTED
from sublet.cli.console import answer_console, packing_progress, print_json
from sublet.cli.plan_output import print_memory_map, write_pictures
from sublet.integrations.torch.snapshot import Snapshot, read_snapshot
from sublet.packing import PackingReport, pack
from sublet.viz.view_model import picture_of_packing


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
