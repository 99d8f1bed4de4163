"""Random numbers: the same for the same key and stream, by every backend; how they are spread; what dropout drops."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.integrations.torch.kernels.random import CHUNK
from sublet.ops.nn import COMMANDS
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Backend
from tests.nn.against import refused
from tests.nn.examples import Array, Example, case_of
from tests.nn.test_registry import computed, differentiated

torch = pytest.importorskip("torch")
BACKENDS: list[Backend] = [ReferenceBackend(), TorchBackend()]
SIZE = 3 * CHUNK + 5


def drawn(name: str, backend: Backend, key: int = 5, **attrs: Any) -> Array:
    case = case_of(COMMANDS[name], Example(("i64[] 0:9",), {"shape": (SIZE,), **attrs}))
    (y,) = case.graph.outputs
    return computed(case.graph, {"x0": np.array(key)}, backend)[y.name]


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("name", ["random_uniform", "random_normal"])
def test_backends_draw_the_same_numbers(name: str, dtype: str) -> None:
    """Whole, and chunk by chunk."""
    ours, theirs = (drawn(name, backend, dtype=dtype) for backend in BACKENDS)
    assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_numbers_depend_on_key_and_stream(backend: Backend) -> None:
    first = drawn("random_uniform", backend)
    assert np.array_equal(first, drawn("random_uniform", backend))
    for other in (drawn("random_uniform", backend, key=-5), drawn("random_uniform", backend, stream=1)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.03
        assert (first == other).mean() < 0.001


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
def test_numbers_are_spread_as_they_should_be(backend: Backend) -> None:
    """Within five standard errors."""
    uniform = drawn("random_uniform", backend, low=-1.0, high=3.0)
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert uniform.mean() == pytest.approx(1, abs=5 * 4 / (12 * SIZE) ** 0.5)
    assert np.histogram(uniform, 4, (-1, 3))[0] == pytest.approx([SIZE / 4] * 4, rel=0.05)
    normal = drawn("random_normal", backend, mean=2.0, std=0.5)
    assert normal.mean() == pytest.approx(2, abs=5 * 0.5 / SIZE**0.5)
    assert normal.std() == pytest.approx(0.5, rel=5 / (2 * SIZE) ** 0.5)
    assert (abs(normal - 2) < 0.5).mean() == pytest.approx(0.6827, abs=0.02)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16"])
def test_dropout_drops_a_share_and_keeps_the_mean(dtype: str) -> None:
    case = case_of(COMMANDS["dropout"], Example((f"{dtype}[{SIZE}] 1:2", "i64[] 0:9"), {"rate": 0.3}))
    (y,) = case.graph.outputs
    ours, theirs = (computed(case.graph, dict(case.arrays), backend)[y.name] for backend in BACKENDS)
    assert ours.tobytes() == theirs.tobytes()
    kept = ours != 0
    assert kept.mean() == pytest.approx(0.7, abs=5 * (0.21 / SIZE) ** 0.5)
    x = case.arrays["x0"].astype(np.float64)
    np.testing.assert_allclose(ours[kept].astype(np.float64), x[kept] / 0.7, rtol=1e-2 if dtype == "bf16" else 1e-6)


def test_the_gradient_drops_what_was_dropped_and_keeps_no_mask() -> None:
    """Only the key links both: nothing of the size of the input lives from one to the other."""
    case = case_of(COMMANDS["dropout"], Example(("f64[99,500]", "i64[] 0:9"), {"rate": 0.5, "stream": 2}))
    graph, arrays, _, (grad,) = differentiated(case)
    forward, *backward = graph.nodes
    assert [value.name for node in backward for value in node.uses] == [f"seed.{forward.defs[0].name}", "x1"]
    for backend in BACKENDS:
        places = computed(graph, dict(arrays), backend)
        seed = arrays[f"seed.{forward.defs[0].name}"]
        np.testing.assert_array_equal(places[grad.name], np.where(places[forward.defs[0].name] != 0, seed * 2, 0))


def test_what_is_dropped_is_zero_whatever_it_was() -> None:
    case = case_of(COMMANDS["dropout"], Example(("f32[1000]", "i64[] 0:9"), {"rate": 0.5}))
    (y,) = case.graph.outputs
    for backend in BACKENDS:
        found = computed(case.graph, {**case.arrays, "x0": np.full(1000, np.inf, np.float32)}, backend)[y.name]
        assert set(found.tolist()) == {0.0, np.inf}


@pytest.mark.parametrize(
    ("name", "inputs", "attrs"),
    [
        ("random_uniform", ("i64[] 0:9",), {"shape": (1 << 20,)}),
        ("random_normal", ("i64[] 0:9",), {"shape": (1 << 20,), "dtype": "bf16"}),
        ("dropout", ("f32[1048576]", "i64[] 0:9"), {"rate": 0.5}),
    ],
)
def test_nothing_is_allocated_but_the_generator(name: str, inputs: tuple[str, ...], attrs: dict[str, Any]) -> None:
    case = case_of(COMMANDS[name], Example(inputs, attrs))
    (node,) = case.graph.nodes
    kernel = TorchBackend().kernel(node, {})
    assert kernel is not None
    assert kernel.scratch <= 5 * CHUNK
    places = computed(case.graph, case.arrays, TorchBackend())
    given = [places[value.name] for value in node.uses]
    scratch = np.zeros(kernel.scratch, np.uint8) if kernel.scratch else None
    call = kernel.bind(given, [places[v.name] for v in node.defs], scratch)
    call()
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 16


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "message"),
    [
        ("random_uniform", ("i64[1] 0:9",), {"shape": (2,)}, "the key is i64.* expected a scalar"),
        ("random_uniform", ("f32[]",), {"shape": (2,)}, "expected one of the types i32, i64"),
        ("random_uniform", ("i64[] 0:9",), {"shape": (2,), "dtype": "i32"}, "must be one of f16"),
        ("random_uniform", ("i64[] 0:9",), {"shape": (2,), "low": 3.0}, "above high"),
        ("random_normal", ("i64[] 0:9",), {"shape": (-2,)}, "none below 0"),
        ("random_normal", ("i64[] 0:9",), {"shape": (2,), "std": -1.0}, "below 0"),
        ("dropout", ("f32[2]", "i64[] 0:9"), {"rate": 1.0}, "below 1"),
        ("dropout", ("i32[2] 0:9", "i64[] 0:9"), {"rate": 0.5}, "expected one of the types f16"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, inputs: Any, attrs: dict[str, Any], message: str) -> None:
    refused(name, inputs, attrs, message)
