"""Programs that were once planned wrongly, reduced: what was chosen before a loop, and again within it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.errors import RunError
from sublet.checker import check
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.planning.pipeline import plan_memory
from sublet.runtime.differential import compare
from tests.passes.differences import run
from tests.runtime.test_generated import BEYOND, Mixing, feeds_of
from tests.support import dialect
from tests.support.interpreter import results_match

assert dialect.OPS

PROGRAMS = Path(__file__).parent.parent / "programs"
WAYS = [Options(alignment=alignment, io=io) for alignment in (8, 64) for io in ("arena", "bound")]  # type: ignore[arg-type]


def read(name: str) -> Graph:
    return parse((PROGRAMS / f"{name}.sublet").read_text(encoding="utf-8"))


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("what_a_loop_left", [(n, m) for n in (0, 1, 2, 4) for m in (0, 1, 3, 4) if m - n <= 3]),
        ("what_a_loop_left_or_not", [(2, 0), (2, 1), (1, 0), (1, 1), (-1, 0)]),
    ],
)
def test_planned_and_in_poison_as_unplanned(name: str, counts: list[tuple[int, int]], options: Options) -> None:
    graph = read(name)
    plan = plan_memory(graph, options)
    assert check(graph, plan.schedule, plan) == ()
    feeds = {"x": np.array([1, 1, 0.1, 0.1]), "y": np.array([1, 2, 3, 4.0]), "w": np.zeros((4, 4))}
    for n, m in counts:
        run(graph, {**feeds, "n": np.array(n), "m": np.array(m)}, options)


def test_a_condition_from_around_the_loop_may_be_a_pointer() -> None:
    plan = plan_memory(read("captured_condition"), Options(alignment=1, forbid_copies=True))
    assert ("go", "pointer") in {(place.value, place.how) for place in plan.placements}


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("name", ["chosen_and_chosen_again", "captured_condition"])
def test_chosen_in_data(name: str, options: Options) -> None:
    graph, rng = read(name), random.Random(1)
    plan = plan_memory(graph, options)
    assert results_match(graph, plan.schedule, plan, rng, 30)
    backend, feeds = Mixing([b""]), feeds_of(graph, rng)
    weights = {value.name: feeds.pop(value.name) for value in graph.weights}
    planned = compile(graph, backend=backend, weights=weights, options=options)
    unplanned = compile(graph, backend=backend, weights=weights, options=Options(strategy="no_reuse", share=False))
    done = 0
    for _ in range(30):
        backend.salt[0] = rng.randbytes(4)
        try:
            assert compare(unplanned, planned, feeds).differences == ()
        except RunError as error:
            if BEYOND not in str(error):
                raise
            continue
        done += 1
    assert done >= 3
