"""Reading and writing at indices against PyTorch's; indices outside; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ir.graph import Graph, Value
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.ops.nn import COMMANDS
from sublet.ops.op import Share
from sublet.runtime.backends.reference import ReferenceBackend
from sublet.runtime.kernel import Backend
from tests.nn.against import agrees, refused, shown
from tests.nn.examples import Example, case_of
from tests.nn.test_registry import computed

torch = pytest.importorskip("torch")
F = torch.nn.functional

CASES: list[tuple[str, tuple[str, ...], dict[str, Any], Callable[..., Any]]] = [
    ("index_select", ("f64[8,30,5]", "i64[40] 0:30"), {"axis": 1}, lambda x, i: x.index_select(1, i)),
    ("index_select", ("f64[8,30]", "i64[4,5] 0:30"), {"axis": -1}, lambda x, i: x[:, i]),
    ("index_select", ("f64[8,30]", "i32[] 0:8"), {"axis": 0}, lambda x, i: x[i.long()]),
    ("embedding", ("f64[100,16]", "i64[7,50] 0:100"), {}, lambda w, i: F.embedding(i, w)),
    ("embedding", ("f64[100,16]", "i32[70] 0:9"), {}, lambda w, i: F.embedding(i, w)),
    ("gather", ("f64[9,30]", "i64[9,50] 0:30"), {"axis": 1}, lambda x, i: x.gather(1, i)),
    ("scatter_add", ("f64[9,30]", "i64[40,30] 0:9", "f64[40,30]"), {"axis": 0}, lambda x, i, u: x.scatter_add(0, i, u)),
    ("masked_fill", ("f64[9,30]", "bool[9,1]"), {"value": 2.5}, lambda x, m: x.masked_fill(m, 2.5)),
    ("select", ("f64[9,30]", "i64[] 0:9"), {}, lambda x, i: x[i]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "attrs", "function"), CASES, ids=shown)
def test_is_pytorchs(name: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: Any) -> None:
    agrees(name, inputs, attrs, function)


def test_one_hot_is_pytorchs() -> None:
    case = case_of(COMMANDS["one_hot"], Example(("i64[5,6] 0:9",), {"depth": 9, "dtype": "i64"}))
    (y,) = case.graph.outputs
    expected = F.one_hot(torch.from_numpy(case.arrays["x0"]), 9).numpy()
    for backend in (TorchBackend(), ReferenceBackend()):
        np.testing.assert_array_equal(computed(case.graph, dict(case.arrays), backend)[y.name], expected)


@pytest.mark.parametrize("backend", [TorchBackend(), ReferenceBackend()], ids=lambda backend: backend.name)
@pytest.mark.parametrize(
    ("name", "inputs", "attrs"),
    [
        ("index_select", ("f32[4]", "i64[2] 4:6"), {"axis": 0}),
        ("index_select", ("f32[4]", "i64[2] -3:0"), {"axis": 0}),
        ("index_select_gradient", ("f32[2]", "i64[2] 4:6"), {"axis": 0, "extent": 4}),
        ("embedding", ("f32[4,2]", "i32[2] -3:0"), {}),
        ("embedding_gradient", ("f32[2,3]", "i32[2] 7:9"), {"rows": 7}),
        ("gather", ("f32[4]", "i64[2] 4:6"), {"axis": 0}),
        ("scatter_add", ("f32[4]", "i64[2] 4:6", "f32[2]"), {"axis": 0}),
        ("one_hot", ("i64[2] 4:6",), {"depth": 4}),
        ("select", ("f32[4,2]", "i64[] 4:6"), {}),
    ],
)
def test_an_index_outside_stops_the_run(name: str, inputs: Any, attrs: Any, backend: Backend) -> None:
    case = case_of(COMMANDS[name], Example(inputs, attrs))
    with pytest.raises((IndexError, RuntimeError)):
        computed(case.graph, case.arrays, backend)


@pytest.mark.parametrize(("row", "shares"), [(2, (Share(0, 0, 24),)), (4, ()), (-1, ())])
def test_a_row_of_constant_index_is_a_view(row: int, shares: Any) -> None:
    emit = Emitter.from_graph(Graph("g", (), (), ()))
    index = Value("i", TensorSpec(DType.I64), (row,))
    emit("nn.select", Value("x", TensorSpec(DType.F32, (4, 3))), index)
    assert lookup("nn.select").views(emit.nodes[-1]) == shares


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "message"),
    [
        ("index_select", ("f32[4]", "f32[2]"), {"axis": 0}, "indices is f32.* expected one of the types i32, i64"),
        ("index_select", ("f32[4]", "i64[2] 0:1"), {"axis": 1}, "axis 1 is out of range"),
        ("embedding", ("f32[4]", "i64[2] 0:1"), {}, "expected two axes"),
        ("gather", ("f32[4,3]", "i64[2,2] 0:1"), {"axis": 1}, "may only differ along axis 1"),
        ("scatter_add", ("f32[4]", "i64[2] 0:1", "f32[3]"), {"axis": 0}, r"updates.*f32\[3\] and f32\[2\]"),
        ("one_hot", ("i64[2] 0:1",), {"depth": 0}, "at least 1"),
        ("masked_fill", ("f32[4]", "bool[2,4]"), {"value": 0.0}, "cannot be broadcast"),
        ("masked_fill", ("i8[4] 0:1", "bool[4]"), {"value": 0.5}, "0.5 is no i8"),
        ("select", ("f32[4]", "i64[1] 0:1"), {}, "must be a scalar"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, inputs: Any, attrs: dict[str, Any], message: str) -> None:
    refused(name, inputs, attrs, message)
