"""`pack`: the best of all strategies, and how it ends early."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sublet.packing import STRATEGIES, Buffer, Problem, check_packing, pack, read_problem
from sublet.packing.normalize import core_of

PROBLEMS = Path(__file__).parent / "problems"
MANY = Problem(
    tuple(
        Buffer(str(i), 1 + i * 104_729 % 10_007, i * 37 % 5_003, i * 37 % 5_003 + 1 + i * 7_919 % 2_003)
        for i in range(5_000)
    )
)
"""5,000 buffers of different sizes, up to two thousand of them alive together."""


def test_keeps_the_smallest_arena_of_all() -> None:
    problem = read_problem(PROBLEMS / "A.1048576.csv")
    report = pack(problem)
    assert [name for name, _, _ in report.tried] == list(STRATEGIES)
    assert report.packing.arena_bytes == min(arena for _, arena, _ in report.tried)
    assert report.packing.strategy == next(
        name for name, arena, _ in report.tried if arena == report.packing.arena_bytes
    )
    assert report.bound.bytes == 1_048_576
    assert report.gap == (report.packing.arena_bytes - 1_048_576) / 1_048_576
    assert report.stopped == ""


def test_stops_at_the_bound_with_the_earliest_strategy() -> None:
    report = pack(Problem((Buffer("a", 3, 0, 2), Buffer("b", 3, 2, 4))))
    assert [name for name, _, _ in report.tried] == ["no_reuse", "first_fit"]
    assert (report.packing.strategy, report.packing.arena_bytes, report.gap) == ("first_fit", 3, 0.0)
    tie = pack(Problem((Buffer("a", 3, 0, 2), Buffer("b", 3, 1, 4))))
    assert tie.packing.strategy == "no_reuse"


def test_what_no_packing_can_be_of_use_for_is_not_searched() -> None:
    problem = read_problem(PROBLEMS / "A.1048576.csv")
    full = pack(problem)
    assert [name for name, _, _ in pack(problem, useful=full.bound.bytes).tried] == list(STRATEGIES)
    report = pack(problem, useful=full.bound.bytes - 1)
    assert [name for name, _, _ in report.tried] == list(STRATEGIES)[: len(report.tried)]
    assert "search" not in [name for name, _, _ in report.tried]
    assert report.bound == full.bound
    check_packing(problem, report.packing)


def test_densenet_forward_needs_less_than_libnnc() -> None:
    report = pack(read_problem(PROBLEMS / "densenet121.fwd.b1.json"))
    assert 7_630_784 == report.bound.bytes <= report.packing.arena_bytes < 9_637_824


def test_what_is_too_dense_to_look_at_all_pairs_is_swept() -> None:
    report = pack(Problem(tuple(Buffer(str(i), 1 + i % 7, i, 30_000) for i in range(21_000))))
    assert [name for name, _, _ in report.tried] == ["sweep"]
    assert report.gap == 0.0


def test_without_time_the_first_strategies_give_the_answer() -> None:
    problem = read_problem(PROBLEMS / "A.1048576.csv")
    report = pack(problem, timeout=0.0)
    assert [name for name, _, _ in report.tried] == ["no_reuse", "first_fit", "first_fit_by_tightness"]
    assert report.stopped == "timeout"
    check_packing(problem, report.packing)


def test_a_time_limit_ends_a_search_half_way() -> None:
    report = pack(MANY, timeout=1.0)
    assert report.stopped == "timeout"
    assert report.tried[1][0] == "first_fit"
    check_packing(MANY, report.packing)


def test_a_search_among_many_buffers_asks_after_few_steps_whether_to_stop() -> None:
    """One step among 5,000 buffers takes as long as thousands among few."""
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) >= 10

    known = np.array(pack(MANY, "sweep").packing.offsets, dtype=np.int64)
    _, _, steps, _ = core_of(MANY).minimise(0, known, 0, 1 << 40, stop)
    assert 0 < steps < 100


def test_an_interrupt_keeps_the_best_so_far() -> None:
    def interrupt(strategy: str, arena_bytes: int) -> None:
        if strategy == "best_fit_by_size":
            raise KeyboardInterrupt

    report = pack(read_problem(PROBLEMS / "A.1048576.csv"), progress=interrupt)
    assert report.tried[-1][0] == "best_fit_by_size"
    assert report.stopped == "interrupt"
    assert report.packing.arena_bytes == min(size for _, size, _ in report.tried)


def test_one_strategy_by_name() -> None:
    seen: list[tuple[str, int]] = []
    report = pack(
        read_problem(PROBLEMS / "A.1048576.csv"), "best_fit_by_area", progress=lambda *each: seen.append(each)
    )
    assert [(report.packing.strategy, report.packing.arena_bytes)] == seen


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_empty_problem(strategy: str) -> None:
    report = pack(Problem(()), strategy)
    assert (report.packing.offsets, report.packing.arena_bytes, report.bound.bytes) == ((), 0, 0)
