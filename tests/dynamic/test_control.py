"""Loops and branches of a dynamic graph: one command each, the same at once and remembered, and differentiated."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.base.errors import KernelError, SpecError

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def rolled(d: Any, x: Any, w: Any, rounds: int) -> tuple[Any, Any]:
    with d.while_({"h": x}, rounds=rounds) as loop:
        h = nn.tanh(loop["h"] @ w)
        loop.next(h=h)
        loop.stack(sums=h.sum(0))
    return loop["h"], loop["sums"]


def unrolled(d: Any, x: Any, w: Any, rounds: int) -> tuple[Any, Any]:
    sums = []
    for _ in range(rounds):
        x = nn.tanh(x @ w)
        sums.append(x.sum(0, keepdims=True))
    return x, nn.concat(sums, axis=0)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_loop_is_its_rounds_and_so_are_its_gradients_and_theirs(backend: str) -> None:
    d = sublet.DynamicGraph(backend)
    x, w = d.tensor(X), d.parameter("w", initial=np.eye(4) * 0.5)
    found = []
    for way in (rolled, unrolled):
        h, sums = way(d, x, w, 3)
        by_x, by_w = sublet.gradients((h * h).sum() + (sums * X[0]).sum(), [x, w])
        (twice,) = sublet.gradients((by_w * by_w).sum(), [w])
        found.append([one.numpy() for one in (h, sums, by_x, by_w, twice)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def chosen(d: Any, x: Any, w: Any) -> Any:
    with d.case_of(x.sum() > 0) as case:
        with case.arm():
            case.give(x * 2)
        with case.arm():
            with d.while_({"y": x}, rounds=2) as loop:
                loop.next(y=loop["y"] * w)
            case.give(loop["y"])
    return case[0]


def test_of_a_branch_one_arm_is_computed_and_differentiated() -> None:
    d = sublet.DynamicGraph()
    w = d.parameter("w", initial=3.0)
    for sign, expected, slope in ((-1, 2, 0), (1, 9, 6)):
        x = d.tensor(np.float32(sign))
        y = chosen(d, x, w)
        by_x, by_w = sublet.gradients(y, [x, w])
        assert (float(y), float(by_x), float(by_w)) == (sign * expected, expected, slope)


def test_a_loop_that_ends_by_a_check_counts_its_rounds() -> None:
    d = sublet.DynamicGraph()

    def halved(x: Any) -> tuple[Any, Any]:
        with d.while_({"x": x, "n": d.tensor(0)}, max_trips=20) as loop:
            loop.check(loop["x"] > 1)
            loop.next(x=loop["x"] / 2, n=loop["n"] + 1)
        return loop["x"], loop["n"]

    remembered = d.jit(halved)
    for start, rounds in ((8.0, 3), (1.0, 0), (1000.0, 10)):
        x = d.tensor(np.float32(start))
        last, n = halved(x)
        assert (float(last), int(n)) == (start / 2**rounds, rounds)
        (slope,) = sublet.gradients(last, [x])
        assert float(slope) == 2.0**-rounds
        assert [float(one) for one in remembered(x)] == [start / 2**rounds, rounds]
    assert (remembered.replayed, remembered.planned) == (2, 1)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_loop_that_ends_by_a_check_may_stack_rows_and_be_differentiated(backwards: bool) -> None:
    """Rows of rounds that were not made are zeros where it is computed at once; its tape holds such rows too."""
    d = sublet.DynamicGraph()

    def squared(x: Any) -> tuple[Any, Any, Any]:
        with d.while_({"x": x, "n": d.tensor(0)}, max_trips=6, backwards=backwards) as loop:
            loop.check(loop["x"].sum() < 100)
            loop.next(x=loop["x"] * loop["x"], n=loop["n"] + 1)
            loop.stack(seen=loop["x"] * 1)
        (slope,) = sublet.gradients(loop["x"].sum(), [x])
        return loop["x"], loop["seen"], slope

    remembered = d.jit(squared)
    for start, rounds in ((2.0, 3), (100.0, 0), (3.0, 2), (1.5, 4)):
        seen = [start ** (2**k) for k in range(rounds)]
        right = np.array([*([0.0] * (6 - rounds)), *seen[::-1]] if backwards else [*seen, *([0.0] * (6 - rounds))])
        for way in (squared, remembered):
            last, rows, slope = way(d.tensor(np.full(2, start)))
            assert last.tolist() == [start ** (2**rounds)] * 2
            assert np.allclose(slope.numpy(), 2**rounds * start ** (2**rounds - 1))
            made = slice(6 - rounds, None) if backwards else slice(rounds)
            assert rows.numpy()[made].tolist() == [[one] * 2 for one in right[made]]
            assert way is remembered or rows.numpy()[:, 0].tolist() == right.tolist()


def unrecorded(d: Any, x: Any) -> Any:
    with d.no_grad():
        return x * 1


def unrecorded_arm(d: Any, x: Any) -> Any:
    with d.no_grad():
        with d.case_of(x.sum() > 0) as case:
            with case.arm():
                case.give(x * 1)
            with case.arm():
                case.give(x)
        return case[0]


DETACHED: dict[str, Callable[[Any, Any], Any]] = {
    "detach": lambda d, x: x.detach(),
    "stop_gradient": lambda d, x: nn.stop_gradient(x),
    "of the graph": lambda d, x: d.stop_gradient(x),
    "no_grad": unrecorded,
    "an arm in no_grad": unrecorded_arm,
}


@pytest.mark.parametrize("way", DETACHED)
def test_no_gradient_goes_through_what_is_detached_in_a_body(way: str) -> None:
    """h = c h twice, where c is h with no gradient: x^4, whose slope is x^3."""

    def twice(d: Any, x: Any) -> Any:
        with d.while_({"h": x}, rounds=2) as loop:
            loop.next(h=DETACHED[way](d, loop["h"]) * loop["h"])
        return sublet.gradients(loop["h"].sum() + (DETACHED[way](d, x) * x).sum(), [x])[0]

    d = sublet.DynamicGraph()
    remembered = d.jit(lambda x: twice(d, x))
    for compute in (lambda x: twice(d, x), remembered, remembered, remembered):
        assert compute(d.tensor([2.0, 3.0])).tolist() == [8 + 2, 27 + 3]
    if way in ("detach", "stop_gradient"):
        g = sublet.Graph()
        x = g.input("x", (2,))
        g.output("slope", twice(g, x))
        assert sublet.compile(g)(x=[2.0, 3.0])["slope"].tolist() == [8 + 2, 27 + 3]


@pytest.mark.parametrize("look", [False, True])
def test_a_remembered_step_with_loops_and_branches_is_one_plan(look: bool) -> None:
    """Recorded, replayed, looked at in between: the same losses and parameters."""
    outcomes = []
    for eager in (True, False):
        d = sublet.DynamicGraph()
        w = d.parameter("w", initial=np.eye(4) * 0.4)

        def step(x: Any, d: Any = d, w: Any = w) -> Any:
            h, sums = rolled(d, x, w, 3)
            loss = (chosen(d, h, w[0, 0]) * X).sum() + sums.sum()
            if look and loss > 1e9:
                raise AssertionError
            d.minimize(loss, sublet.SGD(0.1, momentum=0.5))
            return loss

        remembered = d.jit(step)
        call = remembered.eagerly if eager else remembered
        losses = [float(call(d.tensor(X + i % 2))) for i in range(6)]
        outcomes.append((losses, w.numpy()))
    np.testing.assert_allclose(outcomes[0][0], outcomes[1][0], rtol=1e-5)
    np.testing.assert_allclose(outcomes[0][1], outcomes[1][1], rtol=1e-5, atol=1e-7)
    assert (remembered.replayed, remembered.planned) == (5, 1)
    ops = {node.op for node in remembered.root.latest_end().plan.executable.graph.nodes}
    assert {"while", "case"} <= ops


def test_another_body_is_another_way() -> None:
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, factor: float) -> Any:
        with d.while_({"x": x}, rounds=2) as loop:
            loop.next(x=loop["x"] * factor)
        return loop["x"]

    for factor in (2.0, 3.0, 2.0, 3.0):
        assert float(step(d.tensor(np.float32(1)), factor)) == factor**2
    assert (step.recorded_calls, step.replayed) == (2, 2)
    assert re.search(rf"{re.escape(__file__)}:[0-9]+: while: the recorded call has another loop body", step.explain())


def test_layers_with_loops_are_those_of_the_static_graph() -> None:
    g, d = sublet.Graph(), sublet.DynamicGraph()
    xs = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    hs, h, _ = layers.lstm(g.input("xs", xs.shape), 4, name="lstm")
    loss = nn.square(hs).sum() + layers.dense(h, 1, name="dense").sum()
    static = sublet.compile(sublet.train_step(loss, g.parameters, sublet.SGD(0.1)))

    @d.jit
    def step(xs: Any) -> Any:
        hs, h, _ = layers.lstm(xs, 4, name="lstm")
        loss = nn.square(hs).sum() + layers.dense(h, 1, name="dense").sum()
        d.minimize(loss, sublet.SGD(0.1))
        return loss

    for _ in range(4):
        np.testing.assert_allclose(float(step(d.tensor(xs))), static(xs=xs)["loss"], rtol=1e-5)
    for name, tensor in d.weights.items():
        np.testing.assert_allclose(tensor.numpy(), static.state(name), rtol=1e-4, atol=1e-6)


def test_random_numbers_in_a_loop_are_drawn_outside_or_in_each_round() -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(np.ones(200, np.float32))
    with d.while_({"x": x}, rounds=2) as loop:
        key = d.key() + loop.counter
        loop.stack(rows=layers.dropout(x, 0.5, key=key, name="drop"))
        loop.next(x=loop["x"])
    first, second = loop["rows"].numpy()
    assert (first != second).any()


def in_body(d: Any, x: Any, use: Callable[[Any, Any], Any]) -> None:
    with d.while_({"x": x}, rounds=2) as loop:
        use(d, loop["x"])
        loop.next(x=loop["x"] * 2)


def kept_from(d: Any, x: Any) -> Any:
    kept: list[Any] = []
    in_body(d, x, lambda d, inner: kept.append(inner * 3))
    return kept[0]


def used_in_another(d: Any, x: Any) -> None:
    kept = kept_from(d, x)
    in_body(d, x, lambda d, inner: inner + kept)


MISTAKES: dict[str, Callable[[Any, Any], Any]] = {
    "belongs to the body of the loop at .* and cannot be used outside: use a result": lambda d, x: kept_from(d, x) + 1,
    "to the body of the loop .* and cannot be used outside": lambda d, x: x + kept_from(d, x),
    "the body of the loop at .*cannot be used outside": lambda d, x: sublet.gradients(kept_from(d, x), [x]),
    "belongs to the body of the loop at .*cannot be used": lambda d, x: used_in_another(d, x),
    "is computed in the body of the loop at .* and cannot be read there": lambda d, x: float(kept_from(d, x)),
    "read a result after the loop or branch": lambda d, x: in_body(d, x, lambda d, y: bool(y.sum() > 0)),
    "a parameter is updated only outside of loops and branches": lambda d, x: in_body(
        d, x, lambda d, y: d.update(x, y)
    ),
    "gradients are computed only outside": lambda d, x: in_body(d, x, lambda d, y: sublet.gradients(y.sum(), [x])),
    "belongs to another graph": lambda d, x: in_body(d, x, lambda d, y: y + sublet.DynamicGraph().tensor(X)),
    "matmul": lambda d, x: in_body(d, x, lambda d, y: y @ y),
    "never ends": lambda d, x: in_loop_without_end(d, x),
    "pass max_trips": lambda d, x: rows_without_end(d, x),
    "is not a Tensor": lambda d, x: d.while_({"x": 1.0}, rounds=1),
}


def in_loop_without_end(d: Any, x: Any) -> None:
    with d.while_({"x": x}) as loop:
        loop.next(x=loop["x"])


def rows_without_end(d: Any, x: Any) -> None:
    with d.while_({"x": x}) as loop:
        loop.check(loop["x"].sum() > 0)
        loop.next(x=loop["x"] - 1)
        loop.stack(rows=loop["x"])


@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_told_by_the_users_line(what: str, remembered: bool) -> None:
    d = sublet.DynamicGraph()
    x = d.tensor(X)
    for _ in range(1 + remembered):
        with pytest.raises(SpecError, match=f"^{re.escape(__file__)}:[0-9]+: ") as raised:
            (d.jit(MISTAKES[what]) if remembered else MISTAKES[what])(d, x)
        assert re.search(what, str(raised.value))
        assert d.calling is None
        assert float((x * 0).sum()) == 0, "the graph goes on"


def test_what_a_body_refuses_is_told_by_its_line() -> None:
    d = sublet.DynamicGraph()
    w = d.parameter("w", initial=X)

    @d.jit
    def step(rows: Any) -> Any:
        with d.while_({"sum": d.tensor(np.float32(0))}, over={"row": rows}) as loop:
            loop.next(sum=loop["sum"] + nn.embedding(w, loop["row"]).sum())
        d.update(w, w * 2)
        return loop["sum"]

    for i in range(3):
        step(d.tensor([0, 1]))
        with pytest.raises(KernelError, match=re.escape(__file__)):
            step(d.tensor([0, 7]))
        np.testing.assert_array_equal(w.numpy(), X * 2.0 ** (i + 1))


def test_plans_of_loops_that_differ_are_not_kept_for_ever() -> None:
    d = sublet.DynamicGraph("reference")
    x = d.tensor(np.float32(1))
    for i in range(70):
        with d.while_({"x": x}, rounds=1) as loop:
            loop.next(x=loop["x"] * float(i))
        assert float(loop["x"]) == i
    assert sum(key[0] == "while" for key in d._eager._used) == 64


def test_a_loop_that_was_made_before_a_call_is_part_of_it() -> None:
    d = sublet.DynamicGraph()
    loops = [d.while_({"x": d.tensor(X)}, rounds=2) for _ in range(2)]

    @d.jit
    def step() -> Any:
        with loops.pop() as loop:
            loop.next(x=loop["x"] * 2)
        return loop["x"]

    for _ in range(2):
        np.testing.assert_array_equal(step().numpy(), X * 4)
    assert step.replayed == 1


def test_gradients_through_many_loops_compute_all_that_is_asked() -> None:
    """Loops that hand out more are other nodes: each gradient has its nodes, whatever Python did with the old ones."""
    d = sublet.DynamicGraph("reference")
    x, y = d.tensor(X), d.tensor(X + 1)
    for count in (1, 2, 4):
        for _ in range(4):
            h = x
            for _ in range(count):
                h, sums = rolled(d, h, d.tensor(np.eye(4, dtype=np.float32) * 0.5), 2)
            by_x, by_h, zero, again = sublet.gradients((h * h).sum() + sums.sum(), [x, h, y, x])
            assert not zero.numpy().any()
            np.testing.assert_allclose(by_h.numpy(), 2 * h.numpy(), rtol=1e-6)
            np.testing.assert_array_equal(by_x.numpy(), again.numpy())
