"""What a run that failed midway left of the state: what is said of each updated value is true, wherever it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import sublet
from sublet.analysis.options import Options
from sublet.base.errors import KernelError, RunError
from sublet.ir.graph import Graph, Node, Value
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array, Call, CallSequence, Operand
from sublet.runtime.state import StateAfterFailure, state_after_failure
from tests.analysis.test_updates import STEP, updating
from tests.runtime.networks import PythonBackend, PythonKernel

CHAIN = updating(
    """
    %n: f32[16] = onnx.Sub(%w, %x)
    %m: f32[16] = onnx.Mul(%v, %n)
    %k: f32[16] = onnx.Add(%m, %n)""",
    "%w = %n, %v = %k",
)
EXCHANGED = updating("%n: f32[16] = onnx.Sub(%w, %x)", "%w = %v, %v = %n")
LATE = updating(
    """
    %n: f32[16] = onnx.Sub(%w, %x)
    %m: f32[16] = onnx.Mul(%w, %n)
    %k: f32[16] = onnx.Add(%m, %v)""",
    "%w = %n, %v = %m",
    "%k",
)
BRANCH = updating(
    """
    %a: f32[16] = onnx.Add(%w, %x)
    %r: f32[16] = case %flag {
      arm @yes {
        %b: f32[16] = onnx.Mul(%a, %v)
        yield %b
      }
      arm @no {
        %c: f32[16] = onnx.Sub(%a, %v)
        yield %c
      }
    }
    %n: f32[16] = onnx.Add(%r, %v)""",
    "%w = %r, %v = %n",
)


class Stop(Exception):
    """Not one of Sublet's errors."""


@dataclass
class Stopping(PythonBackend):
    """Kernels of which one, the `at`th that runs, writes garbage over half of its output and raises `error`."""

    at: int = -1
    error: type[BaseException] = Stop
    ran: list[str] = field(default_factory=list)

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Any:
        made = super().kernel(node, constants)
        return None if made is None else _StoppingKernel(self, made, node.name)


@dataclass(frozen=True)
class _StoppingKernel:
    backend: Stopping
    made: PythonKernel
    name: str
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        call, backend = self.made.bind(inputs, outputs, scratch), self.backend

        def run() -> None:
            if len(backend.ran) == backend.at:
                outputs[0].reshape(-1)[: outputs[0].size // 2] = -77  # type: ignore[union-attr]
                backend.at = -1
                raise backend.error("now")
            backend.ran.append(self.name)
            call()

        return run


def contents(executable: Executable) -> dict[str, Array]:
    return {name: executable.state(name) for name in executable.updated}


def start(graph: Graph, options: Options, backend: Stopping) -> tuple[Executable, dict[str, Any]]:
    rng = np.random.default_rng(0)

    def numbers(value: Value) -> Array:
        array: Array = rng.standard_normal(value.spec.shape).astype(np.float32)  # type: ignore[union-attr]
        return array

    weights = {value.name: numbers(value) for value in graph.weights}
    feeds = {value.name: numbers(value) for value in graph.inputs if value.name != "flag"}
    if any(value.name == "flag" for value in graph.inputs):
        feeds["flag"] = np.array(False)
    return sublet.compile(graph, backend=backend, options=options, weights=weights), feeds


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize(
    "options", [Options(), Options(weights="arena"), Options(streams=2), Options(strategy="no_reuse", share=False)]
)
@pytest.mark.parametrize("graph", [CHAIN, EXCHANGED, LATE, BRANCH, STEP])
def test_what_is_said_of_a_failed_run_is_true(graph: Graph, options: Options, error: type[BaseException]) -> None:
    complete = Stopping()
    executable, feeds = start(graph, options, complete)
    before = contents(executable)
    executable(feeds)
    after, kernels = contents(executable), len(complete.ran)
    for at in range(kernels):
        stopped = Stopping(at=at, error=error)
        executable, _ = start(graph, options, stopped)
        with pytest.raises((KernelError, error)) as caught:
            executable(feeds)
        left = what_it_left(executable)
        assert caught.value.__notes__ == [left.sentence]
        assert sorted(v.name for v in (*left.as_before, *left.updated, *left.uncertain)) == sorted(executable.updated)
        for values, expected in ((left.as_before, before), (left.updated, after)):
            for value in values:
                assert np.array_equal(executable.state(value.name), expected[value.name])
        if options.streams == 1 and options.share:
            assert len(left.uncertain) <= 1 + (graph in (LATE, EXCHANGED)), "only what was being written"
        goes_on(executable, left, feeds)


def what_it_left(executable: Executable) -> StateAfterFailure:
    assert executable._program is not None
    return state_after_failure(executable.graph, executable.plan, executable.point_accesses, executable._program.failed)


def goes_on(executable: Executable, left: StateAfterFailure, feeds: Mapping[str, Any]) -> None:
    """What is uncertain can be read, and a run asks for it to be set first."""
    for value in left.uncertain:
        held = executable.state(value.name)
        with pytest.raises(RunError, match="uncertain: a run failed during the update"):
            executable(feeds)
        executable.set_state(value.name, held)
    executable(feeds)
    assert set(what_it_left(executable).updated) == set(executable.graph.updated_values), (
        "interrupted once it has ended"
    )


def test_a_bad_label_leaves_the_weights_as_they_were() -> None:
    g = sublet.Graph("g")
    x, labels = g.input("x", (4, 8)), g.input("labels", (4,), "i64")
    loss = sublet.nn.softmax_cross_entropy(sublet.layers.dense(x, 3), labels)[0].mean()
    train = sublet.compile(sublet.train_step(loss, g.parameters, sublet.Adam(0.01)))
    feeds = {"x": np.ones((4, 8), np.float32), "labels": np.array([0, 1, 2, 0])}
    train(feeds)
    before = contents(train)
    with pytest.raises(KernelError, match=r"node softmax_cross_entropy.*(none of 3 classes|out of bounds)") as caught:
        train({**feeds, "labels": np.array([0, 1, 3, 0])})
    assert caught.value.__notes__ == [f"state: {len(before)} as before the run"], caught.value
    assert all(np.array_equal(train.state(name), content) for name, content in before.items())
    train(feeds)
    assert not np.array_equal(train.state("dense/weight"), before["dense/weight"])


def test_where_an_earlier_run_failed_is_forgotten() -> None:
    fails = [True]

    def fail_once() -> None:
        if fails.pop():
            raise Stop

    together = CallSequence([lambda: None, fail_once])
    with pytest.raises(Stop):
        together()
    assert together.reached == 1
    fails.append(False)
    together()
    assert together.reached is None
