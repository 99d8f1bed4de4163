"""Nodes of ONNX's own test cases with shapes they were not made for, held against a run in ONNX Runtime.

Either both take a node, and what is planned has the shapes of the run; or both refuse it. What ONNX Runtime refuses
may be told later, in a run, only where it is the content of an operand that is wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from sublet.base.errors import ModelError
from sublet.base.tensor import TensorSpec
from sublet.integrations.onnx.reader.model import from_proto

Array = np.ndarray[Any, Any]
NEWEST = 26
CONSTANT_ELEMENTS = 16

OF_CONTENT = (
    "out of bounds",
    "Out of range",
    "out of range",
    "invalid ind",
    "invalid index",
    "not within",
    "data bounds",
    "exceeds max_sequence_length",
)
"""What ONNX Runtime says of an index that points nowhere: of content, which no plan knows."""

INFERENCE = "[ShapeInferenceError]"
"""How a refusal begins that is ONNX's own."""

LAX = {"GatherND", "GroupNormalization", "NegativeLogLikelihoodLoss", "PRelu", "SoftmaxCrossEntropyLoss"}
"""Operators that ONNX Runtime runs with shapes that ONNX forbids: it reads beyond them."""

OF_RUNTIME = (
    *("only supports", "empty set", "NumDimensions() == 4", "not supported", "Unsupported pooling size"),
    *("IsScalarOr1ElementVector", "IsBQuantParamSupported", "Unrecognized attribute", "attn_mask"),
    *("Explicit output_shape is inconsistent", "NumPy-broadcastable"),
)
"""What ONNX Runtime says of what ONNX allows and it has no kernel for."""


@dataclass(frozen=True)
class Seed:
    """A test case of one node: the operands that are data, and those that stay as they are, as constants."""

    name: str
    node: onnx.NodeProto
    data: dict[str, Array]
    constants: dict[str, Array]
    version: int


CASES = "onnx.backend.test.case.node"
SAMPLE = (
    *("MatMul", "Gemm", "Conv", "MaxPool", "Reshape", "Concat", "Gather", "Slice", "TopK", "Softmax", "ReduceMax"),
    *("Add", "Where", "LayerNormalization", "Expand", "Tile", "Pad", "Squeeze", "LSTM", "GatherElements"),
)
"""Operators whose cases are quickly collected: one or more of every file of rules."""

OF_RANK = (
    *(
        "LayerNormalization",
        "RMSNormalization",
        "GroupNormalization",
        "MeanVarianceNormalization",
        "Resize",
        "Upsample",
    ),
    *("Softmax", "ReduceSum", "ArgMax", "Conv", "MaxPool", "Gather", "TopK", "Transpose", "LSTM"),
)
"""Operators that demand something of the rank of an operand."""


@cache
def seeds(operators: tuple[str, ...] = ()) -> tuple[Seed, ...]:
    """ONNX's test cases of one node between tensors, of versions that ONNX Runtime runs; of all `operators` if none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in operators:
            import_module(f"{CASES}.{name.lower()}")
        cases = import_module(CASES)._NodeTestCases if operators else import_module(CASES).collect_testcases(None)
    found = [seed for case in cases for seed in _seeds(case) if not operators or seed.node.op_type in operators]
    return tuple(sorted(found, key=lambda seed: seed.name))


def _seeds(case: Any) -> Iterator[Seed]:
    """The test case, if it is one."""
    model = case.model
    if model is None or not case.data_sets or len(model.graph.node) != 1 or model.functions:
        return
    node, arrays = model.graph.node[0], case.data_sets[0][0]
    names = [value.name for value in model.graph.input]
    plain = len(arrays) == len(names) and all(isinstance(array, np.ndarray) for array in arrays)
    version = next((o.version for o in model.opset_import if o.domain == ""), 0)
    if not plain or node.domain or any(a.HasField("g") for a in node.attribute) or not 7 <= version <= NEWEST:
        return
    if any(array.dtype.kind not in "fiub" or array.size > 4096 for array in arrays):
        return
    given = dict(zip(names, arrays, strict=True))
    first = node.input[0] if node.input else ""
    held = {n: a for n, a in given.items() if n != first and a.dtype.kind == "i" and a.size <= CONSTANT_ELEMENTS}
    data = {name: array for name, array in given.items() if name not in held}
    if data:
        yield Seed(case.name, node, data, held, version)


def mutated(rng: np.random.Generator, seed: Seed) -> dict[str, Array]:
    """The operands with one or two shapes changed; the elements are repeated or cut."""
    arrays = dict(seed.data)
    for _ in range(int(rng.integers(1, 3))):
        name = str(rng.choice(sorted(arrays)))
        shape = list(arrays[name].shape)
        kind = int(rng.integers(5)) if shape else 4
        axis = int(rng.integers(len(shape))) if shape else 0
        if kind in (0, 1):
            shape[axis] += int(rng.integers(1, 3))
        elif kind == 2:
            shape[axis] = max(shape[axis] - 1, 1)
        elif kind == 3:
            del shape[axis]
        else:
            shape.insert(axis, int(rng.integers(1, 3)))
        arrays[name] = np.resize(arrays[name], shape).astype(arrays[name].dtype)
    return arrays


def with_scalars(operators: tuple[str, ...]) -> Iterator[tuple[Seed, dict[str, Array]]]:
    """The cases of some operators, each operand in turn made a scalar."""
    for seed in seeds(operators):
        for name, array in seed.data.items():
            if array.shape and array.size:
                yield seed, {**seed.data, name: np.resize(array, ()).astype(array.dtype)}


def model_of(seed: Seed, arrays: dict[str, Array]) -> onnx.ModelProto:
    """The node over such operands; nothing is declared of what it gives."""
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [seed.node],
        "g",
        [helper.make_tensor_value_info(name, kind(array.dtype), array.shape) for name, array in arrays.items()],
        [helper.make_empty_tensor_value_info(name) for name in seed.node.output if name],
        [numpy_helper.from_array(array, name) for name, array in seed.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", seed.version)], ir_version=10)


def ran(model: onnx.ModelProto, arrays: dict[str, Array]) -> dict[str, Array] | str:
    """What ONNX Runtime computes, or what it says against it."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(None, arrays), strict=True))
    except Exception as error:  # whatever the binding raises
        return str(error)


def judged(seed: Seed, arrays: dict[str, Array]) -> Iterator[str]:
    """What is wrong with what the front-end says of a node."""
    model = model_of(seed, arrays)
    found = ran(model, arrays)
    if isinstance(found, str) and ("NOT_IMPLEMENTED" in found or any(map(found.count, (*OF_CONTENT, *OF_RUNTIME)))):
        return
    try:
        imported = from_proto(model)
    except ModelError as error:
        excused = INFERENCE in str(error) or seed.node.op_type in LAX
        if not isinstance(found, str) and not excused and any(array.size for array in found.values()):
            yield f"refused, and ONNX Runtime runs it: {error}"
        return
    specs = {
        name: value.spec
        for name, value in zip(imported.outputs, imported.graph.outputs, strict=True)
        if isinstance(value.spec, TensorSpec)
    }
    if isinstance(found, str):
        if specs:
            yield f"planned, and ONNX Runtime refuses it: {found}"
        return
    for name, spec in specs.items():
        if found[name] is not None and found[name].shape != spec.shape:
            yield f"{name} is planned as {spec}, and comes out as {list(found[name].shape)}"


def check(seed: int, cases: int, operators: tuple[str, ...] = ()) -> int:
    """Change so many nodes' shapes, in an order that `seed` tells; how many were judged. All `operators` if none.

    Raises AssertionError naming the first that is judged wrong.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(seeds(operators)))[:cases]
    for i in chosen:
        case = seeds(operators)[int(i)]
        arrays = mutated(rng, case)
        shapes = {name: array.shape for name, array in arrays.items()}
        for what in judged(case, arrays):
            raise AssertionError(f"seed {seed}, {case.name}, {case.node.op_type} of {shapes}: {what}")
    return len(chosen)
