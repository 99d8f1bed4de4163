"""Shape rules of element-wise operators, reductions, normalisations, and operators with a given output shape."""

from __future__ import annotations

from sublet.base.errors import SpecError
from sublet.base.tensor import Dims
from sublet.integrations.paddle.operators.rules.call import (
    Extent,
    PaddleCall,
    Result,
    Rule,
    axis_of,
    broadcast_shapes,
    element_count,
    sum_of_extents,
)

UNARY = (
    *("abs", "acos", "asin", "assign", "atan", "bitwise_not", "brelu", "cast", "ceil", "celu", "clip", "cos", "cosh"),
    *("cumsum", "elu", "erf", "exp", "expm1", "fill_any_like", "fill_zeros_like", "floor", "gelu", "hard_shrink"),
    *("hard_sigmoid", "hard_swish", "increment", "isfinite_v2", "isinf_v2", "isnan_v2", "label_smooth", "leaky_relu"),
    *("log", "log10", "log1p", "log2", "log_softmax", "logical_not", "logsigmoid", "memcpy", "mish", "pow", "prelu"),
    *("reciprocal", "relu", "relu6", "roll", "round", "rsqrt", "scale", "selu", "share_data", "shrink_rnn_memory"),
    *("sigmoid", "sign", "silu", "sin", "sinh", "softmax", "softplus", "softsign", "sqrt", "square", "swish", "tan"),
    *("tanh", "tanh_shrink", "thresholded_relu", "flip", "reverse", "bernoulli", "assign_pos", "temporal_shift"),
    "depend",
)
BINARY = (
    *("elementwise_add", "elementwise_div", "elementwise_floordiv", "elementwise_max", "elementwise_min"),
    *("elementwise_mod", "elementwise_mul", "elementwise_pow", "elementwise_sub", "elementwise_fmax"),
    *("elementwise_fmin", "maximum", "minimum", "equal", "greater_equal", "greater_than", "less_equal", "less_than"),
    *("not_equal", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
)
REDUCTIONS = (
    *("reduce_all", "reduce_any", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "logsumexp"),
)
FILL_OPERATORS = ("fill_constant", "gaussian_random", "uniform_random", "randint", "truncated_gaussian_random", "empty")


def unary(call: PaddleCall) -> Result:
    """Return the extents of X."""
    return {"Out": [call.dims()]}


def binary(call: PaddleCall) -> Result:
    """Return the broadcast extents; a smaller second operand is aligned at `axis` of the first, -1 at the last axis."""
    x, y, axis = call.dims("X"), call.dims("Y"), call.integer("axis", -1)
    if axis != -1 and len(y) < len(x):
        trailing = len(x) - axis_of(axis, len(x)) - len(y)
        while trailing < 0 and y and y[-1] == 1:
            y, trailing = y[:-1], trailing + 1
        if trailing < 0:
            raise SpecError(f"has no room for its second operand at axis {axis}")
        y = (*y, *[1] * trailing)
    elif axis != -1 and len(x) < len(y):
        x = (*x, *[1] * max(len(y) - axis_of(axis, len(y)) - len(x), 0))
    return {"Out": [broadcast_shapes(x, y)]}


def reduction(call: PaddleCall) -> Result:
    """Return the extents of X without the reduced axes, or with 1 for each if `keep_dim`."""
    x = call.dims()
    axes = {axis_of(axis, len(x)) for axis in call.integers("dim", call.integers("axis", (0,))) if x}
    whole = bool(call.integer("reduce_all", 0)) or not axes
    keep = bool(call.integer("keep_dim", call.integer("keepdim", 0)))
    reduced = set(range(len(x))) if whole else axes
    if keep:
        return {"Out": [tuple(1 if axis in reduced else extent for axis, extent in enumerate(x))]}
    return {"Out": [tuple(extent for axis, extent in enumerate(x) if axis not in reduced)]}


def fill(call: PaddleCall) -> Result:
    """Return the shape given by tensors or an attribute."""
    return {"Out": [target_shape(call, "shape", "ShapeTensor", "ShapeTensorList")]}


def target_shape(call: PaddleCall, attribute: str, tensor: str, tensors: str) -> tuple[Extent, ...]:
    """Return a given shape: from a list of tensors, else from a tensor, else from an attribute."""
    if call.has_input(tensors):
        return call.first_elements(tensors) or ()
    if call.has_input(tensor):
        values = call.values(tensor)
        if values is not None:
            return values
        rank = call.dims(tensor)
        return (None,) * (rank[0] or 0 if rank else 0)
    return tuple(None if extent < 0 else extent for extent in call.integers(attribute))


def fill_batch_size_like(call: PaddleCall) -> Result:
    """Return the shape in the attribute, with an extent replaced by the batch extent of the input."""
    shape: list[Extent] = list(call.integers("shape"))
    source = call.dims("Input")
    shape[axis_of(call.integer("output_dim_idx"), len(shape))] = source[
        axis_of(call.integer("input_dim_idx"), len(source))
    ]
    return {"Out": [tuple(shape)]}


def assign_value(call: PaddleCall) -> Result:
    """Return the shape in the attribute."""
    return {"Out": [tuple(call.integers("shape"))]}


def dropout(call: PaddleCall) -> Result:
    """Return the extents of X; the mask is empty in inference."""
    return {"Out": [call.dims()], "Mask": [(0,) if call.integer("is_test") else call.dims()]}


def batch_norm(call: PaddleCall) -> Result:
    """Return the extents of X and of the statistics; the reserved space is empty on a CPU."""
    x = call.dims()
    channels = (x[-1 if call.text("data_layout") == "NHWC" and len(x) > 2 else 1],) if len(x) > 1 else x
    each: Result = {slot: [channels] for slot in ("MeanOut", "VarianceOut", "SavedMean", "SavedVariance")}
    return {"Y": [x], "ReserveSpace": [(0,)], **each}


def instance_norm(call: PaddleCall) -> Result:
    """Return the extents of X and of the statistics."""
    x = call.dims()
    return {"Y": [x], "SavedMean": [(element_count(x[:2]),)], "SavedVariance": [(element_count(x[:2]),)]}


def group_norm(call: PaddleCall) -> Result:
    """Return the extents of X and of the statistics."""
    x = call.dims()
    groups = (x[0], call.integer("groups", 1))
    return {"Y": [x], "Mean": [groups], "Variance": [groups]}


def layer_norm(call: PaddleCall) -> Result:
    """Return the extents of X and of the statistics."""
    x = call.dims()
    rows = x[: call.integer("begin_norm_axis", 1)]  # before 3.0 the product of these extents
    return {"Y": [x], "Mean": [rows], "Variance": [rows]}


def sum_tensors(call: PaddleCall) -> Result:
    """Return the extents of a sum of tensors; selected rows are concatenated."""
    summed: Dims = None
    operands = call.inputs.get("X", ())
    if operands and all(operand.selected for operand in operands):
        every = [call.dims("X", position) for position in range(len(operands))]
        return {"Out": [(sum_of_extents([dims[0] for dims in every]), *every[0][1:])]}
    for position in range(len(operands)):
        dims = call.dims("X", position)
        summed = dims if summed is None else broadcast_shapes(summed, dims)
    return {"Out": [summed]}


def select_input(call: PaddleCall) -> Result:
    """Return the extents common to all alternatives."""
    every = [call.dims("X", position) for position in range(len(call.inputs.get("X", ())))]
    if not every or any(len(dims) != len(every[0]) for dims in every):
        return {}
    return {"Out": [tuple(each[0] if len(set(each)) == 1 else None for each in zip(*every, strict=True))]}


def where(call: PaddleCall) -> Result:
    """Return the broadcast of condition and operands."""
    return {"Out": [broadcast_shapes(call.dims("Condition"), broadcast_shapes(call.dims("X"), call.dims("Y")))]}


def scatter(call: PaddleCall) -> Result:
    """Return the extents of the updated tensor."""
    return {"Out": [call.dims("Input" if call.has_input("Input") else "X")]}


RULES: dict[str, Rule] = {
    **dict.fromkeys(UNARY, unary), **dict.fromkeys(BINARY, binary), **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(FILL_OPERATORS, fill), "fill_constant_batch_size_like": fill_batch_size_like,
    "assign_value": assign_value, "mean": lambda call: {"Out": [()]}, "dropout": dropout,
    "batch_norm": batch_norm, "sync_batch_norm": batch_norm,
    "instance_norm": instance_norm, "group_norm": group_norm, "layer_norm": layer_norm, "sum": sum_tensors,
    "select_input": select_input, "where": where, "scatter": scatter, "scatter_nd_add": scatter,
    "put_along_axis": lambda call: {"Result": [call.dims("Input")]},
}  # fmt: skip
