"""The view model, on plans made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.base.errors import ProblemError
from sublet.packing.problem import Buffer, Packing, Problem
from sublet.plan import ARENA, Placement, Region
from sublet.plan.schedule import Schedule, ScheduleStep
from sublet.viz.view_model import (
    partly_used_buffers,
    picture_of_packing,
    picture_of_plan,
    point_label,
)
from tests.viz.synthetic import network_plan, plan_of, small_plan


def place(value: str, offset: int, nbytes: int, live: tuple[tuple[int, int], ...], buffer: int) -> Placement:
    return Placement(value, "u8[1]", Region(ARENA, offset, nbytes), live, buffer)


def test_a_rectangle_for_each_live_range_of_each_value_in_the_arena() -> None:
    picture = picture_of_plan(small_plan())
    drawn = [(picture.placements[piece.placement].value, piece.begin, piece.end) for piece in picture.rectangles]
    assert drawn == [
        ("image", 0, 2),
        ("x", 1, 3),
        ("twice", 1, 2),
        ("y", 2, 4),
        ("a", 3, 5),
        ("z", 4, 6),
        ("late", 5, 7),
        ("twice", 5, 6),
    ]
    assert (picture.begin, picture.end, picture.top_address) == (0, 7, 6144)


def test_what_is_bound_outside_is_summed_by_kind() -> None:
    assert picture_of_plan(small_plan()).bound == (("weight", 256),)


def test_the_live_curve_counts_the_values_of_a_buffer_once() -> None:
    kib = 1024
    assert picture_of_plan(small_plan()).curve == (
        (0, 2 * kib),
        (1, 6 * kib),
        (2, 3 * kib),
        (3, 4 * kib),
        (5, 6 * kib),
        (6, 2 * kib),
        (7, 0),
    )


PARTS = [place("left", 0, 64, ((0, 2),), 0), place("right", 64, 64, ((1, 2),), 0), place("b", 128, 1, ((0, 2),), 1)]


def test_of_a_buffer_of_parts_the_bytes_count_that_are_needed() -> None:
    picture = picture_of_plan(plan_of(PARTS, ("l", "r")))
    assert picture.curve == ((0, 65), (1, 129), (2, 0))
    assert not partly_used_buffers(picture)


def test_in_several_streams_a_buffer_of_parts_is_held_whole_and_the_rest_is_reserved() -> None:
    steps = Schedule((ScheduleStep("l"), ScheduleStep("r", 1)))
    picture = picture_of_plan(replace(plan_of(PARTS, ("l", "r")), schedule=steps))
    assert picture.curve == ((0, 129), (2, 0))
    [(position, block)] = partly_used_buffers(picture)
    assert (position, block.offset, block.nbytes, block.live) == (0, 0, 128, ((0, 2),))


def test_values_that_name_no_buffer_are_not_counted_as_one() -> None:
    loose = [place("a", 0, 8, ((0, 1),), -1), place("b", 8, 8, ((0, 1),), -1), place("c", 16, 8, ((0, 1),), 0)]
    picture = picture_of_plan(plan_of(loose, ("p",)))
    assert picture.curve == ((0, 24), (1, 0))
    assert len({value.buffer for value in picture.placements}) == 3


def test_empty_tensors_and_empty_ranges_are_no_rectangles() -> None:
    picture = picture_of_plan(plan_of([place("none", 0, 0, ((0, 1),), 0), place("never", 0, 8, ((1, 1),), 1)], ("p",)))
    assert picture.rectangles == ()
    assert picture.blocks == ()
    assert picture.curve == ()
    assert len(picture.placements) == 2


def test_a_plan_of_nothing_has_a_picture() -> None:
    picture = picture_of_plan(plan_of([], ()))
    assert (picture.end - picture.begin, picture.top_address, picture.gap) == (1, 1, 0.0)


def test_the_larger_of_two_that_begin_together_is_drawn_first() -> None:
    picture = picture_of_plan(
        plan_of([place("part", 0, 8, ((0, 2),), 0), place("whole", 0, 16, ((0, 2),), 0)], ("p", "q"))
    )
    assert [picture.placements[piece.placement].value for piece in picture.rectangles] == ["whole", "part"]


@pytest.mark.parametrize("seed", range(3))
def test_the_curve_is_the_sum_at_every_point_of_a_generated_plan(seed: int) -> None:
    plan = network_plan(120, seed)
    picture = picture_of_plan(plan)
    level = dict(picture.curve)
    live = 0
    for point in range(len(plan.points)):
        live = level.get(point, live)
        held = {p.buffer: p.region.nbytes for p in plan.placements if any(b <= point < e for b, e in p.live)}
        assert live == sum(held.values())


def test_a_packing_with_a_gap_is_drawn_in_two_pieces() -> None:
    problem = Problem((Buffer("a", 64, -2, 8, gaps=((1, 5),)), Buffer("b", 32, 1, 5)), name="two")
    picture = picture_of_packing(problem, Packing((0, 16), 64, "by_hand"))
    pieces = [(piece.begin, piece.end, piece.offset, piece.nbytes) for piece in picture.rectangles]
    assert pieces == [(-2, 1, 0, 64), (1, 5, 16, 32), (5, 8, 0, 64)]
    assert (picture.begin, picture.end, picture.lower_bound_bytes, picture.gap) == (-2, 8, 64, 0.0)
    assert (picture.peak.point, picture.peak.nbytes, picture.peak.values) == (-2, 64, ("a",))
    assert point_label(picture, -2) == "t = -2"


def test_a_given_lower_bound_is_drawn() -> None:
    problem = Problem((Buffer("a", 50, 0, 1),))
    picture = picture_of_packing(problem, Packing((0,), 100, "by_hand"), 80, "antichain")
    assert (picture.lower_bound_bytes, picture.lower_bound_source, picture.gap) == (80, "antichain", 0.25)


def test_an_empty_problem_has_a_picture() -> None:
    assert picture_of_packing(Problem(()), Packing((), 0, "none")).rectangles == ()


def test_a_packing_of_another_problem_is_refused() -> None:
    with pytest.raises(ProblemError, match="2 offsets for the 1 buffers"):
        picture_of_packing(Problem((Buffer("a", 1, 0, 1),)), Packing((0, 0), 1, "s"))


def test_columns_of_time_show_their_highest_level() -> None:
    picture = picture_of_plan(small_plan())
    kib = 1024

    def columns(count: int) -> list[int]:
        return picture.curve.peak_by_column(picture.begin, picture.end, count)

    assert columns(7) == [level * kib for level in (2, 6, 3, 4, 4, 6, 2)]
    assert columns(2) == [6 * kib, 6 * kib]
    assert columns(14)[::2] == columns(7)
