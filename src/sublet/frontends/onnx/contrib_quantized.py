"""Output types of ONNX Runtime's products and quantized operators (domain com.microsoft), derived from the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sublet.frontends.onnx.contrib_attention import Elements, OutputTypes, sum_of_extents, tensor_type_of
from sublet.frontends.onnx.rules.shape_rule import Extents, NodeShapes
from sublet.frontends.onnx.types import Type

U8, F32 = 2, 1


def matrix_product_shape(a: Extents | None, b: Extents | None) -> Extents | None:
    """Return the shape of NumPy's `matmul`, None for a scalar operand or an operand of unknown rank."""
    if not a or not b:
        return None
    batch = broadcast_shape([a[:-2], b[:-2]])
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    return None if batch is None else (*batch, *rows, *columns)


def broadcast_shape(shapes: Sequence[Extents | None]) -> Extents | None:
    """Return the broadcast shape of the operands, None if the rank of any operand is unknown."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(_broadcast_extent_of(extents) for extents in zip(*aligned, strict=True))


def _broadcast_extent_of(extents: Sequence[int | None]) -> int | None:
    """Return the broadcast extent of one axis, None if the extent is open."""
    fixed = [extent for extent in extents if extent not in (1, None)]
    return fixed[0] if fixed else None if None in extents else 1


def _transposed_shape(node: NodeShapes, position: int, letter: str) -> Extents | None:
    """Return the shape of a FusedMatMul operand after transposition, None if the rank is unknown.

    `transBatch` moves the first axis behind the batch axes; `trans` then swaps the last two axes.
    """
    shape = node.shape(position)
    if shape is None or len(shape) < 2:
        return shape
    if node.integer_attribute(f"transBatch{letter}") and len(shape) > 2:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if node.integer_attribute(f"trans{letter}") else shape


def fused_matmul_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of FusedMatMul: the product of the operands after transposition."""
    return [
        tensor_type_of(elems[0], matrix_product_shape(_transposed_shape(node, 0, "A"), _transposed_shape(node, 1, "B")))
    ]


def dynamic_quantize_matmul_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of DynamicQuantizeMatMul: the product, with the element type of the first operand."""
    return [tensor_type_of(elems[0], matrix_product_shape(node.shape(0), node.shape(1)))]


def matmul_integer_to_float_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of MatMulIntegerToFloat: the product, with the element type of the scales."""
    return [tensor_type_of(elems[2] if len(elems) > 2 else 0, matrix_product_shape(node.shape(0), node.shape(1)))]


def matmul_nbits_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of MatMulNBits: [..., K] becomes [..., N]."""
    data, columns = node.shape(0), node.integer_attribute("N")
    return [tensor_type_of(elems[0], (*data[:-1], columns) if data and columns else None)]


def quantized_gemm_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QGemm: quantized like the first operand if the output has a scale, else floating point."""
    a, b = node.shape(0), node.shape(3)
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return []
    rows, columns = a[1 if node.integer_attribute("transA") else 0], b[0 if node.integer_attribute("transB") else 1]
    return [tensor_type_of(elems[0] if node.is_present(7) else elems[1], (rows, columns))]


def quantized_elementwise_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QLinearAdd and QLinearMul: both operands, broadcast."""
    return [tensor_type_of(elems[0], broadcast_shape([node.shape(0), node.shape(3)]))]


def quantized_where_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QLinearWhere: the condition and both operands, broadcast."""
    shapes = [node.shape(0), node.shape(1), node.shape(4)]
    return [tensor_type_of(elems[1] if len(elems) > 1 else 0, broadcast_shape(shapes))]


def quantized_concat_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QLinearConcat: a scale and a zero point, then three inputs for each operand."""
    shapes = [node.shape(position) for position in range(2, len(node.inputs), 3)]
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return []
    axis = node.integer_attribute("axis") % max(len(known[0]), 1)
    along: int | None = 0
    for shape in known:
        along = sum_of_extents(along, shape[axis])
    dims = tuple(along if i == axis else extent for i, extent in enumerate(known[0]))
    return [tensor_type_of(elems[1], dims)]


def quantize_linear_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QuantizeLinear, with the element type of the zero point; u8 without a zero point."""
    return [tensor_type_of(elems[2] if len(elems) > 2 and elems[2] else 0 if node.is_present(2) else U8, node.shape(0))]


def dequantize_linear_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of DequantizeLinear, with the element type of the scale."""
    return [tensor_type_of(elems[1] if len(elems) > 1 else 0, node.shape(0))]


def global_average_pool_type(node: NodeShapes, elems: Elements) -> list[Type]:
    """Return the type of QLinearGlobalAveragePool: every spatial extent is 1."""
    data = node.shape(0)
    if data is None or len(data) < 3:
        return []
    ones = (1,) * (len(data) - 2)
    dims = (data[0], *ones, data[-1]) if node.integer_attribute("channels_last") else (data[0], data[1], *ones)
    return [tensor_type_of(elems[0], dims)]


QUANTIZED_TYPES: Mapping[str, OutputTypes] = {
    "FusedMatMul": fused_matmul_type,
    "FusedMatMulActivation": fused_matmul_type,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul_type,
    "MatMulIntegerToFloat": matmul_integer_to_float_type,
    "MatMulNBits": matmul_nbits_type,
    "QGemm": quantized_gemm_type,
    "QLinearAdd": quantized_elementwise_type,
    "QLinearMul": quantized_elementwise_type,
    "QLinearWhere": quantized_where_type,
    "QLinearConcat": quantized_concat_type,
    "QLinearGlobalAveragePool": global_average_pool_type,
    "QuantizeLinear": quantize_linear_type,
    "DequantizeLinear": dequantize_linear_type,
}
