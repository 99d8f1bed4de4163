"""Graphs written in Python: what they compute, and that mistakes are told by the line that made them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.errors import GraphError, SpecError
from sublet.ir.graph import While
from sublet.tensor import DType, Unplannable

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def test_arithmetic_is_numpys() -> None:
    g = sublet.Graph()
    x, w = g.input("x", (3, 4)), g.parameter("w", (4, 2), initial=np.arange(8).reshape(4, 2))
    y = (2 - x / 4) @ w * 0.5 + abs(-x).sum(1, keepdims=True)
    g.output("y", y)
    g.output("big", (y > 1) & ~(y >= 5))
    found = sublet.compile(g)(x=X)
    expected = (2 - X / 4) @ np.arange(8, dtype=np.float32).reshape(4, 2) * 0.5 + np.abs(X).sum(1, keepdims=True)
    np.testing.assert_allclose(found["y"], expected, rtol=1e-6)
    np.testing.assert_array_equal(found["big"], (expected > 1) & ~(expected >= 5))


def test_slices_reshapes_and_types() -> None:
    g = sublet.Graph()
    x = g.input("x", (3, 4))
    g.output("cut", x[1:, ::2])
    g.output("row", x[-1])
    g.output("one", x[0, 3])
    g.output("flat", x.reshape(-1, 2))
    g.output("turned", x.T.astype("float64"))
    found = sublet.compile(g)(x=X)
    np.testing.assert_array_equal(found["cut"], X[1:, ::2])
    np.testing.assert_array_equal(found["row"], X[-1])
    assert found["one"] == X[0, 3]
    np.testing.assert_array_equal(found["flat"], X.reshape(-1, 2))
    assert found["turned"].dtype == np.float64
    np.testing.assert_array_equal(found["turned"], X.T)


def test_loop_over_a_sequence() -> None:
    g = sublet.Graph()
    xs = g.input("xs", (3, 4))
    with g.while_({"h": g.constant(np.zeros(4, np.float32))}, over={"x": xs}) as loop:
        h = loop["h"] + loop["x"] * loop.counter.astype("f32")
        loop.next(h=h)
        loop.stack(hs=h)
    g.output("h", loop["h"])
    g.output("hs", loop["hs"])
    expected = np.cumsum(X * np.arange(3, dtype=np.float32)[:, None], 0)
    executable = sublet.compile(g)
    for run in (executable, lambda xs: sublet.run_poisoned(executable, {"xs": xs})):
        found = run(xs=X)
        np.testing.assert_allclose(found["hs"], expected, rtol=1e-6)
        np.testing.assert_allclose(found["h"], expected[-1], rtol=1e-6)


def test_loop_backwards_takes_the_last_step_first_and_stacks_from_the_end() -> None:
    g = sublet.Graph()
    with g.while_({"h": g.input("h", (4,))}, over={"x": g.input("xs", (3, 4))}, backwards=True) as loop:
        loop.next(h=loop["h"] + loop["x"])
        loop.stack(hs=loop["h"])
    g.output("hs", loop["hs"])
    found = sublet.compile(g)(h=np.zeros(4, np.float32), xs=X)["hs"]
    np.testing.assert_allclose(found, [X[2] + X[1], X[2], np.zeros(4)], rtol=1e-6)


def test_check_ends_a_loop_and_max_trips_bounds_what_it_stacks() -> None:
    for most in (None, 10):
        g = sublet.Graph()
        with g.while_({"h": g.input("h")}, max_trips=most) as loop:
            loop.check(loop["h"] < 100)
            doubled = loop["h"] * 2
            loop.next(h=doubled)
            loop.stack(hs=doubled)
        g.output("h", loop["h"])
        g.output("hs", loop["hs"])
        (node,) = g.model().graph.nodes
        assert isinstance(node, While)
        (stacked,) = node.stacked
        assert stacked is not None
        assert isinstance(stacked.spec, Unplannable) == (most is None)
        found = sublet.compile(g)(h=np.float32(7))
        assert found["h"] == 112
        assert found["hs"].tolist() == [14, 28, 56, 112]


def test_branch_and_fallback() -> None:
    g = sublet.Graph()
    x, index = g.input("x", (4,)), g.input("index", (), "i64")
    with g.case_of(index, fallback=(x, x * 0)) as case:
        for factor in (2, 3):
            with case.arm():
                case.give(x * factor, x + factor)
    g.output("a", case[0])
    g.output("b", case[1])
    executable = sublet.compile(g)
    for index_now, factor in ((0, 2), (1, 3)):
        found = executable(x=X[0], index=np.int64(index_now))
        np.testing.assert_allclose(found["a"], X[0] * factor)
        np.testing.assert_allclose(found["b"], X[0] + factor)
    assert executable(x=X[0], index=np.int64(-1))["b"].tolist() == [0] * 4


def test_state_stays_from_run_to_run() -> None:
    g = sublet.Graph()
    total = g.state("total", (4,))
    g.update(total, total + g.input("x", (4,)))
    executable = sublet.compile(g)
    for _ in range(3):
        executable(x=X[0])
    np.testing.assert_allclose(executable.state("total"), 3 * X[0], rtol=1e-6)


def test_nodes_know_the_line_and_the_scope() -> None:
    g = sublet.Graph()
    with g.scope("layer1"), g.scope("inner"):
        y = nn.relu(g.input("x", (2,)))
    g.output("y", y)
    (node,) = g.model().graph.nodes
    assert re.fullmatch(r".*test_graph\.py:\d+", node.source)
    assert node.name == "layer1/inner/relu"


def test_every_command_is_a_function_with_a_signature() -> None:
    assert "clamp" in dir(nn)
    assert str(__import__("inspect").signature(nn.clamp)) == "(x, /, *, low, high)"
    with pytest.raises(AttributeError, match=r"no command nn\.nothing"):
        nn.nothing  # noqa: B018


def _bare() -> tuple[sublet.Graph, Any]:
    g = sublet.Graph()
    return g, g.input("x", (3, 4))


def _leaked(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2) as loop:
        inner = loop["h"] * 2
        loop.next(h=inner)
    nn.relu(inner)


def _no_next(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2):
        pass


def _endless(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}) as loop:
        loop.next(h=loop["h"])


def _changed_shape(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2) as loop:
        loop.next(h=loop["h"].sum(0))


def _arms_differ(g: sublet.Graph, x: Any) -> None:
    with g.case_of(x.sum() > 0) as case:
        with case.arm():
            case.give(x)
        with case.arm():
            case.give(x.sum(0))


def _arm_without_result(g: sublet.Graph, x: Any) -> None:
    with g.case_of(x.sum() > 0) as case, case.arm():
        pass


def _inner_input(g: sublet.Graph, x: Any) -> None:
    with g.while_({"h": x}, rounds=2):
        g.input("late", (2,))


MISTAKES: list[tuple[Callable[[Any, Any], Any], str]] = [
    (lambda g, x: x + g.input("y", (3,)), r"nn\.add: f32\[3,4\] and f32\[3\] cannot be broadcast"),
    (lambda g, x: x + g.input("y", (3, 4), "f64"), "their types must be equal; see nn.cast"),
    (lambda g, x: nn.relu(x, slope=1), "no attribute 'slope'"),
    (lambda g, x: nn.clamp(x, low=0), "needs the attribute 'high'"),
    (lambda g, x: g.input("x", (2,)), "the name 'x' is taken"),
    (lambda g, x: g.input("y", (2, -1)), "negative dimension"),
    (lambda g, x: g.input("y", 3), "must be a sequence of integers"),
    (lambda g, x: g.input("y", (), "f33"), "unknown data type 'f33'"),
    (lambda g, x: bool(x), "has no content yet: branch with g.case_of"),
    (lambda g, x: list(x), "cannot be iterated"),
    (lambda g, x: x[5], "there is no index 5 along axis 0"),
    (lambda g, x: x[::-1], "step -1 along axis 0 is not positive"),
    (lambda g, x: x.reshape(5, -1), "12 elements"),
    (lambda g, x: nn.add(x, sublet.Graph().input("x", (3, 4))), "belongs to another graph"),
    (lambda g, x: g.update(x * 2, x), "is no parameter and no input"),
    (lambda g, x: g.update(x, x.sum()), "they differ"),
    (lambda g, x: g.parameter("w", (3,), initial=np.zeros(4)), r"has the shape \[4\]"),
    (_leaked, "was made in the body of the loop at .* and is not known outside"),
    (_no_next, "carries h: say loop.next"),
    (_endless, "never ends: give it rounds"),
    (_changed_shape, "cannot become Tensor"),
    (_arms_differ, "every way through the branch gives"),
    (_arm_without_result, "gives nothing: say case.give"),
    (_inner_input, "is declared outside of loops and branches"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_told_by_their_line(mistake: Callable[[Any, Any], Any], message: str) -> None:
    g, x = _bare()
    with pytest.raises(SpecError, match=message) as caught:
        mistake(g, x)
    assert re.match(r".*test_graph\.py:\d+: ", str(caught.value))


def test_types_by_any_of_their_names() -> None:
    g = sublet.Graph()
    assert [g.input(f"x{i}", (), name).dtype for i, name in enumerate(("f32", "float32", DType.F32))] == [DType.F32] * 3


def test_a_graph_that_is_not_legal_is_told_by_rule() -> None:
    g = sublet.Graph()
    x = g.input("x", (2,))
    g.update(x, x * 2)
    g.output("x", x)
    with pytest.raises(GraphError, match="update"):
        g.model()
