"""Gradients of loops: tapes and what needs none, rounds that only a run counts, slices and rows, loops in loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sublet.analysis.options import Options
from sublet.base.errors import GradientError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, While
from sublet.ir.text import parse, to_text
from sublet.packing import STRATEGIES
from sublet.passes.autodiff import gradients
from sublet.planning.pipeline import plan_memory
from tests.passes.differences import check, run, value_of

VECTORS: dict[str, Any] = {
    name: np.random.default_rng(i).uniform(0.4, 1, 40) for i, name in enumerate(("x", "y", "u", "v"))
}
LOG = parse("""
graph @log(%x: f32[1], %y: f32[1], %v: f32[1]) {
  weights %n: i64[] = [5]
  %z: f32[1] = while(%i: i64[]; %p: f32[1] = %x; ) @loop body @body {
    %c: bool[] = nn.less(%i, %n)
    continue if %c
    %q: f32[1] = nn.mul(%p, %y)
    %s: f32[1] = nn.log(%q)
    next %s;
  }
  %u: f32[1] = nn.mul(%v, %z)
  return %u
}
""")


def tapes(graph: Graph) -> list[TensorSpec]:
    """The specs of what loops stack for their backward alone."""
    return [value.spec for value in graph.values() if ".tape." in value.name and "rows" not in value.name]  # type: ignore[misc]


def by(graph: Graph, of: str, *wrt: str) -> Graph:
    return gradients(graph, [value_of(graph, of)], [value_of(graph, name) for name in wrt])[0]


def test_logarithms_in_a_loop() -> None:
    graph = by(LOG, "u", "y")
    x, y, v = 5.0, 6.0, 0.22
    z, slope = x, 0.0
    for _ in range(5):
        slope = (slope * y + z) / (z * y)
        z = np.log(z * y)
    found = run(graph, {name: np.array([number], np.float32) for name, number in (("x", x), ("y", y), ("v", v))})
    np.testing.assert_allclose(np.ravel(found), [v * z, v * slope], rtol=1e-6)


def test_logarithms_in_a_loop_need_less_memory_than_those_of_nnc() -> None:
    """NNC counts neither the counter (64 bytes here) nor the condition (64, of which 1 at the end) nor the tape."""
    assert plan_memory(LOG).arena_bytes <= 192 + 64 + 1
    assert plan_memory(by(LOG, "u", "y")).arena_bytes <= 512
    assert tapes(by(LOG, "u", "y")) == [TensorSpec(value_of(LOG, "x").spec.dtype, (5, 1))]  # type: ignore[union-attr]


def test_a_product() -> None:
    graph = parse("""
    graph @product(%x: f64[1], %a: f64[1]) {
      weights %n: i64[] = [5]
      %z: f64[1] = while(%i: i64[]; %p: f64[1] = %x; ) @loop body @body {
        %c: bool[] = nn.less(%i, %n)
        continue if %c
        %q: f64[1] = nn.mul(%p, %a)
        next %q;
      }
      return %z
    }
    """)
    _, slope = run(by(graph, "z", "x"), {"x": np.ones(1), "a": np.array([1.11])})
    assert slope[0] == pytest.approx(1.11**5, rel=1e-14)
    assert tapes(by(graph, "z", "x")) == []
    check(graph, ["z"], ["x", "a"], {"x": np.ones(1), "a": np.array([1.11])}, orders=3)


def loop(carried: str, body: str, following: str, results: str, returns: str) -> Graph:
    """A loop over vectors %x, %y, %u, %v; T stands for their type."""
    text = f"""
    graph @g(%x: T, %y: T, %u: T, %v: T) {{
      weights %n: i64[] = [9]
      {results} = while(%i: i64[]; {carried}; ) @loop body @body {{
        %c: bool[] = nn.less(%i, %n)
        continue if %c
        {body}
        next {following}
      }}
      return {returns}
    }}"""
    return parse(text.replace(": T", ": f64[40]"))


CARRIES = {
    "swap": (
        loop(
            "%p: T = %x, %q: T = %y",
            "%a: T = nn.sin(%p) %b: T = nn.mul(%a, %q)",
            "%q, %b;",
            "%f: T, %g: T",
            "%f, %g",
        ),
        2,
    ),
    "rotation of three": (
        loop(
            "%p: T = %x, %q: T = %y, %s: T = %u",
            "%a: T = nn.mul(%p, %q) %b: T = nn.mul(%a, %s) %d: T = nn.sin(%b)",
            "%q, %s, %d;",
            "%f: T, %g: T, %h: T",
            "%f, %g, %h",
        ),
        1,
    ),
    "pure rotation beside a sum": (
        loop(
            "%p: T = %x, %q: T = %y, %s: T = %u, %t: T = %v",
            "%a: T = nn.mul(%p, %q) %d: T = nn.add(%t, %a)",
            "%q, %s, %p, %d;",
            "%f: T, %g: T, %h: T, %k: T",
            "%k, %g",
        ),
        1,
    ),
    "update stacked anyway": (
        loop(
            "%p: T = %x",
            "%a: T = nn.mul(%p, %y) %d: T = nn.sin(%a)",
            "%d; %d axis 0",
            "%f: T, %r: f64[9,40]",
            "%f, %r",
        ),
        0,
    ),
    "update stacked anyway, from the end of another axis": (
        loop(
            "%p: T = %x",
            "%a: T = nn.mul(%p, %y) %d: T = nn.sin(%a)",
            "%d; %d axis 1 reversed",
            "%f: T, %r: f64[40,9]",
            "%f, %r",
        ),
        0,
    ),
    "parameter and update are read": (
        loop("%p: T = %x", "%a: T = nn.mul(%p, %y) %d: T = nn.exp(%a) %e: T = nn.sin(%d)", "%e;", "%f: T", "%f"),
        2,
    ),
    "an update that does not change": (
        loop(
            "%p: T = %x, %k: T = %u",
            "%a: T = nn.mul(%p, %k) %e: T = nn.exp(%v) %d: T = nn.mul(%a, %e) %h: T = nn.sin(%d)",
            "%h, %k;",
            "%f: T, %g: T",
            "%f, %g",
        ),
        1,
    ),
    "an update from outside": (
        loop("%p: T = %x, %k: T = %u", "%a: T = nn.mul(%p, %k)", "%y, %a;", "%f: T, %g: T", "%f, %g"),
        2,
    ),
}


@pytest.mark.parametrize("name", CARRIES)
def test_carried_values(name: str) -> None:
    graph, count = CARRIES[name]
    first = check(graph, [value.name for value in graph.outputs], ["x", "y", "u", "v"], VECTORS, tolerance=1e-5)
    assert len(tapes(first)) == count


@pytest.mark.parametrize("rounds", [0, 1, 2])
@pytest.mark.parametrize("name", ["swap", "an update from outside"])
def test_few_rounds(name: str, rounds: int) -> None:
    graph, _ = CARRIES[name]
    few = parse(to_text(graph).replace("%n: i64[] = [9]", f"%n: i64[] = [{rounds}]"))
    assert value_of(few, "n").literal == (rounds,)
    check(few, [value.name for value in few.outputs], ["x", "y", "u", "v"], VECTORS, tolerance=1e-5)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "auto"])
def test_every_strategy(strategy: str) -> None:
    graph, _ = CARRIES["parameter and update are read"]
    check(graph, ["f"], ["x", "y"], VECTORS, orders=1, options=Options(strategy=strategy))


OPEN = """
graph @open(%x: f64[40], %y: f64[40], %limit: f64[]) {
  %z: f64[40] = while(%i: i64[]; %p: f64[40] = %x; )ATTRS @loop body @body {
    %t: f64[] = nn.sum(%p) {axes = [], keepdims = 0}
    %c: bool[] = nn.less(%t, %limit)
    continue if %c
    %q: f64[40] = nn.mul(%p, %y)
    %s: f64[40] = nn.exp(%q)
    %d: f64[40] = nn.sin(%s)
    %e: f64[40] = nn.add(%d, %s)
    next %e;
  }
  return %z
}
"""


@pytest.mark.parametrize("attrs", ["", " {max_trips = 6}"])
def test_a_run_tells_the_number_of_rounds(attrs: str) -> None:
    graph = parse(OPEN.replace("ATTRS", attrs))
    every = [{**VECTORS, "limit": np.array(limit)} for limit in (1.0, 90.0, 250.0)]
    first = check(graph, ["z"], ["x", "y"], *every, orders=1, tolerance=1e-4)
    check(graph, ["z"], ["x", "y"], every[1], tolerance=1e-4)
    loop = next(node for node in first.nodes if isinstance(node, While))
    counted = replace(first, outputs=(*first.outputs, loop.finals[-1]))  # type: ignore[arg-type]
    assert [run(counted, {"seed0.z": np.ones(40), **feeds})[-1] for feeds in every] == [0, 1, 2]


def test_a_declared_maximum_has_the_tape_planned() -> None:
    declared, undeclared = (by(parse(OPEN.replace("ATTRS", attrs)), "z", "y") for attrs in (" {max_trips = 6}", ""))
    assert [str(spec) for spec in tapes(declared)] == ["f64[6,40]", "f64[6,40]"]
    assert all("declare max_trips" in spec.reason for spec in tapes(undeclared))  # type: ignore[attr-defined]
    assert len(plan_memory(undeclared).outside) == 2
    assert not plan_memory(declared).outside


SCAN = """
graph @scan(%x: f64[4], %w: f64[4,8], %n: i64[]) {
  WEIGHTS
  %z: f64[4], %r: f64[ROUNDS,4] = while(%i: i64[]; %p: f64[4] = %x; %e: f64[4] in %w axis 1 SLICES) @loop body @body {
    %c: bool[] = nn.less(%i, %LIMIT)
    continue if %c
    %q: f64[4] = nn.mul(%p, %e)
    %s: f64[4] = nn.exp(%q)
    %d: f64[4] = nn.sin(%s)
    next %d; %s axis 0 ROWS
  }
  return %z, %r
}
"""
SEQUENCE = {"x": np.linspace(0.3, 1, 4), "w": np.random.default_rng(5).uniform(0.4, 1, (4, 8))}


def scan(limit: int | None, slices: str, rows: str) -> Graph:
    """As many rounds as `limit`; None for as many as %n says, at most 8."""
    weights = "" if limit is None else f"weights %l: i64[] = [{limit}]"
    text = SCAN.replace("WEIGHTS", weights).replace("LIMIT", "n" if limit is None else "l")
    return parse(text.replace("ROUNDS", str(limit or 8)).replace("SLICES", slices).replace("ROWS", rows))


@pytest.mark.parametrize("rows", ["", "reversed"])
@pytest.mark.parametrize("slices", ["", "reversed"])
@pytest.mark.parametrize("limit", [8, 5])
def test_slices_and_rows(limit: int, slices: str, rows: str) -> None:
    feeds = {**SEQUENCE, "n": np.array(0)}
    check(scan(limit, slices, rows), ["z", "r"], ["x", "w"], feeds, orders=2)


@pytest.mark.parametrize("slices", ["", "reversed"])
def test_slices_of_a_number_that_a_run_tells(slices: str) -> None:
    every = [{**SEQUENCE, "n": np.array(rounds)} for rounds in (0, 5, 8)]
    check(scan(None, slices, slices), ["z"], ["x", "w"], *every)
    check(scan(None, slices, slices), ["z", "r"], ["x", "w"], every[-1], orders=1)


@pytest.mark.parametrize("limit", ["l", "n"])
def test_rows_that_the_counter_selects_are_not_summed(limit: str) -> None:
    """A stack of weights, one a round: the gradient of each is a row."""
    graph = parse(f"""
    graph @layers(%x: f64[4], %w: f64[5,4], %n: i64[]) {{
      weights %l: i64[] = [5], %four: i64[] = [4]
      %z: f64[4] = while(%i: i64[]; %p: f64[4] = %x; ) @loop body @body {{
        %c: bool[] = nn.less(%i, %{limit})
        continue if %c
        %j: i64[] = nn.sub(%four, %i)
        %a: f64[4] = nn.select(%w, %i)
        %b: f64[4] = nn.select(%w, %j)
        %q: f64[4] = nn.mul(%p, %a)
        %s: f64[4] = nn.exp(%q)
        %t: f64[4] = nn.mul(%s, %b)
        next %t;
      }}
      return %z
    }}
    """)
    feeds = {"x": np.linspace(0.3, 1, 4), "w": np.random.default_rng(5).uniform(0.2, 0.5, (5, 4)), "n": np.array(5)}
    first = check(graph, ["z"], ["x", "w"], feeds)
    summed = [node for node in first.walk() if node.op == "nn.index_select_gradient"]
    assert len(summed) == (0 if limit == "l" else 1)
    check(graph, ["z"], ["x", "w"], {**feeds, "n": np.array(3)}, orders=1)


NESTED = """
graph @nested(%x: f64[4], %y: f64[4], %n: i64[], %m: i64[]) {
  weights %three: i64[] = [3], %four: i64[] = [4]
  %z: f64[4] = while(%i: i64[]; %p: f64[4] = %x; ) OUTER @outer body @body {
    %c: bool[] = nn.less(%i, %LIMIT)
    continue if %c
    %a: f64[4] = nn.exp(%p)
    %f: f64[4] = while(%j: i64[]; %q: f64[4] = %a; ) INNER @inner body @more {
      %d: bool[] = nn.less(%j, %MOST)
      continue if %d
      %b: f64[4] = nn.mul(%q, %y)
      %e: f64[4] = nn.sin(%b)
      %g: f64[4] = nn.mul(%e, %p)
      next %g;
    }
    %h: f64[4] = nn.add(%f, %p)
    next %h;
  }
  return %z
}
"""
FEW = {"x": np.linspace(0.1, 0.6, 4), "y": np.linspace(0.9, 0.3, 4), "n": np.array(2), "m": np.array(3)}


def nested(limit: str, most: str, outer: str = "", inner: str = "") -> Graph:
    text = NESTED.replace("LIMIT", limit).replace("MOST", most).replace("OUTER", outer).replace("INNER", inner)
    return parse(text)


@pytest.mark.parametrize(
    ("graph", "orders"),
    [
        (nested("three", "four"), 1),
        (nested("n", "four"), 1),
        (nested("three", "m", inner="{max_trips = 5}"), 1),
        (nested("n", "m", "{max_trips = 5}", "{max_trips = 5}"), 2),
        (nested("n", "m", "", "{max_trips = 5}"), 2),
        (nested("three", "i", inner="{max_trips = 5}"), 2),
    ],
    ids=["known", "outer open", "inner bounded", "both bounded", "outer open, inner bounded", "inner by outer"],
)
def test_loops_in_loops(graph: Graph, orders: int) -> None:
    check(graph, ["z"], ["x", "y"], FEW, orders=orders, tolerance=1e-5)


def test_an_inner_loop_needs_a_maximum() -> None:
    with pytest.raises(GradientError, match=r"node outer \(<text>:4\).*Declare max_trips of the inner loop"):
        by(nested("n", "m"), "z", "x")


def test_what_is_computed_again_is_not_stacked() -> None:
    """Functions of the counter, comparisons and what does not change need no tape."""
    graph = parse("""
    graph @cheap(%x: f64[4], %y: f64[4]) {
      weights %n: i64[] = [6], %half: i64[] = [3], %zero: f64[] = [0.0]
      %z: f64[4] = while(%i: i64[]; %p: f64[4] = %x; ) @loop body @body {
        %c: bool[] = nn.less(%i, %n)
        continue if %c
        %early: bool[] = nn.less(%i, %half)
        %t: f64[] = nn.cast(%i) {dtype = "f64"}
        %e: f64[4] = nn.exp(%y)
        %q: f64[4] = nn.mul(%e, %t)
        %above: bool[4] = nn.less(%zero, %e)
        %s: f64[4] = nn.where(%above, %q, %p)
        %r: f64[4] = nn.where(%early, %s, %p)
        %u: f64[4] = nn.add(%r, %p)
        next %u;
      }
      return %z
    }
    """)
    feeds = {"x": np.linspace(0.1, 0.6, 4), "y": np.linspace(0.9, 0.3, 4)}
    assert tapes(check(graph, ["z"], ["x", "y"], feeds)) == []
