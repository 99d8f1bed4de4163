"""Runs that update: right numbers over many runs, and state that is kept, told, set, bound and never mixed up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sublet
from sublet.analysis.options import Options
from sublet.base.errors import RunError
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.runtime.executable import Executable
from sublet.runtime.memory import aligned_bytes
from sublet.runtime.profile import Profile
from tests.analysis.test_updates import STEP, updating

UNPLANNED = Options(strategy="no_reuse", share=False)
RNG = np.random.default_rng(0)
X, W, V = (RNG.standard_normal(16).astype(np.float32) for _ in range(3))
NO = np.bool_(False)
SUBTRACT = updating("%n: f32[16] = onnx.Sub(%w, %x)", "%w = %n")


def built(graph: Graph, options: Options | None = None, **more: Any) -> Executable:
    return sublet.compile(graph, backend="reference", options=options, weights={"w": W, "v": V}, **more)


@pytest.mark.parametrize("backend", ["reference", "numpy", "onnxruntime"])
@pytest.mark.parametrize("options", [Options(), Options(weights="arena"), Options(io="bound"), Options(streams=2)])
def test_ten_steps_of_an_optimiser(backend: str, options: Options) -> None:
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    w, m, mu, rate = np.ones(64, np.float32), np.zeros(64, np.float32), np.float32(0.9), np.float32(0.1)
    given = {"w": w.copy(), "m": m.copy(), "mu": np.array(mu)}
    executable = sublet.compile(STEP, backend=backend, options=options, weights=given)
    for _ in range(10):
        feeds = {"g": RNG.standard_normal(64).astype(np.float32), "rate": np.array(rate)}
        left: dict[str, Any] = {}
        sublet.run_poisoned(executable, feeds, left)
        executable(feeds)
        m = m * mu + feeds["g"]
        w = w - rate * m
        np.testing.assert_allclose(executable.state("w"), w, rtol=1e-5, atol=1e-6)
        assert np.array_equal(executable.state("w"), left["w"])
        assert np.array_equal(executable.state("m"), left["m"])
        assert executable.copied_bytes == 0
    assert np.array_equal(given["w"], np.ones(64, np.float32)), "the array of the caller was written"
    executable.close()


@pytest.mark.parametrize(("weights", "copied"), [("bound", 0), ("arena", 128)])
def test_two_weights_are_exchanged(weights: Any, copied: int) -> None:
    executable = built(updating("", "%w = %v, %v = %w"), Options(weights=weights))
    for first, second in ((V, W), (W, V), (V, W)):
        executable(x=X, flag=NO)
        assert np.array_equal(executable.state("w"), first)
        assert np.array_equal(executable.state("v"), second)
        assert executable.copied_bytes == copied


LOOP = """%f: f32[16], %g: f32[16] = while(%i: i64[]; %p: f32[16] = %w, %q: f32[16] = %v; ) @turn body @body {{
        %c: bool[] = onnx.Less(%i, %limit)
        continue if %c
        %s: f32[16] = onnx.{op}(%p)
        next %q, %s;
      }}"""


@pytest.mark.parametrize(
    ("nodes", "updates", "returned"),
    [
        ("%n: f32[16] = onnx.Sub(%w, %x) %y: f32[16] = onnx.Reshape(%n, %shape)", "%w = %y", "%n"),  # a view of it
        ("%y: f32[16] = onnx.Reshape(%w, %shape)", "%v = %y, %w = %x", ""),  # a view of another target
        ("%y: f32[16] = onnx.Identity(%w)", "%w = %x", "%y"),  # the old content is returned
        ("%n: f32[16] = onnx.Sub(%w, %x)", "%w = %n, %v = %n", "%n"),
        (LOOP.format(op="Neg"), "%w = %f, %v = %g", ""),
        (LOOP.format(op="Softmax"), "%w = %f, %v = %g", ""),
        (LOOP.format(op="Softmax"), "%w = %g, %v = %x", "%f, %g"),  # with no round the old content is returned
        (LOOP.format(op="Softmax"), "%v = %w", "%f"),
        ("%y: f32[16] = case %flag { arm @a { yield %w } arm @b { yield %x } }", "%w = %y", ""),
        ("%y: f32[16] = case %flag { arm @a { yield %w } arm @b { yield %v } }", "%w = %x, %v = %w", "%y"),
        ("%y: f32[16] = case %flag else %w { arm @a { %n: f32[16] = onnx.Exp(%w) yield %n } }", "%w = %y", "%y"),
    ],
)
@pytest.mark.parametrize("options", [Options(), Options(weights="arena"), Options(io="bound"), Options(streams=3)])
def test_planned_runs_leave_what_unplanned_ones_do(nodes: str, updates: str, returned: str, options: Options) -> None:
    graph = parse(
        f"""graph @net(%x: f32[16], %flag: i64[], %limit: i64[]) {{
          weights %w: f32[16], %v: f32[16], %shape: i64[1] = [16]
          {nodes}
          update {updates}
          return {returned}
        }}"""
    )
    arms = [-1, 0, 0, -1] if "else" in nodes else [0, 1, 1, 0]
    choices = arms if "case" in nodes else [0, 3, 1, 2]
    planned, unplanned = built(graph, options), built(graph, UNPLANNED)
    for choice in choices:
        feeds = {"x": X + choice, "flag": np.int64(choice), "limit": np.int64(choice)}
        before = {name: planned.state(name) for name in planned.updated}
        compared = sublet.compare(unplanned, planned, feeds)
        assert compared.differences == ()
        for name, content in before.items():
            assert np.array_equal(planned.state(name), content)
        planned(feeds)
    planned.close()


def test_compare_sees_a_state_that_differs() -> None:
    one, other = built(SUBTRACT), built(updating("%n: f32[16] = onnx.Add(%w, %x)", "%w = %n"), UNPLANNED)
    assert [d.partition(":")[0] for d in sublet.compare(other, one, {"x": X, "flag": NO}).differences] == 3 * [
        "state w"
    ]


def test_runs_that_are_watched_or_measured() -> None:
    """Watching leaves the state as it was; measuring runs twice and counts as one run."""
    executable, feeds = built(SUBTRACT), {"x": X, "flag": NO}
    executable.run_watched(feeds, Profile(executable).watch)
    sublet.run_poisoned(executable, feeds)
    assert np.array_equal(executable.state("w"), W)
    executable.measured(feeds)
    assert np.array_equal(executable.state("w"), W - X)


CACHE = parse(
    """graph @cache(%cache: f32[4,2], %row: f32[1,2], %at: i64[1,1]) {
      weights %axes: i64[1] = [0]
      %next: f32[4,2] = onnx.ScatterND(%cache, %at, %row)
      %sum: f32[2] = onnx.ReduceSum(%next, %axes) {keepdims = 0}
      update %cache = %next
      return %sum
    }"""
)


@pytest.mark.parametrize("io", ["arena", "bound"])
def test_an_updated_input_is_given_once(io: Any) -> None:
    executable = sublet.compile(CACHE, backend="reference", options=Options(io=io))
    with pytest.raises(RunError, match="the input 'row' is missing"):
        executable(cache=np.zeros((4, 2), np.float32), at=np.array([[0]]))
    with pytest.raises(RunError, match="the input 'cache' is missing"):
        executable(row=np.zeros((1, 2), np.float32), at=np.array([[0]]))
    with pytest.raises(RunError, match="'cache' has no content yet"):
        executable.state("cache")
    for _ in range(2):  # given again it starts anew
        total = np.zeros(2, np.float32)
        given: dict[str, Any] = {"cache": np.zeros((4, 2), np.float32)}
        for at in range(4):
            row = RNG.integers(0, 9, (1, 2)).astype(np.float32)
            total += row[0]
            assert np.array_equal(executable(given, row=row, at=np.array([[at]]))["sum"], total)
            given = {}
    assert executable.copied_bytes == 0


def test_state_is_set_and_mistakes_are_told() -> None:
    executable, feeds = built(SUBTRACT), {"x": X, "flag": NO}
    executable.set_state("w", V)
    executable(feeds)
    assert np.array_equal(executable.state("w"), V - X)
    executable.state("w")[:] = 0
    assert np.array_equal(executable.state("w"), V - X), "state is a copy"
    with pytest.raises(RunError, match="no run updates 'v'; updated values: 'w'"):
        executable.state("v")
    with pytest.raises(RunError, match=r"state w: must be f32\[16\]"):
        executable.set_state("w", np.zeros(3, np.float32))


def test_state_moves_into_an_arena_of_the_caller() -> None:
    executable, feeds = built(SUBTRACT, Options(weights="arena")), {"x": X, "flag": NO}
    executable(feeds)
    executable.bind("arena", aligned_bytes(executable.arena_bytes, 64))
    executable(feeds)
    assert np.array_equal(executable.state("w"), W - X - X)


def test_a_bound_weight_is_updated_in_the_callers_memory() -> None:
    executable, mine = built(SUBTRACT), V.copy()
    with pytest.raises(RunError, match="is read-only"):
        executable.bind("w", np.frombuffer(V.tobytes(), np.float32))
    executable.bind("w", mine)
    executable(x=X, flag=NO)
    assert np.array_equal(mine, V - X)
    mine[:] = W
    executable(x=X, flag=NO)
    assert np.array_equal(executable.state("w"), mine)
    assert np.array_equal(mine, W - X)


def test_a_view_of_the_state_may_be_an_input() -> None:
    executable = built(updating("%n: f32[16] = onnx.Sub(%w, %x)", "%w = %n, %x = %w", "%n"))
    new = executable.views(x=X, flag=NO)["n"]
    assert np.array_equal(executable(x=new, flag=NO)["n"], np.zeros(16, np.float32))
    assert np.array_equal(executable.state("x"), W - X)
