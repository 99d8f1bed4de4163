"""Output types of ONNX Runtime's attention, embedding and recurrent operators (domain com.microsoft).

ONNX Runtime's shape inference guesses some shapes: for a key cache, for instance, the inferred rows are the rows of the
past. The functions here follow the kernels, and leave data-dependent extents open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sublet.base.extents import greatest
from sublet.integrations.onnx.reader.rules.shape_rule import Extents, NodeShapes
from sublet.integrations.onnx.reader.types import TensorType, Type

Elements = Sequence[int]
"""ONNX's element type number of each input; 0 for an omitted input or an unknown type."""

OutputTypes = Callable[[NodeShapes, Elements], list[Type]]
"""A function returning the types of a node's first outputs, None for an unknown type."""

I32 = 6
PAST_KEYS, PAST_VALUES, TOTAL_LENGTH = 3, 4, 6
"""Inputs of GroupQueryAttention."""
MULTI_HEAD_PAST, MULTI_HEAD_PAST_LENGTH = 6, 8
"""Inputs of MultiHeadAttention."""
ATTENTION_PAST = 4
"""Input of Attention."""


def tensor_type_of(elem: int, dims: Extents | None) -> Type:
    """Return the tensor type, None if the element type is unknown."""
    return TensorType(elem, dims) if elem else None


def exact_quotient(extent: int | None, count: int) -> int | None:
    """Return the size of each of `count` equal parts, None if the extent is open or not divisible by `count`."""
    return extent // count if extent is not None and count > 0 and extent % count == 0 else None


def sum_of_extents(a: int | None, b: int | None) -> int | None:
    """Return the sum of two extents, None if either is open."""
    return None if a is None or b is None else a + b


def _product_of_extents(a: int | None, b: int | None) -> int | None:
    """Return the product of two extents, None if either is open."""
    return None if a is None or b is None else a * b


def grouped_attention_types(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the types of GroupQueryAttention: [batch, length, heads * size], and present keys and values.

    A present cache has as many rows as the past, or `total_sequence_length` rows if larger. The caller of a model
    passes `total_sequence_length`, so the extent is open unless `total_sequence_length` is a constant or an extent.
    """
    query, heads, groups = node.shape(0), node.integer_attribute("num_heads"), node.integer_attribute("kv_num_heads")
    if query is None or len(query) != 3:
        return [tensor_type_of(elems[0], None)]
    parts = heads if node.is_present(1) else heads + 2 * groups
    size = exact_quotient(query[2], parts)
    output = tensor_type_of(elems[0], (query[0], query[1], _product_of_extents(size, heads)))
    plain = all(node.text_attribute(name, "NONE") == "NONE" for name in ("k_quant_type", "v_quant_type"))
    if not plain or node.integer_attribute("kv_cache_bit_width"):
        return [output]
    constant = node.constant_inputs.get(TOTAL_LENGTH, ())
    rows = [_past_rows(node, position, 0) for position in (PAST_KEYS, PAST_VALUES)]
    # Over ranges, extents are expressions.
    present: list[Any] = [
        greatest(past, *constant) if past is not None and len(constant) == 1 else None for past in rows
    ]
    return [output, *(tensor_type_of(elems[0], (query[0], groups, extent, size)) for extent in present)]


def _past_rows(node: NodeShapes, position: int, absent: int) -> int | None:
    """Return the rows of a past of [batch, heads, rows, size]; `absent` for an omitted input."""
    past = node.shape(position)
    if past is None or len(past) != 4:
        return None if node.is_present(position) else absent
    return past[2]


def multi_head_attention_types(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the types of MultiHeadAttention: [batch, length, heads * size], and present keys and values.

    Queries may hold keys and values, [batch, length, heads, 3, size], and keys may hold values, [batch, length, heads,
    2, size].
    """
    query, keys, values = node.shape(0), node.shape(1), node.shape(2)
    heads = node.integer_attribute("num_heads")
    if query is None or len(query) not in (3, 5):
        return [tensor_type_of(elems[0], None)]
    length: int | None
    if len(query) == 5:
        size, length = query[4], query[1]
        value_size = size
    elif keys is None or (node.is_present(2) and values is None):
        return [tensor_type_of(elems[0], (query[0], query[1], None))]
    else:
        size = exact_quotient(query[2], heads)
        length = keys[2] if len(keys) == 4 else keys[1]
        separate = values if len(keys) != 5 else None
        value_size = (
            size if separate is None else separate[3] if len(separate) == 4 else exact_quotient(separate[2], heads)
        )
    output = tensor_type_of(elems[0], (query[0], query[1], _product_of_extents(value_size, heads)))
    past = _past_rows(node, MULTI_HEAD_PAST, 0)
    crossed = keys is not None and len(keys) == 4
    if node.is_present(MULTI_HEAD_PAST_LENGTH) or (crossed and node.is_present(MULTI_HEAD_PAST)):
        return [output]
    rows = sum_of_extents(past, length)
    return [output, *(tensor_type_of(elems[0], (query[0], heads, rows, each)) for each in (size, value_size))]


def attention_types(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the types of Attention: [batch, length, all values], and a past of [2, batch, heads, total, size]."""
    return _packed_attention_types(node, elems[0], ATTENTION_PAST)


def quantized_attention_types(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the types of QAttention: the types of Attention, with the element type of the scales."""
    return _packed_attention_types(node, elems[3] if len(elems) > 3 else 0, 8)


def _packed_attention_types(node: NodeShapes, elem: int, past_position: int) -> list[Type]:
    """Return the types of an attention with one packed weight matrix for queries, keys and values."""
    data, weights, heads = node.shape(0), node.shape(1), node.integer_attribute("num_heads")
    sizes = node.integers_attribute("qkv_hidden_sizes") or ()
    if data is None or len(data) != 3:
        return [tensor_type_of(elem, None)]
    each = exact_quotient(weights[1], 3) if weights is not None and len(weights) == 2 else None
    values = sizes[2] if len(sizes) == 3 else each
    output = tensor_type_of(elem, (*data[:2], values))
    past = node.shape(past_position)
    equal_sizes = len(sizes) != 3 or sizes[1] == sizes[2]
    if node.integer_attribute("past_present_share_buffer") or not equal_sizes:
        return [output]
    before = 0
    if node.is_present(past_position):
        if past is None or len(past) != 5 or past[3] is None:
            return [output]
        before = past[3]
    return [
        output,
        tensor_type_of(elem, (2, data[0], heads, sum_of_extents(before, data[1]), exact_quotient(values, heads))),
    ]


def embedding_types(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the types of EmbedLayerNormalization: [batch, length, size], [batch], and the sum of the first shape."""
    tokens, words = node.shape(0), node.shape(2)
    if tokens is None or len(tokens) != 2 or words is None or len(words) != 2 or len(elems) < 3:
        return []
    rows = tensor_type_of(elems[2], (*tokens, words[1]))
    return [rows, TensorType(I32, (tokens[0],)), rows]


def quantized_embedding_types(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the types of QEmbedLayerNormalization: [batch, length, size] of the scales' element type, and [batch]."""
    tokens, words = node.shape(0), node.shape(2)
    if tokens is None or len(tokens) != 2 or words is None or len(words) != 2 or len(elems) < 9:
        return []
    return [tensor_type_of(elems[8], (*tokens, words[1])), TensorType(I32, (tokens[0],))]


def quantized_lstm_types(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the types of DynamicQuantizeLSTM: [length, directions, batch, hidden], and two last states."""
    data, hidden = node.shape(0), node.integer_attribute("hidden_size")
    directions = 2 if node.text_attribute("direction", "forward") == "bidirectional" else 1
    if data is None or len(data) != 3 or not hidden:
        return []
    state = tensor_type_of(elems[0], (directions, data[1], hidden))
    return [tensor_type_of(elems[0], (data[0], directions, data[1], hidden)), state, state]


def skip_normalization_types(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the types of SkipLayerNormalization and variants: outputs 0 and 3 have the type of input 0."""
    like_first = tensor_type_of(elems[0], node.shape(0))
    return [like_first, None, None, like_first]


ATTENTION_TYPES: Mapping[str, OutputTypes] = {
    "GroupQueryAttention": grouped_attention_types,
    "MultiHeadAttention": multi_head_attention_types,
    "Attention": attention_types,
    "QAttention": quantized_attention_types,
    "EmbedLayerNormalization": embedding_types,
    "QEmbedLayerNormalization": quantized_embedding_types,
    "DynamicQuantizeLSTM": quantized_lstm_types,
    "SkipLayerNormalization": skip_normalization_types,
    "SkipSimplifiedLayerNormalization": skip_normalization_types,
}
