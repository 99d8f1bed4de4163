"""Loops of which not every round is stored: the same gradients bit for bit, and tapes as long as was asked for."""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.base.errors import CapacityError, SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Value, While
from sublet.ir.text import parse
from sublet.passes.autodiff import gradients
from sublet.passes.autodiff.checkpoint_schedules import check_checkpoints, chunks_of
from tests.passes.checkpointed import check_seed
from tests.passes.differences import value_of


def recurrent(rounds: int, checkpoint: Any = None, budget: int | str | None = None) -> Any:
    """A step of learning through a recurrence."""
    g = sublet.Graph("recurrent")
    xs, h0 = g.input("xs", (rounds, 2, 16)), g.constant(np.zeros((2, 16)), "f32")
    w = g.parameter("w", (16, 16), initial=layers.normal(0.2))
    with g.while_({"h": h0}, over={"x": xs}) as loop:
        h = nn.tanh(loop["x"] * nn.gelu(loop["h"] @ w))
        loop.next(h=h)
    return sublet.train_step(nn.square(loop["h"]).mean(), [w], sublet.SGD(0.1), checkpoint=checkpoint, budget=budget)


def rows_of(graph: Graph) -> int:
    """The rows that all loops stack, those inside others counted once."""
    loops = [node for node in graph.walk() if isinstance(node, While)]
    stacks = [value for loop in loops for value in loop.stacked_outputs if value is not None]
    return sum(value.spec.shape[0] for value in stacks if isinstance(value.spec, TensorSpec))


@pytest.mark.parametrize("way", ["sqrt", "tree", 1, 3, 7, 5000])
def test_chunks_go_through_every_round(way: int | str) -> None:
    for rounds in (*range(1, 70), 777, 1000, 4095, 4096):
        assert sum(chunk.iterations for chunk in chunks_of(way, rounds, 8, 24)) == rounds


@pytest.mark.parametrize("rounds", [*range(9, 400, 7), 1000, 4095, 4096, 100_000])
def test_a_root_of_rows_and_a_logarithm_of_rows(rounds: int) -> None:
    begins, *last = (sum(chunk.extents) for chunk in chunks_of("sqrt", rounds, 8, 8))
    assert begins <= 2 * rounds**0.5 + 1
    assert sum(last) <= rounds**0.5 + 1  # a tape that is gone when the first segment needs one
    assert sum(sum(chunk.extents) for chunk in chunks_of("tree", rounds, 8, 8)) <= 6.5 * log2(rounds)


def test_gradients_are_the_same_bits() -> None:
    cut = [check_seed(seed, most=7, depth=seed % 2) for seed in range(3)]
    assert any(cut)


def test_tapes_are_as_long_as_was_asked_for() -> None:
    plain, third, every = (rows_of(recurrent(30, way).graph) for way in (None, 3, 1))
    assert plain == 2 * 30
    assert third <= 9 + 2 * 3 * 3  # nine begin a segment; then the tapes of one, and of the last
    assert every == 30


def test_a_budget_chooses_how_loops_are_stored() -> None:
    plain = sublet.plan_memory(recurrent(24)).arena_bytes
    budget = plain - 12 * 2 * 16 * 4
    fitting = recurrent(24, budget=budget)
    assert sublet.plan_memory(fitting).arena_bytes <= budget
    assert rows_of(fitting.graph) < 2 * 24


def test_a_budget_below_all_ways_names_the_least() -> None:
    with pytest.raises(CapacityError, match="the smallest of 3 variants"):
        recurrent(3, budget=100)


def test_what_is_no_way_is_refused() -> None:
    for wrong in ("root", 0, True, -1, 2.5):
        with pytest.raises(SpecError, match="checkpoint"):
            check_checkpoints(wrong)  # type: ignore[arg-type]


def test_the_tape_is_a_minimum_cut() -> None:
    """Two values are read, both computed from one by cheap commands: the one is stored."""
    graph = parse("""
    graph @g(%x: f64[40], %y: f64[40]) {
      weights %n: i64[] = [9]
      %f: f64[40], %k: f64[40] = while(%i: i64[]; %p: f64[40] = %x, %s: f64[40] = %y; ) @loop body @body {
        %c: bool[] = nn.less(%i, %n)
        continue if %c
        %e: f64[40] = nn.exp(%y)
        %t: f64[40] = nn.tanh(%p)
        %a: f64[40] = nn.mul(%t, %e)
        %b: f64[40] = nn.add(%t, %e)
        %u: f64[40] = nn.sin(%a)
        %v: f64[40] = nn.sin(%b)
        %w: f64[40] = nn.mul(%u, %v)
        %z: f64[40] = nn.mul(%w, %s)
        next %w, %z;
      }
      return %f
    }""")
    made = gradients(graph, [value_of(graph, "f")], [value_of(graph, "x")])[0]
    tapes = [value for value in made.values() if ".tape." in value.name and isinstance(value, Value)]
    assert len(tapes) <= 3
