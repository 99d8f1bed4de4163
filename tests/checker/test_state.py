"""What is known of pointers, by itself: ways to one region, what they have in common, and whose choice it was."""

from __future__ import annotations

import pytest

from sublet.checker.memory import Memory, Piece
from sublet.checker.state import MOST_WAYS, Pointer, State, Target, together
from sublet.plan import Region

HERE, THERE = Region("arena", 0, 8), Region("arena", 8, 8)


def way(*choices: str, **guard: int | tuple[int, ...]) -> Target:
    ways = {name: frozenset((left,) if isinstance(left, int) else left) for name, left in guard.items()}
    return Target(Memory(), ways, choices)


def told(known: Target | Pointer | None) -> object:
    """What is known, but for what is broken."""
    if isinstance(known, Target):
        return known.choices, known.guard
    return known and (known.content, {place: [*map(told, several)] for place, several in known.targets.items()})


def pointer(here: Target, there: Target | None = None) -> Pointer:
    return Pointer((Piece("x", 0, 8),), {HERE: (here,)} if there is None else {HERE: (here,), THERE: (there,)})


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
def test_a_way_covers_another_if_nothing_is_forgotten(one: Target, other: Target, covers: bool) -> None:
    assert one.covers(other) is covers


def test_what_two_ways_have_in_common() -> None:
    assert told(way(n=0, m=1).met(way(m=0, k=0))) == told(way(m=(0, 1)))
    assert way("p", "q", "r").met(way("p", "s", "r")).choices == ("p",)
    broken, other = way(n=0), way(n=1)
    broken.broken.write("arena", 0, (Piece("y", 0, 2),), "a test")
    other.broken.write("arena", 4, (Piece("z", 0, 2),), "a test")
    met = broken.met(other)
    assert [(one.begin, one.end, one.token) for one in met.broken.tracks["arena"]] == [(0, 2, "y"), (4, 6, "z")]
    assert broken.broken.covered_bytes() == other.broken.covered_bytes() == 2


def test_ways_that_are_alike_are_one() -> None:
    assert [*map(told, together([way(n=0), way(n=1)]))] == [told(way(n=(0, 1)))]
    assert [*map(told, together([way(n=0), way("p", n=0)]))] == [told(way(n=0))]
    apart = [way(n=0, m=0), way(n=1, m=1)]
    assert together(apart) == tuple(apart)
    many = [way(n=i, m=i) for i in range(MOST_WAYS)]
    assert together(many) == tuple(many)
    assert len(together([*many, way(n=MOST_WAYS, m=MOST_WAYS)])) == 1


def test_how_a_way_came_about() -> None:
    one = way("p", "q", n=(0, 2))
    assert [one.may(ways) for ways in ({}, {"n": 2}, {"m": 1, "n": 0}, {"n": 1}, {"m": 1, "n": 1})] == [True] * 3 + [
        False
    ] * 2
    assert told(one.by("n", 1)) == told(way("p", "q", n=1))
    assert told(one.by("m", 1)) == told(way("p", "q", n=(0, 2), m=1))
    assert told(one.without(frozenset("m"))) == told(one)
    assert told(one.without(frozenset("n"))) == told(way("p", "q"))
    assert told(one.outside(frozenset("p"))) == told(way("q", n=(0, 2)))
    assert one.chosen("q") is one
    assert told(one.chosen("r")) == told(way("p", "q", "r", n=(0, 2)))


def test_whose_choice_it_was() -> None:
    assert pointer(way("p")).choice == ""
    assert pointer(way("p", "q"), way("r", "q")).choice == "q"
    assert pointer(way("p", "q"), way("q", "p")).choice == "p"
    assert pointer(way("p"), way("q")).choice == ""
    assert told(pointer(way()).chosen("p")) == told(pointer(way()))
    assert told(pointer(way(), way()).chosen("p")) == told(pointer(way("p"), way("p")))


def test_what_a_pointer_may_be_by_some_ways() -> None:
    free, decided = pointer(way(), way()), pointer(way(n=0), way(n=1))
    assert free.when({"n": 0}) is free
    assert told(decided.when({"n": 0})) == told(pointer(way(n=0)))
    assert told(decided.when({"m": 0})) == told(decided)
    assert decided.when({"n": 2}) is None
    state = State(Memory(), {"p": decided, "q": free})
    left = state.when({"n": 1})
    assert left is not None
    assert left.pointers.keys() == {"p", "q"}
    assert told(left.pointers["p"]) == (decided.content, {THERE: [told(way(n=1))]})
    assert left.pointers["q"] is free
    assert state.when({"n": 2}) is None
    state.by_way(["q", "none"], "k", 3)
    assert state.pointers["p"] is decided
    assert told(state.pointers["q"]) == told(pointer(way(k=3), way(k=3)))
    state.forget_ways(frozenset("k"))
    assert told(state.pointers["q"]) == told(free)
    state.pointers["q"] = pointer(way(k=0), way(n=0))
    state.forget_ways(frozenset("k"))
    assert told(state.pointers["q"]) == told(pointer(way(), way(n=0)))


def test_one_pointer_or_another() -> None:
    same = pointer(way("p"), way("p"))
    assert told(same.met(pointer(way("p"), way("p")), "f")) == told(same)
    assert told(pointer(way(n=0)).met(pointer(way(n=1)), "f")) == told(pointer(way(n=(0, 1))))
    other = Pointer((Piece("y", 0, 8),), {THERE: (way(),)})
    met = pointer(way()).met(other, "f")
    assert told(met) == told(Pointer((Piece("f", 0, 8),), {HERE: (way("f"),), THERE: (way("f"),)}))


def test_the_bytes_of_a_body_mean_others_when_its_round_ends() -> None:
    fresh: dict[tuple[Piece, ...], tuple[Piece, ...]] = {}
    around = pointer(way())
    assert around.ended("p", frozenset("y"), fresh) is around
    first, second = around.ended("p", frozenset("x"), fresh), around.ended("q", frozenset("x"), fresh)
    assert first.content == second.content == (Piece("p", 0, 8),)
    inner = pointer(way("a", "c"), way("b", "c"))
    assert told(inner.ended("p", frozenset("a"), {})) == told(pointer(way("c"), way("b", "c")))
    assert told(inner.ended("p", frozenset("c"), {})) == told(pointer(way("a", "p"), way("b", "p")))
