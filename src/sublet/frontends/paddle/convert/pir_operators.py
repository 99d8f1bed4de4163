"""Mapping of PIR operators to the older form with the same kernels: type, slots, attribute names.

A slot with a leading "=" is an attribute in the older form, with the elements of the operand as value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sublet.frontends.paddle.format.pir import PirOp
from sublet.frontends.paddle.operators.rules.call import Call, Operand


@dataclass(frozen=True, slots=True)
class Spelling:
    """Type, slots and attribute names of a PIR operator in the older form."""

    type: str
    inputs: tuple[str, ...] = ("X",)
    outputs: tuple[str, ...] = ("Out",)
    attrs: Mapping[str, str] = field(default_factory=dict)


_ELEMENTWISE = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "maximum": "max", "minimum": "min",
    "elementwise_pow": "pow", "floor_divide": "floordiv", "remainder": "mod",
}  # fmt: skip
_COMPARED = (
    *("equal", "greater_equal", "greater_than", "less_equal", "less_than", "logical_and", "logical_or", "logical_xor"),
    *("not_equal", "bitwise_and", "bitwise_or"),
)
_SAME = (
    *("abs", "assign", "cast", "ceil", "clip", "cos", "elu", "erf", "exp", "floor", "gelu", "increment", "leaky_relu"),
    *("log", "log_softmax", "logical_not", "mish", "pow", "prelu", "reciprocal", "relu", "relu6", "round", "rsqrt"),
    *("scale", "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "softsign", "sqrt", "square", "swish", "tanh"),
)
_OTHER_NAMES = {"hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "full_like": "fill_any_like"}
_NORMALIZED = ("Y", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance", "ReserveSpace")

SPELLINGS: Mapping[str, Spelling] = {
    **{name: Spelling(f"elementwise_{old}", ("X", "Y")) for name, old in _ELEMENTWISE.items()},
    **{name: Spelling(name, ("X", "Y")) for name in _COMPARED},
    **{name: Spelling(name) for name in _SAME},
    **{name: Spelling(old) for name, old in _OTHER_NAMES.items()},
    **{
        name: Spelling(f"reduce_{name}", ("X", "=dim"), attrs={"keepdim": "keep_dim", "axis": "dim"})
        for name in ("mean", "sum", "max", "min", "prod", "any", "all")
    },
    **{
        name: Spelling(f"{name}_v2", ("X", "OutSize", "SizeTensor", "Scale"))
        for name in ("nearest_interp", "bilinear_interp", "bicubic_interp", "linear_interp")
    },
    **{name: Spelling(name, ("Input", "Filter"), ("Output",)) for name in ("conv2d", "depthwise_conv2d", "conv3d")},
    **{
        name: Spelling(name, ("Input", "Filter", "=output_size"), ("Output",))
        for name in ("conv2d_transpose", "depthwise_conv2d_transpose")
    },
    **dict.fromkeys(
        ("batch_norm", "batch_norm_"), Spelling("batch_norm", ("X", "Mean", "Variance", "Scale", "Bias"), _NORMALIZED)
    ),
    "layer_norm": Spelling("layer_norm", ("X", "Scale", "Bias"), ("Y", "Mean", "Variance")),
    "dropout": Spelling("dropout", ("X", "Seed"), ("Out", "Mask")),
    "pool2d": Spelling("pool2d", ("X", "=ksize")),
    "matmul": Spelling("matmul_v2", ("X", "Y"), attrs={"transpose_x": "trans_x", "transpose_y": "trans_y"}),
    "bmm": Spelling("bmm", ("X", "Y")),
    "full": Spelling("fill_constant", ()),
    "full_int_array": Spelling("assign_value", (), attrs={"value": "values"}),
    "reshape": Spelling("reshape2", ("X", "Shape"), ("Out", "XShape")),
    "squeeze": Spelling("squeeze2", ("X", "=axes"), ("Out", "XShape")),
    "unsqueeze": Spelling("unsqueeze2", ("X", "=axes"), ("Out", "XShape")),
    "flatten": Spelling("flatten_contiguous_range", ("X",), ("Out", "XShape")),
    "transpose": Spelling("transpose2", ("X",), ("Out", "XShape"), {"perm": "axis"}),
    "concat": Spelling("concat", ("X", "AxisTensor")),
    "stack": Spelling("stack", ("X",), ("Y",)),
    "slice": Spelling("slice", ("Input", "=starts", "=ends")),
    "shape": Spelling("shape", ("Input",)),
    "shape64": Spelling("shape", ("Input",)),
    "embedding": Spelling("lookup_table_v2", ("Ids", "W")),
    "gather": Spelling("gather", ("X", "Index", "=axis")),
    "expand": Spelling("expand_v2", ("X", "Shape")),
    "where": Spelling("where", ("Condition", "X", "Y")),
    "argmax": Spelling("arg_max", ("X", "=axis")),
}


def call_of(op: PirOp, operands: Sequence[Sequence[Operand]]) -> tuple[Call, Spelling | None]:
    """Return the application of a PIR operator for the shape rules, and the spelling, or None if unknown.

    `operands` has the operands of each input, several for a list of tensors.
    """
    spelling = SPELLINGS.get(op.type)
    if spelling is None:
        return Call(op.type, {}, {}, {}), None
    attrs = {spelling.attrs.get(name, name): value for name, value in op.attrs.items()}
    inputs: dict[str, Sequence[Operand]] = {}
    for slot, every in zip(spelling.inputs, operands, strict=False):
        if slot.startswith("="):
            values = every[0].values if every else ()
            if values is None or None in values:
                return Call("", {}, {}, {}), spelling  # known only at run time: no rule applies
            if every:
                attrs[slot[1:]] = values
        elif every:
            inputs[slot] = every
    if spelling.type == "assign_value":
        values_ = attrs.get("values")
        attrs["shape"] = (len(values_),) if isinstance(values_, tuple) else ()
    return Call(spelling.type, attrs, inputs, dict.fromkeys(spelling.outputs, 1)), spelling
