"""Rows of benchmarks, and the files in benchmarks/results, from which docs/benchmark_plots.py draws the plots."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sublet.base.files import write
from sublet.base.optional_imports import version_of

RESULTS = Path(__file__).resolve().parent / "results"
BOUND = "lower bound"
"""The series of bytes that no arrangement goes below."""


@dataclass(frozen=True)
class Row:
    """A measured number.

    case, series  what was measured, such as a network, and the side, such as "Sublet"
    value         the number in `unit`: the median of several rounds
    low, high     the least and the most of the rounds; the value itself for a number that does not vary
    at            bytes of the arena, for a point of a curve
    """

    case: str
    series: str
    value: float
    unit: str
    low: float
    high: float
    at: int | None = None


def exact_row(case: str, series: str, value: float, unit: str = "bytes", at: int | None = None) -> Row:
    """Return the row of a number that does not vary."""
    return Row(case, series, value, unit, value, value, at)


def round_rows(case: str, rounds: Mapping[str, Sequence[float]], unit: str) -> list[Row]:
    """Return a row for each series from the numbers of its rounds."""
    return [Row(case, name, median(found), unit, min(found), max(found)) for name, found in rounds.items()]


def machine() -> dict[str, Any]:
    """Return the processor, the number of cores, the memory in GiB, and the cores that other programs kept busy."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of the installed packages among the given ones."""
    found = {name: version_of(name) for name in ("sublet", "numpy", *packages)}
    return {"python": platform.python_version(), **{name: version for name, version in found.items() if version}}


def write_result(path: Path, content: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write a result file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [{key: value for key, value in asdict(row).items() if value is not None} for row in rows]
    lines = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in written)
    head = json.dumps(dict(content), ensure_ascii=False, indent=2)
    write(path, f'{head[:-2]},\n  "rows": [\n{lines}\n  ]\n}}\n')
