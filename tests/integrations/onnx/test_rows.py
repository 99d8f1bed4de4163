"""Parts of a batch in ONNX graphs: ONNX Runtime's kernels run once a row, with equal bits; what stays copied."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import sublet
from benchmarks.models.architectures import SMALL
from sublet.analysis.options import Options
from sublet.base.optional_imports import is_installed
from sublet.ops.op import lookup


def at_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return model


@pytest.mark.skipif(not is_installed("onnxruntime"), reason="needs ONNX Runtime")
@pytest.mark.parametrize("optimize", ["none", "onnxruntime"])
@pytest.mark.parametrize("name", ["googlenet", "densenet121"])
def test_networks_with_concatenations_copy_no_operand(name: str, optimize: str) -> None:
    model = at_batch(SMALL[name](), 2)
    rows, plain = (
        sublet.compile(model, optimize=optimize, options=Options(alignment=4, in_place_from=0, in_rows=in_rows))
        for in_rows in (True, False)
    )
    concatenated = [value for node in rows.graph.nodes if node.op == "onnx.Concat" for value in node.uses]
    in_rows = {place.value for place in rows.plan.placements if place.region.rows > 1}
    assert len(concatenated) > 15
    assert sum(value.name not in in_rows for value in concatenated) <= len(concatenated) // 4
    assert rows.arena_bytes <= plain.arena_bytes
    (x,) = rows.inputs.values()
    inputs = {x.name: np.random.default_rng(0).normal(size=x.spec.shape).astype(np.float32)}
    expected = plain(inputs)
    for found in (rows(inputs), rows(inputs), sublet.run_poisoned(rows, inputs)):
        for key, result in expected.items():
            assert np.array_equal(found[key], result), key


@pytest.mark.skipif(not is_installed("onnxruntime"), reason="needs ONNX Runtime")
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_transpositions_left_in_transformers_exchange_positions_and_heads_for_products(name: str) -> None:
    """ONNX Runtime's products transpose the last two axes of a factor only; other transpositions are copies."""
    graph = sublet.compile(SMALL[name](), optimize="onnxruntime").graph
    copying = [node for node in graph.nodes if node.op == "onnx.Transpose" and not lookup(node.op).views(node)]
    assert copying
    for node in copying:
        assert tuple(node.attrs["perm"]) in {(0, 2, 1, 3), (0, 2, 3, 1)}
        value = node.defs[0]
        while (reader := next(each for each in graph.nodes if value in each.uses)).op == "onnx.Reshape":
            value = reader.defs[0]
        assert reader.op.rpartition(".")[2] in {"MatMul", "FusedMatMul", "Gemm"}
