"""What is known of pointers, by itself: ways to one region, what they have in common, and whose choice it was."""

from __future__ import annotations

import pytest

from sublet.checker.memory import AbstractMemory, TokenRange
from sublet.checker.state import MOST_BINDINGS, AbstractState, Pointer, PointsTo, merge_targets
from sublet.plan import Region

HERE, THERE = Region("arena", 0, 8), Region("arena", 8, 8)


def way(*choices: str, **guard: int | tuple[int, ...]) -> PointsTo:
    ways = {name: frozenset((left,) if isinstance(left, int) else left) for name, left in guard.items()}
    return PointsTo(AbstractMemory(), ways, choices)


def told(known: PointsTo | Pointer | None) -> object:
    """What is known, but for what is broken."""
    if isinstance(known, PointsTo):
        return known.choices, known.path_condition
    return known and (known.content, {place: [*map(told, several)] for place, several in known.targets.items()})


def pointer(here: PointsTo, there: PointsTo | None = None) -> Pointer:
    return Pointer((TokenRange("x", 0, 8),), {HERE: (here,)} if there is None else {HERE: (here,), THERE: (there,)})


@pytest.mark.parametrize(
    ("one", "other", "covers"),
    [
        (way(), way(), True),
        (way("p"), way("p", "q"), True),
        (way("p", "q"), way("p"), False),
        (way("p"), way("q"), False),
        (way(), way(n=0), True),
        (way(n=0), way(), False),
        (way(n=(0, 1)), way(n=0, m=0), True),
        (way(n=0), way(n=1), True),
        (way(n=0), way(n=(0, 1)), True),
        (way(n=0), way("p", n=1), False),
        (way(n=0), way(n=1, m=0), False),
        (way(n=0, m=0), way(n=1, m=0), True),
        (way(n=0, m=0), way(n=1, m=1), False),
        (way(n=0, m=(0, 1)), way(n=1, m=0), False),
    ],
)
def test_a_way_covers_another_if_nothing_is_forgotten(one: PointsTo, other: PointsTo, covers: bool) -> None:
    assert one.covers(other) is covers


def test_what_two_ways_have_in_common() -> None:
    assert told(way(n=0, m=1).meet(way(m=0, k=0))) == told(way(m=(0, 1)))
    assert way("p", "q", "r").meet(way("p", "s", "r")).choices == ("p",)
    broken, other = way(n=0), way(n=1)
    broken.invalid_bytes.write("arena", 0, (TokenRange("y", 0, 2),), "a test")
    other.invalid_bytes.write("arena", 4, (TokenRange("z", 0, 2),), "a test")
    met = broken.meet(other)
    assert [(one.begin, one.end, one.token) for one in met.invalid_bytes.tracks["arena"]] == [(0, 2, "y"), (4, 6, "z")]
    assert broken.invalid_bytes.covered_bytes() == other.invalid_bytes.covered_bytes() == 2


def test_ways_that_are_alike_are_one() -> None:
    assert [*map(told, merge_targets([way(n=0), way(n=1)]))] == [told(way(n=(0, 1)))]
    assert [*map(told, merge_targets([way(n=0), way("p", n=0)]))] == [told(way(n=0))]
    apart = [way(n=0, m=0), way(n=1, m=1)]
    assert merge_targets(apart) == tuple(apart)
    many = [way(n=i, m=i) for i in range(MOST_BINDINGS)]
    assert merge_targets(many) == tuple(many)
    assert len(merge_targets([*many, way(n=MOST_BINDINGS, m=MOST_BINDINGS)])) == 1


def test_how_a_way_came_about() -> None:
    one = way("p", "q", n=(0, 2))
    assert [one.is_possible(ways) for ways in ({}, {"n": 2}, {"m": 1, "n": 0}, {"n": 1}, {"m": 1, "n": 1})] == [
        True
    ] * 3 + [False] * 2
    assert told(one.with_exit("n", 1)) == told(way("p", "q", n=1))
    assert told(one.with_exit("m", 1)) == told(way("p", "q", n=(0, 2), m=1))
    assert told(one.without_conditions(frozenset("m"))) == told(one)
    assert told(one.without_conditions(frozenset("n"))) == told(way("p", "q"))
    assert told(one.without_choices_in(frozenset("p"))) == told(way("q", n=(0, 2)))
    assert one.with_choice("q") is one
    assert told(one.with_choice("r")) == told(way("p", "q", "r", n=(0, 2)))


def test_whose_choice_it_was() -> None:
    assert pointer(way("p")).common_choice == ""
    assert pointer(way("p", "q"), way("r", "q")).common_choice == "q"
    assert pointer(way("p", "q"), way("q", "p")).common_choice == "p"
    assert pointer(way("p"), way("q")).common_choice == ""
    assert told(pointer(way()).with_choice("p")) == told(pointer(way()))
    assert told(pointer(way(), way()).with_choice("p")) == told(pointer(way("p"), way("p")))


def test_what_a_pointer_may_be_by_some_ways() -> None:
    free, decided = pointer(way(), way()), pointer(way(n=0), way(n=1))
    assert free.restricted_to({"n": 0}) is free
    assert told(decided.restricted_to({"n": 0})) == told(pointer(way(n=0)))
    assert told(decided.restricted_to({"m": 0})) == told(decided)
    assert decided.restricted_to({"n": 2}) is None
    state = AbstractState(AbstractMemory(), {"p": decided, "q": free})
    left = state.restricted_to({"n": 1})
    assert left is not None
    assert left.pointers.keys() == {"p", "q"}
    assert told(left.pointers["p"]) == (decided.content, {THERE: [told(way(n=1))]})
    assert left.pointers["q"] is free
    assert state.restricted_to({"n": 2}) is None
    state.record_exit(["q", "none"], "k", 3)
    assert state.pointers["p"] is decided
    assert told(state.pointers["q"]) == told(pointer(way(k=3), way(k=3)))
    state.forget_exits(frozenset("k"))
    assert told(state.pointers["q"]) == told(free)
    state.pointers["q"] = pointer(way(k=0), way(n=0))
    state.forget_exits(frozenset("k"))
    assert told(state.pointers["q"]) == told(pointer(way(), way(n=0)))


def test_one_pointer_or_another() -> None:
    same = pointer(way("p"), way("p"))
    assert told(same.meet(pointer(way("p"), way("p")), "f")) == told(same)
    assert told(pointer(way(n=0)).meet(pointer(way(n=1)), "f")) == told(pointer(way(n=(0, 1))))
    other = Pointer((TokenRange("y", 0, 8),), {THERE: (way(),)})
    met = pointer(way()).meet(other, "f")
    assert told(met) == told(Pointer((TokenRange("f", 0, 8),), {HERE: (way("f"),), THERE: (way("f"),)}))


def test_the_bytes_of_a_body_mean_others_when_its_round_ends() -> None:
    fresh: dict[tuple[TokenRange, ...], tuple[TokenRange, ...]] = {}
    around = pointer(way())
    assert around.after_scope_end("p", frozenset("y"), fresh) is around
    first, second = (
        around.after_scope_end("p", frozenset("x"), fresh),
        around.after_scope_end("q", frozenset("x"), fresh),
    )
    assert first.content == second.content == (TokenRange("p", 0, 8),)
    inner = pointer(way("a", "c"), way("b", "c"))
    assert told(inner.after_scope_end("p", frozenset("a"), {})) == told(pointer(way("c"), way("b", "c")))
    assert told(inner.after_scope_end("p", frozenset("c"), {})) == told(pointer(way("a", "p"), way("b", "p")))
