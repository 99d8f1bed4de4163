"""Plans that the checker cannot follow are made again with fewer pointers."""

from __future__ import annotations

import random
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pytest

from benchmarks.planning_time import FLAGS, model
from sublet.analysis.alias_planner import NOT_FOLLOWED_BY_CHECKER, AliasPlanner
from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.errors import Finding, PlanError, PlanViolation
from sublet.checker import check_bytes, state
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.packing import Problem, pack
from sublet.plan import POINTER
from sublet.planning import place_buffers
from sublet.planning.pipeline import carries_to_copy, is_without_fallback, plan_memory
from sublet.runtime.differential import compare
from tests.support import dialect
from tests.support.interpreter import results_match

assert dialect.OPS

REPLAY = import_module("sublet.checker.replay")  # the package has a function of this name

TWO_LOOPS = """
graph @turning(%x: u8[64], %y: u8[64], %n: i64[]) {
  %a: u8[64], %b: u8[64] = while(%i: i64[]; %p: u8[64] = %x, %q: u8[64] = %y; ) @first body @once {
    %c: bool[] = onnx.Less(%i, %n)
    continue if %c
    next %q, %p;
  }
  %f: u8[64], %g: u8[64] = while(%j: i64[]; %r: u8[64] = %a, %s: u8[64] = %b; ) @second body @again {
    %d: bool[] = onnx.Less(%j, %n)
    continue if %d
    next %s, %r;
  }
  return %f, %g
}
"""


def graph() -> Graph:
    return parse(TWO_LOOPS)


def about(*names: str) -> Finding:
    return Finding("bad-jumps", "a loop of the second kind", "begins with %p or with %r", names=names)


def test_only_what_a_finding_names_is_copied() -> None:
    by_node = carries_to_copy(graph(), [about("second")], (), by_name=True)
    assert {value.name for value in by_node} == {"r", "s", "f", "g"}
    by_value = carries_to_copy(graph(), [about("p")], (), by_name=True)
    assert {value.name for value in by_value} == {"p", "q", "a", "b"}
    assert carries_to_copy(graph(), [about("second", "p")], (), by_name=True) == by_node | by_value


@pytest.mark.parametrize("names", [("second",), ()])
def test_when_they_name_nothing_new_all_is_copied(names: tuple[str, ...]) -> None:
    every = {"p", "q", "a", "b", "r", "s", "f", "g"}
    before = carries_to_copy(graph(), [about("second")], (), by_name=True)
    again = carries_to_copy(graph(), [about(*names)], before, by_name=True)
    assert {value.name for value in again} == every
    assert carries_to_copy(graph(), [about("second")], (), by_name=False) == again


def test_a_plan_that_the_checker_gives_up_on_is_made_without_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan_memory(graph()).moves == ()
    monkeypatch.setattr(REPLAY, "MOST_COPIES", 1)
    plan = plan_memory(graph())
    assert plan.rolled == ()
    assert {move.why for move in plan.moves} == {NOT_FOLLOWED_BY_CHECKER}
    assert not is_without_fallback(plan)
    with pytest.raises(PlanError, match=NOT_FOLLOWED_BY_CHECKER):
        plan_memory(graph(), Options(forbid_copies=True))


def test_plans_made_again_share_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def noting(problem: Problem, strategy: str, *, timeout: float, **more: Any) -> Any:
        given.append(timeout)
        return pack(problem, strategy, timeout=timeout, **more)

    monkeypatch.setattr(REPLAY, "MOST_COPIES", 1)
    monkeypatch.setattr(place_buffers, "pack", noting)
    plan_memory(graph(), Options(timeout=60))
    assert given[0] == 60
    assert len(given) > 1
    assert given == sorted(given, reverse=True)
    assert given[1] < 60


def test_a_plan_without_pointers_that_is_refused_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REPLAY, "MOST_STEPS", 0)
    monkeypatch.setattr(REPLAY, "MOST_STEPS_A_NODE", 0)
    with pytest.raises(PlanViolation, match="too-many-states"):
        plan_memory(graph())


def rotating(seed: int) -> tuple[Any, dict[str, Any]]:
    """A random program of the benchmark, and what it is fed."""
    proto = model(seed, int(2 ** random.Random(seed).uniform(3, np.log2(1000))))
    numbers = np.random.default_rng(seed)
    feeds: dict[str, Any] = {f"x{i}": numbers.uniform(-1, 1, 16).astype(np.float32) for i in range(4)}
    feeds |= {f"flag{i}": np.bool_(numbers.integers(2)) for i in range(FLAGS)}
    return proto, {**feeds, "trips": np.int64(3)}


def test_a_program_of_loops_and_branches_runs_as_unplanned() -> None:
    proto, feeds = rotating(36)
    planned = compile(proto, backend="reference")
    unplanned = compile(proto, backend="reference", options=Options(strategy="no_reuse", share=False))
    assert not compare(unplanned, planned, feeds).differences


TWICE_CHOSEN = """
graph @chosen(%x: u8[64], %y: u8[64], %z: u8[64], %flag: bool[], %other: bool[], %n: i64[]) {
  %a: u8[64], %b: u8[64] = while(%i: i64[]; %p: u8[64] = %x, %q: u8[64] = %y; ) @first body @once {
    %c: bool[] = onnx.Less(%i, %n)
    continue if %c
    next %q, %p;
  }
  %f: u8[64], %g: u8[64] = while(%j: i64[]; %r: u8[64] = %x, %s: u8[64] = %z; ) @second body @again {
    %d: bool[] = onnx.Less(%j, %n)
    continue if %d
    %t: u8[64] = case %flag @if {
      arm @keep { yield %r }
      arm @take { yield %a }
    }
    %u: u8[64] = case %other @then {
      arm @stay { yield %s }
      arm @go { yield %t }
    }
    next %t, %u;
  }
  return %f, %g
}
"""


def test_ways_to_one_place_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second loop %r is %x, or what the first one left, which may be %x as well: then the first one chose."""
    graph = parse(TWICE_CHOSEN)
    plan = plan_memory(graph)
    assert is_without_fallback(plan)
    assert plan.moves == ()
    planned = compile(graph, backend="reference")
    unplanned = compile(graph, backend="reference", options=Options(strategy="no_reuse", share=False))
    values = {name: np.full(64, i, np.uint8) for i, name in enumerate("xyz")}
    for n, flag, other in product(range(4), (False, True), (False, True)):
        feeds = {**values, "flag": np.bool_(flag), "other": np.bool_(other), "n": np.int64(n)}
        assert not compare(unplanned, planned, feeds).differences
    monkeypatch.setattr(state, "MOST_BINDINGS", 1)
    assert not is_without_fallback(plan_memory(graph))


def taken_twice(second: str) -> Graph:
    """Two parameters take one value: %d has bytes of its own where it is not renamed; %e points."""
    return parse(f"""
graph @twice(%x: u8[8]) {{
  weights %w: u8[8]
  %f: u8[8], %g: u8[8], %h: u8[8] = while(%i: i64[]; %a: u8[8] = %w, %e: u8[8] = %w, %d: u8[8] = %x; ) @loop body @b {{
    %c: bool[] = test.below(%i, %d)
    continue if %c
    %s: u8[8] = test.slice(%e)
    %t: u8[8] = test.slice(%d)
    %u: u8[8] = test.relu(%a)
    next %s, %t, %{second};
  }}
  return %f, %h
}}
""")


@pytest.mark.parametrize("strategy", ["first_fit", "best_fit_by_size", "search"])
def test_bytes_that_two_names_are_given_to_are_followed_by_both(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = taken_twice("t")
    copied = [value for value in program.values() if value.name in ("a", "d")]
    best = AliasPlanner.best
    monkeypatch.setattr(AliasPlanner, "best", lambda self, _: best(self, copied))
    plan = plan_memory(program, Options(strategy=strategy, io="bound", alignment=1, in_place_from=0))
    assert {place.value for place in plan.placements if place.how == POINTER} == {"e", "g"}
    assert results_match(program, plan.schedule, plan, random.Random(1), 20)
    other = taken_twice("u")
    assert {finding.rule for finding in check_bytes(other, plan.schedule, plan)} == {"clobbered"}
    assert not results_match(other, plan.schedule, plan, random.Random(1), 20)
