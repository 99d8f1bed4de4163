"""Gradients of straight lines: sums, views, what is left out, what has no gradient, and the memory of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sublet
from sublet.analysis.options import Options
from sublet.base.errors import GradientError
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.packing import STRATEGIES
from sublet.passes.autodiff import gradients
from sublet.planning.pipeline import plan_memory
from tests.passes.differences import check, run, value_of

EVERYWHERE = Options(weights="arena")
"""As NNC counts: inputs, outputs and constants are in the arena."""


def differentiated(graph: Graph, of: str, *wrt: str) -> Graph:
    """The graph with the gradients of the sum of `of`."""
    return gradients(graph, [value_of(graph, of)], [value_of(graph, name) for name in wrt])[0]


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.walk()]


SHARED = parse("""
graph @shared(%x: f64[4], %y: f64[4]) {
  %a: f64[4] = nn.mul(%x, %y)
  %b: f64[4] = nn.exp(%a)
  %c: f64[4] = nn.add(%b, %a)
  %d: f64[4] = nn.mul(%c, %c)
  %e: f64[4] = nn.sub(%d, %a)
  return %e, %b
}
""")


@pytest.mark.parametrize("strategy", [*STRATEGIES, "auto"])
def test_shared_expressions(strategy: str) -> None:
    feeds = {"x": np.array([0.3, -0.5, 0.7, 1.1]), "y": np.array([-0.2, 0.4, 0.9, 0.1])}
    check(
        SHARED, ["e", "b"], ["x", "y"], feeds, orders=3 if strategy == "auto" else 1, options=Options(strategy=strategy)
    )


def test_square_and_logarithm_in_a_third_of_the_memory_of_nnc() -> None:
    graph = parse("""
    graph @g(%x: f32[1]) {
      %square: f32[1] = nn.square(%x)
      %over: f32[1] = nn.reciprocal(%x)
      %log: f32[1] = nn.log(%over)
      %sum: f32[1] = nn.add(%square, %log)
      return %sum
    }
    """)
    graph = differentiated(graph, "sum", "x")
    _, slope = run(graph, {"x": np.array([0.84], np.float32)})
    assert slope[0] == pytest.approx(2 * 0.84 - 1 / 0.84, rel=1e-6)
    assert plan_memory(graph, EVERYWHERE).arena_bytes <= 576
    assert plan_memory(graph).arena_bytes <= 196


def test_what_does_not_depend_on_it_has_zeros() -> None:
    graph = parse("graph @g(%x: f32[1], %y: f32[40]) { %z: f32[1] = nn.exp(%x) return %z }")
    graph = differentiated(graph, "z", "y", "x")
    _, by_y, by_x = run(graph, {"x": np.ones(1, np.float32), "y": np.ones(40, np.float32)})
    assert not by_y.any()
    assert by_x[0] == pytest.approx(np.e, rel=1e-6)


def test_of_itself_and_of_an_inner_value() -> None:
    graph = parse("graph @g(%x: f64[2]) { %a: f64[2] = nn.sin(%x) %b: f64[2] = nn.exp(%a) return %b }")
    a, b = value_of(graph, "a"), value_of(graph, "b")
    graph, _ = gradients(graph, [b], [a, b])
    x = np.array([0.4, -0.1])
    _, by_a, by_b = run(graph, {"x": x})
    np.testing.assert_allclose(by_a, np.exp(np.sin(x)))
    np.testing.assert_array_equal(by_b, np.ones(2))


def test_by_a_weight_and_given_seeds() -> None:
    graph = parse("graph @g(%x: f64[2], %s: f64[2]) { weights %w: f64[2] %a: f64[2] = nn.mul(%x, %w) return %a }")
    graph, (grad,) = gradients(graph, [value_of(graph, "a")], [value_of(graph, "w")], [value_of(graph, "s")])
    assert graph.outputs[-1] == grad
    x, s = np.array([2.0, 3.0]), np.array([5.0, 7.0])
    np.testing.assert_array_equal(run(graph, {"x": x, "s": s, "w": np.ones(2)})[1], x * s)


def test_only_what_lies_between_is_visited() -> None:
    """nn.sgd and nn.argmax have no gradient, and are not on the way."""
    graph = parse("""
    graph @g(%x: f64[4], %w: f64[4], %lr: f32[]) {
      %new: f64[4], _ = nn.sgd(%w, %x, %lr) {momentum = 0.0, dampening = 0.0, decay = 0.0, nesterov = 0}
      %which: i64[] = nn.argmax(%x) {axis = 0, keepdims = 0}
      %y: f64[4] = nn.exp(%x)
      %z: f64[4] = nn.mul(%y, %new)
      return %z, %which
    }
    """)
    graph, _ = gradients(graph, [value_of(graph, "y")], [value_of(graph, "x")])
    made = [node for node in graph.nodes if node.name.startswith("grad/")]
    assert [node.op for node in made] == ["nn.mul"]


def plus(after: str, *, size: int = 2) -> str:
    return f"graph @g(%x: f64[{size}], %c: f64[{size}]) {{ %y: f64[{size}] = nn.add(%x, %c) {after} }}"


def part(name: str, whole: str, begin: int, end: int) -> str:
    attrs = f"{{starts = [{begin}], ends = [{end}], steps = [1]}}"
    return f"%{name}: f64[{end - begin}] = nn.slice(%{whole}) {attrs}"


VIEWS = {
    "slices cover the value": (
        plus(
            f"{part('a', 'y', 0, 1)} {part('b', 'y', 1, 2)} %e: f64[1] = nn.exp(%b) "
            "%z: f64[1] = nn.add(%a, %e) return %z"
        ),
        640,
        {"nn.concat": 1, "nn.fill": 0},
    ),
    "a slice covers half of it": (
        plus(f"{part('b', 'y', 1, 2)} %z: f64[1] = nn.exp(%b) return %z"),
        640,
        {"nn.concat": 1, "nn.fill": 0},
    ),
    "slices overlap": (
        plus(
            f"{part('a', 'y', 0, 2)} {part('b', 'y', 1, 3)} %e: f64[2] = nn.exp(%b) "
            "%z: f64[2] = nn.mul(%a, %e) return %z",
            size=3,
        ),
        512,
        {"nn.concat": 1, "nn.add": 2, "nn.fill": 0},
    ),
    "the whole and a slice of it": (
        plus(
            f"{part('a', 'y', 1, 3)} %e: f64[2] = nn.exp(%a) %f: f64[4] = nn.sin(%y) "
            "%s: f64[] = nn.sum(%e) {axes = [], keepdims = 0} %z: f64[4] = nn.mul(%f, %s) return %z",
            size=4,
        ),
        640,
        {"nn.concat": 1},
    ),
    "many slices with gaps, in any order": (
        plus(
            f"{part('a', 'y', 70, 90)} {part('b', 'y', 0, 20)} {part('k', 'y', 30, 50)} {part('d', 'y', 30, 50)}"
            "%e: f64[20] = nn.mul(%a, %b) %f: f64[20] = nn.mul(%k, %d) %z: f64[20] = nn.mul(%e, %f) return %z",
            size=100,
        ),
        1536,
        {"nn.concat": 1, "nn.fill": 1},
    ),
    "a split": (
        plus(
            "%a: f64[1], %b: f64[2] = nn.split(%y) {axis = 0, sizes = [1, 2]} %z: f64[2] = nn.mul(%a, %b) return %z",
            size=3,
        ),
        640,
        {"nn.concat": 1},
    ),
}


def count(graph: Graph, op: str) -> int:
    return ops(graph).count(op)


@pytest.mark.parametrize("name", VIEWS)
def test_slices(name: str) -> None:
    text, most, expected = VIEWS[name]
    graph = parse(text)
    size = value_of(graph, "x").spec.shape[0]  # type: ignore[union-attr]
    feeds = {"x": np.linspace(-1, 1, size), "c": np.linspace(0.5, 1, size)}
    first = check(graph, ["z"], ["x"], feeds)
    assert {op: count(first, op) for op in expected} == expected
    single = differentiated(parse(text.replace("f64", "f32")), "z", "x")
    assert plan_memory(single, EVERYWHERE).arena_bytes <= most


def test_slices_along_several_axes() -> None:
    graph = parse("""
    graph @g(%x: f64[4,6]) {
      %a: f64[2,6] = nn.slice(%x) {starts = [1, 0], ends = [3, 6], steps = [1, 1]}
      %b: f64[4,2] = nn.slice(%x) {starts = [0, 2], ends = [4, 4], steps = [1, 1]}
      %c: f64[1,2] = nn.slice(%x) {starts = [3, 4], ends = [4, 6], steps = [1, 1]}
      %s: f64[2,2] = nn.slice(%x) {starts = [0, 0], ends = [4, 6], steps = [2, 4]}
      %p: f64[4,6] = nn.mul(%x, %x)
      %d: f64[] = nn.sum(%b) {axes = [], keepdims = 0}
      %e: f64[2,6] = nn.mul(%a, %d)
      %f: f64[] = nn.sum(%c) {axes = [], keepdims = 0}
      %g: f64[2,6] = nn.mul(%e, %f)
      %h: f64[] = nn.sum(%s) {axes = [], keepdims = 0}
      %i: f64[2,6] = nn.mul(%g, %h)
      return %i, %p
    }
    """)
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, (4, 6))}
    check(graph, ["i"], ["x"], feeds, tolerance=1e-5)
    check(graph, ["i", "p"], ["x"], feeds, orders=1, tolerance=1e-5)


def test_constant_rows() -> None:
    graph = parse("""
    graph @g(%x: f64[3,2]) {
      weights %one: i64[] = [1], %two: i64[] = [2]
      %a: f64[2] = nn.select(%x, %one)
      %b: f64[2] = nn.select(%x, %two)
      %c: f64[2] = nn.mul(%a, %b)
      %d: f64[2] = nn.mul(%a, %c)
      return %d
    }
    """)
    first = check(graph, ["d"], ["x"], {"x": np.arange(6.0).reshape(3, 2) / 5})
    assert count(first, "nn.index_select_gradient") == 0


def refused(graph: Graph, of: str, wrt: str) -> str:
    with pytest.raises(GradientError) as error:
        differentiated(graph, of, wrt)
    return str(error.value)


BAD = parse("""
graph @bad(%x: f32[4], %n: i64[4], %key: i64[], %lr: f32[]) {
  %y: f32[4] = nn.exp(%x)
  %r: f32[4] = nn.random_normal(%key) {dtype = "f32", mean = 0.0, shape = [4], std = 1.0, stream = 0}
  %new: f32[4], _ = nn.sgd(%y, %x, %lr) {momentum = 0.0, dampening = 0.0, decay = 0.0, nesterov = 0} @update
  %z: f32[4] = nn.mul(%new, %r)
  return %z
}
""")


@pytest.mark.parametrize(
    ("of", "wrt", "words"),
    [
        ("n", "x", ["%n is i64[4]", "only floating-point"]),
        ("y", "n", ["%n is i64[4]", "only floating-point"]),
        ("r", "x", ["%r (<text>:4)", "nn.random_normal", "no gradient"]),
        ("z", "r", ["%r (<text>:4)", "nn.random_normal", "no gradient"]),
        ("z", "y", ["node update (<text>:5)", "nn.sgd has no gradient"]),
    ],
)
def test_what_has_no_gradient(of: str, wrt: str, words: list[str]) -> None:
    message = refused(BAD, of, wrt)
    assert all(word in message for word in words), message


def test_values_of_other_graphs_and_seeds_that_do_not_fit_are_refused() -> None:
    x, y = value_of(BAD, "x"), value_of(BAD, "y")
    other: Any = sublet.Value("other", x.spec)
    with pytest.raises(GradientError, match="%other is not a value of the graph @bad"):
        gradients(BAD, [y], [other])
    with pytest.raises(GradientError, match="expected f32"):
        gradients(BAD, [y], [x], [value_of(BAD, "lr")])
    with pytest.raises(GradientError, match="pass one seed for each value"):
        gradients(BAD, [y], [x], [])
