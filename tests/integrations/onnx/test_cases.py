"""All node cases of the onnx package: each imports, has the right shapes, and still computes its results."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import onnx

from sublet.base.tensor import TensorSpec
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.types import TensorType, read_type, spec_of
from sublet.ir.graph import Value
from sublet.ir.model import Model
from sublet.ir.text import parse, to_text
from sublet.ops.verify import findings
from tests.integrations.onnx.reference import run

NOT_RUN = {
    "test_if_opt": "the reference implementation gives an optional another nesting than the case",
    "test_bernoulli": "random",
    "test_scatter_with": "the reference implementation has no Scatter",
    "test_scan_sum": "Scan of operator set 8 stays one node, which the reference implementation cannot run",
    "test_group_normalization_e": "its function body needs types that a single untyped node does not have",
}


def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collect = import_module("onnx.backend.test.case.node").collect_testcases
        found = [case for case in collect(None) if case.model is not None]
    assert len(found) > 1000
    return found


def _inputs(case: Any) -> tuple[list[Any], list[Any]]:
    """The first data set, with tensors as arrays."""
    inputs, outputs = case.data_sets[0]
    return [_array(x) for x in inputs], [_array(x) for x in outputs]


def _array(content: Any) -> Any:
    return onnx.numpy_helper.to_array(content) if isinstance(content, onnx.TensorProto) else content


def _imported(case: Any) -> Model:
    """The case's model with every open dimension as large as in its data."""
    dims = {
        f"{value.name}:{axis}": np.shape(content)[axis]
        for value, content in zip(case.model.graph.input, _inputs(case)[0], strict=False)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if not dim.HasField("dim_value")
    }
    return from_proto(case.model, dims)


def test_every_case_becomes_a_legal_graph_of_the_declared_shapes_that_computes_what_is_expected() -> None:
    compared = ran = 0
    for number, case in enumerate(cases()):
        imported = _imported(case)
        assert findings(imported.graph) == (), case.name
        if number % 7 == 0:
            assert parse(to_text(imported.graph)) == imported.graph, case.name
        compared += _has_the_declared_shapes(case, imported)
        if not any(case.name.startswith(name) for name in NOT_RUN) and not _is_slow(imported):
            inputs, expected = _inputs(case)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                results = run(imported, inputs)
            _compare(case.name, results, expected, case)
            ran += 1
    assert compared > 1800
    assert ran > 1800


def _has_the_declared_shapes(case: Any, imported: Model) -> int:
    """How many outputs could be compared."""
    compared = 0
    for declared, value in zip(case.model.graph.output, imported.graph.outputs, strict=True):
        type = read_type(declared.type)
        if isinstance(value.spec, TensorSpec) and isinstance(type, TensorType):
            expected = spec_of(type, "")
            if isinstance(expected, TensorSpec):
                assert value.spec == expected, case.name
                compared += 1
    return compared


def _is_slow(imported: Model) -> bool:
    """Pools over images: the reference implementation computes element by element; their shapes say as much."""
    return any("Pool" in node.op and _size(node.inputs[0]) > 2000 for node in imported.graph.walk())


def _size(value: Value | None) -> int:
    return value.spec.size if value is not None and isinstance(value.spec, TensorSpec) else 0


def _compare(name: str, results: Sequence[Any], expected: Sequence[Any], case: Any) -> None:
    for result, right in zip(results, expected, strict=True):
        if isinstance(right, list | tuple):
            parts = result if isinstance(result, list | tuple) else [result]
            _compare(name, parts, right, case)
            continue
        right = np.asarray(right)
        if right.dtype.kind in "fcV":  # V: the types of ml_dtypes
            tolerance = {"rtol": max(case.rtol, 1e-3), "atol": max(case.atol, 1e-5)}
            result = np.asarray(result)
            if right.dtype.kind == "V":
                result, right = result.astype(np.float32), right.astype(np.float32)
            np.testing.assert_allclose(result, right, **tolerance, err_msg=name)
        else:
            assert np.array_equal(result, right), name
