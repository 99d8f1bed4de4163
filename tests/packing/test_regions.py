"""Memory regions: everything fits and is checked, the cost is told with a bound, and failures say what is missing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from sublet.base.errors import CapacityError, PackingError, ProblemError
from sublet.packing import (
    Buffer,
    Companion,
    MemoryRegion,
    Problem,
    check_regions,
    lower_bound,
    pack,
    place_in_regions,
    read_problem,
)
from sublet.packing.problem import select_buffers
from tests.packing.random_problems import problems
from tests.packing.test_plain import smallest_by_trying

HERE = Path(__file__).parent / "problems"


def cheapest_by_trying(problem: Problem, regions: tuple[MemoryRegion, ...]) -> int | None:
    """The least cost over all choices of regions in which everything fits."""
    best = None
    for choice in product(range(len(regions)), repeat=len(problem.buffers)):
        if any(choice[tie.first] != choice[tie.second] for tie in problem.companions):
            continue
        cost = sum(b.accesses * b.size * regions[k].cost for b, k in zip(problem.buffers, choice, strict=True))
        if best is not None and cost >= best:
            continue
        parts = [
            select_buffers(problem, [i for i, k in enumerate(choice) if k == region]) for region in range(len(regions))
        ]
        arenas = [smallest_by_trying(part) for part in parts]
        if all(arena is not None and arena <= r.capacity for arena, r in zip(arenas, regions, strict=True)):
            best = cost
    return best


@st.composite
def region_problems(draw: st.DrawFn) -> tuple[Problem, tuple[MemoryRegion, ...]]:
    problem = draw(problems(most=4, sizes=st.integers(0, 5), alignments=st.sampled_from([1, 1, 2, 4])))
    buffers = tuple(replace(buffer, accesses=draw(st.integers(0, 5))) for buffer in problem.buffers)
    count = len(buffers)
    pairs = ((0, 1),) if count > 1 and draw(st.booleans()) else ()
    capacities = draw(st.lists(st.integers(0, 14), min_size=1, max_size=3))
    regions = tuple(MemoryRegion(f"r{k}", size, draw(st.integers(0, 9))) for k, size in enumerate(capacities))
    return replace(problem, buffers=buffers, may_overlap=pairs), regions


@given(region_problems())
@settings(max_examples=80, deadline=None)
def test_cost_lies_between_the_bound_and_everything_else(case: tuple[Problem, tuple[MemoryRegion, ...]]) -> None:
    problem, regions = case
    best = cheapest_by_trying(problem, regions)
    try:
        found = place_in_regions(problem, regions)
    except CapacityError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        event("no way found" if best is None else "way missed")
        assert best is None or "no packing found" in refused
        return
    check_regions(problem, found)
    assert best is not None
    assert found.least_cost <= best <= found.cost
    assert found.cost == sum(
        b.accesses * b.size * regions[k].cost for b, k in zip(problem.buffers, found.region_of, strict=True)
    )
    assert place_in_regions(problem, regions).region_of == found.region_of


def hot_and_cold() -> Problem:
    """Four of 4 bytes alive together; c is accessed most."""
    return Problem(tuple(Buffer(name, 4, 0, 9, accesses=hot) for name, hot in zip("abcd", (2, 1, 8, 3), strict=True)))


def test_the_hottest_go_into_the_cheapest_region() -> None:
    fast, slow = MemoryRegion("fast", 8, 1), MemoryRegion("slow", 64, 10)
    found = place_in_regions(hot_and_cold(), (slow, fast))
    assert found.names() == ("slow", "slow", "fast", "fast")
    assert found.cost == found.least_cost == 4 * (8 + 3) + 40 * (2 + 1)
    assert (found.gap, found.arena_bytes) == (0.0, 16)
    assert [(share.arena_bytes, share.members, share.cost) for share in found.shares] == [
        (8, (0, 1), 120),
        (8, (2, 3), 44),
    ]


def test_everything_goes_into_the_cheapest_when_it_fits() -> None:
    found = place_in_regions(hot_and_cold(), [MemoryRegion("fast", 16), MemoryRegion("slow", 64, 10)])
    assert set(found.names()) == {"fast"}
    assert found.gap == 0


def test_companions_stay_together_and_pins_hold() -> None:
    a, b, c, d = hot_and_cold().buffers
    problem = Problem((a, b, replace(c, pinned=4), d), companions=(Companion(0, 3, 4),))
    found = place_in_regions(problem, [MemoryRegion("fast", 8, 1), MemoryRegion("slow", 12, 10)])
    assert found.names() == ("slow", "fast", "fast", "slow")
    assert found.offsets[2] == 4
    assert found.offsets[3] == found.offsets[0] + 4


def test_what_has_room_in_one_region_only_goes_there_first() -> None:
    big, hot = Buffer("big", 10, 0, 2, accesses=0), Buffer("hot", 4, 0, 2, accesses=99)
    found = place_in_regions(Problem((big, hot)), [MemoryRegion("fast", 12, 1), MemoryRegion("slow", 6, 5)])
    assert found.names() == ("fast", "slow")


def test_filled_by_size_when_filling_by_cost_leaves_too_much() -> None:
    """By cost a hot one would come first, and the other two are too much for the rest."""
    buffers = (Buffer("h", 3, 0, 2, accesses=9), Buffer("i", 3, 0, 2, accesses=9), Buffer("cold", 5, 0, 2))
    found = place_in_regions(Problem(buffers), [MemoryRegion("fast", 5, 1), MemoryRegion("slow", 6, 5)])
    assert found.names() == ("slow", "slow", "fast")


def test_a_real_network() -> None:
    problem = read_problem(HERE / "densenet121.fwd.b1.json")
    peak = lower_bound(problem).bytes
    everything = sum(b.size * b.accesses for b in problem.buffers) * 10
    for share in (0.3, 0.7):
        regions = [MemoryRegion("sram", int(peak * share), 1), MemoryRegion("dram", 2 * peak, 10)]
        found = place_in_regions(problem, regions, effort=500)
        check_regions(problem, found)
        assert 0 < found.shares[0].arena_bytes <= regions[0].capacity
        assert found.least_cost <= found.cost < everything
    alone = place_in_regions(problem, [MemoryRegion("sram", 2 * peak)], effort=500)
    assert alone.shares[0].arena_bytes == pack(problem, effort=500).packing.arena_bytes


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        (
            (MemoryRegion("a", 3), MemoryRegion("b", 2)),
            "buffer a: needs 4 bytes, 1 more than the largest region has \\(a: 3\\)",
        ),
        (
            (MemoryRegion("a", 7), MemoryRegion("b", 4)),
            "16 bytes are live at the same time, 5 more than all regions have together \\(11\\): buffer a of 4",
        ),
        ((MemoryRegion("a", 7), MemoryRegion("b", 11)), "at best 1 bytes are missing in region b; 16 bytes are live"),
    ],
)
def test_what_does_not_fit_says_what_is_missing(regions: tuple[MemoryRegion, ...], message: str) -> None:
    with pytest.raises(CapacityError, match=message):
        place_in_regions(hot_and_cold(), regions)


def test_bad_regions() -> None:
    for arguments, message in (
        (("", 1), "the name must not be empty"),
        (("%a", 1), "or begin with %"),
        (("a", -1), "capacity -1 must be"),
        (("a", 1, -1), "cost -1 must be"),
    ):
        with pytest.raises(ProblemError, match=message):
            MemoryRegion(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="at least one memory region"):
        place_in_regions(hot_and_cold(), [])
    with pytest.raises(ProblemError, match="region a occurs twice"):
        place_in_regions(hot_and_cold(), [MemoryRegion("a", 99), MemoryRegion("a", 9)])
    with pytest.raises(ProblemError, match="no strategy 'best'"):
        place_in_regions(hot_and_cold(), [MemoryRegion("a", 99)], "best")


def test_the_check_finds_what_is_wrong() -> None:
    problem = Problem(hot_and_cold().buffers, companions=(Companion(2, 3, 4),))
    found = place_in_regions(problem, [MemoryRegion("fast", 8, 1), MemoryRegion("slow", 64, 10)])
    fast, slow = found.shares
    cases = [
        (replace(found, offsets=(0, 0, 0, 4)), "overlap"),
        (replace(found, shares=(replace(fast, members=(2,)), slow)), "count"),
        (replace(found, region_of=(0, 1, 0, 0)), "count"),
        (replace(found, region_of=(1, 1, 1, 0)), "companions"),
        (replace(found, shares=(replace(fast, region=MemoryRegion("fast", 7)), slow)), "outside"),
    ]
    for wrong, rule in cases:
        with pytest.raises(PackingError, match=rf"\[{rule}\]"):
            check_regions(problem, wrong)
