"""Nodes that are folded, held against ONNX Runtime with its own options, bit for bit."""

from __future__ import annotations

import zlib
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from sublet.base.tensor import NUMPY, DType
from sublet.integrations.onnx.reader.constant_folding import NEWEST_FOLDABLE_OPSET, OLDEST_FOLDABLE_OPSET
from sublet.integrations.onnx.reader.model import from_proto
from sublet.integrations.onnx.reader.type_inference import schema_of
from tests.integrations.onnx.fold_cases import MAKE, Array, Case, Draw


@cache
def _versions(op_type: str) -> tuple[int, ...]:
    """For every form the operator has had the oldest version of the operator set that is compared."""
    forms: dict[int, int] = {}
    for version in range(OLDEST_FOLDABLE_OPSET, NEWEST_FOLDABLE_OPSET + 1):
        schema = schema_of(op_type, "", version)
        if schema is not None:
            forms.setdefault(schema.since_version, version)
    return tuple(forms.values())


def _allowed(op_type: str, version: int, dtype: DType) -> bool:
    """Whether ONNX has the operator for elements of the type."""
    schema = schema_of(op_type, "", version)
    names = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    main = {"Where": 1, "OneHot": 2}.get(op_type, 0)
    text = {DType.F32: "float", DType.F64: "double"}.get(dtype) or helper.tensor_dtype_to_string(
        helper.np_dtype_to_tensor_dtype(NUMPY[dtype])
    ).split(".")[-1].lower()
    return f"tensor({text})" in names.get(schema.inputs[main].type_str, ())


def _model(op_type: str, version: int, cases: list[Case]) -> onnx.ModelProto:
    """A model of the nodes, all of constants, and one node that is none."""
    nodes, weights, outputs = [helper.make_node("Neg", ["x"], ["y"])], [], ["y"]
    for i, case in enumerate(cases):
        names = [f"i{i}.{k}" if array is not None else "" for k, array in enumerate(case.inputs)]
        results = [f"o{i}.{k}" for k in range(case.outputs)]
        nodes.append(helper.make_node(op_type, names, results, **case.attrs))
        outputs += results
        for name, array in zip(names, case.inputs, strict=True):
            if array is not None:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                weights.append(helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True))
    x = helper.make_tensor_value_info("x", 1, (1,))
    graph = helper.make_graph(nodes, "g", [x], [helper.make_empty_tensor_value_info(o) for o in outputs], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)


def _by_onnx_runtime(model: onnx.ModelProto, wide: bool) -> dict[str, Array]:
    """What ONNX Runtime computes; `wide` is for types that NumPy has not, which become f32 on the way out."""
    names = [value.name for value in model.graph.output]
    if wide:
        model.graph.node.extend(helper.make_node("Cast", [name], [f"{name}.wide"], to=1) for name in names)
        del model.graph.output[:]
        model.graph.output.extend(helper.make_empty_tensor_value_info(f"{name}.wide") for name in names)
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(None, {"x": np.zeros(1, np.float32)}), strict=True))


def _equal(found: Array, wanted: Array) -> bool:
    """Bit for bit."""
    return found.shape == wanted.shape and found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def _compared(op_type: str, version: int, dtype: DType, nodes: int, seed: int) -> int:
    """Draw nodes and compare those that were folded; how many were."""
    wide = dtype == DType.BF16
    rng = np.random.default_rng(zlib.crc32(f"{op_type} {version} {dtype} {seed}".encode()))
    kind = np.dtype(np.float32) if wide else np.dtype(NUMPY[dtype])
    drawn = [MAKE[op_type](Draw(rng, version, kind)) for _ in range(nodes)]
    if wide:
        drawn = [Case([drawn_.inputs[0].astype(NUMPY[dtype]), *drawn_.inputs[1:]], drawn_.attrs) for drawn_ in drawn]
    model = _model(op_type, version, drawn)
    imported = from_proto(model)
    folded = {
        name: imported.weights[value.name].array()
        for name, value in zip(imported.outputs, imported.graph.outputs, strict=True)
        if value.name in imported.weights
    }
    try:
        wanted = _by_onnx_runtime(model, wide)
    except NoKernel:
        assert not folded, f"{op_type} {version} {dtype} is folded; ONNX Runtime does not compute it"
        return 0
    for name, found in folded.items():
        where = f"{op_type} {version} {dtype}, {drawn[int(name[1:].split('.')[0])]}: {found} {wanted[name]}"
        assert _equal(found.astype(np.float32) if wide else found, wanted[name]), where
    return len(folded)


NEVER = {("Where", DType.BOOL)}
"""Types that only other operands of an operator have."""


def compare(op_type: str, dtype: DType, nodes: int, seed: int = 0, *, thorough: bool = False) -> None:
    """Draw `nodes` nodes for the newest form of the operator and one of the older ones, or for all of them.

    Raises AssertionError for a constant that is not what ONNX Runtime computes, and if nothing is folded.
    """
    versions = [version for version in _versions(op_type) if _allowed(op_type, version, dtype)]
    if not thorough:
        older = zlib.crc32(f"{op_type} {dtype} {seed}".encode()) % max(len(versions) - 1, 1)
        versions = sorted({*versions[-1:], *versions[older : older + 1]})
    folded = sum(_compared(op_type, version, dtype, nodes, seed) for version in versions)
    assert folded or not versions or (op_type, dtype) in NEVER, f"{op_type} of {dtype} is never folded"
