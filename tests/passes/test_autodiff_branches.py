"""Gradients of branches: which arm ran, what arms hand to their backward, fallbacks; within loops and around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sublet.base.errors import GradientError
from sublet.ir.graph import CaseOf
from sublet.ir.text import parse
from sublet.passes.autodiff import gradients
from sublet.planning.pipeline import plan_memory
from tests.passes.differences import check, run, value_of

PIECEWISE = parse("""
graph @piecewise(%x: f32[1]) {
  weights %zero: f32[1] = [0.0], %one: f32[1] = [1.0], %two: f32[1] = [2.0], %half: f32[1] = [0.5], %top: f32[1] = [1.5]
  %c0: bool[1] = nn.greater_equal(%x, %zero)
  %c1: bool[1] = nn.greater_equal(%x, %one)
  %c2: bool[1] = nn.greater_equal(%x, %two)
  %i0: i32[1] = nn.cast(%c0) {dtype = "i32"}
  %i1: i32[1] = nn.cast(%c1) {dtype = "i32"}
  %i2: i32[1] = nn.cast(%c2) {dtype = "i32"}
  %s: i32[1] = nn.add(%i0, %i1)
  %i: i32[1] = nn.add(%s, %i2)
  %y: f32[1] = case %i @pieces {
    arm @below { yield %zero }
    arm @pass { yield %x }
    arm @slow { %h: f32[1] = nn.mul(%x, %half) %a: f32[1] = nn.add(%h, %half) yield %a }
    arm @above { yield %top }
  }
  return %y
}
""")


@pytest.mark.parametrize(("x", "y", "slope"), [(-1.5, 0, 0), (0.76, 0.76, 1), (1.226, 1.113, 0.5), (2.2, 1.5, 0)])
def test_pieces(x: float, y: float, slope: float) -> None:
    graph, _ = gradients(PIECEWISE, [value_of(PIECEWISE, "y")], [value_of(PIECEWISE, "x")])
    found = run(graph, {"x": np.array([x], np.float32)})
    np.testing.assert_allclose(np.ravel(found), [y, slope], rtol=1e-6)


def test_pieces_need_no_more_memory_than_those_of_nnc() -> None:
    graph, _ = gradients(PIECEWISE, [value_of(PIECEWISE, "y")], [value_of(PIECEWISE, "x")])
    assert plan_memory(PIECEWISE).arena_bytes <= 257
    assert plan_memory(graph).arena_bytes <= 320
    assert plan_memory(graph).moves == ()


FALLBACK = parse("""
graph @fallback(%x: f64[4], %y: f64[4], %k: i64[]) {
  %z: f64[4], %u: f64[4] = case %k else %y, %x @choose {
    arm @a {
      %a: f64[4] = nn.exp(%x)
      %b: f64[4] = nn.sin(%a)
      yield %b, %a
    }
    arm @b {
      %c: f64[4] = nn.cos(%y)
      %d: f64[4] = nn.exp(%c)
      %e: f64[4] = nn.mul(%d, %d)
      yield %e, %x
    }
    arm @c { yield %x, %x }
  }
  %v: f64[4] = nn.mul(%z, %u)
  return %v, %z
}
""")
VECTORS = {"x": np.array([0.3, -0.5, 0.7, 1.1]), "y": np.array([-0.2, 0.4, 0.9, 0.1])}


def test_fallbacks() -> None:
    every = [{**VECTORS, "k": np.array(k)} for k in (-7, -1, 0, 1, 2)]
    check(FALLBACK, ["v", "z"], ["x", "y"], *every, orders=3)


def test_arms_share_what_they_hand_to_the_backward() -> None:
    """exp(%x) is a result already; of cos(%y) and exp(cos(%y)) the backward needs two, the others nothing."""
    graph, _ = gradients(FALLBACK, [value_of(FALLBACK, "v")], [value_of(FALLBACK, "x"), value_of(FALLBACK, "y")])
    forward = next(node for node in graph.nodes if node.name == "choose")
    assert isinstance(forward, CaseOf)
    assert len(forward.outputs) <= 3
    undefined = [node for node in graph.walk() if node.op == "nn.undefined"]
    assert len(undefined) == len(forward.outputs[2:]) * 3


def test_a_flag_decides() -> None:
    graph = parse("""
    graph @flag(%x: f64[4], %y: f64[4]) {
      %s: f64[] = nn.sum(%x) {axes = [], keepdims = 0}
      %t: f64[] = nn.sum(%y) {axes = [], keepdims = 0}
      %c: bool[] = nn.less(%s, %t)
      %z: f64[4] = case %c else %x @choose {
        arm @no { %a: f64[4] = nn.mul(%x, %y) %b: f64[4] = nn.sin(%a) yield %b }
        arm @yes { %d: f64[4] = nn.exp(%y) yield %d }
      }
      return %z
    }
    """)
    check(graph, ["z"], ["x", "y"], VECTORS, {"x": VECTORS["y"] - 1, "y": VECTORS["x"]})


def test_a_branch_in_a_branch() -> None:
    graph = parse("""
    graph @nested(%x: f64[4], %y: f64[4], %k: i64[], %l: bool[]) {
      %z: f64[4] = case %k @outer {
        arm @a {
          %a: f64[4] = nn.exp(%x)
          %b: f64[4] = case %l @inner {
            arm @aa { %c: f64[4] = nn.sin(%a) %d: f64[4] = nn.mul(%c, %y) yield %d }
            arm @ab { %e: f64[4] = nn.cos(%y) %f: f64[4] = nn.exp(%e) yield %f }
          }
          %g: f64[4] = nn.mul(%b, %a)
          yield %g
        }
        arm @b { yield %y }
      }
      return %z
    }
    """)
    ways = ((0, False), (0, True), (1, True))
    every = [{**VECTORS, "k": np.array(k), "l": np.array(flag)} for k, flag in ways]
    check(graph, ["z"], ["x", "y"], *every, orders=3)


IN_LOOP = parse("""
graph @inloop(%x: f64[1], %w: f64[1]) {
  weights %n: i64[] = [5], %one: f64[1] = [1.0], %half: f64[1] = [0.5], %scale: f64[1] = [0.3]
  %z: f64[1] = while(%i: i64[]; %p: f64[1] = %x; ) @loop body @body {
    %go: bool[] = nn.less(%i, %n)
    continue if %go
    %c: bool[1] = nn.greater_equal(%p, %one)
    %q: f64[1] = case %c @pieces {
      arm @grow { %d: f64[1] = nn.exp(%p) %e: f64[1] = nn.mul(%d, %w) yield %e }
      arm @halve { %h: f64[1] = nn.mul(%p, %half) %a: f64[1] = nn.sin(%h) yield %a }
    }
    next %q;
  }
  %y: f64[1] = nn.mul(%z, %scale)
  return %y
}
""")


def test_a_branch_in_a_loop() -> None:
    every = [{"x": np.array([x]), "w": np.array([0.8])} for x in (0.1, 0.9, 2.5)]
    check(IN_LOOP, ["y"], ["x", "w"], *every, orders=3)


LOOP = """
  %f: f64[4] = while(%i: i64[]; %p: f64[4] = %x; )ATTRS @loop body @body {
    %t: f64[] = nn.sum(%p) {axes = [], keepdims = 0}
    %go: bool[] = nn.less(%t, %limit)
    continue if %go
    %q: f64[4] = nn.mul(%p, %y)
    %s: f64[4] = nn.exp(%q)
    next %s;
  }
"""


@pytest.mark.parametrize("attrs", ["", " {max_trips = 6}"])
def test_a_loop_in_a_branch(attrs: str) -> None:
    """Without a maximum the tape of the loop is a result of the branch whose size only a run tells."""
    graph = parse(f"""
    graph @g(%x: f64[4], %y: f64[4], %k: i64[], %limit: f64[]) {{
      %z: f64[4] = case %k @choose {{
        arm @a {{ {LOOP.replace("ATTRS", attrs)} yield %f }}
        arm @b {{ %e: f64[4] = nn.exp(%x) %d: f64[4] = nn.sin(%e) yield %d }}
      }}
      return %z
    }}
    """)
    every: list[dict[str, Any]] = [{**VECTORS, "k": np.array(k), "limit": np.array(6.0)} for k in (0, 1)]
    check(graph, ["z"], ["x", "y"], *every)


def test_an_op_without_a_gradient_in_an_arm_is_named() -> None:
    graph = parse("""
    graph @g(%x: f32[4], %k: i64[], %lr: f32[]) {
      %z: f32[4] = case %k @choose {
        arm @a {
          %a: f32[4], _ = nn.sgd(%x, %x, %lr) {momentum = 0.0, dampening = 0.0, decay = 0.0, nesterov = 0} @step
          yield %a
        }
        arm @b { yield %x }
      }
      return %z
    }
    """)
    with pytest.raises(GradientError, match=r"node step \(<text>:5\): nn.sgd has no gradient"):
        gradients(graph, [value_of(graph, "z")], [value_of(graph, "x")])
