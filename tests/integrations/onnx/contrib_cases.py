"""Random nodes of the domains com.microsoft and ai.onnx.ml, with inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
DOMAIN = "com.microsoft"
CLASSICAL = "ai.onnx.ml"


@dataclass
class Case:
    """A node: its operator, inputs by position, number of outputs, attributes, constant inputs, and domain."""

    op: str
    inputs: list[Array | None]
    outputs: int = 1
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: frozenset[int] = frozenset()
    domain: str = DOMAIN


def f32(*shape: int) -> Array:
    return np.full(shape, 0.5, np.float32)


def u8(*shape: int) -> Array:
    return np.full(shape, 3, np.uint8)


SCALE, ZERO = np.float32(0.5).reshape(()), np.uint8(0).reshape(())


def _some(rng: Rng, most: int = 4) -> int:
    return int(rng.integers(1, most + 1))


def _coin(rng: Rng) -> bool:
    return bool(rng.integers(2))


def grouped_attention(rng: Rng) -> Case:
    batch, length, groups, size = _some(rng, 2), _some(rng), _some(rng, 2), 8 * _some(rng, 2)
    heads, rows = groups * _some(rng, 2), _some(rng, 6)
    past = rows if _coin(rng) else 0
    if past:
        batch = 1
    total = past + length if _coin(rng) or length > past else past
    packed = _coin(rng)
    query = f32(batch, length, (heads + 2 * groups if packed else heads) * size)
    now = None if packed else f32(batch, length, groups * size)
    cache = f32(batch, groups, past, size) if past else None
    ends = np.full(batch, total - 1, np.int32)
    inputs = [query, now, now, cache, cache, ends, np.array(total, np.int32)]
    constants = frozenset({6}) if _coin(rng) else frozenset[int]()
    return Case("GroupQueryAttention", inputs, 3, {"num_heads": heads, "kv_num_heads": groups}, constants)


def multi_head_attention(rng: Rng) -> Case:
    batch, length, other, heads, size = _some(rng, 2), _some(rng), _some(rng), _some(rng, 3), 4 * _some(rng, 2)
    layout, hidden = int(rng.integers(4)), heads * size
    values = size if layout < 2 or _coin(rng) else 4 * _some(rng, 2)
    past: list[Array | None] = [None, None]
    query = f32(batch, length, hidden)
    now: list[Array | None]
    if layout == 0:
        now = [f32(batch, heads, other, size), f32(batch, heads, other, values)]
    else:
        now = [f32(batch, other, hidden), f32(batch, other, heads * values)]
        if layout == 1:
            before = _some(rng)
            past = [f32(batch, heads, before, size), f32(batch, heads, before, values)]
    return Case(
        "MultiHeadAttention", [query, *now, None, None, None, *past], int(rng.choice([1, 3])), {"num_heads": heads}
    )


def attention(rng: Rng) -> Case:
    batch, length, heads, size, width = _some(rng, 2), _some(rng), _some(rng, 3), 4 * _some(rng, 2), _some(rng)
    hidden, values = heads * size, heads * 4 * _some(rng, 2)
    attributes: dict[str, Any] = {"num_heads": heads}
    if _coin(rng):
        attributes["qkv_hidden_sizes"] = [hidden, hidden, values]
    else:
        values = hidden
    past = f32(2, batch, heads, _some(rng), size) if values == hidden and _coin(rng) else None
    weights = f32(width, 2 * hidden + values)
    outputs = 2 if (values == hidden and _coin(rng)) or past is not None else 1
    return Case(
        "Attention", [f32(batch, length, width), weights, f32(weights.shape[1]), None, past], outputs, attributes
    )


def quantized_attention(rng: Rng) -> Case:
    batch, length, heads, size, width = _some(rng, 2), _some(rng), _some(rng, 3), 4 * _some(rng, 2), _some(rng)
    hidden = heads * size
    past = f32(2, batch, heads, _some(rng), size) if _coin(rng) else None
    data, weights = u8(batch, length, width), u8(width, 3 * hidden)
    inputs = [data, weights, f32(3 * hidden), SCALE, SCALE, None, ZERO, ZERO, past]
    return Case("QAttention", inputs, 2 if past is not None or _coin(rng) else 1, {"num_heads": heads})


def rotary(rng: Rng) -> Case:
    batch, length, heads, size = _some(rng, 2), _some(rng), _some(rng, 3), 4 * _some(rng, 3)
    flat = _coin(rng)
    data = f32(batch, length, heads * size) if flat else f32(batch, heads, length, size)
    turns = f32(16, size // 2)
    return Case("RotaryEmbedding", [data, np.array([int(rng.integers(8))], np.int64), turns, turns])


def normalized_sum(rng: Rng) -> Case:
    shape = tuple(_some(rng) for _ in range(int(rng.integers(2, 4))))
    op = str(rng.choice(["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"]))
    skipped = f32(*shape[-2:]) if _coin(rng) else f32(1, *shape[1:]) if len(shape) == 3 and _coin(rng) else f32(*shape)
    return Case(op, [f32(*shape), skipped, f32(shape[-1])], int(rng.choice([1, 4])))


def embedding(rng: Rng) -> Case:
    batch, length, width = _some(rng), _some(rng), 4 * _some(rng, 2)
    tokens, table, scale = np.zeros((batch, length), np.int32), f32(8, width), f32(width)
    inputs = [tokens, tokens if _coin(rng) else None, table, table, table, scale, scale]
    inputs[4] = table if inputs[1] is not None else None
    return Case("EmbedLayerNormalization", [*inputs, tokens if _coin(rng) else None], int(rng.choice([2, 3])))


def quantized_embedding(rng: Rng) -> Case:
    batch, length, width = _some(rng), _some(rng), 4 * _some(rng, 2)
    tokens, table, scale = np.zeros((batch, length), np.int32), u8(8, width), u8(width)
    inputs = [tokens, tokens, table, table, table, scale, scale, None]
    inputs += [np.array(SCALE)] * 5 + [np.array(ZERO)] * 5
    return Case("QEmbedLayerNormalization", inputs, 2)


def quantized_lstm(rng: Rng) -> Case:
    length, batch, width, hidden = _some(rng), _some(rng), _some(rng), _some(rng)
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    count = 2 if direction == "bidirectional" else 1
    weights, repeated = u8(count, width, 4 * hidden), u8(count, hidden, 4 * hidden)
    scale, zero = f32(count), u8(count)
    inputs = [f32(length, batch, width), weights, repeated, None, None, None, None, None, scale, zero, scale, zero]
    constants = frozenset({1, 2, 8, 9, 10, 11})
    attributes = {"hidden_size": hidden, "direction": direction}
    return Case("DynamicQuantizeLSTM", inputs, _some(rng, 3), attributes, constants)


def fused_product(rng: Rng) -> Case:
    rows, summed, columns = _some(rng), _some(rng), _some(rng)
    batch = tuple(_some(rng) for _ in range(int(rng.integers(3))))
    flips = {f"trans{name}": int(rng.integers(2)) for name in ("A", "B")}
    flips |= {f"transBatch{name}": int(rng.integers(2)) if batch else 0 for name in ("A", "B")}
    a, b = f32(*batch, rows, summed), f32(*batch, summed, columns)
    if _coin(rng) and not flips["transBatchB"]:
        b = f32(*(1 for _ in batch), summed, columns)
    for name, operand in (("A", a), ("B", b)):
        if flips[f"trans{name}"]:
            operand = operand.swapaxes(-1, -2)
        if flips[f"transBatch{name}"]:
            operand = np.moveaxis(operand, -2, 0)
        a, b = (operand, b) if name == "A" else (a, operand)
    return Case("FusedMatMul", [np.ascontiguousarray(a), np.ascontiguousarray(b)], 1, flips)


def _product_shapes(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rows, summed, columns = _some(rng), _some(rng), _some(rng)
    batch = tuple(_some(rng) for _ in range(int(rng.integers(3))))
    return (*batch, rows, summed), (summed, columns)


def dynamic_product(rng: Rng) -> Case:
    a, b = _product_shapes(rng)
    return Case("DynamicQuantizeMatMul", [f32(*a), u8(*b), SCALE, ZERO])


def rescaled_product(rng: Rng) -> Case:
    a, b = _product_shapes(rng)
    return Case("MatMulIntegerToFloat", [u8(*a), u8(*b), SCALE, SCALE, ZERO, ZERO])


def packed_product(rng: Rng) -> Case:
    blocks, columns = _some(rng, 3), _some(rng)
    batch = tuple(_some(rng) for _ in range(int(rng.integers(1, 4))))
    attributes = {"K": 32 * blocks, "N": columns, "bits": 4, "block_size": 32}
    inputs = [f32(*batch, 32 * blocks), u8(columns, blocks, 16), f32(columns * blocks)]
    return Case("MatMulNBits", inputs, 1, attributes, frozenset({1, 2}))


def quantized_gemm(rng: Rng) -> Case:
    rows, summed, columns = _some(rng), _some(rng), _some(rng)
    flips = {"transA": int(rng.integers(2)), "transB": int(rng.integers(2))}
    a = u8(summed, rows) if flips["transA"] else u8(rows, summed)
    b = u8(columns, summed) if flips["transB"] else u8(summed, columns)
    scaled: list[Array | None] = [np.zeros(columns, np.int32), SCALE, ZERO] if _coin(rng) else []
    return Case("QGemm", [a, SCALE, ZERO, b, SCALE, ZERO, *scaled], 1, flips, frozenset({3, 4, 5}))


def _broadcast_pair(rng: Rng) -> tuple[Array, Array]:
    shape = [_some(rng) for _ in range(int(rng.integers(1, 4)))]
    a, b = ([1 if rng.random() < 0.3 else extent for extent in shape] for _ in range(2))
    return u8(*a), u8(*b[int(rng.integers(len(b))) :])


def quantized_pair(rng: Rng) -> Case:
    a, b = _broadcast_pair(rng)
    return Case(str(rng.choice(["QLinearAdd", "QLinearMul"])), [a, SCALE, ZERO, b, SCALE, ZERO, SCALE, ZERO])


def quantized_where(rng: Rng) -> Case:
    a, b = _broadcast_pair(rng)
    return Case("QLinearWhere", [u8(*a.shape) > 2, a, SCALE, ZERO, b, SCALE, ZERO, SCALE, ZERO])


def quantized_concat(rng: Rng) -> Case:
    shape = [_some(rng) for _ in range(int(rng.integers(1, 4)))]
    axis = int(rng.integers(-len(shape), len(shape)))
    inputs: list[Array | None] = [SCALE, ZERO]
    for _ in range(_some(rng, 3)):
        shape[axis] = _some(rng)
        inputs += [u8(*shape), SCALE, ZERO]
    scales = frozenset(i for i in range(len(inputs)) if i < 2 or i % 3 != 2)
    return Case("QLinearConcat", inputs, 1, {"axis": axis}, scales)


def quantized_like(rng: Rng) -> Case:
    shape = [_some(rng) for _ in range(int(rng.integers(1, 4)))]
    op = str(rng.choice(["QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"]))
    attributes = {"opset": 13} if op == "QLinearSoftmax" else {}
    return Case(op, [u8(*shape), SCALE, ZERO, SCALE, ZERO], 1, attributes, frozenset({1, 2, 3, 4}))


def quantized_average(rng: Rng) -> Case:
    last = int(rng.integers(2))
    shape = [_some(rng) for _ in range(4)]
    return Case("QLinearGlobalAveragePool", [u8(*shape), SCALE, ZERO, SCALE, ZERO], 1, {"channels_last": last})


def _window(rng: Rng) -> dict[str, Any]:
    kernel = [_some(rng, 3) for _ in range(2)]
    pads = [int(rng.integers(kernel[i % 2])) for i in range(4)]
    return {"kernel_shape": kernel, "strides": [_some(rng, 3) for _ in range(2)], "pads": pads}


def quantized_pool(rng: Rng) -> Case:
    attributes = {**_window(rng), "channels_last": int(rng.integers(2)), "ceil_mode": int(rng.integers(2))}
    shape = [int(rng.integers(3, 8)) for _ in range(4)]  # ONNX Runtime 1.31 crashes where an output has no elements
    return Case("QLinearAveragePool", [u8(*shape), SCALE, ZERO, SCALE, ZERO], 1, attributes)


def last_pool(rng: Rng) -> Case:
    shape = [int(rng.integers(3, 8)) for _ in range(4)]
    return Case("NhwcMaxPool", [u8(*shape)], 1, {**_window(rng), "ceil_mode": int(rng.integers(2))})


def quantized_conv(rng: Rng) -> Case:
    attributes = {**_window(rng), "channels_last": int(rng.integers(2))}
    channels, count, spatial = _some(rng), _some(rng), [int(rng.integers(3, 8)) for _ in range(2)]
    data = u8(1, *spatial, channels) if attributes["channels_last"] else u8(1, channels, *spatial)
    weights = u8(count, channels, *attributes["kernel_shape"])
    inputs = [data, SCALE, ZERO, weights, SCALE, ZERO, SCALE, ZERO]
    return Case("QLinearConv", inputs, 1, attributes, frozenset({1, 2, 3, 4, 5, 6, 7}))


def linear_quantization(rng: Rng) -> Case:
    shape = [_some(rng) for _ in range(int(rng.integers(1, 4)))]
    kind = str(rng.choice(["uint8", "int8", "uint16", "int16"]))
    zero = np.zeros((), kind)
    if _coin(rng):
        return Case("DequantizeLinear", [np.ones(shape, kind), SCALE, zero])
    return Case("QuantizeLinear", [f32(*shape), SCALE, zero])


# ---- classical models ----


def _features(rng: Rng, columns: int = 3) -> Array:
    """Return rows of features, or one row as a vector."""
    return f32(_some(rng), columns) if _coin(rng) else f32(columns)


def _classical(op: str, data: Array, outputs: int = 1, **attributes: Any) -> Case:
    return Case(op, [data], outputs, attributes, domain=CLASSICAL)


def normalizer(rng: Rng) -> Case:
    return _classical("Normalizer", _features(rng).astype(rng.choice([np.float32, np.float64, np.int64])), norm="L2")


def scaler(rng: Rng) -> Case:
    return _classical("Scaler", _features(rng).astype(np.float64), offset=[0.5] * 3, scale=[2.0] * 3)


def imputer(rng: Rng) -> Case:
    return _classical("Imputer", _features(rng), imputed_value_floats=[1.0], replaced_value_float=0.5)


def linear_regressor(rng: Rng) -> Case:
    targets = _some(rng)
    told = {"targets": targets} if targets > 1 or _coin(rng) else {}
    return _classical("LinearRegressor", _features(rng), coefficients=[0.5] * (3 * targets), **told)


def support_vector_regressor(rng: Rng) -> Case:
    flat = {"kernel_type": "LINEAR", "kernel_params": [0.0] * 3, "rho": [0.0], "n_supports": 0}
    return _classical("SVMRegressor", _features(rng), coefficients=[0.5] * 3, **flat)


def _tree() -> dict[str, Any]:
    """Return the attributes of a tree with one comparison and two leaves."""
    nodes = {"nodeids": [0, 1, 2], "treeids": [0] * 3, "featureids": [0] * 3, "values": [0.5, 0.0, 0.0]}
    ways = {"modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "truenodeids": [1, 0, 0], "falsenodeids": [2, 0, 0]}
    return {f"nodes_{name}": content for name, content in {**nodes, **ways}.items()}


def tree_regressor(rng: Rng) -> Case:
    last = _some(rng)
    leaves = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, last], "weights": [1.0, 2.0]}
    told = {f"target_{name}": content for name, content in leaves.items()}
    return _classical("TreeEnsembleRegressor", _features(rng), **_tree(), **told, n_targets=last + 1)


def tree_classifier(rng: Rng) -> Case:
    last = _some(rng)
    leaves = {"treeids": [0, 0], "nodeids": [1, 2], "ids": [0, last], "weights": [1.0, 2.0]}
    told = {f"class_{name}": content for name, content in leaves.items()}
    labels = list(range(last + 1))
    return _classical("TreeEnsembleClassifier", _features(rng), 2, **_tree(), **told, classlabels_int64s=labels)


def feature_vectorizer(rng: Rng) -> Case:
    rows, columns = _some(rng), [_some(rng), _some(rng)]
    inputs: list[Array | None] = [f32(rows, count) for count in columns]
    return Case("FeatureVectorizer", inputs, attributes={"inputdimensions": columns}, domain=CLASSICAL)


def feature_extractor(rng: Rng) -> Case:
    places = np.arange(_some(rng, 3))
    return Case("ArrayFeatureExtractor", [_features(rng), places], domain=CLASSICAL)


CASES: tuple[Callable[[Rng], Case], ...] = (
    *(grouped_attention, multi_head_attention, attention, quantized_attention, rotary, normalized_sum),
    *(embedding, quantized_embedding, quantized_lstm, fused_product, dynamic_product, rescaled_product),
    *(packed_product, quantized_gemm, quantized_pair, quantized_where, quantized_concat, quantized_like),
    *(quantized_average, quantized_pool, last_pool, quantized_conv, linear_quantization),
    *(normalizer, scaler, imputer, linear_regressor, support_vector_regressor),
    *(tree_regressor, tree_classifier, feature_vectorizer, feature_extractor),
)


def model_of(case: Case) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return the model of one node, whose outputs have no declared shape, and the inputs of a run."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(case.inputs)]
    while names and not names[-1]:
        names.pop()
    arrays = {name: np.asarray(array) for name, array in zip(names, case.inputs, strict=False) if name}
    fixed = {f"x{i}" for i in case.constants}
    node = helper.make_node(
        case.op, names, [f"y{i}" for i in range(case.outputs)], domain=case.domain, **dict(case.attributes)
    )
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
        if name not in fixed
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in fixed]
    graph = helper.make_graph([node], "contrib", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(case.domain, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return model, {name: array for name, array in arrays.items() if name not in fixed}
