"""Weights by name: read, set, shared between executables, saved and loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.base.errors import ModelError, RunError, SpecError, SubletError
from sublet.nn.modules import BatchNorm, Dense, Dropout, Sequential

NET = Sequential(Dense(16), BatchNorm(), nn.relu, Dropout(0.25), Dense(3), name="net")
RANDOM = np.random.default_rng(0)
X, LABELS = RANDOM.normal(size=(8, 5)).astype(np.float32), RANDOM.integers(0, 3, 8)


def training(optimizer: Any = None) -> sublet.Executable:
    g = sublet.Graph("train")
    table = g.constant(np.arange(40, dtype=np.float32).reshape(8, 5))  # of the program, not of a checkpoint
    logits = NET(g.input("x", (8, 5)) + 0.001 * table)
    loss = nn.softmax_cross_entropy(logits, g.input("labels", (8,), "i64"))[0].mean()
    return sublet.compile(sublet.train_step(loss, g.parameters, optimizer or sublet.Adam(0.05)))


def using(weights: Any, batch: int = 4) -> sublet.Executable:
    g = sublet.Graph("use", training=False)
    g.output("y", NET(g.input("x", (batch, 5))))
    return sublet.compile(g, weights=weights)


def trained(rounds: int = 3) -> sublet.Executable:
    step = training()
    for _ in range(rounds):
        step(x=X, labels=LABELS)
    return step


def test_every_parameter_and_state_has_its_name_and_no_constant_has() -> None:
    step = trained()
    names = set(step.weights)
    assert {"net/0/weight", "net/1/mean", "net/4/bias", "key"} <= names
    assert any(name.startswith("step/") and name.endswith(".step") for name in names)
    assert names == set(step.updated)
    for name in step.updated:
        np.testing.assert_array_equal(step.weights[name], step.state(name))
    assert set(using(step.weights).weights) == {name for name in names if name.startswith("net/")}


def test_they_are_copies_and_can_be_set() -> None:
    step = trained()
    step.weights["net/4/bias"][:] = 7
    assert (step.weights["net/4/bias"] != 7).all()
    step.weights["net/4/bias"] = np.full(3, 7, np.float32)
    assert (step.state("net/4/bias") == 7).all()
    use = using({name: step.state(name) for name in step.updated})
    before = use(x=X[:4])["y"]
    use.weights["net/4/bias"] = use.weights["net/4/bias"] + 1  # one that no run of it updates
    np.testing.assert_allclose(use(x=X[:4])["y"], before + 1, rtol=1e-5)


def test_evaluation_uses_the_memory_of_training() -> None:
    step = trained()
    use = using(step.weights)
    own = using({name: step.state(name) for name in step.updated})
    for _ in range(2):
        np.testing.assert_allclose(use(x=X[:4])["y"], own(x=X[:4])["y"], rtol=1e-6)
        step(x=X, labels=LABELS)
        assert not np.allclose(use(x=X[:4])["y"], own(x=X[:4])["y"])
        own = using({name: step.state(name) for name in step.updated})
    with use.weights.reading() as here, step.weights.reading() as there:
        assert here.keys() == {name for name in there if name.startswith("net/")}
        assert all(here[name].ctypes.data == there[name].ctypes.data for name in here)
    nbytes = sum(value.nbytes for value in use.graph.weights if value.name in use.weights)
    assert nbytes == use.memory.weights  # what they take is all there, and all of it is the lender's


def test_two_steps_may_train_the_same_weights() -> None:
    """Each with an optimiser of its own: what both update is one memory."""
    first = training(sublet.SGD(0.1))
    second = sublet.compile(_other_step(), weights=first.weights)
    alone = training(sublet.SGD(0.1))
    for _ in range(3):
        first(x=X, labels=LABELS)
        second(x=X)
        alone(x=X, labels=LABELS)
    assert not np.allclose(first.state("net/0/weight"), alone.state("net/0/weight"))
    np.testing.assert_array_equal(first.state("net/0/weight"), second.state("net/0/weight"))


def _other_step() -> Any:
    g = sublet.Graph("shrink")
    loss = nn.square(NET(g.input("x", (8, 5)))).mean()
    return sublet.train_step(loss, g.parameters, sublet.SGD(0.1))


def test_memory_that_changes_hands_stays_where_it_was_lent() -> None:
    g = sublet.Graph()
    a, b = g.parameter("a", (64,), initial=1), g.parameter("b", (64,), initial=2)
    g.output("sum", a.sum())
    g.update(a, b)
    g.update(b, a)
    swap = sublet.compile(g)
    assert swap.plan.exchanged
    h = sublet.Graph()
    h.output("a", h.parameter("a", (64,)) + 0)
    look = sublet.compile(h, weights=swap.weights)
    for expected in (2, 1, 2):
        swap()
        assert look()["a"][0] == expected == swap.weights["a"][0]


def test_a_saved_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    """Optimiser, step, key and running statistics included: the next losses are the same bits."""
    step, path = trained(), tmp_path / "step.safetensors"
    sublet.save_weights(path, step)
    again = training()
    assert set(sublet.load_weights(path, again)) == set(step.weights)
    for _ in range(3):
        assert step(x=X, labels=LABELS)["loss"] == again(x=X, labels=LABELS)["loss"]
    assert [each.name for each in tmp_path.iterdir()] == ["step.safetensors"]


def test_a_dynamic_graph_saves_and_loads_also_before_it_made_anything(tmp_path: Path) -> None:
    step, path = trained(), tmp_path / "step.safetensors"
    sublet.save_weights(path, step)
    expected = using(step.weights, 8)(x=X)["y"]
    d, late = sublet.DynamicGraph(training=False), sublet.DynamicGraph(training=False)
    NET(d.tensor(X))
    sublet.load_weights(path, d)
    assert sublet.load_weights(path, late) == ()
    for graph in (d, late):
        np.testing.assert_allclose(NET(graph.tensor(X)).numpy(), expected, rtol=1e-5, atol=1e-6)
    sublet.save_weights(tmp_path / "d.safetensors", d)
    np.testing.assert_array_equal(using(sublet.open_weights(tmp_path / "d.safetensors"), 8)(x=X)["y"], expected)
    d.weights["net/4/bias"] = np.zeros(3, np.float32)
    assert not d.weights["net/4/bias"].numpy().any()


@pytest.mark.parametrize("names", [{"net/4/bias": "head.bias", "key": "rng"}, lambda name: name.replace("/", ".")])
def test_names_are_mapped(tmp_path: Path, names: Any) -> None:
    step, path = trained(), tmp_path / "w.safetensors"
    sublet.save_weights(path, step, names=names)
    file = sublet.open_weights(path)
    assert ("head.bias" in file) if isinstance(names, dict) else ("net.4.bias" in file)
    again = training()
    sublet.load_weights(path, again, names=names)
    for name in step.weights:
        np.testing.assert_array_equal(step.weights[name], again.weights[name])
    if isinstance(names, dict):
        assert set(sublet.open_weights(path, names=names)) == set(step.weights)


def test_nothing_changes_unless_all_fits(tmp_path: Path) -> None:
    step, path = trained(), tmp_path / "w.safetensors"
    with step.weights.reading() as held:
        sublet.save_weights(path, {**held, "net/4/bias": np.zeros(4, np.float32), "net/0/weight": np.zeros((16, 5))})
    before = {name: step.weights[name] for name in step.weights}
    with pytest.raises(RunError, match=r"weight net/.* must be f32"):
        sublet.load_weights(path, step)
    for name, content in before.items():
        np.testing.assert_array_equal(step.weights[name], content)
    sublet.save_weights(path, {"net/0/bias": np.zeros(16, np.float32)})
    with pytest.raises(ModelError, match=r"w.safetensors: lacks \d+ weight\(s\): .*; strict=False loads the others"):
        sublet.load_weights(path, step)
    assert sublet.load_weights(path, step, strict=False) == ("net/0/bias",)
    assert not step.weights["net/0/bias"].any()


def _unknown(step: Any, d: Any, path: Path) -> None:
    step.weights["nobody"] = 1


WRONG: list[tuple[Any, type[SubletError], str]] = [
    (_unknown, RunError, "there is no weight 'nobody'"),
    (lambda step, d, path: step.weights["nobody"], RunError, "there is no weight 'nobody'"),
    (lambda step, d, path: step.weights.take({"net/4/bias": np.zeros(4, "f4")}), RunError, r"must be f32\[3\]"),
    (
        lambda step, d, path: d.weights.take({"w": np.zeros(3, "f4")}),
        SpecError,
        r"'w' is f32\[2\]; the content is float32\[3\]",
    ),
    (lambda step, d, path: d.weights.take({"u": np.zeros(2, "f4")}), SpecError, "there is no weight 'u' yet"),
    (lambda step, d, path: sublet.save_weights(path / "no" / "w", step), ModelError, "cannot be written"),
    (lambda step, d, path: sublet.save_weights(path / "w", {"a": np.zeros(1, "O")}), RunError, "holds Python objects"),
    (lambda step, d, path: sublet.save_weights(path / "w", {"a": np.zeros(1, "c16")}), ModelError, "does not have"),
    (
        lambda step, d, path: sublet.save_weights(path / "w", step, names=lambda n: "a"),
        ModelError,
        "would be called 'a'",
    ),
    (lambda step, d, path: sublet.load_weights(path / "w", step), ModelError, "cannot be read: No such file"),
]


@pytest.mark.parametrize(("use", "kind", "message"), WRONG)
def test_mistakes_are_one_error(use: Any, kind: type[SubletError], message: str, tmp_path: Path) -> None:
    d = sublet.DynamicGraph()
    d.parameter("w", (2,), initial=1)
    with pytest.raises(kind, match=message):
        use(training(), d, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_waits_until_all_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, path = trained(), tmp_path / "w.safetensors"
    sublet.save_weights(path, step)
    again, give = training(), None
    contents = again.weights._contents
    give = contents.set_content

    def interrupted(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        give(*given)

    contents.set_content = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        sublet.load_weights(path, again)
    for name in step.weights:
        np.testing.assert_array_equal(step.weights[name], again.weights[name])


BIG = """
import resource, sys
import numpy as np
import sublet
g = sublet.Graph()
w = g.parameter("w", (1250, 1_000_000))
g.output("y", g.input("x", (4,)) + w[3, 5:9])
small = sublet.Graph()  # so that what is counted is the file, and no code that is loaded
small.output("y", small.input("x", (4,)) + 1)
sublet.compile(small, backend=["numpy", "reference"]).prepare()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run = sublet.compile(g, weights=sublet.open_weights(sys.argv[1]), backend=["numpy", "reference"])
run.prepare()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(run(x=np.ones(4, "f4"))["y"].tolist())
"""


def test_a_file_of_5_gb_is_bound_and_not_read(tmp_path: Path) -> None:
    """A sparse one; its pages are read when a run looks at them."""
    nbytes = 1250 * 1_000_000 * 4
    text = b'{"w":{"dtype":"F32","shape":[1250,1000000],"data_offsets":[0,%d]}}' % nbytes
    text += b" " * (-len(text) % 8)
    path = tmp_path / "big.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + nbytes)
    found = subprocess.run([sys.executable, "-c", BIG, str(path)], capture_output=True, text=True, check=True)
    growth, run = found.stdout.splitlines()
    assert int(growth) < 50_000, "KiB of resident memory"
    assert run == "[1.0, 1.0, 1.0, 1.0]"


def test_a_weight_that_there_is_not_is_told_with_those_like_it() -> None:
    g = sublet.Graph()
    x = g.input("x", (3,))
    g.output("y", x * g.parameter("weight", (3,), initial=1.0) + g.parameter("bias", (3,), initial=0.0))
    unused = g.parameter("unused", (3,), initial=1.0) * 2
    assert unused.shape == (3,)
    three = np.ones(3, np.float32)
    with pytest.raises(RunError, match=r"no weight 'wieght' \(and 1 more unknown names\): did you mean 'weight'"):
        sublet.compile(g, weights={"wieght": three, "bias": three, "other": three})
    with pytest.raises(RunError, match="no weight 'zzz': weights without content: 'bias', 'unused', 'weight'"):
        sublet.compile(g, weights={"zzz": three})
    less = sublet.compile(g, weights={"weight": 2 * three, "unused": three}, simplify=True)
    assert less(x=three)["y"].tolist() == [2, 2, 2]
