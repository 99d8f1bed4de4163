"""Mapping of PIR operators to the older form with the same kernels: type, slots, attribute names.

A slot with a leading "=" is an attribute in the older form, with the elements of the operand as value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sublet.frontends.paddle.format.pir import PirOp
from sublet.frontends.paddle.operators.rules.call import Operand, PaddleCall


@dataclass(frozen=True, slots=True)
class LegacySpelling:
    """Type, slots and attribute names of a PIR operator in the older form."""

    type: str
    inputs: tuple[str, ...] = ("X",)
    outputs: tuple[str, ...] = ("Out",)
    attrs: Mapping[str, str] = field(default_factory=dict)


_ELEMENTWISE = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min",
    "elementwise_pow": "pow", "floor_divide": "floordiv", "remainder": "mod",
}  # fmt: skip
_COMPARISONS = (
    *("equal", "greater_equal", "greater_than", "less_equal", "less_than", "logical_and", "logical_or", "logical_xor"),
    *("not_equal", "bitwise_and", "bitwise_or"),
)
_UNCHANGED_NAMES = (
    *("abs", "assign", "cast", "ceil", "clip", "cos", "elu", "erf", "exp", "floor", "gelu", "increment", "leaky_relu"),
    *("log", "log_softmax", "logical_not", "mish", "pow", "prelu", "reciprocal", "relu", "relu6", "round", "rsqrt"),
    *("scale", "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "softsign", "sqrt", "square", "swish", "tanh"),
)
_OTHER_NAMES = {"hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "full_like": "fill_any_like"}
_NORMALIZED = ("Y", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance", "ReserveSpace")

SPELLINGS: Mapping[str, LegacySpelling] = {
    **{name: LegacySpelling(f"elementwise_{old}", ("X", "Y")) for name, old in _ELEMENTWISE.items()},
    **{name: LegacySpelling(name, ("X", "Y")) for name in _COMPARISONS},
    **{name: LegacySpelling(name) for name in _UNCHANGED_NAMES},
    **{name: LegacySpelling(old) for name, old in _OTHER_NAMES.items()},
    **{
        name: LegacySpelling(f"reduce_{name}", ("X", "=dim"), attrs={"keepdim": "keep_dim", "axis": "dim"})
        for name in ("mean", "sum", "max", "min", "prod", "any", "all")
    },
    **{
        name: LegacySpelling(f"{name}_v2", ("X", "OutSize", "SizeTensor", "Scale"))
        for name in ("nearest_interp", "bilinear_interp", "bicubic_interp", "linear_interp")
    },
    **{
        name: LegacySpelling(name, ("Input", "Filter"), ("Output",))
        for name in ("conv2d", "depthwise_conv2d", "conv3d")
    },
    **{
        name: LegacySpelling(name, ("Input", "Filter", "=output_size"), ("Output",))
        for name in ("conv2d_transpose", "depthwise_conv2d_transpose")
    },
    **dict.fromkeys(
        ("batch_norm", "batch_norm_"),
        LegacySpelling("batch_norm", ("X", "Mean", "Variance", "Scale", "Bias"), _NORMALIZED),
    ),
    "layer_norm": LegacySpelling("layer_norm", ("X", "Scale", "Bias"), ("Y", "Mean", "Variance")),
    "dropout": LegacySpelling("dropout", ("X", "Seed"), ("Out", "Mask")),
    "pool2d": LegacySpelling("pool2d", ("X", "=ksize")),
    "matmul": LegacySpelling("matmul_v2", ("X", "Y"), attrs={"transpose_x": "trans_x", "transpose_y": "trans_y"}),
    "bmm": LegacySpelling("bmm", ("X", "Y")),
    "full": LegacySpelling("fill_constant", ()),
    "full_int_array": LegacySpelling("assign_value", (), attrs={"value": "values"}),
    "reshape": LegacySpelling("reshape2", ("X", "Shape"), ("Out", "XShape")),
    "squeeze": LegacySpelling("squeeze2", ("X", "=axes"), ("Out", "XShape")),
    "unsqueeze": LegacySpelling("unsqueeze2", ("X", "=axes"), ("Out", "XShape")),
    "flatten": LegacySpelling("flatten_contiguous_range", ("X",), ("Out", "XShape")),
    "transpose": LegacySpelling("transpose2", ("X",), ("Out", "XShape"), {"perm": "axis"}),
    "concat": LegacySpelling("concat", ("X", "AxisTensor")),
    "stack": LegacySpelling("stack", ("X",), ("Y",)),
    "slice": LegacySpelling("slice", ("Input", "=starts", "=ends")),
    "shape": LegacySpelling("shape", ("Input",)),
    "shape64": LegacySpelling("shape", ("Input",)),
    "embedding": LegacySpelling("lookup_table_v2", ("Ids", "W")),
    "gather": LegacySpelling("gather", ("X", "Index", "=axis")),
    "expand": LegacySpelling("expand_v2", ("X", "Shape")),
    "where": LegacySpelling("where", ("Condition", "X", "Y")),
    "argmax": LegacySpelling("arg_max", ("X", "=axis")),
}


def legacy_call_of(op: PirOp, operands: Sequence[Sequence[Operand]]) -> tuple[PaddleCall, LegacySpelling | None]:
    """Return the application of a PIR operator for the shape rules, and the spelling, or None if unknown.

    `operands` has the operands of each input, several for a list of tensors.
    """
    spelling = SPELLINGS.get(op.type)
    if spelling is None:
        return PaddleCall(op.type, {}, {}, {}), None
    attrs = {spelling.attrs.get(name, name): value for name, value in op.attrs.items()}
    inputs: dict[str, Sequence[Operand]] = {}
    for slot, every in zip(spelling.inputs, operands, strict=False):
        if slot.startswith("="):
            values = every[0].values if every else ()
            if values is None or None in values:
                return PaddleCall("", {}, {}, {}), spelling  # known only at run time: no rule applies
            if every:
                attrs[slot[1:]] = values
        elif every:
            inputs[slot] = every
    if spelling.type == "assign_value":
        values_ = attrs.get("values")
        attrs["shape"] = (len(values_),) if isinstance(values_, tuple) else ()
    return PaddleCall(spelling.type, attrs, inputs, dict.fromkeys(spelling.outputs, 1)), spelling
