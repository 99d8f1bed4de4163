"""Scratch memory that kernels ask for, and commands of the user's own: planned, checked and run like any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sublet
from sublet.analysis.options import Options
from sublet.base.errors import GradientError, GraphError, KernelError, RunError, SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph, Node
from sublet.ir.text import parse, to_text
from sublet.ops.op import Share
from sublet.plan import MemoryPlan
from sublet.plan.file import from_json, to_json
from sublet.plan.schedule import serial_schedule
from tests.runtime.networks import CHAIN, LOOP, PythonBackend

W = np.full(16, 3, np.float32)
X = np.arange(16, dtype=np.float32)
E = np.ones(8, np.float32)


def test_kernels_of_operators_with_known_arity_get_scratch() -> None:
    executable = sublet.compile(CHAIN, backend=PythonBackend(scratch=100), weights={"w": W})
    scratch = [node.scratch for node in executable.graph.nodes]
    assert [value.name for value in scratch if value] == ["first.scratch", "second.scratch", "third.scratch"]
    assert executable.memory.scratch == 100
    right = (X * W + X) - X * W
    assert np.array_equal(executable(x=X)["c"], right)
    assert np.array_equal(sublet.run_poisoned(executable, {"x": X})["c"], right)
    assert parse(to_text(executable.graph)) == executable.graph
    assert from_json(to_json(executable.plan)) == executable.plan


def test_scratch_in_a_loop() -> None:
    inputs = {"h0": np.ones(3, np.float32), "xs": np.ones((9, 3), np.float32), "limit": np.array(9)}
    executable = sublet.compile(LOOP, backend=PythonBackend(scratch=64))
    unplanned = sublet.compile(LOOP, backend=PythonBackend(), options=Options(strategy="no_reuse", share=False))
    assert sublet.compare(unplanned, executable, inputs).equal
    assert executable.memory.scratch == 64


def moved(plan: MemoryPlan, value: str, to: str) -> MemoryPlan:
    """The plan with one value where another lies."""
    at = next(place.region.offset for place in plan.placements if place.value == to)
    places = [p if p.value != value else replace(p, region=replace(p.region, offset=at)) for p in plan.placements]
    return replace(plan, placements=tuple(places))


@pytest.mark.parametrize(
    ("over", "rule"), [("a", "input-overwritten"), ("y", "outputs-overlap"), ("kept", "overwritten-value")]
)
def test_the_checker_refuses_scratch_over_what_lives(over: str, rule: str) -> None:
    graph = parse(
        """graph @net(%x: f32[16]) {
          %a: f32[16] = onnx.Exp(%x)
          %kept: f32[16] = onnx.Log(%x)
          %y: f32[16] = onnx.Gelu(%a) scratch %s: u8[64]
          %z: f32[16] = onnx.Add(%y, %kept)
          return %z
        }"""
    )
    plan = sublet.plan_memory(graph)
    assert sublet.check(graph, serial_schedule(graph), plan) == ()
    found = sublet.check(graph, serial_schedule(graph), moved(plan, "s", over))
    assert found
    assert rule == "overwritten-value" or rule in {finding.rule for finding in found}


def scale(x: Any, *, out: Any, factor: int) -> None:
    np.multiply(x, np.float32(factor), out=out)


def smooth(x: Any, *, out: Any, scratch: Any) -> None:
    """A moving sum, which needs a copy of its input."""
    copy = scratch.view(x.dtype).reshape(x.shape)
    copy[...] = x
    out[...] = copy
    out[1:] += copy[:-1]


def halves(x: Any, *, out: Any) -> None:
    out[0][...], out[1][...] = x[:4], x[4:]


def cut_in_two(node: Node) -> tuple[Share, ...]:
    return Share(0, 0, 0), Share(1, 0, 16)


sublet.command("mine.scale", scale, inplace=(0,))
sublet.command("mine.negative", np.negative, inplace=(0,))
sublet.command("mine.smooth", smooth, inplace=(0,), scratch=lambda node: node.uses[0].nbytes)
sublet.command("mine.cut", halves, views=cut_in_two, outputs=(2, 2))
sublet.command("mine.tall", lambda x, out: np.ones((2, 8), np.float32))
sublet.command("mine.double", lambda x, out: x.astype(np.float64))
sublet.command("mine.twice", lambda x, out: x * 2)
sublet.command("mine.beyond", lambda x, out: out.__setitem__(slice(None), np.ones(9)))
sublet.command("mine.one", scale, inputs=(1, 1))

NET = """
graph @net(%x: f32[8]) {
  %a: f32[8] = onnx.Abs(%x)
  %b: f32[8] = mine.scale(%a) {factor = 2}
  %c: f32[8] = mine.smooth(%b)
  %d: f32[8] = mine.negative(%c)
  %e: f32[4], %f: f32[4] = mine.cut(%d)
  %g: f32[4] = onnx.Add(%e, %f)
  return %g
}
"""


@pytest.mark.parametrize("backend", ["reference", "auto"])
def test_commands_are_planned_and_run_like_any_op(backend: str) -> None:
    x = np.linspace(-3, 4, 8, dtype=np.float32)
    executable = sublet.compile(parse(NET), backend=backend, options=Options(alignment=16))
    how = {place.value: place.how for place in executable.plan.placements}
    assert [how[name] for name in "bcdef"] == ["inplace", "inplace", "inplace", "view", "view"]
    assert executable.arena_bytes == 2 * 32
    doubled = 2 * abs(x)
    smoothed = -(doubled + np.concatenate([[0], doubled[:-1]])).astype(np.float32)
    for found in (executable(x=x), sublet.run_poisoned(executable, {"x": x})):
        assert np.array_equal(found["g"], smoothed[:4] + smoothed[4:])
    assert executable.nodes_of_backends["command"] == 3
    assert executable.nodes_of_backends[""] == 1


def net(op: str, output: str = "f32[8]", attrs: str = "") -> Graph:
    return parse(f"graph @net(%x: f32[8]) {{ %y: {output} = {op}(%x) {attrs} return %y }}")


def test_what_a_kernel_returns_is_stored() -> None:
    assert sublet.compile(net("mine.twice"))(x=E)["y"].tolist() == [2] * 8


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            "mine.tall",
            r"node y, mine.tall: the kernel's result is float32\[2, 8\], expected float32\[8\] as planned",
        ),
        ("mine.double", r"result is float64\[8\], expected float32\[8\] as planned"),
        ("mine.beyond", r"node y, mine.beyond .*could not broadcast"),
        ("mine.scale", r"node y, mine.scale .*missing 1 required keyword-only argument: 'factor'"),
    ],
)
def test_what_a_kernel_does_wrong_is_told_with_its_node(op: str, message: str) -> None:
    executable = sublet.compile(net(op))
    with pytest.raises(KernelError, match=message):
        executable(x=E)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scale", "'scale' has no dialect prefix: name it 'prefix.name'"),
        ("mine.", "'mine.' has no dialect"),
        (".scale", "has no dialect"),
        ("onnx.Scale", "the dialect 'onnx' is in use"),
    ],
)
def test_names_that_are_refused(name: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        sublet.command(name, scale)


def test_uses_that_are_refused() -> None:
    with pytest.raises(GraphError, match=r"there is no op 'mine.nothing'; 'mine' has mine.beyond"):
        sublet.plan_memory(net("mine.nothing"))
    graph = parse("graph @net(%x: f32[8]) { %y: f32[8] = mine.one(%x, %x) return %y }")
    with pytest.raises(GraphError, match=r"mine\.one has 2 inputs, expected 1 to 1"):
        sublet.compile(graph)
    with pytest.raises(
        RunError, match=r"node y, mine\.scale: %y is outside.*expected a tensor of known type and shape"
    ):
        sublet.compile(net("mine.scale", 'outside("seq", "no shape")'))


def test_a_second_definition_replaces_the_first() -> None:
    sublet.command("theirs.step", lambda x, out: x + 1)
    first = sublet.compile(net("theirs.step"))
    assert first(x=E)["y"].tolist() == [2] * 8
    sublet.command("theirs.step", lambda x, out: x + 2)
    assert sublet.compile(net("theirs.step"))(x=E)["y"].tolist() == [3] * 8
    assert first(x=E)["y"].tolist() == [2] * 8


def _squared(x: Any, *, factor: float, out: Any) -> None:
    np.multiply(x * x, factor, out=out)


def _by_x(emit: Any, node: Any, grads: Any) -> Any:
    """2 factor x dy, written with another op of the user's."""
    return [emit("own.product", grads[0], node.inputs[0], factor=2 * node.attrs["factor"])]


def _like(x: Any, y: Any = None, **attrs: Any) -> Any:
    return x


def own_ops() -> None:
    sublet.command("own.squared", _squared, inplace=[0], inputs=(1, 1), infer=_like, gradient=_by_x)
    sublet.command(
        "own.product",
        lambda x, y, factor, out: np.multiply(x, y * factor, out=out),
        inputs=(2, 2),
        infer=_like,
        gradient=lambda emit, node, grads: [
            emit("own.product", grads[0], other, factor=node.attrs["factor"]) for other in reversed(node.inputs)
        ],
    )
    sublet.command("own.unknown", np.negative)
    sublet.command("own.wrong", np.negative, infer=lambda x: x.shape)
    sublet.command("own.failing", np.negative, infer=lambda x: x.no_such)
    sublet.command("own.halves", _halved, outputs=(2, 2), infer=_halves)


def _halves(x: Any) -> Any:
    half = TensorSpec(x.dtype, (x.shape[0] // 2,))
    return half, half


def _halved(x: Any, out: Any) -> None:
    half = len(x) // 2
    out[0][:], out[1][:] = x[:half], x[half:]


def test_ops_of_the_users_are_written_and_differentiated_in_python() -> None:
    own_ops()
    g = sublet.Graph()
    x = g.input("x", (8,))
    (y,) = g.apply("own.squared", x, factor=3.0)
    a, b = g.apply("own.halves", y)
    (first,) = sublet.gradients(y.sum(), [x])
    (second,) = sublet.gradients(first.sum(), [x])
    for name, tensor in (("y", y), ("a", a), ("b", b), ("first", first), ("second", second)):
        g.output(name, tensor)
    executable = sublet.compile(g)
    array = np.arange(8, dtype=np.float32)
    found = executable(x=array)
    assert found["y"].tolist() == (3 * array**2).tolist()
    assert [*found["a"], *found["b"]] == found["y"].tolist()
    assert found["first"].tolist() == (6 * array).tolist()
    assert found["second"].tolist() == [6] * 8
    assert np.array_equal(sublet.run_poisoned(executable, {"x": array})["first"], found["first"])


def test_ops_of_the_users_are_computed_at_once_and_remembered() -> None:
    own_ops()
    d = sublet.DynamicGraph()
    w = d.parameter("w", (4,), initial=np.arange(4))

    @d.jit
    def step(x: Any) -> Any:
        (y,) = d.apply("own.squared", w * x, factor=0.5)
        (gradient,) = sublet.gradients(y.sum(), [w])
        return gradient

    for turn in range(4):
        x = np.full(4, turn, np.float32)
        assert step(d.tensor(x)).numpy().tolist() == (np.arange(4) * x * x).tolist()


def test_what_an_op_of_the_users_gives_must_be_known() -> None:
    own_ops()
    x = sublet.Graph().input("x", (8,))
    for op, attrs, words in (
        ("own.unknown", {}, "own.unknown has no shape inference. Pass `infer=`"),
        ("own.wrong", {}, "`infer` returned"),
        ("own.failing", {}, r"own.failing of f32\[8\]: AttributeError"),
        ("own.product", {"factor": 1}, "own.product takes 2 inputs, got 1"),
        ("own.squared", {"factor": None}, "factor = None must be a number"),
        ("own.missing", {}, "there is no op 'own.missing'"),
        ("nobodys.op", {}, "nobodys.op"),
    ):
        with pytest.raises(SpecError, match=words):
            x.graph.apply(op, x, **attrs)
    (y,) = x.graph.apply("own.halves", x)[:1]
    with pytest.raises(GradientError, match=r"own\.halves"):
        sublet.gradients(y.sum(), [x])
