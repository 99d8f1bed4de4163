"""Unique names: the numbers, a shared count, undo, and names unused in a file."""

from __future__ import annotations

import random

import pytest

from sublet.base.names import NameGenerator, unused_name
from sublet.plan.export.viewers import minimalloc
from tests.viz.synthetic import plan_of
from tests.viz.test_rectangles import place


def test_a_taken_hint_gets_the_next_number() -> None:
    names = NameGenerator(("x", "x_3"))
    assert [names.fresh(hint) for hint in ("x", "x", "y", "x_2", "x")] == ["x_2", "x_4", "y", "x_2_2", "x_5"]


def test_a_separator_and_a_first_number_follow_a_format() -> None:
    names = NameGenerator(separator=".", first=1)
    assert [names.fresh(hint) for hint in ("x", "x", "x.1", "x", "x.1")] == ["x", "x.1", "x.1.1", "x.2", "x.1.2"]


def test_a_shared_count_numbers_all_hints_together() -> None:
    names = NameGenerator(separator=".", first=1, is_shared=True)
    assert names.last_number == 0
    assert [names.fresh(hint) for hint in ("x", "x", "y", "y", "x")] == ["x", "x.1", "y", "y.2", "x.3"]
    assert names.last_number == 3


@pytest.mark.parametrize("seed", range(50))
def test_after_a_rewind_the_same_names_are_given_again(seed: int) -> None:
    rng = random.Random(seed)
    names = NameGenerator(
        rng.choices(("a", "b", "a.1"), k=2), rng.choice("._"), rng.randrange(3), is_shared=seed % 2 > 0
    )
    hints = [[rng.choice(("a", "b", "a.1", "a.2", "b_1")) for _ in range(rng.randrange(8))] for _ in range(2)]
    before = [names.fresh(hint) for hint in hints[0]]
    mark = names.mark
    given = [names.fresh(hint) for hint in hints[1]]
    assert len({*before, *given}) == len(before) + len(given)
    names.rewind(mark)
    assert [names.fresh(hint) for hint in hints[1]] == given


def test_an_unused_name_ends_with_underscores() -> None:
    taken = {"x", "x_"}
    assert [unused_name(name, taken) for name in ("x", "x", "y")] == ["x__", "x___", "y"]
    assert taken == {"x", "x_", "x__", "x___", "y"}


def test_rows_named_like_numbered_rows_stay_apart() -> None:
    places = [place(name, 64 * i, 64, ((0, 1),), i) for i, name in enumerate(("x", "x@2", "x"))]
    rows = minimalloc(plan_of(places, ("p",))).splitlines()[1:]
    assert [row.partition(",")[0] for row in rows] == ["x", "x@2", "x@2_"]
