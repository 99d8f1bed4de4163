"""Pins, companions at distances and pairs that may overlap, held against trying every offset."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublet.base.errors import PackingError, ProblemError
from sublet.packing import (
    STRATEGIES,
    Buffer,
    Companion,
    Packing,
    Problem,
    check_packing,
    lower_bound,
    pack,
)
from sublet.packing.normalize import MOST_BUFFERS, normalize
from sublet.packing.problem import select_buffers
from sublet.packing.strategies import WITHOUT_PINS, can_pack
from tests.packing.random_problems import conflict_pairs, problems

TOP = 22
"""Arenas larger than this are not looked for."""


def smallest_by_trying(problem: Problem) -> int | None:
    """The smallest arena up to TOP, by depth first search over all offsets of all buffers; None if there is none."""
    allowed = {tuple(sorted(pair)) for pair in problem.may_overlap}
    sizes = [buffer.size for buffer in problem.buffers]
    apart: list[list[int]] = [[] for _ in sizes]
    for first, second in conflict_pairs(problem) - allowed:
        if sizes[first] and sizes[second]:
            apart[second].append(first)
    ties: list[list[tuple[int, int]]] = [[] for _ in sizes]
    for tie in problem.companions:
        early, late = sorted((tie.first, tie.second))
        ties[late].append((early, tie.distance if late == tie.second else -tie.distance))
    tied = {position for tie in problem.companions for position in (tie.first, tie.second)}
    best = TOP + 1
    offsets: list[int] = []

    def choices(position: int) -> list[int]:
        """In ascending order: one where that is known, or where there are no bytes."""
        buffer = problem.buffers[position]
        known = [] if buffer.pinned is None else [buffer.pinned]
        known += [offsets[other] + distance for other, distance in ties[position]]
        if not known and not sizes[position] and position not in tied:
            return [0]
        every = range(0, TOP + 1, buffer.alignment)
        return [at for at in known[:1] or every if at in every and known in ([], [at] * len(known))]

    def place(arena: int) -> None:
        nonlocal best
        position = len(offsets)
        if position == len(sizes):
            best = min(best, arena)
            return
        size = sizes[position]
        for at in choices(position):
            if size and at + size >= best:
                break
            if all(offsets[other] >= at + size or at >= offsets[other] + sizes[other] for other in apart[position]):
                offsets.append(at)
                place(max(arena, at + size) if size else arena)
                offsets.pop()

    place(0)
    return None if best > TOP else best


@st.composite
def tied_problems(draw: st.DrawFn) -> Problem:
    """Small problems of every kind with some pins, ties and pairs that may overlap, which may contradict each other."""
    problem = draw(problems(most=5, sizes=st.integers(0, 4), alignments=st.sampled_from([1, 1, 1, 2, 3, 4])))
    count = len(problem.buffers)
    buffers = list(problem.buffers)
    positions = st.integers(0, max(0, count - 1))
    for position in draw(st.lists(positions, max_size=2)) if count else []:
        pin = buffers[position].alignment * draw(st.integers(0, 3))
        buffers[position] = replace(buffers[position], pinned=pin)
    pairs = st.tuples(positions, positions).filter(lambda pair: pair[0] != pair[1])
    several = st.lists(pairs, max_size=2, unique=True) if count > 1 else st.just([])
    ties = tuple(Companion(*pair, draw(st.integers(-4, 4))) for pair in draw(several))
    companions = draw(st.sampled_from([problem.companions, ties, ()]))
    return replace(problem, buffers=tuple(buffers), companions=companions, may_overlap=tuple(draw(several)))


@given(tied_problems())
@settings(max_examples=90, deadline=None)
def test_every_strategy_keeps_to_the_problem_and_bounds_are_sound(problem: Problem) -> None:
    best = smallest_by_trying(problem)
    try:
        form = normalize(problem)
        report = pack(problem)
    except ProblemError:
        assert best is None
        return
    check_packing(problem, report.packing)
    assert report.bound.bytes <= report.packing.arena_bytes
    assert lower_bound(problem).bytes <= report.bound.bytes
    if best is not None:
        assert report.bound.bytes <= best <= report.packing.arena_bytes
        if form.exact:
            assert report.packing.arena_bytes == best == report.bound.bytes
    for name, strategy in STRATEGIES.items():
        if can_pack(name, form.problem):
            check_packing(problem, strategy(problem))
        else:
            with pytest.raises(ProblemError, match=f"strategy {name} cannot keep pinned offsets. Use auto, no_"):
                strategy(problem)


@given(tied_problems(), st.lists(st.integers(0, 8), min_size=5, max_size=5))
@settings(max_examples=300, deadline=None)
def test_the_check_refuses_exactly_what_trying_refuses(problem: Problem, offsets: list[int]) -> None:
    offsets = offsets[: len(problem.buffers)]
    pinned = replace(
        problem, buffers=tuple(replace(b, pinned=None, alignment=1) for b in problem.buffers), companions=()
    )
    right = smallest_by_trying(
        replace(pinned, buffers=tuple(replace(b, pinned=at) for b, at in zip(pinned.buffers, offsets, strict=True)))
    )
    packing = Packing(tuple(offsets), TOP, "test")
    if right is None:
        with pytest.raises(PackingError):
            check_packing(pinned, packing)
    else:
        check_packing(pinned, packing)


@given(tied_problems(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_shuffled_rows_get_the_same_offsets(problem: Problem, random: object) -> None:
    order = list(range(len(problem.buffers)))
    random.shuffle(order)  # type: ignore[attr-defined]
    at = [order.index(position) for position in range(len(order))]
    pairs = tuple((at[first], at[second]) for first, second in problem.may_overlap)
    ties = tuple(Companion(at[c.first], at[c.second], c.distance) for c in problem.companions)
    shuffled = replace(select_buffers(problem, order), companions=ties, may_overlap=pairs)
    try:
        before = pack(problem).packing.offsets
    except ProblemError:
        with pytest.raises(ProblemError):
            pack(shuffled)
        return
    assert [before[position] for position in order] == list(pack(shuffled).packing.offsets)


def alive(*sizes: int) -> tuple[Buffer, ...]:
    """Buffers a, b, ... that are all alive together."""
    return tuple(Buffer(name, size, 0, 2) for name, size in zip("abcdef", sizes, strict=False))


def test_a_group_keeps_its_distance_and_its_alignments() -> None:
    a, b, c = alive(4, 4, 6)
    problem = Problem((replace(a, alignment=4), replace(b, alignment=8), c), companions=(Companion(0, 1, 4),))
    offsets = pack(problem).packing.offsets
    assert (offsets[0] % 8, offsets[1] - offsets[0]) == (4, 4), "b at multiples of 8, a just below"
    assert normalize(problem).shifts == (4, 8, 0)


def test_an_alias_within_a_buffer_costs_nothing_and_the_bound_knows() -> None:
    whole, part, other = Buffer("whole", 8, 0, 4), Buffer("part", 4, 1, 3), Buffer("other", 3, 2, 5)
    problem = Problem((whole, part, other), companions=(Companion(0, 1, 4),), may_overlap=((0, 1),))
    report = pack(problem)
    assert normalize(problem).exact
    assert (report.packing.arena_bytes, report.bound.bytes) == (11, 11)
    assert report.packing.offsets[1] == report.packing.offsets[0] + 4
    assert set(report.bound.members) in ({0, 2}, {0, 1, 2} - {1})


def test_in_place_pairs_do_not_count_twice() -> None:
    problem = Problem(alive(8, 8, 2), may_overlap=((0, 1),))
    report = pack(problem)
    assert (report.packing.arena_bytes, report.bound.bytes) == (10, 10)
    many = tuple(Buffer(str(i), 1, i, i + 2) for i in range(MOST_BUFFERS + 1))
    with pytest.raises(ProblemError, match=f"the limit of {MOST_BUFFERS} buffers"):
        pack(Problem(many, may_overlap=((0, 1),)))


def test_a_pin_proves_the_bound() -> None:
    a, b = alive(4, 4)
    report = pack(Problem((replace(a, pinned=100), b)))
    assert report.packing.offsets == (100, 0)
    assert (report.bound.bytes, report.bound.kind, report.bound.members) == (104, "pinned", (0,))
    assert lower_bound(Problem((replace(a, pinned=2), b))).bytes == 8


@pytest.mark.parametrize(
    ("buffers", "ties", "message"),
    [
        ((4, 4), {0: 0, 1: 3}, "buffers a and b are alive together but pinned to bytes 0-4 and 3-7, which overlap"),
        ((4, 4), (Companion(0, 1, 3),), "a and b are companions but conflict: b lies 3 bytes above a"),
        ((4, 4), (Companion(0, 1, 4), Companion(1, 0, 4)), "b must lie both 4 and -4 bytes above a"),
        ((4, 4), (Companion(0, 0, 4),), "companions contradict"),
    ],
)
def test_contradictions(buffers: tuple[int, ...], ties: object, message: str) -> None:
    made = alive(*buffers)
    companions = ties if isinstance(ties, tuple) else ()
    if isinstance(ties, dict):
        made = tuple(replace(buffer, pinned=ties[i]) for i, buffer in enumerate(made))
    with pytest.raises(ProblemError, match=message):
        pack(Problem(made, companions=companions))


def test_contradictions_of_pins_and_groups() -> None:
    a, b = alive(4, 4)
    tie = (Companion(0, 1, 4),)
    cases = [
        ((replace(a, pinned=0), replace(b, pinned=5)), "b is pinned to 5, but its companion a puts it at 4"),
        ((a, replace(b, pinned=1)), "buffer a: its companion b is pinned, which puts it at -3: below 0"),
        ((replace(a, pinned=1), replace(b, alignment=4)), "which puts it at 5: no multiple of its alignment 4"),
        (
            (replace(a, alignment=8), replace(b, alignment=8)),
            "b lies 4 bytes above .* no offset satisfies its alignment 8",
        ),
        ((replace(a, size=1 << 61), replace(b, size=1 << 61)), "a and b are companions but conflict"),
    ]
    for buffers, message in cases:
        with pytest.raises(ProblemError, match=message):
            pack(Problem(buffers, companions=tie))
    for wrong in ({"pinned": -1}, {"pinned": (1 << 62) + 1}, {"pinned": 3, "alignment": 2}, {"accesses": -1}):
        with pytest.raises(ProblemError, match=r"buffer a: (pinned|accesses) "):
            Buffer("a", 1, 0, 1, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=r"the limit is 2\^62"):
        pack(Problem((Buffer("a", 8, 0, 1, pinned=1 << 62),)))


def test_what_is_no_companion_and_no_pair() -> None:
    with pytest.raises(ProblemError, match="pass Companion"):
        Problem(alive(1, 1), companions=((0, 1),))  # type: ignore[arg-type]
    for pair in ((0, 2), (0, 0), (0,)):
        with pytest.raises(ProblemError, match="two different positions below 2"):
            Problem(alive(1, 1), may_overlap=(pair,))  # type: ignore[arg-type]


def test_pins_leave_out_strategies_that_cannot_keep_them() -> None:
    a, b, c = alive(3, 3, 3)
    report = pack(Problem((replace(a, pinned=1), b, replace(c, lower=1, upper=3))))
    assert not {name for name, _, _ in report.tried} & set(WITHOUT_PINS)
    assert report.packing.arena_bytes == 10
    with pytest.raises(ProblemError, match="allocation_graph cannot keep pinned offsets"):
        pack(Problem((replace(a, pinned=1), b)), "allocation_graph")
