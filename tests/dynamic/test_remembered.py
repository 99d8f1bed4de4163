"""Functions that are remembered: the same results as at once, by one plan, and nothing is computed twice."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.base.errors import GradientError, KernelError, RunError
from tests.dynamic.counted import Counted
from tests.dynamic.programs import disagreement
from tests.dynamic.test_eager import network

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_programs_do_the_same_at_once_remembered_and_in_a_poisoned_arena(first: int) -> None:
    """Thousands: python -m tests.dynamic.programs --programs 10000."""
    for seed in range(first, first + 8):
        assert not disagreement(seed)


@pytest.mark.parametrize("optimizer", [sublet.SGD(0.1, momentum=0.9), sublet.AdamW(0.01)])
def test_a_remembered_step_is_the_static_one(optimizer: Any) -> None:
    """From the second call on: the same losses and parameters, the same arena, and no bytes are moved."""
    random = np.random.default_rng(0)
    x, labels = random.normal(size=(4, 2, 6, 6)).astype(np.float32), random.integers(0, 3, 4)
    g = sublet.Graph()
    inputs = g.input("x", x.shape), g.input("labels", (4,), "i64")
    with g.scope("net"):
        loss = network(*inputs)
    static = sublet.compile(sublet.train_step(loss, g.parameters, optimizer))
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, labels: Any) -> Any:
        with d.scope("net"):
            loss = network(x, labels)
        d.minimize(loss, optimizer)
        return loss

    for _ in range(5):
        found = step(d.tensor(x), d.tensor(labels))
        np.testing.assert_allclose(float(found), static(x=x, labels=labels)["loss"], rtol=2e-5)
    assert (step.replayed, step.recorded_calls, step.planned) == (4, 1, 1)
    assert step.arena_bytes == static.arena_bytes
    assert step.root.latest_end().plan.executable.copied_bytes == 0
    for name, tensor in d.weights.items():
        np.testing.assert_allclose(tensor.numpy(), static.state(name), rtol=2e-3, atol=2e-5)


def test_nothing_is_computed_twice_across_cuts() -> None:
    """Neither when the branch is known, nor when it is taken for the first time, nor when another plan goes on."""
    counted = Counted()
    d = sublet.DynamicGraph(counted)
    w = d.parameter("w", initial=np.ones((4, 4)))

    @d.jit
    def step(x: Any, odd: bool) -> Any:
        y = nn.tanh(nn.tanh(x @ w) @ w)
        if float(y.sum()) > 0:
            return nn.exp(y)
        (by_w,) = sublet.gradients(y.sum(), [w])
        d.update(w, w - by_w * 0)
        return nn.sqrt(abs(y)) if odd else y * 2

    up, down = d.tensor(X[2:]), d.tensor(X[:1])
    expected = {"up": {"nn.tanh": 2, "nn.sum": 1}, "down": {"nn.tanh": 2}}
    for x, odd in (
        (up, 0),
        (up, 0),
        (down, 0),
        (down, 0),
        (up, 0),
        (down, 1),
        (down, 1),
        (down, 0),
        (up, 0),
        (down, 1),
    ):
        counted.since()
        step(x, bool(odd)).numpy()
        runs = counted.since()
        assert runs["nn.tanh"] == 2, step.explain()
        assert runs["nn.exp"] == (x is up)
        for op, count in expected["up" if x is up else "down"].items():
            assert runs[op] == count
        assert sum(runs[op] for op in ("nn.matmul", "nn.linear")) <= (2 if x is up else 6)
    assert (step.recorded_calls, step.replayed, step.planned) == (3, 7, 3)


def test_ways_that_were_seen_are_not_compiled_again() -> None:
    """Stochastic depth: once all sixteen were seen twice, nothing is planned and no memory is taken."""
    d = sublet.DynamicGraph("reference")
    w = [d.parameter(f"w{i}", initial=np.eye(4) * 0.9) for i in range(4)]

    @d.jit
    def step(x: Any, taken: int) -> Any:
        for i in range(4):
            if taken >> i & 1:
                x = nn.tanh(x @ w[i])
        return x.sum()

    def calls(order: Sequence[int]) -> None:
        for taken in order:
            expected = np.linalg.matrix_power(np.eye(4), 1)
            found = float(step(d.tensor(X), taken))
            expected = X
            for _ in range(taken.bit_count()):
                expected = np.tanh(expected * np.float32(0.9))
            np.testing.assert_allclose(found, expected.sum(), atol=1e-5)

    calls([*range(16), *range(16)])
    planned, memory = step.planned, (d.used_bytes, d.free_bytes)
    calls([int(i) for i in np.random.default_rng(0).integers(0, 16, 100)])
    assert (planned, step.planned, step.recorded_calls) == (16, 16, 16)
    assert (d.used_bytes, d.free_bytes) == memory


def test_a_schedule_of_learning_rates_is_planned_at_most_twice() -> None:
    for look in (False, True):
        d = sublet.DynamicGraph()

        @d.jit
        def step(x: Any, rate: float, d: Any = d, look: bool = look) -> Any:
            with d.scope("net"):
                loss = nn.square(layers.dense(x, 2) - 1).mean()
            if look:
                float(loss)
            d.minimize(loss, sublet.SGD(rate))
            return loss

        losses = [float(step(d.tensor(X), 0.5 / (1 + i))) for i in range(100)]
        assert losses == sorted(losses, reverse=True)
        assert step.planned <= 2
        assert step.recorded_calls == 1


def test_plans_beyond_the_number_are_given_up_and_share_one_arena() -> None:
    d = sublet.DynamicGraph(plans=2)

    @d.jit
    def step(x: Any, times: int) -> Any:
        for _ in range(times):
            x = nn.tanh(nn.concat([x, x], axis=0))
        return x.sum()

    for _ in range(4):
        for times in range(5):
            step(d.tensor(X), times)
    assert sum(end.plan is not None for end in step.root.call_ends()) <= 2
    assert d._plans.arena.raw.nbytes <= 1 << 14


def test_misses_are_explained() -> None:
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, axis: int, what: str) -> Any:
        y = x.sum(axis)
        return nn.relu(y) if what == "relu" else y + 1

    for axis, what in ((0, "relu"), (1, "relu"), (1, "add")):
        step(d.tensor(X), axis, what)
    told = step.explain()
    assert "3 recorded" in told
    assert re.search(rf"{re.escape(__file__)}:\d+: nn.sum: the recorded call has axes = \(0,\), not \(1,\)", told)
    assert re.search(rf"{re.escape(__file__)}:\d+: nn.add; the recorded call has nn.relu at ", told)
    step(d.tensor(X[:2]), 1, "relu")
    assert "another f32[3,4] as operand 0, not a tensor from outside, f32[2,4]" in step.explain()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_call_that_raises_leaves_parameters_as_they_were(error: type[BaseException]) -> None:
    d = sublet.DynamicGraph()
    w = d.parameter("w", initial=X)
    kept: list[Any] = []

    @d.jit
    def step(x: Any, fail: int) -> Any:
        (by_w,) = sublet.gradients(nn.square(x - w).sum(), [w])
        d.update(w, w - 0.1 * by_w)
        kept[:] = [w * 2]
        if fail == 1:
            raise error
        if float(w.sum()) > 1e9 or fail == 2:
            raise error
        return by_w

    x = d.tensor(X + 1)
    expected = X.copy()
    for fail in (0, 1, 2, 0, 1, 2, 0, 1, 2, 0):
        if fail:
            with pytest.raises(error):
                step(x, fail)
            if error is ValueError:  # what was made before is what it is
                np.testing.assert_allclose(kept[0].numpy(), 2 * (expected - 0.2 * (expected - X - 1)), rtol=1e-5)
        else:
            step(x, fail)
            expected = expected - 0.2 * (expected - X - 1)
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-5)


def test_what_a_command_refuses_is_told_by_its_line_and_changes_nothing() -> None:
    d = sublet.DynamicGraph()
    w = d.parameter("w", initial=np.ones((5, 3)))

    @d.jit
    def step(rows: Any) -> Any:
        first = nn.embedding(w, rows)
        (by_w,) = sublet.gradients(first.sum(), [w])
        d.update(w, w - by_w)
        return first * 2

    for _ in range(3):
        step(d.tensor([0, 1]))
        before = w.numpy()
        with pytest.raises(KernelError, match=re.escape(__file__)):
            step(d.tensor([0, 7]))
        np.testing.assert_array_equal(w.numpy(), before)
    assert w.numpy()[:, 0].tolist() == [-2, -2, 1, 1, 1]


def test_statistics_of_a_batch_that_is_refused_are_taken_back() -> None:
    """They are updated where the normalisation stands, before the loss looks at the labels."""
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, labels: Any) -> Any:
        y = layers.batch_norm(x, name="norm")
        loss = nn.softmax_cross_entropy(y, labels)[0].mean()
        d.minimize(loss, sublet.SGD(0.1))
        return loss

    for _ in range(3):
        step(d.tensor(X), d.tensor([0, 1, 2]))
        before = {name: tensor.numpy() for name, tensor in d.weights.items()}
        with pytest.raises(KernelError):
            step(d.tensor(X), d.tensor([0, 1, 99]))
        for name, tensor in d.weights.items():
            np.testing.assert_array_equal(tensor.numpy(), before[name])
    assert len(step.root.latest_end().plan.early) == 2


def test_an_update_that_was_looked_at_is_made_once_where_the_call_begins_anew() -> None:
    """A number that is another one for the first time needs another plan; a branch is kept at no cut, so that runs
    from the beginning.
    """
    d = sublet.DynamicGraph()
    w = d.parameter("w", (3,), initial=np.array([0.0, 1.0, 3.0], np.float32))

    @d.jit
    def step(x: Any, factor: float) -> Any:
        h = x * 1.5
        with d.case_of(x.sum() > 0, []) as case:
            for more in (1.0, 0.0):
                with case.arm():
                    case.give(h + more if more else h)
        d.update(w, w * 2 + 1)
        w.numpy()
        return case[0] * factor

    x, expected = d.tensor(X), w.numpy().copy()
    for factor in (1.0, 1.0, 1.0, 2.0, 3.0):
        step(x, factor)
        expected = expected * 2 + 1
        assert np.array_equal(w.numpy(), expected)


def test_who_holds_the_content_of_a_parameter_keeps_it() -> None:
    d = sublet.DynamicGraph()
    w = d.parameter("w", initial=1.0)
    v = d.tensor(np.float32(3))

    @d.jit
    def step() -> None:
        d.update(w, w * 2)

    for number in range(4):
        held, product = w.detach(), w * v
        step()
        assert (float(held), float(w)) == (2**number, 2 ** (number + 1))
        (by_v,) = sublet.gradients(product, [v])
        assert float(by_v) == 2**number
    assert w._storage is w.bound_storage


def test_what_is_left_lives_on_without_its_record() -> None:
    d = sublet.DynamicGraph()
    w = d.parameter("w", initial=2.0)

    @d.jit
    def step(x: Any) -> tuple[Any, Any]:
        y = nn.exp(x * w)
        return y, y.sum()

    x = d.tensor(X)
    outcomes = [step(x) for _ in range(3)]
    for y, total in outcomes:
        np.testing.assert_allclose(y.numpy(), np.exp(2 * X), rtol=1e-6)
        with pytest.raises(GradientError, match="compute the gradients inside the function"):
            sublet.gradients(total * 2, [w])
        (by_y,) = sublet.gradients((y * y).sum(), [y])
        np.testing.assert_allclose(by_y.numpy(), 2 * np.exp(2 * X), rtol=1e-6)


def test_what_an_interrupted_call_made_says_so() -> None:
    d = sublet.DynamicGraph()
    kept: list[Any] = []

    @d.jit
    def step(x: Any, fail: bool) -> None:
        y = x * 2
        if fail:
            kept.append(y)
            raise KeyboardInterrupt

    x = d.tensor(X)
    step(x, False)
    with pytest.raises(KeyboardInterrupt):
        step(x, True)
    assert repr(kept[0]) == "Tensor(f32[3,4], not computed)"
    with pytest.raises(RunError, match="belongs to a call that failed"):
        kept[0] + 1


def test_calls_within_calls_are_part_of_them_and_random_numbers_go_on() -> None:
    d, other = sublet.DynamicGraph(), sublet.DynamicGraph()

    def step(d: Any, x: Any) -> Any:
        return layers.dropout(x, 0.5) + layers.dropout(x, 0.5)

    inner = d.jit(lambda x: step(d, x))
    outer = d.jit(lambda x: inner(x) * 1)
    for _ in range(4):
        with other.scope("fresh"):
            pass
        expected = other.jit(lambda x: step(other, x)).eagerly(other.tensor(X))
        np.testing.assert_array_equal(outer(d.tensor(X)).numpy(), expected.numpy())
    assert (outer.replayed, inner.replayed) == (3, 0)


def test_what_a_gradient_takes_was_taken_before_so_nothing_is_saved_for_it() -> None:
    """Labels are looked at before anything is updated, and the gradient of the embedding refuses no index."""
    d = sublet.DynamicGraph()

    @d.jit
    def step(tokens: Any, labels: Any) -> Any:
        table = d.parameter("table", (50, 8), initial=layers.normal(0.1))
        loss = nn.softmax_cross_entropy(nn.linear(nn.embedding(table, tokens), table), labels)[0].mean()
        d.minimize(loss, sublet.SGD(0.1, momentum=0.9))
        return loss

    for _ in range(3):
        step(d.tensor([1, 2]), d.tensor([3, 4]))
    assert step.replayed == 2
    assert not step.root.latest_end().plan.early


@pytest.mark.parametrize("rounds", [1000, 1001])
def test_rounds_of_pythons_beyond_a_thousand_are_warned_of_once(rounds: int) -> None:
    d = sublet.DynamicGraph("reference")

    @d.jit
    def step(x: Any) -> Any:
        with d.no_grad():
            for _ in range(rounds):
                x = x + 1.0
        return x

    x = d.tensor(np.float32(0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert float(step.eagerly(x)) == rounds
    assert [str(one.message).startswith(f"{__file__}:") for one in told] == [True] * (rounds - 1000)
