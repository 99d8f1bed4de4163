"""The search: what it reaches, what it proves, and that steps, not time, decide."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from sublet.packing import STRATEGIES, Buffer, Problem, check_packing, pack, read_problem
from sublet.packing.bounds import lower_bound
from sublet.packing.search import Limits, search

PROBLEMS = Path(__file__).parent / "problems"
SHARED = Path(__file__).parents[3] / "shared" / "problems"
HARD = 1 << 20


def strip(seed: int, width: int = 600, height: int = 1 << 16, pieces: int = 60) -> Problem:
    """A full rectangle of time x bytes, cut up: it can be packed with nothing to spare."""
    rng = random.Random(seed)
    parts = [(0, width, 0, height)]
    while len(parts) < pieces:
        begin, end, low, high = parts.pop(rng.randrange(len(parts)))
        if rng.random() < 0.5 and end - begin > 1:
            cut = rng.randrange(begin + 1, end)
            parts += [(begin, cut, low, high), (cut, end, low, high)]
        elif high - low > 1:
            cut = rng.randrange(low + 1, high)
            parts += [(begin, end, low, cut), (begin, end, cut, high)]
        else:
            parts.append((begin, end, low, high))
    return Problem(tuple(Buffer(str(i), high - low, begin, end) for i, (begin, end, low, high) in enumerate(parts)))


@pytest.mark.parametrize("seed", range(12))
def test_a_cut_up_strip_is_put_together_again(seed: int) -> None:
    report = pack(strip(seed))
    assert report.packing.arena_bytes == report.bound.bytes == 1 << 16


@pytest.mark.parametrize("seed", range(3))
def test_a_capacity_is_reached_or_refuted(seed: int) -> None:
    problem = strip(seed)
    report = pack(problem, capacity=1 << 16, seed=seed)
    assert report.packing.arena_bytes <= 1 << 16
    check_packing(problem, report.packing)
    below = pack(problem, capacity=(1 << 16) - 1, seed=seed)
    assert below.bound.bytes == 1 << 16


@pytest.mark.parametrize("effort", [1, 50])
def test_a_search_with_hardly_any_steps_keeps_what_it_began_with(effort: int) -> None:
    problem = read_problem(PROBLEMS / "A.1048576.csv")
    report = pack(problem, "search", effort=effort)
    assert report.packing.arena_bytes <= STRATEGIES["first_fit"](problem).arena_bytes
    check_packing(problem, report.packing)
    assert pack(problem, "search", timeout=0.0).stopped == "timeout"


def test_the_same_steps_give_the_same_packing() -> None:
    problem = read_problem(PROBLEMS / "A.1048576.csv")
    bound = lower_bound(problem)
    first, again = (search(problem, bound, STRATEGIES["first_fit"](problem), Limits(20_000, seed=3)) for _ in range(2))
    assert first.packing.offsets == again.packing.offsets
    assert first.steps == again.steps <= 20_000 + 1_000


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/problems is absent")
@pytest.mark.parametrize("name", ["A", "C", "D", "F", "H", "J"])
def test_hard_instances_fit_their_capacity(name: str) -> None:
    problem = read_problem(SHARED / "minimalloc" / f"{name}.{HARD}.csv")
    report = pack(problem, capacity=HARD)
    assert report.packing.arena_bytes <= HARD


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/problems is absent")
@pytest.mark.parametrize("path", sorted((SHARED / "libnnc_serial").glob("*.csv")), ids=lambda path: path.stem)
def test_networks_in_serial_order_are_packed_at_their_bound(path: Path) -> None:
    report = pack(read_problem(path))
    assert report.gap == 0


def test_large_problems_are_packed_greedily() -> None:
    rng = random.Random(0)
    rows = []
    for i in range(20_000):
        begin = rng.randrange(20_000)
        rows.append(Buffer(str(i), rng.randrange(1, 1 << 20), begin, begin + rng.randrange(1, 200)))
    report = pack(Problem(tuple(rows)), effort=1_000)
    assert report.gap < 0.05


def test_a_large_packing_is_repacked_where_it_is_highest() -> None:
    rng = random.Random(6)
    rows = []
    for i in range(3_000):
        begin = rng.randrange(30_000)
        rows.append(Buffer(str(i), int(2 ** rng.uniform(4, 24)), begin, begin + 1 + rng.randrange(2_000)))
    problem = Problem(tuple(rows))
    greedy = STRATEGIES["first_fit_by_tightness"](problem)
    bound = lower_bound(problem)
    first, again = (search(problem, bound, greedy, Limits(20_000)) for _ in range(2))
    check_packing(problem, first.packing)
    assert first.packing.arena_bytes < 1.01 * bound.bytes < 1.05 * bound.bytes < greedy.arena_bytes
    assert first.packing.offsets == again.packing.offsets
    assert first.steps == again.steps


INTERRUPTED = """
import os, runpy, signal, threading
import sublet.packing.portfolio as auto
search = auto.search
def searching(*details):
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    return search(*details)
auto.search = searching
runpy.run_module("sublet", run_name="__main__")
"""
"""The command line, interrupted a second after the search has begun, on a busy machine too."""


def test_ctrl_c_during_a_search_keeps_the_best_so_far(tmp_path: Path) -> None:
    """A real signal to a real process, in the middle of a search that would go on for a minute."""
    rows = (PROBLEMS / "A.1048576.csv").read_text().splitlines()
    # At this alignment the peak cannot be reached, nor is that easily proved: the search goes on.
    problem, out = tmp_path / "aligned.csv", tmp_path / "packed.csv"
    problem.write_text("\n".join([rows[0] + ",alignment", *(f"{row},1536" for row in rows[1:])]) + "\n")
    words = [sys.executable, "-c", INTERRUPTED, "pack", problem, "--timeout", "60", "--out", out, "--json"]
    process = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr
    content = json.loads(process.stdout)
    assert content["stopped"] == "interrupt"
    assert content["strategy"] == "search"
    assert out.exists()
