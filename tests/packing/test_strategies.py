"""What holds for every strategy, on small random problems and on the given files."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sublet.base.errors import PackingError, ProblemError
from sublet.packing import (
    STRATEGIES,
    Buffer,
    Companion,
    Packing,
    Precedence,
    Problem,
    check_packing,
    lower_bound,
    pack,
    read_problem,
    strategy_named,
    strategy_names,
)
from sublet.packing._core import Hole
from sublet.packing._core import problem as core_problem
from tests.packing.random_problems import problems, smallest_arena

HERE = Path(__file__).parent


@given(problems())
@settings(max_examples=120, deadline=None)
def test_every_strategy_is_right_and_the_search_proves_the_optimum(problem: Problem) -> None:
    best = smallest_arena(problem)
    assert lower_bound(problem).bytes <= best
    for name, strategy in STRATEGIES.items():
        packing = strategy(problem)
        check_packing(problem, packing)
        assert packing.arena_bytes >= best
        assert packing.strategy == name
    report = pack(problem)
    assert report.packing.arena_bytes == best
    assert report.bound.bytes == best


@given(problems(sizes=st.integers((1 << 58) - 3, 1 << 58), alignments=st.sampled_from([1, 1 << 31, 1 << 32])))
@settings(max_examples=30, deadline=None)
def test_huge_sizes_and_alignments_do_not_overflow(problem: Problem) -> None:
    bound = lower_bound(problem)
    for name in STRATEGIES:
        report = pack(problem, name, effort=2_000)
        check_packing(problem, report.packing)
        assert report.packing.arena_bytes >= bound.bytes


@given(problems(sizes=st.integers((1 << 62) - 3, 1 << 62), alignments=st.integers((1 << 32) - 5, 1 << 32)))
@settings(max_examples=20, deadline=None)
def test_more_than_the_limit_is_refused(problem: Problem) -> None:
    assume(problem.buffers)
    for name in (*STRATEGIES, "auto"):
        with pytest.raises(ProblemError, match=r"the limit is 2\^62"):
            pack(problem, name)


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_shuffled_rows_get_the_same_offsets(problem: Problem, random: object) -> None:
    order = list(range(len(problem.buffers)))
    random.shuffle(order)  # type: ignore[attr-defined]
    precedence = problem.precedence
    if precedence is not None:
        compatible = None if precedence.compatible is None else precedence.compatible[order][:, order]
        precedence = Precedence(precedence.distance[order][:, order], compatible)
    companions = tuple(Companion(order.index(c.first), order.index(c.second)) for c in problem.companions)
    shuffled = Problem(tuple(problem.buffers[i] for i in order), precedence, companions)
    for name in (*STRATEGIES, "auto"):
        before, after = pack(problem, name).packing.offsets, pack(shuffled, name).packing.offsets
        assert [before[i] for i in order] == list(after)


def test_offsets_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "import sys; from sublet.packing import STRATEGIES, read_problem\n"
        "problem = read_problem(sys.argv[1])\n"
        "print([strategy(problem).offsets for strategy in STRATEGIES.values()])"
    )
    outputs = set()
    for seed in ("1", "4242"):
        words = [sys.executable, "-c", script, str(HERE / "problems" / "unit_while.15.json")]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        outputs.add(subprocess.run(words, check=True, env=environment, capture_output=True).stdout)
    assert len(outputs) == 1


def test_greedy_orders_and_holes() -> None:
    buffers = (
        Buffer("a", 4, 0, 4),
        Buffer("b", 2, 0, 2),
        Buffer("c", 3, 0, 3),
        Buffer("d", 2, 2, 6),
        Buffer("e", 1, 3, 6),
    )
    problem = Problem(buffers)
    assert STRATEGIES["first_fit"](problem).offsets == (0, 7, 4, 7, 4)
    assert STRATEGIES["best_fit_by_size"](problem).offsets == (0, 7, 4, 7, 4)
    # longest first: a and d live 4, c and e 3, b 2; of two the larger
    assert STRATEGIES["best_fit_by_lifetime"](problem).offsets == (0, 4, 6, 4, 6)
    assert STRATEGIES["no_reuse"](problem).offsets == (0, 4, 6, 9, 11)


def placed(neighbours: list[tuple[int, int]], size: int, alignment: int, hole: Hole) -> int:
    """Where the core places a buffer among others that are pinned to (begin, end)."""
    count = len(neighbours) + 1
    core = core_problem(
        sizes=np.array([*(end - begin for begin, end in neighbours), size]),
        alignments=np.array([*([1] * len(neighbours)), alignment]),
        pinned=np.array([*(begin for begin, _ in neighbours), -1]),
        first_piece=np.arange(count + 1),
        begins=np.array([*range(0, 2 * len(neighbours), 2), 0]),
        ends=np.array([*range(1, 2 * len(neighbours), 2), 2 * count]),
        companions=np.zeros((0, 2), dtype=np.int32),
    )
    return int(core.greedy_in_order(np.arange(count, dtype=np.int32), hole)[-1])


def test_holes() -> None:
    """Neighbours at 0-4, 9-11 and 14-15: a hole of 5 bytes at 4, one of 3 at 11, and the top at 15."""
    near = [(0, 4), (9, 11), (14, 15)]
    assert [placed(near, size, 1, Hole.lowest) for size in (1, 3, 5, 6)] == [4, 4, 4, 15]
    assert [placed(near, size, 1, Hole.smallest) for size in (1, 3, 5, 6)] == [11, 11, 4, 15]
    assert [placed(near, size, 4, Hole.smallest) for size in (1, 3, 5, 6)] == [12, 4, 4, 16]


def test_a_hole_ends_where_the_highest_of_overlapping_neighbours_ends() -> None:
    """Neighbours need not conflict with each other: 0-9 hides 2-4, so the first hole is at 9."""
    near = [(0, 9), (2, 4), (12, 13)]
    assert placed(near, 3, 1, Hole.lowest) == placed(near, 3, 1, Hole.smallest) == 9
    assert placed(near, 4, 1, Hole.lowest) == 13


def test_buffers_without_bytes_need_no_room() -> None:
    problem = Problem((Buffer("a", 0, 0, 9, 64), Buffer("b", 5, 0, 9), Buffer("c", 0, 0, 9)))
    for name, strategy in STRATEGIES.items():
        assert strategy(problem).arena_bytes == 5, name
    assert pack(Problem(())).packing.arena_bytes == 0


def test_conflicting_companions_are_refused() -> None:
    problem = Problem((Buffer("a", 1, 0, 2), Buffer("b", 1, 1, 3)), companions=(Companion(0, 1),))
    for strategy in STRATEGIES.values():
        with pytest.raises(ProblemError, match="a and b are companions but conflict"):
            strategy(problem)


def test_a_strategy_of_another_package_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foreign_strategy.py").write_text(
        "from sublet.packing import Packing\n"
        "def stack(problem):\n"
        "    offsets, top = [], 0\n"
        "    for buffer in problem.buffers:\n"
        "        offsets.append(top)\n"
        "        top += buffer.size\n"
        "    return Packing(tuple(offsets), top, 'stack')\n"
        "number = 7\n"
    )
    package = tmp_path / "foreign-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[sublet.strategies]\nstack = foreign_strategy:stack\nmissing = foreign_strategy:nothing\n"
        "number = foreign_strategy:number\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    problem = Problem((Buffer("a", 3, 0, 1), Buffer("b", 4, 5, 6)))
    assert pack(problem, "stack").packing.offsets == (0, 3)
    assert strategy_names()[-3:] == ("missing", "number", "stack")
    with pytest.raises(ProblemError, match=r"missing .* cannot be loaded"):
        strategy_named("missing")
    with pytest.raises(ProblemError, match=r"number .* is not a function"):
        strategy_named("number")


def stacked(problem: Problem) -> Packing:
    """Place each buffer above all others."""
    ends = list(accumulate(buffer.size for buffer in problem.buffers))
    return Packing((0, *ends[:-1]), ends[-1], "stacked")


def test_a_function_is_a_strategy_and_its_packing_is_checked() -> None:
    problem = Problem((Buffer("b", 4, 0, 2), Buffer("a", 3, 1, 3)))
    report = pack(problem, stacked)
    assert (report.packing.offsets, report.packing.strategy) == ((3, 0), "stacked")  # in order of ids: a, then b
    assert report.tried[0][:2] == ("stacked", 7)
    with pytest.raises(PackingError, match=r"overlap buffer"):
        pack(problem, lambda problem: Packing((0, 0), 7, "low"))
    with pytest.raises(ProblemError, match=r"strategy offsets returned a list, not a Packing: return sublet"):
        pack(problem, offsets)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=r"returned 1 offsets for 2 buffers"):
        pack(problem, lambda problem: Packing((0,), 7, "short"))


def offsets(problem: Problem) -> list[int]:
    return [0, 3]


def test_an_unknown_strategy_lists_the_known() -> None:
    with pytest.raises(
        ProblemError, match=r"no strategy 'best'; known are auto, no_reuse, first_fit, .*allocation_graph"
    ):
        pack(read_problem(HERE / "problems" / "unit_while.15.json"), "best")
