"""Schedules, `fit`, `evaluate`, `prefetch` and `summary`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sublet
from sublet import nn, schedules
from sublet.base.errors import RunError, SpecError
from sublet.nn.modules import BatchNorm, Conv, Dense, Flatten, Sequential

NET = Sequential(Conv(4, 3), BatchNorm(), nn.relu, Flatten(), Dense(3), name="net")
RANDOM = np.random.default_rng(0)
BATCHES = [
    {"x": RANDOM.normal(size=(8, 1, 6, 6)).astype(np.float32), "labels": RANDOM.integers(0, 3, 8)} for _ in range(5)
]


def training(optimizer: Any = None, io: str = "arena") -> sublet.Executable:
    g = sublet.Graph("train")
    loss = nn.softmax_cross_entropy(NET(g.input("x", (8, 1, 6, 6))), g.input("labels", (8,), "i64"))[0].mean()
    step = sublet.train_step(loss, g.parameters, optimizer or sublet.Adam(0.01))
    return sublet.compile(step, options=sublet.Options(io=io))


def judging(weights: Any) -> sublet.Executable:
    g = sublet.Graph("judge", training=False)
    logits, labels = NET(g.input("x", (8, 1, 6, 6))), g.input("labels", (8,), "i64")
    g.output("logits", logits)
    g.output("accuracy", nn.equal(nn.argmax(logits, axis=1), labels).astype("f32").mean())
    return sublet.compile(g, weights=weights)


SCHEDULES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "constant": (schedules.constant(0.1), lambda t: 0.1),
    "piecewise": (schedules.piecewise([0.3, 0.2, 0.1], [2, 5]), lambda t: 0.3 if t < 2 else 0.2 if t < 5 else 0.1),
    "linear": (schedules.linear(0.1, 0.3, 4), lambda t: 0.1 + 0.05 * min(t, 4)),
    "cosine": (schedules.cosine(0.2, 6, 0.02), lambda t: 0.02 + 0.09 * (1 + np.cos(np.pi * min(t, 6) / 6))),
    "warmup": (schedules.warmup(3, 0.4), lambda t: 0.4 * min(t + 1, 4) / 4),
    "warmup and cosine": (
        schedules.warmup(3, schedules.cosine(0.4, 4)),
        lambda t: 0.1 * (t + 1) if t < 3 else 0.2 * (1 + np.cos(np.pi * min(t - 3, 4) / 4)),
    ),
    "of one's own": (lambda step: 0.1 / (step + 1), lambda t: 0.1 / (t + 1)),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("optimizer", [sublet.SGD, sublet.Adam, sublet.RMSProp])
def test_a_schedule_is_a_function_of_the_step(name: str, optimizer: Any) -> None:
    """On a number, and as the rate of an optimiser: with the rate of each step given by hand the same comes out."""
    schedule, expected = SCHEDULES[name]
    np.testing.assert_allclose([schedule(t) for t in range(8)], [expected(t) for t in range(8)], rtol=1e-6)
    runs = []
    for told in (False, True):
        g = sublet.Graph()
        w, rate = g.parameter("w", (3,), initial=1), g.input("rate")
        g.output("seen", rate)
        model = sublet.train_step(nn.square(w).sum(), [w], optimizer(rate if told else schedule))
        step = sublet.compile(model)
        for t in range(8):
            step(rate=np.float32(expected(t)))
        runs.append(step.weights["w"])
    np.testing.assert_allclose(*runs, rtol=1e-5)


def test_schedules_are_pytorchs() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.4)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, 0.1)
    ours = schedules.cosine(0.4, 10, 0.1)
    for t in range(10):
        assert ours(t) == pytest.approx(theirs.get_last_lr()[0], rel=1e-6)
        optimizer.step()
        theirs.step()


def test_a_dynamic_graph_takes_them_too() -> None:
    d = sublet.DynamicGraph()

    @d.jit
    def step() -> Any:
        w = d.parameter("w", (3,), initial=1)
        loss = nn.square(w).sum()
        d.minimize(loss, sublet.SGD(schedules.cosine(0.1, 10)))
        return loss

    for _ in range(8):
        step()
    expected = np.prod([1 - 2 * schedules.cosine(0.1, 10)(t) for t in range(8)])
    np.testing.assert_allclose(d.weights["w"].numpy(), np.full(3, expected), rtol=1e-5)
    assert step.planned == 1


def test_fit_is_the_loop_that_one_would_write(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = training(), training()
    judge = judging(ours.weights)
    history = sublet.fit(ours, BATCHES, epochs=3, validate=lambda: sublet.evaluate(judge, BATCHES))
    for epoch in range(3):
        losses = [float(theirs(batch)["loss"]) for batch in BATCHES]
        assert history.epochs[epoch]["loss"] == pytest.approx(np.mean(losses))
        assert history.epochs[epoch].keys() == {"loss", "accuracy"}
    assert history.epochs[2]["loss"] < history.epochs[0]["loss"]
    assert history.epochs[-1]["accuracy"] == sublet.evaluate(judging(ours.weights), BATCHES)["accuracy"]
    assert not history.interrupted
    for name in theirs.weights:
        np.testing.assert_array_equal(ours.weights[name], theirs.weights[name])
    found = capsys.readouterr()
    assert found.out == found.err == "", "nobody looks at a terminal"
    sublet.fit(ours, BATCHES, progress=True)
    assert "epoch 1/1" in capsys.readouterr().err


def test_fit_takes_a_remembered_function() -> None:
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, labels: Any) -> Any:
        loss = nn.softmax_cross_entropy(NET(d.constant(x)), d.constant(labels))[0].mean()
        d.minimize(loss, sublet.Adam(0.01))
        return loss

    found = sublet.fit(step, BATCHES, epochs=2)
    expected = sublet.fit(training(), BATCHES, epochs=2)
    assert [one["loss"] for one in found.epochs] == pytest.approx([one["loss"] for one in expected.epochs], rel=1e-4)


def test_ctrl_c_ends_after_the_step_that_runs() -> None:
    step, whole = training(), training()

    def batches(epoch: int) -> Iterator[Any]:
        for number, batch in enumerate(BATCHES):
            if (epoch, number) == (1, 2):
                signal.raise_signal(signal.SIGINT)
            yield batch

    before = signal.getsignal(signal.SIGINT)
    history = sublet.fit(step, batches, epochs=3)
    assert signal.getsignal(signal.SIGINT) is before
    assert history.interrupted
    assert len(history.epochs) == 2
    for batch in (*BATCHES, *BATCHES[:3]):
        whole(batch)
    for name in whole.weights:
        np.testing.assert_array_equal(step.weights[name], whole.weights[name])


def test_a_second_ctrl_c_does_not_wait() -> None:
    def batches(epoch: int) -> Iterator[Any]:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        yield from BATCHES

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        sublet.fit(training(), batches)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_loader_writes_where_the_network_reads(count: int) -> None:
    step, copied = training(io="bound"), training()
    seen: list[dict[str, int]] = []

    def fill(slot: dict[str, Any], number: int) -> None:
        seen.append({name: array.ctypes.data for name, array in slot.items()})
        for name, array in BATCHES[number].items():
            slot[name][...] = array

    given = sublet.prefetch(step, fill, count)
    losses = [step(batch)["loss"] for batch in given]
    assert losses == [copied(batch)["loss"] for batch in BATCHES[:count]]
    assert len(seen) == count
    assert len({one["x"] for one in seen}) == min(count, 2), "two slots"
    if count:
        here = step.bytes_of(step.inputs["x"]).ctypes.data
        assert here == seen[-1]["x"], "it is read where it was written"


def test_an_error_of_the_loader_is_told_when_its_batch_is_due() -> None:
    step, runs = training(io="bound"), []

    def fill(slot: dict[str, Any], number: int) -> None:
        if number == 2:
            raise ValueError("the disk is gone")
        for name, array in BATCHES[number].items():
            slot[name][...] = array

    with pytest.raises(ValueError, match="the disk is gone"):
        runs.extend(step(batch) for batch in sublet.prefetch(step, fill, 5))
    assert step.weights["step/net/0/weight.step"] == 2


def test_a_summary_adds_up() -> None:
    step = training()
    found = sublet.summary(step)
    layers = {layer.name: layer for layer in found.layers}
    assert (layers["net/0"].weights, layers["net/1"].weights, layers["net/4"].weights) == (40, 16, 4 * 36 * 3 + 3)
    assert found.weights == sum(np.size(one) for one in step.weights.values())
    assert sum(layer.weight_bytes for layer in found.layers) == sum(one.nbytes for one in step.weights.values())
    assert max(layer.arena_bytes for layer in found.layers) <= found.arena_bytes == step.arena_bytes
    assert sum(layer.peak_bytes for layer in found.layers) >= step.plan.peak.nbytes
    assert all(layer.peak_bytes <= layer.arena_bytes for layer in found.layers)
    table = str(found)
    assert "net/0" in table
    assert "parameters and states" in table
    assert f"{found.weights:,}" in table


def test_summaries_of_networks_without_an_executable() -> None:
    """The layers of a module, a written graph, a jit function and a dynamic graph are those of an executable."""
    g = sublet.Graph("net", training=False)
    g.output("y", NET(g.input("x", (8, 1, 6, 6))))
    expected = sublet.summary(sublet.compile(g, simplify=False)).layers
    assert sublet.summary(NET, (8, 1, 6, 6)).layers[1:] == sublet.summary(g).layers[1:]
    assert {one.name: one.weights for one in sublet.summary(g).layers} == {one.name: one.weights for one in expected}
    d = sublet.DynamicGraph()
    net = d.jit(lambda x: NET(x).sum())
    for _ in range(2):
        net(BATCHES[0]["x"])
    planned, weights = sublet.summary(net), sublet.summary(d)
    assert planned.arena_bytes == net.arena_bytes
    assert weights.arena_bytes is None
    assert weights.weights == planned.weights == sublet.summary(g).weights
    assert "arena" in str(planned)
    assert "arena" not in str(weights)
    with pytest.raises(sublet.SubletError, match="is no network"):
        sublet.summary(3)
    with pytest.raises(SpecError, match=r"Pass the shape, as in summary\(net, \(8, 3\)\), or an array"):
        sublet.summary(NET)
    with pytest.raises(sublet.SubletError, match=r"JitFunction is no network: pass its `.graph`"):
        sublet.to_text(net)  # type: ignore[arg-type]
    assert sublet.to_text(net.graph).startswith("graph @")


def test_batches_without_names_are_refused() -> None:
    step, (x, labels) = training(), BATCHES[0].values()
    with pytest.raises(RunError, match=r"expected fit\(step, batches\): pass batches of inputs and targets by name"):
        sublet.fit(step, x, labels)  # type: ignore[arg-type]
    for batches in ([(x, labels)], x):
        for run in (sublet.fit, sublet.evaluate):
            with pytest.raises(
                RunError, match=r"expected a mapping: pass batches .* fit\(step, \[\{'x': x, 'y': y\}\]\)"
            ):
                run(step, batches)  # type: ignore[arg-type]
    assert step.weights["step/net/0/weight.step"] == 0


def test_fit_stops_early_and_saves_the_best_epoch(tmp_path: Path) -> None:
    losses = iter([3.0, 2.0, float("nan"), 2.5, 2.0, 1.0])
    step, path = training(), tmp_path / "best.safetensors"
    history = sublet.fit(
        step,
        BATCHES,
        epochs=9,
        monitor="score",
        patience=3,
        checkpoint=path,
        validate=lambda: {"score": next(losses), "steps": float(step.state("step/net/0/weight.step"))},
    )
    assert (history.stopped, history.best_epoch, len(history.epochs)) == (True, 1, 5)
    again = training()
    sublet.load_weights(path, again)
    assert int(again.state("step/net/0/weight.step")) == 2 * len(BATCHES)
    assert [one.name for one in tmp_path.iterdir()] == ["best.safetensors"]
    scores = iter([1.0, 2.0, 2.0])
    history = sublet.fit(
        training(),
        BATCHES[:1],
        epochs=9,
        monitor="score",
        maximize=True,
        patience=1,
        validate=lambda: {"score": next(scores)},
    )
    assert (history.stopped, history.best_epoch) == (True, 1)


def test_checkpoints_of_a_jit_function_are_written_after_each_epoch(tmp_path: Path) -> None:
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, labels: Any) -> Any:
        loss = nn.cross_entropy(NET(x), labels)
        d.minimize(loss, sublet.SGD(0.1))
        return loss

    path = tmp_path / "net.safetensors"
    history = sublet.fit(step, BATCHES, epochs=3, patience=2, checkpoint=path)
    assert history.best_epoch == 2
    assert not history.stopped
    for name, array in sublet.open_weights(path).items():
        np.testing.assert_array_equal(array, d.weights[name].numpy())


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: sublet.fit(training(), iter(BATCHES), epochs=2), RunError, "only once: pass a list, or a function"),
    (lambda: sublet.fit(training(), BATCHES[:1], monitor="score"), RunError, "'score' is not among .*: loss"),
    (
        lambda: sublet.fit(lambda x, labels: 0.0, BATCHES, checkpoint="x.safetensors"),
        RunError,
        "has no weights to save",
    ),
    (lambda: sublet.evaluate(training(), []), RunError, "no batches to evaluate"),
    (lambda: schedules.piecewise([1, 2], [3, 4]), SpecError, r"2 rates need 1 ascending boundaries, got \[3, 4\]"),
    (lambda: schedules.piecewise([1, 2, 3], [4, 3]), SpecError, "ascending boundaries"),
    (lambda: sublet.prefetch(training(), print, 1), RunError, "'x' has no bound memory"),
]


@pytest.mark.parametrize(("use", "kind", "message"), WRONG)
def test_mistakes_are_one_error(use: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        use()
