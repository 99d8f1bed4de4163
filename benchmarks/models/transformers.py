"""Transformers at full size by default; smaller ones by parameters."""

from __future__ import annotations

from math import sqrt

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.models.builder import Builder


def bert(
    sequence: int | str = 128,
    batch: int | str = 1,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
    positions: int = 512,
) -> onnx.ModelProto:
    """BERT-base, uncased, without a head (Devlin et al. 2018). Dimensions may be names."""
    b = Builder("bert")
    tokens = b.input("input_ids", (batch, sequence), TensorProto.INT64)
    kinds = b.input("token_type_ids", (batch, sequence), TensorProto.INT64)
    mask = b.input("attention_mask", (batch, sequence), TensorProto.INT64)
    length = b.op("Gather", b.op("Shape", tokens), b.ints(1))
    places = b.op("Slice", b.random_weight(positions, width), b.ints(0), length, b.ints(0))
    x = b.op("Add", b.op("Gather", b.random_weight(vocabulary, width), tokens), places)
    x = b.op("Add", x, b.op("Gather", b.random_weight(2, width), kinds))
    x = _norm(b, x, width)
    blocked = b.op("Sub", b.filled(1.0), b.op("Cast", mask, to=TensorProto.FLOAT))
    bias = b.op("Mul", b.op("Unsqueeze", blocked, b.ints(1, 2)), b.filled(-1e4))
    for _ in range(layers):
        x = _norm(b, b.op("Add", x, _attention(b, x, width, heads, bias)), width)
        inner = _gelu_erf(b, b.linear(x, width, 4 * width))
        x = _norm(b, b.op("Add", x, b.linear(inner, 4 * width, width)), width)
    first = b.op("Gather", x, b.constant(np.array(0, dtype=np.int64)), axis=1)
    return b.model(last_hidden_state=x, pooled=b.op("Tanh", b.linear(first, width, width)))


def gpt2(
    sequence: int | str = 128,
    batch: int | str = 1,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    positions: int = 1024,
) -> onnx.ModelProto:
    """GPT-2 small (Radford et al. 2019): causal, logits by the transposed embedding."""
    b = Builder("gpt2")
    tokens = b.input("input_ids", (batch, sequence), TensorProto.INT64)
    embedding = b.random_weight(vocabulary, width)
    length = b.op("Gather", b.op("Shape", tokens), b.ints(1))
    places = b.op("Slice", b.random_weight(positions, width), b.ints(0), length, b.ints(0))
    future = np.triu(np.full((1, 1, positions, positions), -1e4, dtype=np.float32), 1)
    bounds = b.op("Concat", length, length, axis=0)
    bias = b.op("Slice", b.constant(future), b.ints(0, 0), bounds, b.ints(2, 3))
    x = b.op("Add", b.op("Gather", embedding, tokens), places)
    for _ in range(layers):
        x = b.op("Add", x, _attention(b, _norm(b, x, width), width, heads, bias, fused=True))
        inner = _gelu_tanh(b, b.linear(_norm(b, x, width), width, 4 * width))
        x = b.op("Add", x, b.linear(inner, 4 * width, width))
    return b.model(logits=b.op("MatMul", _norm(b, x, width), b.op("Transpose", embedding, perm=[1, 0])))


def gpt_with_past(
    layers: int = 6, width: int = 256, heads: int = 4, vocabulary: int = 1000, positions: int = 512
) -> onnx.ModelProto:
    """A decoder like GPT-2 over `new` tokens, with the keys and values of `past` tokens as inputs and outputs."""
    b = Builder("gpt_with_past")
    tokens = b.input("input_ids", ("batch", "new"), TensorProto.INT64)
    shape = ("batch", heads, "past", width // heads)
    past = {f"past_{i}_{kind}": b.input(f"past_{i}_{kind}", shape) for i in range(layers) for kind in ("key", "value")}
    before = b.op("Gather", b.op("Shape", next(iter(past.values()))), b.scalar(2))
    whole = b.op("Add", before, b.op("Gather", b.op("Shape", tokens), b.scalar(1)))
    rows = b.op("Range", before, whole, b.scalar(1))
    columns = b.op("Range", b.scalar(0), whole, b.scalar(1))
    is_seen = b.op("LessOrEqual", columns, b.op("Unsqueeze", rows, b.ints(1)))
    bias = b.op("Where", is_seen, b.filled(0.0), b.filled(-1e4))
    embedding = b.random_weight(vocabulary, width)
    x = b.op("Add", b.op("Gather", embedding, tokens), b.op("Gather", b.random_weight(positions, width), rows))
    present: dict[str, str] = {}
    for i in range(layers):
        query, key, value = (
            b.op("Transpose", b.op("Reshape", part, b.ints(0, 0, heads, width // heads)), perm=[0, 2, 1, 3])
            for part in b.ops("Split", 3, b.linear(_norm(b, x, width), width, 3 * width), b.ints(*[width] * 3), axis=-1)
        )
        key = present[f"present_{i}_key"] = b.op("Concat", past[f"past_{i}_key"], key, axis=2)
        value = present[f"present_{i}_value"] = b.op("Concat", past[f"past_{i}_value"], value, axis=2)
        scores = b.op("MatMul", query, b.op("Transpose", key, perm=[0, 1, 3, 2]))
        weights = b.op("Softmax", b.op("Add", b.op("Div", scores, b.filled(sqrt(width // heads))), bias), axis=-1)
        mixed = b.op("Transpose", b.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        x = b.op("Add", x, b.linear(b.op("Reshape", mixed, b.ints(0, 0, width)), width, width))
        inner = _gelu_tanh(b, b.linear(_norm(b, x, width), width, 4 * width))
        x = b.op("Add", x, b.linear(inner, 4 * width, width))
    logits = b.op("MatMul", _norm(b, x, width), b.op("Transpose", embedding, perm=[1, 0]))
    return b.model(logits=logits, **present)


def decoder_with_caches(
    layers: int = 2, width: int = 64, heads: int = 4, groups: int = 2, vocabulary: int = 100, positions: int = 64
) -> onnx.ModelProto:
    """A decoder like Llama in the form of ONNX Runtime GenAI: GroupQueryAttention appends to caches of `past` rows.

    The rows beyond the length, which the mask of ones gives, have no meaning.
    """
    b = Builder("decoder_with_caches")
    tokens = b.input("input_ids", ("batch", "new"), TensorProto.INT64)
    mask = b.input("attention_mask", ("batch", "total"), TensorProto.INT64)
    size = width // heads
    caches = [
        [b.input(f"past.{i}.{kind}", ("batch", groups, "past", size)) for kind in ("key", "value")]
        for i in range(layers)
    ]
    last = b.op("Sub", b.op("ReduceSum", mask, b.ints(1), keepdims=0), b.ints(1))
    total = b.op("Gather", b.op("Shape", mask), b.scalar(1))
    lengths = [b.op("Cast", each, to=TensorProto.INT32) for each in (last, total)]
    angles = np.outer(np.arange(positions), 10000.0 ** (-np.arange(size // 2) / (size // 2)))
    rotary = [b.constant(of(angles).astype(np.float32)) for of in (np.cos, np.sin)]
    embedding = b.random_weight(vocabulary, width)
    x, presents = b.op("Gather", embedding, tokens), dict[str, str]()
    for i, past in enumerate(caches):
        normed = _norm(b, x, width)
        parts = [b.linear(normed, width, count * size) for count in (heads, groups, groups)]
        mixed, key, value = b.ops(
            "GroupQueryAttention", 3, *parts, *past, *lengths, *rotary, domain="com.microsoft", num_heads=heads,
            kv_num_heads=groups, do_rotary=1,
        )  # fmt: skip
        presents.update({f"present.{i}.key": key, f"present.{i}.value": value})
        x = b.op("Add", x, b.linear(mixed, width, width))
        inner = _gelu_tanh(b, b.linear(_norm(b, x, width), width, 4 * width))
        x = b.op("Add", x, b.linear(inner, 4 * width, width))
    logits = b.op("MatMul", _norm(b, x, width), b.op("Transpose", embedding, perm=[1, 0]))
    return b.model(logits=logits, **presents)


def _norm(b: Builder, x: str, width: int) -> str:
    return b.op("LayerNormalization", x, b.filled(1.0, width), b.filled(0.0, width), axis=-1)


def _attention(b: Builder, x: str, width: int, heads: int, bias: str, *, fused: bool = False) -> str:
    """Multi-head attention with an additive mask; `fused` projects once and splits, as GPT-2 does."""
    if fused:
        parts = b.ops("Split", 3, b.linear(x, width, 3 * width), b.ints(width, width, width), axis=-1)
    else:
        parts = [b.linear(x, width, width) for _ in range(3)]
    shape = b.ints(0, 0, heads, width // heads)
    query, key, value = (b.op("Reshape", part, shape) for part in parts)
    query, value = (b.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (query, value))
    scores = b.op("MatMul", query, b.op("Transpose", key, perm=[0, 2, 3, 1]))
    scores = b.op("Div", scores, b.filled(sqrt(width // heads)))
    weights = b.op("Softmax", b.op("Add", scores, bias), axis=-1)
    mixed = b.op("Transpose", b.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    return b.linear(b.op("Reshape", mixed, b.ints(0, 0, width)), width, width)


def _gelu_erf(b: Builder, x: str) -> str:
    half = b.op("Add", b.op("Erf", b.op("Div", x, b.filled(sqrt(2)))), b.filled(1.0))
    return b.op("Mul", b.op("Mul", x, half), b.filled(0.5))


def _gelu_tanh(b: Builder, x: str) -> str:
    cube = b.op("Mul", b.op("Pow", x, b.filled(3.0)), b.filled(0.044715))
    inner = b.op("Tanh", b.op("Mul", b.op("Add", x, cube), b.filled(sqrt(2 / np.pi))))
    return b.op("Mul", b.op("Mul", x, b.filled(0.5)), b.op("Add", inner, b.filled(1.0)))


def decode_in_one_loop(step: onnx.ModelProto, tokens: int) -> onnx.ModelProto:
    """Return greedy decoding as one Loop over `gpt_with_past`: the present of an iteration is the past of the next.

    The inputs are the first token and the past before it; the output is `tokens`, the token of each iteration.
    """
    helper, graph, value = onnx.helper, step.graph, onnx.helper.make_tensor_value_info
    ids, *pasts = graph.input
    updates = [f"present_{each.name.removeprefix('past_')}" for each in pasts]

    def cache_shape(past: onnx.ValueInfoProto) -> list[str | int]:
        batch, heads, _, size = past.type.tensor_type.shape.dim
        return [batch.dim_param, heads.dim_value, "rows", size.dim_value]

    body = helper.make_graph(
        [
            *graph.node,
            helper.make_node("ArgMax", ["logits"], ["next"], axis=-1, keepdims=0),
            helper.make_node("Identity", ["condition"], ["goes_on"]),
            helper.make_node("Identity", ["next"], ["chosen"]),
        ],
        "step",
        [
            value("iteration", TensorProto.INT64, ()),
            value("condition", TensorProto.BOOL, ()),
            ids,
            *[value(each.name, TensorProto.FLOAT, cache_shape(each)) for each in pasts],
        ],
        [
            value("goes_on", TensorProto.BOOL, ()),
            value("next", TensorProto.INT64, ("batch", "new")),
            *[value(new, TensorProto.FLOAT, cache_shape(old)) for new, old in zip(updates, pasts, strict=True)],
            value("chosen", TensorProto.INT64, ("batch", "new")),
        ],
    )
    first = onnx.ValueInfoProto(name="first", type=ids.type)
    starts = [onnx.ValueInfoProto(name=f"{each.name}_start", type=each.type) for each in pasts]
    weights = [
        *graph.initializer,
        helper.make_tensor("count", TensorProto.INT64, (), [tokens]),
        helper.make_tensor("true", TensorProto.BOOL, (), [True]),
    ]
    finals = [f"{name}_final" for name in updates]
    carried = ["first", *[each.name for each in starts]]
    loop = helper.make_node("Loop", ["count", "true", *carried], ["last", *finals, "tokens"], name="decode", body=body)
    result = value("tokens", TensorProto.INT64, ("tokens", "batch", "new"))
    whole = helper.make_graph([loop], "decode_in_one_loop", [first, *starts], [result], weights)
    model = helper.make_model(whole, opset_imports=step.opset_import, ir_version=step.ir_version)
    onnx.checker.check_model(model)
    return model
