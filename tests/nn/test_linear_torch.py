"""Matrix products against PyTorch's own functions and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops.nn import COMMANDS
from tests.nn.against import agrees, refused
from tests.nn.examples import Example, case_of
from tests.nn.test_registry import computed, differentiated

torch = pytest.importorskip("torch")
F = torch.nn.functional

ROWS: list[tuple[str, tuple[str, ...], dict[str, Any], Callable[..., Any]]] = [
    ("matmul", ("f64[4,33,20]", "f64[20,17]"), {}, torch.matmul),
    ("matmul", ("f64[3,4,33,20]", "f64[4,20,17]"), {}, torch.matmul),
    ("matmul", ("f64[3,1,20,33]", "f64[4,20,17]"), {"transpose_a": 1}, lambda a, b: a.mT @ b),
    ("matmul", ("f64[20,33]", "f64[2,3,17,20]"), {"transpose_a": 1, "transpose_b": 1}, lambda a, b: a.mT @ b.mT),
    ("matmul", ("f64[2,3,33,20]", "f64[17,20]"), {"transpose_b": 1}, lambda a, b: a @ b.mT),
    ("gemm", ("f64[30,20]", "f64[20,40]", "f64[40]"), {"alpha": 0.5, "beta": 3.0}, lambda a, b, c: a @ b / 2 + 3 * c),
    (
        "gemm",
        ("f64[20,30]", "f64[40,20]"),
        {"alpha": -2.0, "transpose_a": 1, "transpose_b": 1},
        lambda a, b: -2 * a.T @ b.T,
    ),
    ("linear", ("f64[4,16,32]", "f64[48,32]", "f64[48]"), {}, F.linear),
    ("linear", ("f64[2,3,5,32]", "f64[48,32]"), {}, F.linear),
    ("linear", ("f64[32]", "f64[48,32]", "f64[48]"), {}, F.linear),
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}-{i}" for i, row in enumerate(ROWS)])
def test_is_pytorchs(row: Any) -> None:
    agrees(*row)


def test_a_linear_over_a_batch_and_its_gradients_are_one_product_each() -> None:
    case = case_of(COMMANDS["linear"], Example(("f32[4,16,32]", "f32[48,32]")))
    graph, arrays, *_ = differentiated(case)
    with torch.profiler.profile() as profiler:
        computed(graph, arrays, TorchBackend())
    products = [event.name for event in profiler.events() if event.name in ("aten::mm", "aten::bmm", "aten::addmm")]
    assert products == ["aten::mm"] * 3


@pytest.mark.parametrize(
    ("inputs", "attrs"),
    [(("f32[3,0]", "f32[0,4]"), {}), (("f32[0,3,5]", "f32[5,4]"), {}), (("f32[2,0,5]", "f32[2,5,4]"), {})],
)
def test_empty_products_are_zero(inputs: tuple[str, ...], attrs: dict[str, Any]) -> None:
    case = case_of(COMMANDS["matmul"], Example(inputs, attrs))
    (output,) = case.graph.outputs
    found = computed(case.graph, case.arrays, TorchBackend())[output.name]
    assert not np.any(found)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_halves(dtype: str) -> None:
    case = case_of(COMMANDS["linear"], Example((f"{dtype}[32,64]", f"{dtype}[16,64]", f"{dtype}[16]")))
    (output,) = case.graph.outputs
    places = [
        computed(case.graph, case.arrays, *given)[output.name].astype(np.float64) for given in ((TorchBackend(),), ())
    ]
    np.testing.assert_allclose(*places, rtol=0.02, atol=0.2)


def test_a_product_without_an_addend_ignores_what_lay_in_the_output() -> None:
    case = case_of(COMMANDS["gemm"], Example(("f32[8,8]", "f32[8,8]"), {"alpha": 2.0}))
    (node,) = case.graph.nodes
    kernel = TorchBackend().kernel(node, {})
    assert kernel is not None
    y = np.full((8, 8), np.nan, np.float32)
    kernel.bind(list(case.arrays.values()), [y], None)()
    np.testing.assert_allclose(y, 2 * case.arrays["x0"] @ case.arrays["x1"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "message"),
    [
        ("matmul", ["f32[3,4]", "f32[5,2]"], {}, r"f32\[3,4\] and b is f32\[5,2\]: a has 4 columns and b 5 rows"),
        ("matmul", ["f32[3,4]", "f32[4,2]"], {"transpose_a": 1}, r"\(transpose_a=1\) .* a has 3 columns"),
        ("matmul", ["f32[2,3,4]", "f32[3,4,5]"], {}, r"f32\[2,3,4\] .* cannot be broadcast"),
        ("matmul", ["f32[4]", "f32[4,5]"], {}, r"a is f32\[4\]: .* two axes"),
        ("matmul", ["f32[3,4]", "f64[4,5]"], {}, "types must be equal"),
        ("matmul", ["i64[3,4]", "i64[4,5]"], {}, r"i64\[3,4\], expected one of the types"),
        ("gemm", ["f32[1,3,4]", "f32[4,5]"], {}, r"f32\[1,3,4\]: nn.gemm needs two axes"),
        ("gemm", ["f32[3,4]", "f32[4,5]", "f32[3]"], {}, r"f32\[3\].* cannot be broadcast"),
        ("linear", ["f32[3,4]", "f32[4,5]"], {}, r"last axis of x must be 5, as w is \[outputs, inputs\]"),
        ("linear", ["f32[3,4]", "f32[5,4]", "f32[4]"], {}, r"b is f32\[4\].* must have the shape \[5\]"),
        ("linear", ["f32[3,4]", "f32[4]"], {}, r"w is f32\[4\], expected two axes"),
    ],
)
def test_refusals(name: str, shapes: list[str], attrs: dict[str, Any], message: str) -> None:
    refused(name, shapes, attrs, message)
