"""Every command, every fact: walks all records of the nn dialect over their examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sublet
from sublet.base.optional_imports import is_installed
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ir.graph import Graph, Value
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import Command
from sublet.ops.op import Share
from sublet.ops.verify import verify
from sublet.passes.autodiff import backward, is_differentiable
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Backend
from tests.nn.examples import EXAMPLES, Array, Case, case_of, told

BACKENDS: list[Backend] = [ReferenceBackend(), *([TorchBackend()] if is_installed("torch") else [])]
TOLERANCE = {DType.F64: 1e-10, DType.F32: 2e-5, DType.F16: 2e-2, DType.BF16: 1e-1}


def computed(graph: Graph, arrays: dict[str, Array], backend: Backend = BACKENDS[0]) -> dict[str, Array]:
    """What each value of a graph without loops and branches is, every one in memory of its own."""
    from_literals = {v.name: np.array(v.literal, _dtype(v)).reshape(_shape(v)) for v in graph.weights}
    places: dict[str, Array] = {**arrays, **from_literals}
    for node in graph.nodes:
        for value in node.defs:
            if value.name not in places:  # a test may have laid it over an input
                places[value.name] = np.full(_shape(value), 77, _dtype(value))
        kernel = backend.kernel(node, {}) or BACKENDS[0].kernel(node, {})
        assert kernel is not None
        scratch = np.zeros(kernel.scratch, np.uint8) if kernel.scratch else None
        kernel.bind(
            [None if v is None else places[v.name] for v in node.inputs],
            [None if v is None else places[v.name] for v in node.outputs],
            scratch,
        )()
    return places


def _dtype(value: Value) -> Any:
    assert isinstance(value.spec, TensorSpec)
    return NUMPY[value.spec.dtype]


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.spec, TensorSpec)
    return value.spec.shape


def close(actual: Array, expected: Array, value: Value, factor: float = 1.0) -> None:
    assert isinstance(value.spec, TensorSpec)
    tolerance = TOLERANCE.get(value.spec.dtype, 0) * factor
    wide = [array.astype(np.float64) if array.dtype.kind in "fV" else array for array in (actual, expected)]
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


def test_at_least_a_hundred_commands_have_a_gradient() -> None:
    differentiable_ones = [name for name, record in COMMANDS.items() if record.gradient is not None]
    assert len(differentiable_ones) >= 100, f"{len(differentiable_ones)} of {len(COMMANDS)} commands have a gradient"


@pytest.mark.parametrize("name", COMMANDS)
def test_has_examples_and_says_what_it_is(name: str) -> None:
    record = COMMANDS[name]
    assert record.text.endswith("."), "the help of a command is a sentence or two"
    shown = (getattr(sublet.nn, name).__doc__ or "").split()
    assert " ".join(record.text.split()) in " ".join(shown)
    assert EXAMPLES[name], "a command needs an example"
    if record.gradient is not None:
        assert any("f64" in text for example in EXAMPLES[record.name] for text in example.inputs)


@pytest.mark.parametrize("name", COMMANDS)
def test_inferred_specs_are_the_actual_ones_and_views_and_parts_the_bytes_they_say(name: str) -> None:
    record = COMMANDS[name]
    for example in EXAMPLES[name]:
        with told(example):
            case = case_of(record, example)
            verify(case.graph)
            specs_are_the_actual_ones(record, case)
            views_and_parts_are_the_bytes_they_say(record, case)


def specs_are_the_actual_ones(record: Command, case: Case) -> None:
    (node,) = case.graph.nodes
    arrays = [None if v is None else case.arrays.get(v.name) for v in node.inputs]
    before = [None if a is None else a.copy() for a in arrays]
    found = record.compute(*arrays, **node.attrs)
    results = found if isinstance(found, tuple) else (found,)
    assert [np.shape(result) for result in results] == [_shape(value) for value in node.defs]
    for array, copy in zip(arrays, before, strict=True):
        assert array is None or np.array_equal(array, copy, equal_nan=array.dtype.kind == "f"), "changed its input"


def views_and_parts_are_the_bytes_they_say(record: Command, case: Case) -> None:
    (node,) = case.graph.nodes
    places = computed(case.graph, case.arrays)
    for share in record.views(node):
        whole, part = node.inputs[share.input], node.outputs[share.output]
        assert _bytes(places, whole)[share.offset :][: part.nbytes if part else 0] == _bytes(places, part)
    for share in record.parts(node):
        part, whole = node.inputs[share.input], node.outputs[share.output]
        assert _bytes(places, whole)[share.offset :][: part.nbytes if part else 0] == _bytes(places, part)


def _bytes(places: dict[str, Array], value: Value | None) -> bytes:
    assert value is not None
    return places[value.name].tobytes()


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("name", COMMANDS)
def test_kernels_agree_and_survive_in_place(name: str, backend: Backend) -> None:
    tried = 0
    for example in EXAMPLES[name]:
        with told(example):
            case = case_of(COMMANDS[name], example)
            if backend.kernel(case.graph.nodes[0], {}) is not None:
                agree_and_survive(COMMANDS[name], case, backend)
                tried += 1
    if not tried:
        pytest.skip(f"{backend.name} has no kernel for this; the reference computes it")


def agree_and_survive(record: Command, case: Case, backend: Backend) -> None:
    """Assert that a kernel computes what the reference does, on bytes apart and on those it may share."""
    (node,) = case.graph.nodes
    expected = computed(case.graph, case.arrays)
    copies = {name: array.copy() for name, array in case.arrays.items()}
    separate = computed(case.graph, copies, backend)
    for value in node.defs:
        close(separate[value.name], expected[value.name], value)
    for name, array in case.arrays.items():
        assert copies[name].tobytes() == array.tobytes(), "changed an input"
    for shares in _ways(record.inplace(node)):
        places = {name: array.copy() for name, array in case.arrays.items()}
        for share in shares:
            source, output = node.inputs[share.input], node.outputs[share.output]
            assert source is not None
            assert output is not None
            assert share.offset == 0
            assert source.nbytes == output.nbytes
            places[output.name] = places[source.name].reshape(-1).view(_dtype(output)).reshape(_shape(output))
        shared = computed(case.graph, places, backend)
        for value in node.defs:
            close(shared[value.name], separate[value.name], value)


def _ways(shares: tuple[Share, ...]) -> list[list[Share]]:
    """Each share alone, and as many as can be at once."""
    together: dict[int, Share] = {}
    for share in shares:
        if share.input not in [other.input for other in together.values()]:
            together.setdefault(share.output, share)
    return [[share] for share in shares] + ([list(together.values())] if len(together) > 1 else [])


def differentiated(case: Case, seed: int = 1) -> tuple[Graph, dict[str, Array], list[Value], list[Value]]:
    """A case with a scalar loss: its floating-point outputs, weighted at random; its gradients by the inputs.

    Returns the graph, the arrays, the inputs that have a gradient, and these gradients.
    """
    random = np.random.default_rng(seed)
    (node,) = case.graph.nodes[-1:]
    emit = Emitter.from_graph(case.graph)
    seeds, inputs, arrays = {}, list(case.graph.inputs), dict(case.arrays)
    for output in dict.fromkeys(node.defs):
        if is_differentiable(output):
            weight = Value(f"seed.{output.name}", output.spec)
            arrays[weight.name] = random.uniform(0.5, 1.5, _shape(output)).astype(_dtype(output))
            seeds[output] = weight
            inputs.append(weight)
    wrt = [value for value in case.graph.inputs if is_differentiable(value)]
    grads = backward(emit, case.graph.nodes, seeds, wrt)
    pairs = [(value, grad) for value, grad in zip(wrt, grads, strict=True) if grad is not None]
    outputs = (*case.graph.outputs, *(grad for _, grad in pairs))
    weights = (*case.graph.weights, *emit.literals.added)
    graph = Graph("example", tuple(inputs), tuple(emit.nodes), outputs, weights)
    verify(graph)
    return graph, arrays, [value for value, _ in pairs], [grad for _, grad in pairs]


DOUBLES = {
    name: [example for example in EXAMPLES[name] if any(text.startswith("f64") for text in example.inputs)]
    for name, record in COMMANDS.items()
    if record.gradient is not None
}
"""What is precise enough for differences; each command that has a gradient has such an example."""


@pytest.mark.parametrize("name", DOUBLES)
def test_gradients_and_theirs_are_the_finite_differences(name: str) -> None:
    for example in DOUBLES[name]:
        with told(example):
            case = case_of(COMMANDS[name], example)
            graph, arrays, wrt, grads = differentiated(case)
            assert grads, "no input has a gradient"
            _agree_with_differences(case.graph, graph, arrays, wrt, grads)
            second_gradient_is_the_difference_of_the_first(graph, arrays, grads)


def second_gradient_is_the_difference_of_the_first(first: Graph, arrays: dict[str, Array], grads: list[Value]) -> None:
    arrays = dict(arrays)
    emit = Emitter.from_graph(first)
    random = np.random.default_rng(2)
    seeds = {}
    for grad in dict.fromkeys(grads):
        weight = Value(f"second.{grad.name}", grad.spec)
        arrays[weight.name] = random.uniform(0.5, 1.5, _shape(grad)).astype(_dtype(grad))
        seeds[grad] = weight
    wrt = [value for value in first.inputs if is_differentiable(value)]
    seconds = backward(emit, first.nodes, seeds, wrt)
    pairs = [(value, second) for value, second in zip(wrt, seconds, strict=True) if second is not None]
    inputs = (*first.inputs, *seeds.values())
    weights = (*first.weights, *emit.literals.added)
    graph = Graph("second", inputs, tuple(emit.nodes), tuple(second for _, second in pairs), weights)
    verify(graph)
    of_first = replace(first, outputs=tuple(seeds))
    _agree_with_differences(of_first, graph, arrays, [v for v, _ in pairs], [g for _, g in pairs], "second.")


def _agree_with_differences(
    forward: Graph,
    graph: Graph,
    arrays: dict[str, Array],
    wrt: list[Value],
    grads: list[Value],
    prefix: str = "seed.",
) -> None:
    """The gradients along random directions are what the loss changes by."""
    places = computed(graph, arrays)
    random = np.random.default_rng(3)
    step = 1e-6

    def loss(moved: dict[str, Array]) -> float:
        found = computed(forward, moved)
        weighted = [v for v in dict.fromkeys(forward.outputs) if prefix + v.name in arrays]
        return float(sum((found[v.name] * arrays[prefix + v.name]).sum() for v in weighted))

    for value, grad in zip(wrt, grads, strict=True):
        if _shape(value) != _shape(grad):
            raise AssertionError(f"the gradient of {value} {value.spec} has another spec: {grad.spec}")
        direction = random.uniform(-1, 1, _shape(value))
        ends = [loss({**arrays, value.name: arrays[value.name] + sign * step * direction}) for sign in (1, -1)]
        difference = (ends[0] - ends[1]) / (2 * step)
        assert float((places[grad.name] * direction).sum()) == pytest.approx(difference, rel=2e-5, abs=2e-6), value


def test_every_gradient_is_written_with_commands_that_have_one_where_it_matters() -> None:
    """No rule leads to an op without a rule, except through values that have no gradient."""
    for name, examples in DOUBLES.items():
        for example in examples:
            graph, *_ = differentiated(case_of(COMMANDS[name], example))
            for node in graph.nodes:
                floats = any(is_differentiable(v) for v in node.uses) and any(is_differentiable(v) for v in node.defs)
                assert not floats or lookup(node.op).gradient is not None, f"nn.{name} leads to {node.op}"
