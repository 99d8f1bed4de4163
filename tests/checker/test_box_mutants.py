"""Random mutants of plans over ranges, in loops and branches: refused by the check of the box, or right when run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from sublet.api.binding import CompileRequest
from sublet.api.ranges import _with_kernels, read_over_ranges
from sublet.checker.box import check_box
from sublet.ir.model import Model
from sublet.plan import ARENA
from sublet.plan.ranges import RangedPlan
from sublet.planning.ranges import plan_over_ranges
from sublet.runtime.ranged import RangedExecutable
from tests.checker.test_box import moved, place_of
from tests.runtime.test_ranged import points_of, session_of
from tests.support.onnx.ranged_programs import RANGES, ranged_program

SEEDS = [0, 1, 16, 21, 26, 29, 52]
MUTANTS = 8


def mutants_of(ranged: RangedPlan, rng: random.Random) -> Iterator[RangedPlan]:
    """Plans with another region of a value inside a loop or branch."""
    regions = {place.value: place.region for place in ranged.over.placements if place.region.storage == ARENA}
    bodies = [sub for node in ranged.graph.nodes for sub in node.subgraphs]
    inner = [value.name for sub in bodies for value in sub.values() if value.name in regions]
    for _ in range(MUTANTS if inner else 0):
        name, other = rng.choice(inner), regions[rng.choice(list(regions))]
        yield moved(
            ranged,
            name,
            **rng.choice(
                (
                    {"offset": other.offset},
                    {"offset": other.end},
                    {"offset": place_of(ranged.worst, name).region.offset},
                    {"nbytes": regions[name].nbytes - 64},
                )
            ),
        )


def is_right(ranged: RangedPlan, read: Model, model: onnx.ModelProto, seed: int) -> bool:
    """True if the plan runs as ONNX Runtime does, at points in a poisoned arena."""
    session: Any = session_of(model, rewriting=False)
    ready, there = _with_kernels(read, ranged, "auto", None)
    executable, numbers = RangedExecutable(ranged, ready.to_executable(there), {}), np.random.default_rng(seed)
    for point in points_of(RANGES, 5, seed):
        feeds = {name: numbers.standard_normal((point["a"], point["b"], 4), dtype=np.float32) for name in "xy"}
        try:
            wanted = session.run(None, feeds)
        except Exception:  # a shape that the model does not take
            continue
        executable.memory.raw(ARENA)[:] = 0xA5
        found = executable({name: feeds[name] for name in executable.inputs})
        for value, array in zip(session.get_outputs(), wanted, strict=True):
            if not np.array_equal(found[value.name], array, equal_nan=True):
                return False
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mutant_inside_control_flow_is_refused_or_right(seed: int) -> None:
    model = ranged_program(seed, steps=4, control=True)
    dims = {each.name: each for each in RANGES}
    read = read_over_ranges(CompileRequest(model, dims=dims, optimize="none"))
    ranged = plan_over_ranges(read)
    mutants = [each for each in mutants_of(ranged, random.Random(seed)) if each.over != ranged.over]
    accepted = [each for each in mutants if not check_box(each.box, each.within, each.at)]
    assert len(accepted) < len(mutants)
    for each in accepted:
        assert is_right(each, read, model, seed)
