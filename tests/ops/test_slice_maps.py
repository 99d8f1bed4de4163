"""Slice maps: what the mapped slices of the operands give is the slice of the results, for every op with a map."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import lcm, prod
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import sublet
from sublet.base.tensor import NUMPY
from sublet.integrations.onnx.dialect import BINARY, EXTREMES, SLICES, UNARY, VARIADIC
from sublet.integrations.onnx.reader.contrib import channel_block
from sublet.ir.graph import Attr, Node
from sublet.ops import slice_maps_of
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import spec_of
from sublet.ops.slice_maps import Axes, SliceMap, no_slices
from tests.nn.examples import EXAMPLES, case_of
from tests.nn.facts import TOLERANCE, weights

Arrays = Sequence[Any]
Compute = Callable[[Arrays, Mapping[str, Attr]], Arrays]

DRAWS = 3
"""Divisions of each map into slices."""

SAME_BITS = frozenset(
    ("conv", "conv_input_gradient", "conv_weight_gradient", "conv_transpose", "max_pool", "avg_pool", "linear", "gemm",
     "matmul", "sum", "sum_to", "broadcast_to", "reshape", "transpose", "slice", "concat", "split", "embedding",
     "embedding_gradient", "relu", "add", "sub", "mul", "maximum", "clamp", "where", "cast", "copy", "one_hot")
)  # fmt: skip
"""Commands whose slices have the bits of the whole, for numbers whose sums are exact."""

WITH_MAPS = sorted(name for name, record in COMMANDS.items() if record.slices is not no_slices)


def flattened(array: Any, axes: Axes) -> Any:
    """The array with the sliced axes as one."""
    extent = prod(array.shape[axes.start : axes.stop])
    return array.reshape(*array.shape[: axes.start], extent, *array.shape[axes.stop :])


def in_eighths(array: Any) -> Any:
    """The array with numbers rounded so that sums of products are exact, but none to 0."""
    return array if array.dtype.kind not in "fV" else (np.ceil(np.asarray(array, "f8") * 8) / 8).astype(array.dtype)


def part(array: Any, axes: Axes | None, begin: int, end: int) -> Any:
    if array is None or axes is None:
        return array
    return np.ascontiguousarray(np.take(flattened(array, axes), range(begin, end), axes.start))


def bounds(draw: random.Random, extent: int, unit: int) -> list[tuple[int, int]]:
    """Consecutive slices at random, of whole units."""
    count = extent // unit
    inner = draw.sample(range(1, count), min(count - 1, draw.randint(1, 2)))
    ends = [unit * each for each in (0, *sorted(inner), count)]
    return list(pairwise(ends))


def joined(pieces: Sequence[Any], axes: Axes | None) -> Any:
    return sum(pieces[1:], pieces[0]) if axes is None else np.concatenate(pieces, axes.start)


def check_map(node: Node, found: SliceMap, inputs: Arrays, compute: Compute, draw: random.Random, rtol: float) -> bool:
    """Compute a node whole, and slice by slice; False where a slice has windows of padding alone."""
    whole, unit = compute(inputs, node.attrs), 1
    if node.op == "nn.reshape":
        unit = lcm(*(found.extent // (value.shape[0] if value.ndim else 1) for value in (inputs[0], whole[0])))
    pieces = []
    for begin, end in bounds(draw, found.extent, unit):
        ranges = [found.operand_slice(begin, end, i) for i in range(len(inputs))]
        if any(first >= last for first, last in ranges):
            return False
        given = [part(value, axes, *each) for value, axes, each in zip(inputs, found.inputs, ranges, strict=True)]
        if found.addend is not None and begin:
            given[found.addend :] = []
        made = compute(given, found.attrs(node.attrs, begin, end))
        pieces.append([value if axes is None else value.reshape(-1) if unit > 1 else value
                       for value, axes in zip(made, found.outputs, strict=False)])  # fmt: skip
    for i, (right, axes) in enumerate(zip(whole, found.outputs, strict=False)):
        got = joined([piece[i] for piece in pieces], axes)
        wanted = right if axes is None else flattened(right, axes)
        np.testing.assert_allclose(got, wanted, rtol, rtol, err_msg=f"{node.op} {found}")
    return True


@pytest.mark.parametrize("name", WITH_MAPS)
def test_commands_slice_by_slice(name: str) -> None:
    record, draw, count = COMMANDS[name], random.Random(name), 0
    for example in EXAMPLES[name]:
        case = case_of(record, example)
        (node,) = case.graph.nodes
        known = weights(case.graph) | {value: in_eighths(case.arrays[value.name]) for value in case.graph.inputs}
        inputs = [None if value is None else known[value] for value in node.inputs]
        kinds = [NUMPY[spec_of(value).dtype] for value in node.outputs if value is not None]
        tolerance = 0.0 if name in SAME_BITS else TOLERANCE.get(spec_of(case.graph.outputs[0]).dtype, 0.0)

        def compute(given: Arrays, attrs: Mapping[str, Attr], kinds: Sequence[Any] = kinds) -> Arrays:
            made = record.compute(*given, **attrs)
            arrays = made if isinstance(made, tuple) else (made,)
            return [np.asarray(each).astype(kind) for each, kind in zip(arrays, kinds, strict=True)]

        for found in slice_maps_of(node):
            for _ in range(DRAWS if found.exact and found.extent > 1 else 0):
                count += check_map(node, found, inputs, compute, draw, tolerance)
    assert count or name in ("batch_norm", "dropout"), f"no example of {name} has slices"


def computed_by(node: Node) -> Compute:
    """ONNX's own definition of an operator."""

    def compute(given: Arrays, attrs: Mapping[str, Attr]) -> Arrays:
        names = [f"x{i}" for i in range(len(given))]
        made = onnx.helper.make_node(node.op.removeprefix("onnx."), names, ["y"], **attrs)
        values = [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
                  for name, each in zip(names, given, strict=True)]  # fmt: skip
        graph = onnx.helper.make_graph([made], "g", values, [onnx.ValueInfoProto(name="y")])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 24)])
        return ReferenceEvaluator(model).run(None, dict(zip(names, given, strict=True)))

    return compute


def in_blocks(array: Any, block: int) -> Any:
    """A map [N, C, H, W] with the bytes of [N, C / block, H, W, block]."""
    n, c, h, w = array.shape
    return np.ascontiguousarray(array.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2)).reshape(n, c, h, w)


def out_of_blocks(array: Any, block: int) -> Any:
    n, c, h, w = array.shape
    return array.reshape(n, c // block, h, w, block).transpose(0, 1, 4, 2, 3).reshape(n, c, h, w)


def contributed(node: Node) -> Compute:
    """ONNX Runtime's kernel of an operator of its own; maps in blocks of channels are given and returned plain."""
    ort = pytest.importorskip("onnxruntime")
    domain, _, name = node.op.removeprefix("onnx.").rpartition(".")
    block = channel_block() if domain.endswith("nchwc") else 1
    read = () if name == "ReorderInput" else (0, 3)

    def compute(given: Arrays, attrs: Mapping[str, Attr]) -> Arrays:
        feeds = {f"x{i}": in_blocks(each, block) if i in read else each for i, each in enumerate(given)}
        values = [onnx.helper.make_tensor_value_info(each, 1, array.shape) for each, array in feeds.items()]
        made = onnx.helper.make_node(name, list(feeds), ["y"], domain=domain, **attrs)
        result = onnx.helper.make_empty_tensor_value_info("y")
        opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(domain, 1)]
        graph = onnx.helper.make_graph([made], "g", values, [result])
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
        (y,) = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
        return [y if name == "ReorderOutput" else out_of_blocks(y, block)]

    return compute


BOOLS, INTEGERS = ("And", "Or", "Xor", "Not"), ("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor")
ATTRIBUTES = {"Cast": "{to = 6}", "BitShift": '{direction = "LEFT"}', "Mod": "{fmod = 1}"}
COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")

OPERATORS = (
    ("Where(%a, %b, %c)", "f32[2,3]", "bool[2,3]", "f32[3]", "f32[2,1]"),
    ("QuantizeLinear(%a, %b, %c)", "u8[3,4]", "f32[3,4]", "f32[]", "u8[]"),
    ("DequantizeLinear(%a, %b, %c)", "f32[3,4]", "u8[3,4]", "f32[]", "u8[]"),
    ("Softmax(%a) {axis = 2}", "f32[3,2,4]", "f32[3,2,4]"),
    ("LogSoftmax(%a) {axis = -1}", "f32[3,4]", "f32[3,4]"),
    ("LayerNormalization(%a, %b) {axis = -1}", "f32[3,2,4]", "f32[3,2,4]", "f32[4]"),
    ("LayerNormalization(%a, %b, %c) {axis = 1}", "f32[3,2,4]", "f32[3,2,4]", "f32[2,4]", "f32[2,4]"),
    ("BatchNormalization(%a, %b, %c, %d, %e)", "f32[2,3,4]", "f32[2,3,4]", *["f32[3]"] * 4),
    ("Conv(%a, %b) {pads = [2, 1], dilations = [2]}", "f32[2,5,8]", "f32[2,3,9]", "f32[5,3,3]"),
    ("Conv(%a, %b, %c) {group = 4, pads = [1, 0, 2, 1], strides = [2, 1]}", "f32[2,4,4,6]", "f32[2,4,7,6]",
     "f32[4,1,3,2]", "f32[4]"),
    ('Conv(%a, %b) {auto_pad = "VALID", dilations = [1, 2]}', "f32[2,5,5,4]", "f32[2,3,7,6]", "f32[5,3,3,2]"),
    ("Conv(%a, %b) {group = 2, strides = [3, 3]}", "f32[2,4,3,2]", "f32[2,4,7,6]", "f32[4,2,1,2]"),
    ("AveragePool(%a) {kernel_shape = [3, 2], pads = [1, 0, 2, 1], strides = [2, 1]}", "f32[2,3,4,6]", "f32[2,3,7,6]"),
    ("AveragePool(%a) {kernel_shape = [3], pads = [2, 1], count_include_pad = 1}", "f32[2,3,6]", "f32[2,3,5]"),
    ("MaxPool(%a) {kernel_shape = [2, 3], pads = [0, 1, 1, 2], strides = [1, 2]}", "f32[2,3,7,4]", "f32[2,3,7,6]"),
    ("GlobalAveragePool(%a)", "f32[2,3,1,1]", "f32[2,3,4,5]"),
    ("GlobalMaxPool(%a)", "f32[2,3,1,1]", "f32[2,3,4,5]"),
    ("Gemm(%a, %b, %c) {transB = 1}", "f32[4,5]", "f32[4,3]", "f32[5,3]", "f32[4,5]"),
    ("Gemm(%a, %b, %c)", "f32[4,5]", "f32[4,3]", "f32[3,5]", "f32[1,5]"),
    ("MatMul(%a, %b)", "f32[2,4,5]", "f32[2,4,3]", "f32[3,5]"),
    ("Concat(%a, %b) {axis = 1}", "f32[2,5,4]", "f32[2,3,4]", "f32[2,2,4]"),
    ('com.microsoft.FusedConv(%a, %b, %c, %d) {activation = "Relu", pads = [1, 0, 2, 1], strides = [2, 1]}',
     "f32[2,4,4,6]", "f32[2,3,7,6]", "f32[4,3,3,2]", "f32[4]", "f32[2,4,4,6]"),
    *((f"com.microsoft.nchwc.{text}", *(f"f32[{each}]" for each in shapes)) for text, *shapes in (
        ('Conv(%a, %b, %c, %d) {activation = "Relu", pads = [1, 0, 2, 1], strides = [2, 1]}', "2,32,4,6", "2,16,7,6",
         "32,16,3,2", "32", "2,32,4,6"),
        ("MaxPool(%a) {kernel_shape = [2, 3], pads = [0, 1, 1, 2], strides = [1, 2]}", "2,32,7,4", "2,32,7,6"),
        ("AveragePool(%a) {kernel_shape = [3, 2], strides = [2, 1]}", "2,32,3,5", "2,32,7,6"),
        ("ReorderInput(%a)", "2,32,4,6", "2,32,4,6"),
        ("ReorderOutput(%a) {channels = 32}", "2,32,4,6", "2,32,4,6"),
    )),
)  # fmt: skip
"""Text of a node, output, inputs."""


def elementwise_operators() -> Iterator[tuple[str, ...]]:
    """Each element-wise operator, with operands broadcast along an axis."""
    for op in (*UNARY, *BINARY, *VARIADIC, *EXTREMES, "Gelu", "Identity"):
        dtype = "bool" if op in BOOLS else "u8" if op in INTEGERS else "f32"
        result = "bool" if op in COMPARISONS else "i32" if op in ("Cast", "CastLike") else dtype
        one = op in (*UNARY, "Gelu", "Identity")
        more = {"Clip": ("f32[]", "f32[]"), "CastLike": ("i32[1]",)}.get(op, () if one else (f"{dtype}[4]",))
        more += (f"{dtype}[3,1]",) if op in (*VARIADIC, *EXTREMES) else ()
        operands = ", ".join(f"%{name}" for name in "abc"[: 1 + len(more)])
        yield f"{op}({operands}) {ATTRIBUTES.get(op, '')}", f"{result}[3,4]", f"{dtype}[3,4]", *more


def test_operators_slice_by_slice() -> None:
    draw, seen, numbers = random.Random(0), set[str](), np.random.default_rng(0)
    for text, result, *specs in (*elementwise_operators(), *OPERATORS):
        inputs = ", ".join(f"%{name}: {spec}" for name, spec in zip("abcde", specs, strict=False))
        graph = sublet.parse(f"graph @g({inputs}) {{\n  %y: {result} = onnx.{text}\n  return %y\n}}")
        arrays = [numbers.uniform(0.1, 0.9, spec_of(value).shape) + ("Acosh" in text) for value in graph.inputs]
        kinds = [NUMPY[spec_of(value).dtype] for value in graph.inputs]
        given = [(each * 5 if kind.kind == "u" else each < 0.5 if kind.kind == "b" else each).astype(kind)
                 for each, kind in zip(arrays, map(np.dtype, kinds), strict=True)]  # fmt: skip
        (node,) = graph.nodes
        compute = contributed(node) if "." in node.op.removeprefix("onnx.") else computed_by(node)
        maps = slice_maps_of(node)
        assert maps
        for found in maps:
            if found.extent > 1 and check_map(node, found, given, compute, draw, 1e-5):
                seen.add(node.op.removeprefix("onnx."))
    assert seen == set(SLICES)
