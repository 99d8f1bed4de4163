"""Chains of element-wise commands against PyTorch, block by block, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import sublet
from sublet import parse
from sublet.base.errors import SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.integrations.torch.kernels.fused import BLOCK_ELEMENTS, block_slices
from sublet.ir.graph import Graph, Node
from sublet.ops.nn import command
from sublet.ops.nn.fused import STEPS, chain_steps
from sublet.ops.op import can_overwrite
from sublet.passes.autodiff import gradients
from tests.nn.examples import EXAMPLES, Case, case_of, told
from tests.nn.test_registry import close, computed

torch = pytest.importorskip("torch")

CHAIN = """
graph @g(%x: f64[300,500], %b: f64[500]) {
  %y: f64[300,500] = nn.chain(%x, %b) {steps = ["mul x0 x1", "tanh s0", "exp s1", "sub s2 x0"]}
  return %y
}
"""


def test_forward_and_gradient_are_pytorchs() -> None:
    graph = parse(CHAIN)
    (y,) = graph.outputs
    graph, _ = gradients(graph, [y], list(graph.inputs))
    random = np.random.default_rng(0)
    arrays = {v.name: random.normal(size=v.spec.shape) for v in graph.inputs}
    found = list(sublet.compile(graph, backend="torch")(arrays).values())
    x, b = (torch.tensor(array, requires_grad=True) for array in arrays.values())
    expected = torch.exp(torch.tanh(x * b)) - x
    expected.sum().backward()
    for ours, theirs in zip(found, (expected.detach(), x.grad, b.grad), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "shape", [(), (1,), (BLOCK_ELEMENTS + 1,), (3, 2, BLOCK_ELEMENTS), (70000, 3), (0, 5), (2, 9, 80000)]
)
def test_blocks_cover_a_tensor_once(shape: tuple[int, ...]) -> None:
    seen = np.zeros(shape, np.int64)
    for where in block_slices(shape):
        part = seen[(*where, ...)]
        assert part.size <= BLOCK_ELEMENTS
        assert part.flags.c_contiguous
        part += 1
    assert (seen == 1).all()


def test_a_step_is_read_as_it_is_written() -> None:
    text = ("clamp x0 low=-inf high=1e-05", "add s0 x1", "leaky_relu s1 slope=0.25")
    assert [step.text for step in chain_steps({"steps": text})] == list(text)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((), "has no steps"),
        (("matmul x0 x1",), "no element-wise command"),
        (("add x0 s0",), "neither an input nor an earlier step"),
        (("add x0 x2",), "neither an input nor an earlier step"),
        (("add x0",), "has 1 operands"),
        (("neg x1", "add s0 x0"), "expected equal shapes"),
        (("clamp x0 low=a high=1.0",), "is no number"),
        (("add x0 x\N{SUPERSCRIPT TWO}",), "neither an input nor an earlier step"),
        (("softplus_gradient x0 x1",), "no element-wise command"),
    ],
)
def test_wrong_steps_are_refused(steps: tuple[str, ...], message: str) -> None:
    record = command("nn.chain")
    with pytest.raises(SpecError, match=message):
        record.infer(
            [TensorSpec(DType.F32, (2, 3)), TensorSpec(DType.F32, (3,))], record.complete_attributes({"steps": steps})
        )


def test_steps_are_element_wise() -> None:
    """What a command gives for a part of its operands is that part of what it gives."""
    random = np.random.default_rng(1)
    for record in STEPS.values():
        for example in EXAMPLES[record.name]:
            if not all(text.startswith("f64[3,5]") for text in example.inputs):
                continue
            arrays = [random.uniform(0.1, 0.9, (4, 6)) for _ in example.inputs]
            attrs = record.complete_attributes(example.attrs)
            whole = record.compute(*arrays, **attrs)
            part = record.compute(*(array[1:3, 2:5] for array in arrays), **attrs)
            np.testing.assert_allclose(part, whole[1:3, 2:5], rtol=1e-12, err_msg=record.name)


def with_equal_operands(case: Case) -> Case:
    """Return the case with its first input as every operand, of equal shape and type."""
    (node,), first = case.graph.nodes, case.graph.inputs[0]
    same = Node(node.name, node.op, (first,) * len(node.inputs), node.outputs, node.attrs)
    return Case(Graph("same", (first,), (same,), case.graph.outputs), {first.name: case.arrays[first.name]})


def assert_may_overwrite_each_operand(case: Case) -> None:
    """Assert that the kernel gives the same result in memory of its own and over each operand of the result's size."""
    backend = TorchBackend()
    (node,), (output,) = case.graph.nodes, case.graph.outputs
    assert backend.kernel(node, {}) is not None
    apart = computed(case.graph, {name: array.copy() for name, array in case.arrays.items()}, backend)[output.name]
    for value in dict.fromkeys(node.uses):
        if can_overwrite(value, output):
            places = {name: array.copy() for name, array in case.arrays.items()}
            places[output.name] = places[value.name].view(apart.dtype)
            close(computed(case.graph, places, backend)[output.name], apart, output)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_may_overwrite_every_operand(name: str) -> None:
    """A chain gives a step the place of any operand without later readers, whatever `inplace` of the command says."""
    tried = 0
    for example in EXAMPLES[name]:
        case = case_of(STEPS[name], example)
        if TorchBackend().kernel(case.graph.nodes[0], {}) is None:
            continue
        with told(example):
            assert_may_overwrite_each_operand(case)
            if len({value.spec for value in case.graph.inputs}) == 1:
                assert_may_overwrite_each_operand(with_equal_operands(case))
        tried += 1
    if not tried:
        pytest.skip("PyTorch has no kernel for this; the reference computes it")
