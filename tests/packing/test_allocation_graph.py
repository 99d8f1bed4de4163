"""libnnc's allocation graph: its own totals to the byte, and how chains are laid."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sublet.packing import (
    Buffer,
    Companion,
    Packing,
    Precedence,
    Problem,
    check_packing,
    lower_bound,
    pack,
    read_json,
    read_problem,
)
from sublet.packing.allocation_graph import AllocationGraph, Chain, LifetimeReuseOrder
from sublet.packing.strategies import STRATEGIES

HERE = Path(__file__).parent / "problems"
SHARED = Path(__file__).parents[3] / "shared" / "problems"
OWN_FILES = sorted(HERE.glob("*.json"))
SHARED_FILES = sorted((SHARED / "libnnc_partial_order").glob("*.json"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/problems is not there")


def group_sizes(problem: Problem, packing: Packing) -> Counter[int]:
    """The groups of one arena, told from outside: maximal runs of bytes no buffer reaches across."""
    tops: list[int] = [0]
    spans = sorted((offset, offset + b.size) for offset, b in zip(packing.offsets, problem.buffers, strict=True))
    for begin, end in spans:
        if begin >= tops[-1]:
            tops.append(end)
        tops[-1] = max(tops[-1], end)
    return Counter(b - a for a, b in pairwise(tops) if b > a)


def check_against_libnnc(path: Path) -> None:
    """libnnc's total to the byte by its strategy; by the search at most a thousandth more than the bound, or it."""
    problem = read_json(path)
    libnnc = json.loads(path.read_text())["libnnc"]
    report = pack(problem)
    tried = {name for name, nbytes, _ in report.tried if nbytes >= report.bound.bytes}
    for name in ("allocation_graph", *(STRATEGIES.keys() - tried)):
        packing = STRATEGIES[name](problem)
        check_packing(problem, packing)
        assert report.bound.bytes <= packing.arena_bytes
        if name == "allocation_graph":
            assert packing.arena_bytes == libnnc["total"]
            assert group_sizes(problem, packing) == Counter(libnnc["buffers"])
    check_packing(problem, report.packing)
    assert report.packing.arena_bytes <= libnnc["total"]
    assert report.gap <= 0.001 or path.stem.startswith("unit")


@pytest.mark.parametrize("path", OWN_FILES, ids=lambda path: path.stem)
def test_reproduces_libnnc(path: Path) -> None:
    check_against_libnnc(path)


@needs_shared
@pytest.mark.parametrize("path", SHARED_FILES, ids=lambda path: path.stem)
def test_reproduces_libnnc_on_the_shared_files(path: Path) -> None:
    check_against_libnnc(path)


def ordered(*sizes: int, alignment: int = 1, companions: tuple[Companion, ...] = ()) -> Problem:
    """Buffers that live one after another."""
    buffers = tuple(Buffer(str(i), size, i, i + 1, alignment) for i, size in enumerate(sizes))
    return Problem(buffers, companions=companions)


def test_a_buffer_takes_the_low_bytes_and_leaves_the_rest() -> None:
    """Between a (8) and d (8) in time, b and c (3 bytes each) are alive together: side by side in a's bytes."""
    buffers = (Buffer("a", 8, 0, 1), Buffer("b", 3, 1, 2), Buffer("c", 3, 1, 2), Buffer("d", 8, 2, 3))
    packing = STRATEGIES["allocation_graph"](Problem(buffers))
    assert packing.offsets == (0, 0, 3, 0)
    assert packing.arena_bytes == 8


def test_groups_never_merge() -> None:
    """b (9) opens a group; a (5) comes before it there, and c (5), alive with a, finds 4 bytes left: 10 would do."""
    problem = Problem((Buffer("a", 5, 0, 1), Buffer("b", 9, 1, 2), Buffer("c", 5, 0, 1)))
    assert STRATEGIES["allocation_graph"](problem).arena_bytes == 14
    assert pack(problem).packing.arena_bytes == lower_bound(problem).bytes == 10


def test_companions_share_an_offset_inside_a_larger_edge() -> None:
    problem = ordered(2, 9, 3, 7, 1, companions=(Companion(2, 3),))
    packing = STRATEGIES["allocation_graph"](problem)
    check_packing(problem, packing)
    assert packing.arena_bytes == 9
    assert packing.offsets[2] == packing.offsets[3]


def test_unordered_companions_keep_others_out_of_their_bytes() -> None:
    """Arms a and b of one branch share bytes; c follows only a, so it must stay clear of b."""
    distance = np.zeros((3, 3), dtype=np.int32)
    distance[0, 2] = 1
    compatible = np.zeros((3, 3), dtype=np.bool_)
    compatible[0, 1] = compatible[1, 0] = True
    buffers = (Buffer("a", 4, 0, 1), Buffer("b", 6, 1, 2), Buffer("c", 4, 2, 3))
    problem = Problem(buffers, Precedence(distance, compatible), (Companion(0, 1),))
    for name in ("allocation_graph", "allocation_graph_by_interference"):
        packing = STRATEGIES[name](problem)
        check_packing(problem, packing)
        assert packing.arena_bytes == 10


def test_all_bytes_of_unordered_companions_are_taken() -> None:
    """Arms a (4) and b (6) lie between y and x; c, also between those, conflicts with b but not with a."""
    distance = np.zeros((5, 5), dtype=np.int32)
    y, a, b, c, x = range(5)
    distance[y, [a, b, c]] = distance[[a, b, c], x] = 1
    distance[y, x] = 2
    compatible = np.zeros((5, 5), dtype=np.bool_)
    compatible[a, b] = compatible[b, a] = True
    sizes = (8, 4, 6, 3, 8)
    buffers = tuple(
        Buffer(name, size, time, time + 1) for time, (name, size) in enumerate(zip("yabcx", sizes, strict=True))
    )
    problem = Problem(buffers, Precedence(distance, compatible), (Companion(a, b),))
    packing = STRATEGIES["allocation_graph"](problem)
    check_packing(problem, packing)
    assert packing.arena_bytes == 8 + 3, "only two bytes are left beside b"


def test_a_companion_in_a_gap_keeps_the_whole_life() -> None:
    """b lives in a gap of a, at its offset; c begins when b has ended but a has not."""
    a, b, c = Buffer("a", 4, 0, 9, gaps=((2, 6),)), Buffer("b", 4, 3, 5), Buffer("c", 4, 7, 9)
    problem = Problem((b, a, c), companions=(Companion(0, 1),))
    packing = STRATEGIES["allocation_graph"](problem)
    check_packing(problem, packing)
    assert packing.arena_bytes == 8


def test_an_edge_between_buffers_is_taken_before_one_with_a_dummy_end() -> None:
    """m may follow p, which nothing follows (2 hops), or come between y and x (5 and 4 hops): it does the latter."""
    buffers = (Buffer("y", 8, 0, 1), Buffer("p", 8, 0, 4), Buffer("x", 8, 8, 9), Buffer("m", 8, 5, 6))
    y, p, x, m = (Chain((position,), 8, 1) for position in range(4))
    graph = AllocationGraph([8, 8, 8, 8], LifetimeReuseOrder(Problem(buffers)))
    graph.insert(y, None)
    graph.insert(x, graph.find_edge(x))
    graph.insert(p, None)
    graph.insert(m, graph.find_edge(m))
    assert graph.placed_at == {0: (0, 0), 2: (0, 0), 1: (1, 0), 3: (0, 0)}


def test_offsets_in_a_group_are_aligned() -> None:
    buffers = (
        Buffer("a", 200, 0, 1, 64),
        Buffer("b", 100, 1, 2, 64),
        Buffer("c", 72, 1, 2, 64),
        Buffer("d", 9, 1, 2, 1),
    )
    packing = STRATEGIES["allocation_graph"](Problem(buffers))
    check_packing(Problem(buffers), packing)
    assert packing.offsets[2] == 128
    assert packing.offsets[3] == 100, "the bytes skipped to align c are used by d"
    assert packing.arena_bytes == 200


def test_by_interference_places_chains_of_larger_buffers_first() -> None:
    """b meets most others; the larger a before it and e after it come along at one offset."""
    buffers = (
        Buffer("a", 8, 0, 2),
        Buffer("b", 4, 2, 6),
        Buffer("c", 1, 2, 4),
        Buffer("d", 1, 4, 6),
        Buffer("e", 7, 6, 8),
    )
    packing = STRATEGIES["allocation_graph_by_interference"](Problem(buffers))
    assert packing.offsets[0] == packing.offsets[1] == packing.offsets[4] == 0
    assert packing.arena_bytes == 8


@needs_shared
@pytest.mark.parametrize(
    "name", ["minimalloc/A.1048576.csv", "minimalloc/J.1048576.csv", "idealloc/somas_resnet50.csv"]
)
def test_shared_serial_problems(name: str) -> None:
    report = pack(read_problem(SHARED / name))
    assert report.bound.bytes <= report.packing.arena_bytes < 1.4 * report.bound.bytes
