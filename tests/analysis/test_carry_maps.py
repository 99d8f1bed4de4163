"""Delay lines and rotations of any length: no copy in any iteration, and at most one of each result at the exit."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.analysis.value_versions import CarryPeriod, align_rings
from sublet.base.tensor import DType, TensorSpec
from sublet.checker import check_bytes, judge
from sublet.ir.graph import Value
from sublet.ir.text import parse
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import plan_memory
from tests.support import dialect
from tests.support.carry_maps import carry_map, check_carry_map, least_versions
from tests.support.interpreter import results_match
from tests.support.plan_mutants import mutants

assert dialect.OPS


def test_random_carry_maps_copy_nothing_in_an_iteration() -> None:
    """Some maps of few carries, compared with a search, and some of many; `tests.fuzz --kind carries` goes on."""
    for seed in range(20):
        check_carry_map(seed, longest=3)
    for seed in range(100, 112):
        check_carry_map(seed, longest=40, tries=1)


def test_carry_maps_are_of_every_kind() -> None:
    maps = [carry_map(random.Random(seed)) for seed in range(200)]
    assert max(len(one.sources) for one in maps) == 64
    assert any(not one.inplace for one in maps)
    assert any(len(one.inplace) > 2 for one in maps)
    assert {True, False} == {over for one in maps for over in one.inplace}


def test_mutants_of_long_rings_are_refused() -> None:
    """The checker follows every place of a ring of 12 rows: a plan that it accepts runs right."""
    seen: Counter[bool] = Counter()
    for seed in range(6):
        rng = random.Random(seed)
        graph = delay_line(12, reads=rng.randint(1, 4))
        plan = plan_memory(graph)
        assert plan.moves == ()
        for kind, mutant in mutants(rng, plan):
            accepted = not check_bytes(graph, mutant.schedule, mutant)
            seen[accepted] += 1
            assert not accepted or results_match(graph, mutant.schedule, mutant, rng, 2), f"seed {seed}: {kind}"
    assert seen[False] > 40


def delay_line(length: int, reads: int = 1) -> sublet.ir.graph.Graph:
    """A delay line of so many rows, some of which are read after the loop."""
    carried = ", ".join(f"%p{i}: u8[4] = %x{i}" for i in range(length))
    finals = [f"%f{i}: u8[4]" if i < reads else "_" for i in range(length)]
    return parse(f"""
    graph @delay({", ".join(f"%x{i}: u8[4]" for i in range(length))}, %n: u8[4]) {{
      {", ".join(finals)} = while(%i: i64[]; {carried}; ) @loop body @step {{
        %go: bool[] = test.below(%i, %n) {{most = {3 * length}}}
        continue if %go
        %y: u8[4] = test.matmul(%p0)
        next {", ".join([*(f"%p{i}" for i in range(1, length)), "%y"])};
      }}
      %out: u8[4] = test.matmul({", ".join(f"%f{i}" for i in range(reads))})
      return %out
    }}
    """)


@pytest.mark.parametrize("length", [1, 2, 9, 16, 33, 64])
def test_a_delay_line_has_a_place_for_each_row_and_one_more(length: int) -> None:
    graph = delay_line(length)
    plan = plan_memory(graph)
    assert plan.moves == ()
    assert [record.ring for record in plan.rolled] == [length + 1]
    assert judge(graph, plan.schedule, plan).unproven == {}
    rows = {place.region for place in plan.placements if place.value == "y"}
    assert len(rows) == length + 1


def delay_lines(*lengths: int) -> sublet.Graph:
    graph = sublet.Graph()
    rows = {f"x{n}_{i}": graph.input(f"x{n}_{i}", (16,)) for n in lengths for i in range(n)}
    trips = graph.input("trips", (), "i64")
    with graph.while_({**rows, "n": trips}) as loop:
        loop.check(loop["n"] > 0)
        following = {f"x{n}_{i}": loop[f"x{n}_{i + 1}"] for n in lengths for i in range(n - 1)}
        following |= {f"x{n}_{n - 1}": nn.softmax(loop[f"x{n}_0"], axis=0) for n in lengths}
        loop.next(**following, n=loop["n"] - 1)
    for n in lengths:
        graph.output(f"y{n}", loop[f"x{n}_0"] * 1.0)
    return graph


def test_delay_lines_of_several_lengths_share_one_period() -> None:
    """Their least common multiple is 315: some rings get places more, and the runtime finds every row."""
    lengths = (5, 7, 9)
    executable = sublet.compile(delay_lines(*lengths))
    plan: MemoryPlan = executable.plan
    assert plan.moves == ()
    assert all(record.copies <= 256 for record in plan.rolled)
    rows = {f"x{n}_{i}": np.random.default_rng(i).random(16, np.float32) for n in lengths for i in range(n)}
    for trips in (0, 1, 8, 9, 10, 100, 300):
        results = executable({**rows, "trips": np.array(trips)})
        for n in lengths:
            line = [rows[f"x{n}_{i}"] for i in range(n)]
            for _ in range(trips):
                wide = np.exp(line[0] - line[0].max())
                line = [*line[1:], wide / wide.sum()]
            np.testing.assert_allclose(results[f"y{n}"], line[0], rtol=1e-5)


def test_results_in_memory_of_the_caller_are_copied_once() -> None:
    """No ring can end in fixed bytes after a number of iterations that only the run knows."""
    graph = sublet.Graph()
    rows = {f"x{i}": graph.input(f"x{i}", (16,)) for i in range(9)}
    with graph.while_({**rows, "n": graph.input("trips", (), "i64")}) as loop:
        loop.check(loop["n"] > 0)
        following = {f"x{i}": loop[f"x{i + 1}"] for i in range(8)}
        loop.next(**following, x8=nn.softmax(loop["x0"], axis=0), n=loop["n"] - 1)
    graph.output("y", loop["x4"])
    executable = sublet.compile(graph, options=sublet.Options(io="bound"))
    assert [move.edge.kind for move in executable.plan.moves] == ["exit"]
    values = {f"x{i}": np.full(16, i, np.float32) for i in range(9)}
    for trips in (0, 3, 40):
        executable({**values, "trips": np.array(trips)})
        assert executable.copied_bytes == 64


def test_periods_are_aligned_with_the_fewest_bytes() -> None:
    spec = TensorSpec(DType.U8, (8,))
    p, q, r, y, z = (Value(name, spec) for name in "pqryz")
    lines = [CarryPeriod(p, 5, 4, y), CarryPeriod(q, 7, 6, z)]
    assert align_rings(lines, 41).places == {y: 5, z: 7}  # as they are: 35 versions after 6
    assert align_rings(lines, 40).places == {y: 7, z: 7}
    assert align_rings(lines, 12).copied == (q,)
    rotation = CarryPeriod(r, 3, 0)
    assert align_rings([*lines, rotation], 20).places == {y: 9, z: 9}
    assert align_rings([*lines, rotation], 14).copied == (q,)


def test_a_search_finds_the_fewest_body_versions() -> None:
    assert least_versions((0,)) == 1
    assert least_versions((1, 0)) == 2
    assert least_versions((1, 2, 0)) == 3
    assert least_versions((1, -1)) == 2
    assert least_versions((1, -1, 2)) == 2
