"""Memory that changes hands after a run: right numbers over many runs, in poison too, and in memory of the caller."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import sublet
from sublet.analysis.options import Options
from sublet.base.errors import KernelError, RunError
from sublet.ir.graph import Graph, While
from sublet.runtime.executable import Executable
from sublet.runtime.state import PointRange, state_after_failure
from tests.analysis.test_storage_swap import permuting
from tests.analysis.test_updates import updating
from tests.runtime.networks import PythonBackend
from tests.runtime.test_generated import Mixing
from tests.runtime.test_left import Stop, Stopping
from tests.support.update_programs import exchanging

UNPLANNED = Options(strategy="no_reuse", share=False)
RUNS = 5
X = np.arange(16, dtype=np.float32)
DELAY = updating("%n: f32[16] = onnx.Sub(%w, %x)", "%w = %v, %v = %n", "%n")
SWAP = updating("%n: f32[16] = onnx.Sub(%w, %x)", "%w = %v, %v = %w", "%n")
FLAG = np.array(False)


def weights(graph: Graph) -> dict[str, Any]:
    return {value.name: np.full(16, i + 1, np.float32) for i, value in enumerate(graph.weights)}


def states(executable: Executable) -> dict[str, Any]:
    return {name: executable.state(name) for name in executable.updated}


@pytest.mark.parametrize("order", [(1, 0), (1, 2, 0), (1, 2, 3, 0), (1, 0, 3, 4, 2), (4, 0, 1, 2, 3)])
@pytest.mark.parametrize("backend", ["numpy", "onnxruntime"])
def test_runs_that_permute_weights_copy_nothing(order: tuple[int, ...], backend: str) -> None:
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    graph = permuting(order)
    held = weights(graph)
    executable = sublet.compile(graph, backend=backend, weights=held, options=Options(forbid_copies=True))
    for _ in range(RUNS + 2):
        left: dict[str, Any] = {}
        assert np.array_equal(sublet.run_poisoned(executable, {"x": X}, left)["y"], held["w0"] - X)
        assert np.array_equal(executable(x=X)["y"], held["w0"] - X)
        assert executable.copied_bytes == 0
        moved = {f"w{i}": held[f"w{j}"] for i, j in enumerate(order)}
        held = {**moved, "u": held["u"] + held["w1"]}
        for found in (states(executable), left):
            assert all(np.array_equal(found[name], held[name]) for name in held)


def test_an_output_is_what_it_was_when_the_run_ended() -> None:
    """%n lies in memory of %w, which is that of %v afterwards."""
    executable = sublet.compile(DELAY, backend="reference", weights=weights(DELAY))
    for _ in range(3):
        before = executable.state("w")
        view = executable.views(x=X, flag=FLAG)["n"]
        assert np.array_equal(view, before - X)
        assert np.array_equal(executable.state("v"), view)
    last = view.copy()
    executable.measured(x=X, flag=FLAG)
    assert np.array_equal(executable.state("w"), last)


class Counting(PythonBackend):
    """Counts how often a kernel is bound."""

    bound = 0

    def kernel(self, node: Any, constants: Any) -> Any:
        made, backend = super().kernel(node, constants), self

        class Kernel:
            scratch = 0

            def bind(self, *operands: Any) -> Any:
                backend.bound += 1
                return made.bind(*operands)  # type: ignore[union-attr]

        return Kernel()


def test_kernels_are_bound_once_for_each_turn_before_the_first_run() -> None:
    graph = permuting((1, 2, 0))
    backend = Counting()
    executable = sublet.compile(graph, backend=backend, weights=weights(graph))
    executable.prepare()
    assert np.array_equal(executable.state("w0"), np.full(16, 1, np.float32))
    assert backend.bound == 3 * len(graph.nodes)
    for _ in range(7):
        executable(x=X)
    assert backend.bound == 3 * len(graph.nodes)


@pytest.mark.parametrize("graph", [SWAP, DELAY])
def test_memory_of_the_caller_keeps_its_value_by_a_copy_that_is_counted(graph: Graph) -> None:
    executable = sublet.compile(graph, backend="reference", weights=weights(graph))
    w, v = executable.state("w"), executable.state("v")
    mine = np.empty(16, np.float32)
    for bound in (False, True, True):
        if bound:
            mine[:] = executable.state("v")
            executable.bind("v", mine)
        for _ in range(3):
            new = w - X
            sublet.run_poisoned(executable, {"x": X, "flag": FLAG})
            assert np.array_equal(executable(x=X, flag=FLAG)["n"], new)
            w, v = v, new if graph is DELAY else w
            assert np.array_equal(executable.state("w"), w)
            assert np.array_equal(executable.state("v"), v)
            assert executable.copied_bytes == 128 * bound
            assert not bound or np.array_equal(mine, v)


def test_state_is_set_in_memory_that_has_changed_hands() -> None:
    executable = sublet.compile(SWAP, backend="reference", weights=weights(SWAP))
    executable(x=X, flag=FLAG)
    executable.set_state("w", X)
    executable(x=X, flag=FLAG)
    assert np.array_equal(executable.state("v"), X)


@pytest.mark.parametrize("error", [Stop, KeyboardInterrupt])
@pytest.mark.parametrize("graph", [SWAP, DELAY])
def test_a_run_that_fails_exchanges_nothing(graph: Graph, error: type[BaseException]) -> None:
    backend = Stopping()
    executable = sublet.compile(graph, backend=backend, weights=weights(graph))
    for _ in range(3):
        executable(x=X, flag=FLAG)
        before = states(executable)
        backend.ran, backend.at, backend.error = [], 0, error
        with pytest.raises((KernelError, error)) as caught:
            executable(x=X, flag=FLAG)
        after = states(executable)
        assert np.array_equal(after["v"], before["v"])
        if graph is SWAP:
            assert caught.value.__notes__ == ["state: 2 as before the run"]
            assert np.array_equal(after["w"], before["w"])
        else:  # %n is made where %w lay
            assert caught.value.__notes__ == ["state: 1 as before the run, 1 possibly half-written: 'w'"]
            with pytest.raises(RunError, match="uncertain"):
                executable(x=X, flag=FLAG)
            executable.set_state("w", before["w"])


def test_what_is_interrupted_while_memory_changes_hands_is_uncertain() -> None:
    executable = sublet.compile(SWAP, backend="reference", weights=weights(SWAP))
    count = len(executable.point_accesses)
    left = state_after_failure(
        executable.graph, executable.plan, executable.point_accesses, PointRange(count, count + 1)
    )
    assert [value.name for value in left.uncertain] == ["w", "v"]


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_generated_exchanges_run_as_unplanned(first: int) -> None:
    assert sum(check_runs(seed) for seed in range(first, first + 10)) >= 20


def check_runs(seed: int) -> int:
    """How many runs of one program there were; each is compared."""
    rng = random.Random(seed)
    graph, salt = exchanging(rng, rng.choice((2, 6))), [b""]
    if any(isinstance(node, While) and node.rows for node in graph.walk()):
        return 0  # such a loop may end before all rows are written: the others are anything
    options = Options(strategy="first_fit", alignment=8, io=rng.choice(("arena", "bound")), in_place_from=0)
    content = {
        value: np.frombuffer(rng.randbytes(value.nbytes), np.uint8).reshape(value.spec.shape)  # type: ignore[union-attr]
        for value in (*graph.weights, *graph.inputs)
    }
    given = {value.name: content[value] for value in graph.weights}
    feeds = {value.name: content[value] for value in graph.inputs}
    backend: Any = Mixing(salt)
    unplanned, planned, bound = (
        sublet.compile(graph, backend=backend, options=one, weights=given) for one in (UNPLANNED, options, options)
    )
    mine = np.array(given["s0"])
    bound.bind("s0", mine)
    for done in range(RUNS):
        salt[0] = rng.randbytes(4)
        try:
            expected = unplanned(feeds)
        except RunError:
            return done  # a loop that goes on beyond its sequences
        left: dict[str, Any] = {}
        runs = [sublet.run_poisoned(planned, feeds, left), planned(feeds), bound(feeds)]
        after = [left, states(planned), states(bound)]
        for found, state in zip(runs, after, strict=True):
            assert all(np.array_equal(found[name], expected[name]) for name in expected)
            assert all(np.array_equal(state[name], content) for name, content in states(unplanned).items())
        if "s0" in bound.updated:
            assert np.array_equal(mine, bound.state("s0"))
        feeds = {name: content for name, content in feeds.items() if name not in planned.updated}
    for executable in (unplanned, planned, bound):
        executable.close()
    return RUNS
