"""Every row of the table of what may be folded: operators and types."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")

from sublet.integrations.onnx.reader.constant_folding import FOLDABLE
from sublet.integrations.onnx.reader.model import from_proto
from tests.integrations.onnx.fold_cases import MAKE
from tests.integrations.onnx.folding import compare
from tests.integrations.onnx.models import parsed

NODES = 3
"""Nodes that are drawn for an operator, a form of it and a type; `python -m tests.fuzz --kind folding` draws more."""


@pytest.mark.parametrize("op_type", sorted(FOLDABLE))
def test_what_is_folded_is_what_onnx_runtime_computes(op_type: str) -> None:
    for dtype in sorted(FOLDABLE[op_type], key=str):
        compare(op_type, dtype, NODES)


def test_every_row_can_be_drawn() -> None:
    assert set(MAKE) == set(FOLDABLE)


@pytest.mark.parametrize("op_type", ["Unique", "Relu", "Einsum", "Selu", "Softmax", "Exp", "Log", "Sin", "Cos"])
def test_what_is_not_in_the_table_is_not_folded(op_type: str) -> None:
    equation = '<equation = "ij->ji">' if op_type == "Einsum" else ""
    nodes = f"y = Neg (x) u = {op_type} {equation} (c)"
    graph = from_proto(parsed(f"g (float[1] x) => (y, u) <float[2,2] c = {{3, 1, 2, 1}}> {{ {nodes} }}")).graph
    assert [node.op for node in graph.nodes] == ["onnx.Neg", f"onnx.{op_type}"]


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        ("u = Div (a, b)", "<int64[2] a = {1, 2}, int64[2] b = {1, 0}>"),
        ("u = Div (a, b)", "<int64[1] a = {-9223372036854775808}, int64[1] b = {-1}>"),
        ("u = Mod <fmod = 1> (a, b)", "<int64[1] a = {7}, int64[1] b = {3}>"),
        ("u = Cast <to = 7> (a)", "<float[1] a = {1e30}>"),
        ("u = Cast <to = 10> (a)", "<double[1] a = {1.5}>"),
        ("u = Pow (a, b)", "<float[1] a = {2.0}, float[1] b = {3.0}>"),
        ("u = Pow (a, b)", "<int64[1] a = {3037000500}, int64[1] b = {2}>"),
        ("u = ReduceSum (a)", "<float[2] a = {1.0, 2.0}>"),
        ("u = ReduceMean (a)", "<float[2] a = {1.0, 2.0}>"),
        ("u = ReduceProd (a)", "<float[2] a = {1.0, 2.0}>"),
        ("u = ReduceSum (a)", "<int32[2] a = {2147483647, 1}>"),
        ("u = ReduceProd (a)", "<int64[2] a = {3037000500, 3037000500}>"),
        ("u = CumSum (a, b)", "<float[2] a = {1.0, 2.0}, int64 b = {0}>"),
        ("u = Where (c, a, a)", "<bool[1] c = {1}, float[1] a = {-0.0}>"),
        ("u = Max (a, b)", "<float[1] a = {-0.0}, float[1] b = {0.0}>"),
        ("u = NonZero (a)", "<int64 a = {1}>"),
        (
            "u = Slice (a, b, c, b, d)",
            "<int64[2] a = {1, 2}, int64[1] b = {0}, int64[1] c = {9223372036854775807}, int64[1] d = {-1}>",
        ),
    ],
)
def test_what_differs_between_implementations_is_not_folded(node: str, weights: str) -> None:
    graph = from_proto(parsed(f"g (float[1] x) => (y, u) {weights} {{ y = Neg (x) {node} }}")).graph
    assert len(graph.nodes) == 2
