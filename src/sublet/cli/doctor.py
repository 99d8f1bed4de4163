"""The command `sublet doctor`: versions, extras, compiled cores, integrations, threads and cache of an installation.

The module imports no other command: the doctor must answer if a core or an integration is broken.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import entry_points, requires
from pathlib import Path
from typing import Annotated, Any

import typer

from sublet.base.cache import MOST_ENTRIES, cache_root, limit_bytes
from sublet.base.errors import MissingExtraError
from sublet.base.formatting import count_with_noun, human, printable
from sublet.base.optional_imports import version_of
from sublet.integrations.registry import ENTRY_POINTS, Integration, resolve

CORES = ("sublet.packing._core", "sublet.passes.recompute._search", "sublet.passes.ordering._ordering")
"""The compiled modules of the core; those of an integration are imported with the integration."""

IMPORTED = {"matplotlib": "matplotlib.backends.backend_agg", "ortools": "ortools.sat.python.cp_model"}
"""The module imported by Sublet, for a package whose top module loads nothing compiled."""

MAX_SECONDS = 120
"""Seconds for the import of one package, far above the slowest import; a slower import counts as broken."""

_REQUIREMENT = re.compile(r"""([\w.-]+)(?:>=([^;\s]+))?(?:\s*;\s*extra == ["'](\w+)["'])?""")


class Health(StrEnum):
    """The state of a part of the installation."""

    WORKS = "works"
    MISSING = "not installed"
    TOO_OLD = "too old"
    BROKEN = "broken"


@dataclass(frozen=True)
class Diagnosis:
    """The state of a package, a compiled core or an integration, with the version and a remark."""

    name: str
    health: Health
    version: str = ""
    remark: str = ""

    @property
    def is_fault(self) -> bool:
        """True for an installed part that does not work."""
        return self.health in (Health.TOO_OLD, Health.BROKEN)


def run_statement(statement: str) -> tuple[bool, str]:
    """Return True and the output of a Python statement in a new process; False and the last line of an error.

    A crash of a compiled module ends only the new process.
    """
    try:
        words = [sys.executable, "-P", "-c", statement]  # -P: no module of the working folder
        ran = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=MAX_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False, f"no end after {MAX_SECONDS} seconds"
    if ran.returncode == 0:
        return True, ran.stdout.strip()
    lines = ran.stderr.strip().splitlines()
    return False, lines[-1] if lines and ran.returncode > 0 else f"the process ended with status {ran.returncode}"


def _required_packages() -> dict[str, tuple[str, list[str]]]:
    """Return, by package of Sublet's metadata, the least version and the extras; no extras for a required package."""
    packages: dict[str, tuple[str, list[str]]] = {}
    for text in requires("sublet") or ():
        match = _REQUIREMENT.fullmatch(text)
        if match is not None:
            _, extras = packages.setdefault(match[1], (match[2] or "", []))
            extras += [match[3]] if match[3] else []
    return packages


def _is_older(version: str, least: str) -> bool:
    """True if a version is below another, by the numbers before a local suffix such as "+cpu"."""
    numbers = [[int(part) for part in re.findall(r"\d+", text.partition("+")[0])] for text in (version, least)]
    return numbers[0] < numbers[1]


def diagnose_package(name: str, least: str, extras: list[str]) -> Diagnosis:
    """Return the state of a package: a missing package is a fault only if Sublet requires the package."""
    version, wanted = version_of(name), f">={least}" if least else ""
    extra = f"extra {', '.join(extras)}" if extras else "required"
    remark = f"{extra}{f', {wanted}' if wanted else ''}"
    if not version:
        return Diagnosis(
            name, Health.MISSING if extras else Health.BROKEN, remark=remark if extras else f"{remark}, not installed"
        )
    module = IMPORTED.get(name, name.replace("-", "_"))
    works, error = run_statement(f"import {module}")
    if not works:
        return Diagnosis(name, Health.BROKEN, version, error)
    return Diagnosis(name, Health.TOO_OLD if _is_older(version, least) else Health.WORKS, version, remark)


def diagnose_core(module: str) -> Diagnosis:
    """Return the state of a compiled module."""
    works, said = run_statement(f"import {module} as core; print(core.__file__)")
    return Diagnosis(module, Health.WORKS if works else Health.BROKEN, remark=said)


def diagnose_integration(name: str, version: str) -> Diagnosis:
    """Return the state of an integration: each function of its record is imported, in a new process."""
    works, said = run_statement(f"from sublet.cli.doctor import load_integration; load_integration({name!r})")
    return Diagnosis(name, Health.WORKS if works else Health.BROKEN, version, said)


def load_integration(name: str) -> None:
    """Import all functions of an integration, and print a line: the missing extras, and the integration's remark.

    Raises the error of an import that fails for another reason.
    """
    (point,) = entry_points(group=ENTRY_POINTS, name=name)
    integration, remarks = point.load(), dict[str, None]()
    for text in _functions_of(integration):
        try:
            if ":" in text:
                resolve(text)
            else:
                import_module(text)
        except MissingExtraError as error:
            remarks[str(error)] = None
    if integration.remark:
        remarks[resolve(integration.remark)()] = None
    print("; ".join(filter(None, remarks)))


def _functions_of(integration: Integration) -> Iterable[str]:
    """Yield the functions and the modules named by a record."""
    for value in vars(integration).values():
        texts = value.values() if hasattr(value, "values") else value if isinstance(value, tuple) else (value,)
        yield from (text for text in texts if isinstance(text, str) and ":" in text)
    if integration.api:
        yield integration.api


def diagnose() -> dict[str, Any]:
    """Return the states of all parts, by part; imports run concurrently in processes of their own."""
    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    with ThreadPoolExecutor(max_workers=usable_cores()) as pool:
        packages = [pool.submit(diagnose_package, name, *rest) for name, rest in _required_packages().items()]
        cores = [pool.submit(diagnose_core, module) for module in CORES]
        integrations = [
            pool.submit(
                diagnose_integration, point.name, f"{point.dist.name} {point.dist.version}" if point.dist else ""
            )
            for point in points
        ]
        parts = {"packages": packages, "cores": cores, "integrations": integrations}
        return {name: [each.result() for each in futures] for name, futures in parts.items()}


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_usage() -> dict[str, Any]:
    """Return the folder of all caches, the bytes and entries of each cache, and the limits of one cache."""
    root = cache_root()
    used: dict[str, dict[str, int]] = {}
    for folder, entries, names in os.walk(root):  # omits folders that cannot be read
        path = Path(folder).relative_to(root)
        if len(path.parts) == 1:
            used[path.name] = {"bytes": 0, "entries": len(entries) + len(names)}
        for name in names if path.parts else ():
            with suppress(OSError):  # another process removed the file
                used[path.parts[0]]["bytes"] += os.stat(os.path.join(folder, name)).st_size
    parent = next((folder for folder in (root, *root.parents) if folder.exists()), root)
    return {
        "folder": str(root),
        "writable": os.access(parent, os.W_OK),
        "caches": dict(sorted(used.items())),
        "limit_bytes": limit_bytes(),
        "limit_entries": MOST_ENTRIES,
    }


def _cache_words(cache: dict[str, Any]) -> Iterable[str]:
    """Yield the lines on the cache."""
    limit = f"at most {human(cache['limit_bytes'])} and {cache['limit_entries']:,} entries a cache"
    off = "off (SUBLET_CACHE_BYTES=0)" if not cache["limit_bytes"] else limit
    yield f"  {cache['folder']}: {off}{'' if cache['writable'] else ', not writable: nothing is kept'}"
    for name, used in cache["caches"].items():
        yield f"  {name}: {human(used['bytes'])} in {count_with_noun(used['entries'], 'folder')}"


THREAD_VARIABLES = ("OMP_NUM_THREADS", "SUBLET_THREADS")
"""Environment variables with a number of threads."""


def doctor(
    in_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Examine the installation: versions, extras, compiled cores, integrations, threads and cache.

    Exit status: 0 all installed parts work, 1 an installed part is broken or too old.
    """
    parts, cache = diagnose(), cache_usage()
    status = int(any(each.is_fault for diagnoses in parts.values() for each in diagnoses))
    versions = {"sublet": version_of("sublet"), "python": platform.python_version(), "platform": platform.platform()}
    threads = {
        "usable_cores": usable_cores(),
        "cores": os.cpu_count(),
        **{name: os.environ.get(name) for name in THREAD_VARIABLES},
    }
    if in_json:
        content = {name: [asdict(each) for each in diagnoses] for name, diagnoses in parts.items()}
        typer.echo(
            json.dumps({**versions, **content, "threads": threads, "cache": cache, "exit_status": status}, indent=1)
        )
        raise typer.Exit(status)
    lines = [f"Sublet {versions['sublet']}, Python {versions['python']}, {versions['platform']}"]
    for title, diagnoses in parts.items():
        lines += [
            "",
            title,
            *(f"  {each.name:32} {each.version:20} {each.health:14} {each.remark}" for each in diagnoses),
        ]
    given = "".join(f", {name}={threads[name]}" for name in THREAD_VARIABLES if threads[name])
    lines += ["", f"threads: {threads['usable_cores']} of {threads['cores']} cores usable{given}", "", "cache"]
    lines += _cache_words(cache)
    faults = [each.name for diagnoses in parts.values() for each in diagnoses if each.is_fault]
    lines += ["", f"faults: {', '.join(faults)}" if faults else "all installed parts work"]
    typer.echo("\n".join(printable(line.rstrip()) for line in lines))
    raise typer.Exit(status)


def main() -> None:
    """Run the command without the other commands, and end the process with its exit status."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(doctor)
    app(args=sys.argv[2:], prog_name="sublet doctor")
