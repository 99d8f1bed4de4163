"""Every in-place fact, run by ONNX Runtime with one buffer for the input and the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import numpy as np
import pytest

from sublet.integrations.onnx.dialect import BINARY, EXTREMES, INPLACE, NORMALIZATIONS, UNARY, VARIADIC, onnx_op
from sublet.integrations.onnx.reader.model import from_proto

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

_state = ort.capi.onnxruntime_pybind11_state
MISSING = (_state.Fail, _state.NotImplemented, _state.InvalidGraph, _state.InvalidArgument)
OPSETS = (7, 13, 24)
DTYPES = ("f4", "f8", "f2", "i8", "i4", "i2", "u8", "u4", "u2", "u1", "i1", "?")
WIDELY = ("f4", "f8", "i8", "i4", "u1", "i1", "?")
FLOATS = ("f4", "f8", "f2")
WHOLE = (9, 37, 29)
SMALLER = ((9, 37, 29), (29,), (37, 1), (1,), (9, 1, 29), ())
FEWER = ((9, 37, 29), (29,), ())
"""For types whose kernels are those of f4 but for the size of an element."""
LARGE = (16, 25_000)


@dataclass
class Case:
    """A single node: its inputs by position (the first of each is random), attributes, versions."""

    op: str
    arrays: list[np.ndarray]
    attrs: dict[str, object] = field(default_factory=dict)
    domain: str = ""
    opset: int = 21


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Numbers that no operator chokes on: positive, not zero, small."""
    rng = np.random.default_rng(seed)
    if dtype == "?":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.startswith("f"):
        return np.asarray(0.05 + 0.9 * rng.random(shape), dtype)
    return np.asarray(rng.integers(1, 6, shape), dtype)


def cases(op: str) -> Iterator[Case]:
    name = op.rpartition(".")[2]
    if op in ("com.microsoft.FusedConv", "com.microsoft.nchwc.Conv"):
        for n, extent in ((16, 40), (64, 14)):
            x, w = _random((1, n, extent, extent), "f4", 1), _random((n, n, 3, 3), "f4", 2)
            arrays = [x, w, _random((n,), "f4", 3), _random((1, n, extent, extent), "f4", 4)]
            attrs = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
            for activation in ({"activation": "Relu"}, {}):
                yield Case(name, arrays, {**attrs, **activation}, op.rpartition(".")[0])
            narrow = [x, _random((n, n, 1, 1), "f4", 2), *arrays[2:]]
            yield Case(name, narrow, {"kernel_shape": [1, 1]}, op.rpartition(".")[0])
    elif op in NORMALIZATIONS or "Skip" in op:
        yield from _normalizations(op)
    elif op.startswith("com.microsoft"):
        for shape in (WHOLE, LARGE):
            yield Case(name, [_random(shape, "f4", 1), _random(shape[-1:], "f4", 2)], {}, "com.microsoft")
    elif op == "BatchNormalization":
        for shape, dtype in product(((2, 13, 31, 17), (1, 64, 100, 100)), FLOATS):
            parameters = [_random((shape[1],), dtype, k) for k in range(2, 6)]
            for opset in (7, 9, 14, 21):
                yield Case(op, [_random(shape, dtype, 1), *parameters], {}, "", opset)
    elif op.startswith("Scatter"):
        yield from _scatters(op)
    elif op == "TensorScatter":
        arrays = [_random((2, 64, 50), "f4", 1), _random((2, 3, 50), "f4", 2), np.array([5, 9])]
        yield Case(op, arrays, {"axis": 1}, "", 24)
    else:
        for opset in OPSETS:
            yield from _elementwise(op, opset)


def _normalizations(op: str) -> Iterator[Case]:
    domain, _, name = op.rpartition(".")
    for shape, dtype in product((WHOLE, LARGE, (3, 128, 768)), FLOATS):
        x, factor = _random(shape, dtype, 1), _random(shape[-1:], dtype, 2)
        for opset in (11, 13, 17) if "Softmax" in op else (17,):
            if "Softmax" in op:
                yield from (Case(op, [x], attrs, "", opset) for attrs in ({}, {"axis": -1}, {"axis": len(shape) - 1}))
            elif "Skip" in op and len(shape) == 3:
                yield Case(name, [x, _random(shape, dtype, 3), factor], {}, domain)
                yield Case(name, [x, _random(shape, dtype, 3), factor, factor], {}, domain)
            elif "Skip" not in op:
                yield Case(op, [x, factor], {"axis": -1}, "", opset)


def _scatters(op: str) -> Iterator[Case]:
    rng = np.random.default_rng(5)
    rows, places = rng.permutation(70)[:40].reshape(40, 1), np.argsort(rng.random((40, 90)), axis=0)
    for dtype in DTYPES:
        data, updates = _random((70, 90), dtype, 1), _random((40, 90), dtype, 2)
        if op == "ScatterND":
            yield from (Case(op, [data, rows, updates], {}, "", opset) for opset in (11, 13, 21))
        else:
            versions = (9,) if op == "Scatter" else (11, 13, 21)
            yield from (Case(op, [data, places, updates], {"axis": 0}, "", opset) for opset in versions)


def _elementwise(op: str, opset: int) -> Iterator[Case]:
    for dtype in DTYPES if opset == OPSETS[-1] else WIDELY:
        for whole in (WHOLE, LARGE) if (opset, dtype) == (24, "f4") else (WHOLE,):
            x, smaller = _random(whole, dtype, 1), SMALLER if dtype == "f4" else FEWER
            if op in UNARY:
                yield from _unary(op, x, opset)
            elif op == "Where":
                for shape in smaller if whole == WHOLE else (LARGE,):
                    condition, other = _random(shape, "?", 2), _random(shape, dtype, 3)
                    yield Case(op, [condition, x, other], {}, "", opset)
                    yield Case(op, [condition, other, x], {}, "", opset)
                    yield Case(op, [_random(whole, "?", 2), x, other], {}, "", opset)
            else:
                attrs = {"direction": "LEFT"} if op == "BitShift" else {}
                if op == "Mod" and dtype.startswith("f"):
                    attrs = {"fmod": 1}
                for shape in smaller if whole == WHOLE else (LARGE,):
                    other = _random(shape, dtype, 3)
                    yield Case(op, [x, other], attrs, "", opset)
                    if op != "PRelu":
                        yield Case(op, [other, x], attrs, "", opset)
                    if op in VARIADIC + EXTREMES:
                        yield Case(op, [x, other, _random(whole, dtype, 5)], attrs, "", opset)
                        yield Case(op, [other, x, other, _random(whole, dtype, 5)], attrs, "", opset)


def _unary(op: str, x: np.ndarray, opset: int) -> Iterator[Case]:
    if op in ("Cast", "CastLike"):
        for target in ("f4", "i4", "u4", "f8", "i8", "?", "u1", "i1"):
            if np.dtype(target).itemsize == x.itemsize:
                like = np.zeros(1, target)
                to = onnx.helper.np_dtype_to_tensor_dtype(like.dtype)
                yield Case(op, [x, like], {}, "", opset) if op == "CastLike" else Case(op, [x], {"to": to}, "", opset)
    elif op == "Clip":
        bounds = [np.array(number, x.dtype) for number in (0.3, 0.6)]
        yield Case(op, [x, *bounds], {}, "", opset) if opset >= 11 else Case(op, [x], {"min": 0.3, "max": 0.6}, "", 7)
    else:
        y = x + x.dtype.type(1) if op == "Acosh" else x
        yield Case(op, [y - y.dtype.type(0.5) if y.dtype.kind == "f" and op not in POSITIVE else y], {}, "", opset)


CACHES = ("com.microsoft.GroupQueryAttention",)
"""Operators with several outputs in place: see `test_onnx_caches`."""

CONTRIBUTED = ("com.microsoft", "com.microsoft.nchwc")
POSITIVE = ("Acosh", "Log", "Sqrt")


def model_of(case: Case) -> onnx.ModelProto:
    """The node of a case as a model whose output has no declared type."""
    inputs = [f"x{i}" for i in range(len(case.arrays))]
    element = onnx.helper.np_dtype_to_tensor_dtype
    node = onnx.helper.make_node(case.op, inputs, ["y"], domain=case.domain, **case.attrs)
    infos = [
        onnx.helper.make_tensor_value_info(name, element(array.dtype), array.shape)
        for name, array in zip(inputs, case.arrays, strict=True)
    ]
    graph = onnx.helper.make_graph([node], "one", infos, [onnx.helper.make_empty_tensor_value_info("y")])
    imports = [
        onnx.helper.make_opsetid("", case.opset),
        *(onnx.helper.make_opsetid(domain, 1) for domain in CONTRIBUTED),
    ]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8 if case.opset < 20 else 10)


def _session(case: Case, model: onnx.ModelProto) -> object | None:
    """A session of the model at any extents; None when there is no such operator or ONNX Runtime lacks the kernel."""
    open = onnx.ModelProto()
    open.CopyFrom(model)
    for info, array in zip(open.graph.input, case.arrays, strict=True):
        for axis in range(array.ndim):
            info.type.tensor_type.shape.dim[axis].Clear()
    return _session_of(open.SerializeToString())


@lru_cache(maxsize=64)
def _session_of(model: bytes) -> object | None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(model, options)
    except MISSING:
        return None


def _run_in_place(session: object, arrays: list[np.ndarray], position: int, expected: np.ndarray) -> np.ndarray:
    feeds = [np.ascontiguousarray(array).copy() for array in arrays]
    binding = session.io_binding()
    for i, feed in enumerate(feeds):
        binding.bind_input(f"x{i}", "cpu", 0, feed.dtype, feed.shape, feed.ctypes.data)
    target = feeds[position]
    binding.bind_output("y", "cpu", 0, expected.dtype, expected.shape, target.ctypes.data)
    session.run_with_iobinding(binding)
    return target.view(expected.dtype).reshape(expected.shape)


@pytest.mark.parametrize("op", [op for op in INPLACE if op not in CACHES])
def test_in_place_result_is_the_normal_result(op: str) -> None:
    checked: set[int] = set()
    for case in cases(op):
        model = model_of(case)
        session = _session(case, model)
        if session is None:
            continue
        try:
            expected = session.run(None, {f"x{i}": array for i, array in enumerate(case.arrays)})[0]
        except MISSING:  # old versions do not broadcast
            continue
        info = onnx.helper.make_tensor_value_info(
            "y", onnx.helper.np_dtype_to_tensor_dtype(expected.dtype), expected.shape
        )
        model.graph.output[0].CopyFrom(info)
        graph = from_proto(model).graph
        [node] = graph.nodes
        for share in onnx_op(node.op).inplace(node):
            result = _run_in_place(session, case.arrays, share.input, expected)
            shapes = [(array.dtype.str, array.shape) for array in case.arrays]
            what = f"{op}-{case.opset} {shapes} {case.attrs} in place of {share.input}"
            assert result.tobytes() == expected.tobytes(), what
            checked.add(share.input)
    assert checked, f"no case of {op} ran in place"
    if op in BINARY and op != "PRelu":
        assert checked == {0, 1}
