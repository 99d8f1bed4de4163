"""Verification of ExecuTorch programs by replay of their instructions; the file declares no lifetimes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from sublet.base.errors import Finding, ModelError
from sublet.checker.external.verdict import Evidence, ForeignVerdict, RegionVerdict
from sublet.integrations.executorch.content_liveness import content_live_ranges, memory_lower_bounds, occupied_points
from sublet.integrations.executorch.program import MethodProgram
from sublet.integrations.executorch.pte import read_programs
from sublet.integrations.executorch.replay import replay
from sublet.packing.problem import Buffer, Packing, Problem

TOOL = "ExecuTorch"
SUFFIX = ".pte"


def is_pte(path: Path) -> bool:
    """Return True if the suffix of `path` is that of an ExecuTorch program (`.pte`)."""
    return path.suffix.lower() == SUFFIX


def judge_pte(path: Path) -> ForeignVerdict:
    """Read an ExecuTorch program and return the verdict on its memory plan.

    Raises ModelError if the file cannot be read, is too large, or has no method.
    """
    programs = read_programs(path)
    if not programs:
        raise ModelError(f"{path} has no method to check")
    return judge_programs(programs)


def judge_programs(programs: Iterable[MethodProgram]) -> ForeignVerdict:
    """Return the verdict on the memory plans of all methods of a program.

    Each method is replayed alone. A step must read the content that the program wrote for the step. A region has a
    lower bound only if its method has no finding.
    """
    methods = list(programs)
    findings: list[Finding] = []
    regions: list[RegionVerdict] = []
    drawn: list[tuple[Problem, Packing]] = []
    names: list[str] = []
    for program in methods:
        prefix = f"{program.name}: " if len(methods) > 1 else ""
        wrong = replay(program)
        findings += [replace(finding, where=f"{prefix}{finding.where}") for finding in wrong]
        when = content_live_ranges(program)
        lower_bounds: Mapping[int, int] = {} if wrong else memory_lower_bounds(program, when)
        names += [f"{prefix}{tensor.name}" for tensor in program.tensors if tensor.place is not None]
        for memory, size in program.memories.items():
            inside = [each for each in occupied_points(program, when) if each[1].memory == memory and each[2]]
            if size or inside:
                regions.append(RegionVerdict(f"{prefix}memory {memory}", size, lower_bounds.get(memory, 0)))
                buffers = tuple(
                    Buffer.alive_in(program.tensors[k].name, place.end - place.begin, live) for k, place, live in inside
                )
                offsets = tuple(place.begin for _, place, _ in inside)
                problem = Problem(buffers, name=f"{prefix}memory {memory}")
                drawn.append((problem, Packing(offsets, size, TOOL)))
    return ForeignVerdict(
        TOOL, Evidence.INSTRUCTIONS, tuple(findings), tuple(names), regions=tuple(regions), drawn=tuple(drawn)
    )
