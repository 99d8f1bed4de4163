"""Facts of ONNX operators: the inputs overwritable by the output, views, slice maps.

An element-wise kernel reads element i of an input with the output's shape only to write element i. Tests verify every
entry by running ONNX Runtime's CPU kernels in a single buffer. Gelu, FastGelu and QuickGelu are missing: their kernels
read the input again after writing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from sublet.base.errors import MissingExtraError
from sublet.base.extents import Extent, clamp
from sublet.base.optional_imports import require
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops import slice_maps
from sublet.ops.nn.convolution import convolution_slices
from sublet.ops.nn.normalization import channel_slices
from sublet.ops.nn.windows import Windows, window_axes, windows_from_attrs
from sublet.ops.op import (
    Op,
    Share,
    Shares,
    block_share,
    can_overwrite,
    concat_shares,
    keeps_element_order,
    no_shares,
    overwrite_any,
)
from sublet.ops.slice_maps import SliceMaps, Slices, same_axes, shape_of, slice_map

UNARY = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "CastLike", "Ceil", "Celu"),
    *("Clip", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish"),
    *("LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign"),
    *("Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu"),
)
BINARY = (
    *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater"),
    *("GreaterOrEqual", "Less", "LessOrEqual", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Xor"),
)
VARIADIC = ("Mean", "Sum")
EXTREMES = ("Max", "Min")
"""Operators whose old kernels copy the first input to the output before reading the second input."""

ROW_READ_AGAIN = {"LogSoftmax": DType.F64}
"""Kernels reading a row again after writing the row, with the affected element type."""

NORMALIZATIONS = ("LayerNormalization", "LogSoftmax", "SimplifiedLayerNormalization", "Softmax")
SCATTERS = ("Scatter", "ScatterElements", "ScatterND", "TensorScatter")


def _overwrite_first(node: Node) -> tuple[Share, ...]:
    """Return the share of output 0 with input 0, unless input 0 is repeated at a different position."""
    if not node.inputs or not node.outputs or not can_overwrite(node.inputs[0], node.outputs[0]):
        return ()
    return () if node.inputs[0] in node.inputs[1:] else (Share(0, 0),)


def _overwrite_in_inference(node: Node) -> tuple[Share, ...]:
    """Return the share for BatchNormalization with running statistics: a factor and a term for each channel."""
    training = node.attrs.get("training_mode", 0) or any(node.outputs[1:])
    return () if training else _overwrite_first(node)


def _overwrite_addend(node: Node) -> tuple[Share, ...]:
    """Return the share of a convolution with a fourth input, the initial value of the sum."""
    if len(node.inputs) < 4 or not node.outputs or not can_overwrite(node.inputs[3], node.outputs[0]):
        return ()
    return () if node.inputs[3] in node.inputs[:3] else (Share(0, 3),)


def _overwrite_caches(node: Node) -> tuple[Share, ...]:
    """Return the shares of present keys and values with a past of as many rows: an append in place.

    ONNX Runtime's kernel then writes the new rows only, and leaves the rows beyond the length, which no kernel reads.
    In memory of its own a present has zeros there.
    """
    caches = [(position, output) for position, output in ((3, 1), (4, 2)) if position < len(node.inputs)]
    return tuple(
        Share(output, position)
        for position, output in caches
        if output < len(node.outputs)
        and can_overwrite(node.inputs[position], node.outputs[output])
        and node.inputs.count(node.inputs[position]) == 1
    )


def _overwrite_rows(positions: Sequence[int]) -> Shares:
    """Return the fact for kernels reading each row along the last axis before writing the row.

    An attribute `axis` must name the last axis; without the attribute, the rows may span several axes.
    """

    any_of_them = overwrite_any(*positions)

    def shares(node: Node) -> tuple[Share, ...]:
        result = node.outputs[0] if node.outputs else None
        spec = result.spec if result is not None else None
        if not isinstance(spec, TensorSpec) or node.attrs.get("axis", -1) not in (-1, len(spec.shape) - 1):
            return ()
        if ROW_READ_AGAIN.get(node.op.rpartition(".")[2]) is spec.dtype:
            return ()
        return any_of_them(node)

    return shares


INPLACE: Mapping[str, Shares] = {
    **dict.fromkeys(UNARY, overwrite_any(0)),
    **dict.fromkeys(BINARY, overwrite_any(0, 1)),
    **dict.fromkeys(VARIADIC, overwrite_any(0, 1)),
    **dict.fromkeys(EXTREMES, overwrite_any(0)),
    **dict.fromkeys(SCATTERS, _overwrite_first),
    "com.microsoft.BiasGelu": overwrite_any(0),
    "Where": overwrite_any(1, 2),
    "BatchNormalization": _overwrite_in_inference,
    "com.microsoft.FusedConv": _overwrite_addend,
    "com.microsoft.GroupQueryAttention": _overwrite_caches,
    "com.microsoft.nchwc.Conv": _overwrite_addend,
    **dict.fromkeys(NORMALIZATIONS, _overwrite_rows((0,))),
    "com.microsoft.SkipLayerNormalization": _overwrite_rows((0, 1)),
    "com.microsoft.SkipSimplifiedLayerNormalization": _overwrite_rows((0, 1)),
}


# Outputs written by ONNX Runtime kernels even if unused.
#
# The operator's optional outputs may be omitted, but some kernels of ONNX Runtime then write through a null pointer or
# refuse the node. `tests/runtime/omitted_outputs.py` found the entries by running every operator with several outputs
# with every subset of the outputs.

NONE: frozenset[int] = frozenset()
Rule = Callable[[Sequence[bool], int], frozenset[int]]


def _every_output(inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    return frozenset(range(outputs))


def _training(inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    """Return all outputs if more than one is listed.

    More than one output means training mode; before version 14 no attribute says so.
    """
    return frozenset(range(outputs)) if outputs > 1 else NONE


def _cache_outputs(past: int) -> Rule:
    """Return the rule of attention caches: outputs 1 and 2 if input `past` or `past` + 1 is present.

    The inputs are earlier keys and values; the outputs are the updated keys and values.
    """
    return lambda inputs, outputs: frozenset({1, 2}) if any(inputs[past : past + 2]) else NONE


ALWAYS_WRITTEN: Mapping[tuple[str, str], Rule] = {
    ("", "Attention"): _cache_outputs(4),
    ("", "BatchNormalization"): _training,
    ("", "Split"): _every_output,
    ("com.microsoft", "DecoderMaskedMultiHeadAttention"): _cache_outputs(5),
}
"""The rule of each operator, by domain and name."""


def always_written_outputs(domain: str, op_type: str, inputs: Sequence[bool], outputs: int) -> frozenset[int]:
    """Return the positions of the outputs written by the kernel in any case.

    `inputs` is True for each input present; `outputs` is the number of outputs listed by the node, with omitted ones.
    """
    rule = ALWAYS_WRITTEN.get((domain, op_type))
    return NONE if rule is None else rule(inputs, outputs)


# Views and concat operands in place of ONNX operators: outputs as bytes of an input, and outputs containing inputs.
#
# A node has shares only if the shares explain every byte of the outputs: the node then runs without a kernel.


def _first_spec(values: Sequence[Value | None]) -> TensorSpec | None:
    """Return the spec of the first value if present, plannable and not empty; else None."""
    spec = values[0].spec if values and values[0] is not None else None
    return spec if isinstance(spec, TensorSpec) and spec.nbytes != 0 else None


def _first_specs(node: Node) -> tuple[TensorSpec, TensorSpec] | None:
    """Return the specs of the first input and output if both are plannable and of equal type; else None."""
    source, result = _first_spec(node.inputs), _first_spec(node.outputs)
    return (source, result) if source and result and source.dtype is result.dtype else None


def _same_bytes(node: Node) -> tuple[Share, ...]:
    """Return the share of the output with the whole input, for equal types and equal numbers of elements."""
    pair = _first_specs(node)
    return (Share(0, 0),) if pair and pair[0].size == pair[1].size else ()


def _dropout(node: Node) -> tuple[Share, ...]:
    """Return the share for inference without a mask output: a copy of the input."""
    masked = len(node.outputs) > 1 and node.outputs[1] is not None
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if masked or node.attrs.get("is_test", 1) != 1:
        return ()
    return _same_bytes(node) if training is None or training.literal == (False,) else ()


def _transpose(node: Node) -> tuple[Share, ...]:
    """Return the share if only dimensions of extent 1 move."""
    pair = _first_specs(node)
    if pair is None:
        return ()
    shape = pair[0].shape
    permutation = _integer_attribute(node, "perm") or tuple(reversed(range(len(shape))))
    axes = [axis for axis in permutation if 0 <= axis < len(shape)]
    return _same_bytes(node) if keeps_element_order(shape, axes) else ()


def _pad(node: Node) -> tuple[Share, ...]:
    """Return the share if every pad is 0."""
    pads = _integer_parameter(node, "pads", 1)
    return _same_bytes(node) if pads is not None and not any(pads) else ()


def _slice(node: Node) -> tuple[Share, ...]:
    pair = _first_specs(node)
    starts = _integer_parameter(node, "starts", 1)
    if pair is None or starts is None:
        return ()
    shape = pair[0].shape
    axes: Sequence[int] | None = range(len(starts))
    if _has_parameter(node, "axes", 3):
        axes = _integer_parameter(node, "axes", 3)
    steps = _integer_parameter(node, "steps", 4) if _has_parameter(node, "steps", 4) else (1,)
    if axes is None or steps is None or any(step != 1 for step in steps):
        return ()
    begin = [0] * len(shape)
    for start, axis in zip(starts, axes, strict=False):
        if not -len(shape) <= axis < len(shape):
            return ()
        extent = shape[axis]
        begin[axis] = clamp(start + extent if start < 0 else start, extent)
    return block_share(0, pair[0], pair[1].shape, begin)


def _split(node: Node) -> tuple[Share, ...]:
    source = _first_spec(node.inputs)
    if source is None:
        return ()
    axis = _axis(node, len(source.shape))
    begin = [0] * len(source.shape)
    shares: list[Share] = []
    for i, output in enumerate(node.outputs):
        if axis is None or output is None or not isinstance(output.spec, TensorSpec):
            break
        if output.spec.dtype is not source.dtype or len(output.spec.shape) != len(source.shape):
            break
        shares.extend(block_share(i, source, output.spec.shape, begin))
        begin[axis] += output.spec.shape[axis]
    explained = {share.output for share in shares}
    return tuple(shares) if all(i in explained for i, out in enumerate(node.outputs) if out and out.nbytes != 0) else ()


def _gather(node: Node) -> tuple[Share, ...]:
    """Return the share if the indices are constants counting up by one."""
    pair = _first_specs(node)
    indices = _as_integers(node.inputs[1].literal) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    axis = _axis(node, len(pair[0].shape)) if pair else None
    if pair is None or axis is None or not indices:
        return ()
    source, result = pair
    extent = source.shape[axis]
    wanted = [index + extent if index < 0 else index for index in indices]
    if not all(index == wanted[0] + i for i, index in enumerate(wanted)):
        return ()
    shape = (*source.shape[:axis], len(wanted), *source.shape[axis + 1 :])
    begin = [0] * len(shape)
    begin[axis] = wanted[0]
    return block_share(0, source, shape, begin) if prod(shape) == result.size else ()


def _concat(node: Node) -> tuple[Share, ...]:
    """Return the shares of the inputs lying one after another in the output.

    Empty if a dimension before the axis is larger than 1.
    """
    result = _first_spec(node.outputs)
    specs = [value.spec if value is not None else None for value in node.inputs]
    planned = [spec for spec in specs if isinstance(spec, TensorSpec)]
    axis = _axis(node, len(result.shape)) if result else None
    if result is None or axis is None or len(planned) < len(specs):
        return ()
    shares = concat_shares(result, planned, axis)
    return shares if sum(planned[share.input].nbytes for share in shares) == result.nbytes else ()


def _integer_attribute(node: Node, name: str) -> tuple[int, ...] | None:
    return _as_integers(node.attrs.get(name))


def _as_integers(found: object) -> tuple[int, ...] | None:
    """Return a list of integers; None for any other value."""
    if not isinstance(found, tuple) or not all(isinstance(number, int | Extent) for number in found):
        return None
    return tuple(number if isinstance(number, Extent) else int(number) for number in found)  # type: ignore[misc]


def _has_parameter(node: Node, name: str, position: int) -> bool:
    return name in node.attrs or (len(node.inputs) > position and node.inputs[position] is not None)


def _integer_parameter(node: Node, name: str, position: int) -> tuple[int, ...] | None:
    """Return a list given as an attribute in old versions, or as a constant input in new versions; None if unknown."""
    if name in node.attrs:
        return _integer_attribute(node, name)
    value = node.inputs[position] if len(node.inputs) > position else None
    return None if value is None else _as_integers(value.literal)


def _axis(node: Node, rank: int) -> int | None:
    """Return the attribute `axis` counted from the front, by default 0; None if invalid."""
    axis = node.attrs.get("axis", 0)
    return axis % rank if isinstance(axis, int) and -rank <= axis < rank else None


VIEWS: Mapping[str, Shares] = {
    "Cast": _same_bytes,
    "CastLike": _same_bytes,
    "Dropout": _dropout,
    "Expand": _same_bytes,
    "Flatten": _same_bytes,
    "Gather": _gather,
    "Identity": _same_bytes,
    "Pad": _pad,
    "Reshape": _same_bytes,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _same_bytes,
    "Tile": _same_bytes,
    "Transpose": _transpose,
    "Unsqueeze": _same_bytes,
}
PARTS: Mapping[str, Shares] = {"Concat": _concat}


# Slice maps of ONNX operators with one output, see `ops.slice_maps`.


def _quantization(node: Node) -> SliceMaps:
    """Return the maps along each axis, for one scale and one zero point."""
    return slice_maps.elementwise_axes(node) if all(prod(shape_of(value)) == 1 for value in node.inputs[1:]) else ()


def _windows(node: Node, kernel: Sequence[int]) -> Windows | None:
    """Return the windows of a node; None for padding or rounding by rules. Raises SpecError."""
    extents, auto_pad = _integer_attribute(node, "kernel_shape") or kernel, node.attrs.get("auto_pad", "NOTSET")
    ruled = node.attrs.get("ceil_mode", 0) or auto_pad not in ("NOTSET", "VALID")
    if ruled or len(extents) != len(shape_of(node.inputs[0])) - 2:
        return None
    return windows_from_attrs({**node.attrs, "pads": ()} if auto_pad == "VALID" else node.attrs, extents)


def _gemm(node: Node) -> SliceMaps:
    """Return the map along the rows of the first factor and of the addend, unless transposed."""
    addend = shape_of(node.inputs[2]) if len(node.inputs) > 2 else ()
    inputs = [0, None, 0 if len(addend) == 2 and addend[0] != 1 else None][: len(node.inputs)]
    return () if node.attrs.get("transA", 0) else slice_map(node, inputs, [0])


def _normalization(node: Node) -> SliceMaps:
    """Return the maps for given statistics of each channel; old versions with `spatial` 0 have statistics of places."""
    other = node.attrs.get("training_mode", 0) or not node.attrs.get("spatial", 1)
    return () if other else channel_slices(node)


def _pool(node: Node) -> SliceMaps:
    return same_axes(node, (0, 1)) + window_axes(node, _windows(node, ()), 2)


def _conv(node: Node) -> SliceMaps:
    """Return the maps of a convolution; a fourth input, the initial value of the sum, is sliced as the result."""
    maps = convolution_slices(
        replace(node, inputs=node.inputs[:3]), _windows(node, shape_of(node.inputs[1])[2:]), "group"
    )
    if len(node.inputs) < 4:
        return maps
    return tuple(replace(each, inputs=(*each.inputs, each.outputs[0]), aligned=3) for each in maps)


def _in_blocks(slices: Slices) -> Slices:
    """Return the fact of an operator over maps in blocks of channels: the maps not along the channels."""
    return lambda node: tuple(each for each in slices(node) if each.outputs[0] != slice_maps.one_axis(1))


def _reorder(node: Node) -> SliceMaps:
    """Return the maps of a change of layout."""
    return () if node.attrs.get("channels_last", 0) else same_axes(node, (0, 2, 3))


SLICES: Mapping[str, Slices] = {
    **dict.fromkeys((*UNARY, *BINARY, *VARIADIC, *EXTREMES, "Gelu", "Identity", "Where"), slice_maps.elementwise_axes),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantization),
    **dict.fromkeys(("AveragePool", "MaxPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), lambda node: same_axes(node, (0, 1))),
    **dict.fromkeys(("LogSoftmax", "Softmax"), slice_maps.axes_beside(default=1, after=False)),
    "LayerNormalization": slice_maps.axes_beside(1, 2, default=-1, after=False),
    "BatchNormalization": _normalization,
    "Concat": slice_maps.axes_beside(),
    **dict.fromkeys(("Conv", "com.microsoft.FusedConv"), _conv),
    "com.microsoft.nchwc.Conv": _in_blocks(_conv),
    **dict.fromkeys(("com.microsoft.nchwc.AveragePool", "com.microsoft.nchwc.MaxPool"), _in_blocks(_pool)),
    **dict.fromkeys(("com.microsoft.nchwc.ReorderInput", "com.microsoft.nchwc.ReorderOutput"), _reorder),
    "Gemm": _gemm,
    "MatMul": lambda node: slice_maps.rows_of_first(node) if len(shape_of(node.inputs[1])) == 2 else (),
}


def _slices(node: Node) -> SliceMaps:
    known = SLICES.get(node.op.removeprefix(PREFIX))
    complete = node.inputs and node.inputs[0] is not None and node.outputs and not any(node.outputs[1:])
    return known(replace(node, outputs=node.outputs[:1])) if known is not None and complete else ()


# The `onnx` dialect: ONNX operators under the names "onnx.Conv" or "onnx.com.microsoft.FusedConv".
#
# The tables of facts hold for every version of an operator: facts depend on specs and literals, never on a version.
# Arity and determinism come from the ONNX schemas if the onnx package is installed.

PREFIX = "onnx."
BLOCKED = "onnx.com.microsoft.nchwc."
"""The prefix of ONNX Runtime's operators over maps in blocks of channels, [N, C / block, H, W, block] in memory."""

RANDOM = frozenset(
    {
        *("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        *("RandomUniformLike", "SequenceMap"),
    }
)
"""Impure operators. Dropout is random only in training, and SequenceMap only if its body is: names cannot tell."""

ANY_NUMBER = (1 << 31) - 1
Arity = tuple[int, int]


@lru_cache(maxsize=4096)
def onnx_op(name: str) -> Op:
    """Return the record of the operator `name`; without facts if the operator has no schema."""
    domain, _, op_type = name.removeprefix(PREFIX).rpartition(".")
    key = f"{domain}.{op_type}" if domain else op_type
    arity = _arities().get((domain, op_type))
    is_standard = arity is not None or domain.startswith("com.microsoft") or domain == ""
    return Op(
        name,
        views=VIEWS.get(key, no_shares),
        parts=PARTS.get(key, no_shares),
        inplace=INPLACE.get(key, no_shares),
        slices=_slices,
        by_rows=True,
        row_calls=True,
        pure=is_standard and op_type not in RANDOM,
        inputs=arity and arity[0],
        outputs=arity and arity[1],
    )


@lru_cache(maxsize=1)
def _arities() -> Mapping[tuple[str, str], tuple[Arity, Arity]]:
    """Return (min, max) numbers of inputs and outputs over all versions of every operator; empty without onnx.

    The captured values of sub-graphs count as inputs of the operator.
    """
    try:
        defs = require("onnx.defs", extra="onnx")
    except MissingExtraError:
        return {}
    graphs = {defs.OpSchema.AttrType.GRAPH, defs.OpSchema.AttrType.GRAPHS}
    arities: dict[tuple[str, str], tuple[Arity, Arity]] = {}
    for schema in defs.get_all_schemas_with_history():
        captures = any(attribute.type in graphs for attribute in schema.attributes.values())
        inputs = (schema.min_input, ANY_NUMBER if captures else schema.max_input)
        outputs = (schema.min_output, schema.max_output)
        before = arities.get((schema.domain, schema.name), (inputs, outputs))
        arities[schema.domain, schema.name] = (
            _union_of_ranges(before[0], inputs),
            _union_of_ranges(before[1], outputs),
        )
    return arities


def _union_of_ranges(a: Arity, b: Arity) -> Arity:
    return min(a[0], b[0]), max(a[1], b[1])
