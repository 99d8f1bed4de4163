"""Split rules: for each op, the slices of the operands needed for some rows, and the meaning of the pieces of results.

Two kinds of rows exist. "batch": the leading rows of a result computed sample by sample; a result summed over samples,
such as the gradient of a weight, accumulates piece by piece. "result": the leading rows of the result, for gradients of
large weights and for optimisers. Rows are contiguous, so slices of rows are views.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from sublet.base.ranges import Ranges, split_evenly
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.emitter import Emitter
from sublet.ops.nn import activation, elementwise
from sublet.ops.nn.command import PREFIX, pick, spec_of
from sublet.ops.nn.layout import slice_axis

BATCH, RESULT, ONTO, EARLY, MOMENTUM = "batch", "result", "onto", "early", "momentum"
"""Kinds of splits. BATCH and RESULT split into pieces; the remaining kinds only change the order or the accumulation.

ONTO: add an embedding gradient in place to the remaining gradient, without a whole table. EARLY: run an update as
early as possible, so the gradient dies early. MOMENTUM: like EARLY, with the gradient accumulated in the momentum."""

Shape = tuple[int, ...]
Operands = Sequence[Value | None]

Attrs = Callable[[int], Mapping[str, Attr]]
"""(rows) -> the attributes depending on the number of rows."""

Write = Callable[[Emitter, Node, Operands, int, int], tuple[Value, ...]]
"""(emit, node, operands, first row, last row plus 1) -> the results of a piece."""


@dataclass(frozen=True)
class SplitRule:
    """A rule to split a node.

    extent  number of rows to divide
    reads   by operand, the extents of a row; None if every piece reads the whole operand
    gives   by output, the extents of a row; None if the output is the sum of the pieces
    attrs   returns the attributes depending on the number of rows
    write   writes a piece, if a piece is more than the same command
    """

    extent: int
    reads: tuple[Shape | None, ...]
    gives: tuple[Shape | None, ...]
    attrs: Attrs = field(default=lambda rows: {})
    write: Write | None = None

    def bounds(self, pieces: int) -> Ranges:
        """Return the range of rows of each piece."""
        return split_evenly(self.extent, pieces)


RuleTable = Mapping[str, tuple[Callable[[Node], SplitRule | None], ...]]
"""The rules of each command, by name."""


def split_rule_for(node: Node, kind: str, pieces: int) -> SplitRule | None:
    """Return the first rule splitting a node into `pieces` equal pieces, else the first rule, else None."""
    tensors = all(isinstance(value.spec, TensorSpec) and value.nbytes for value in (*node.uses, *node.defs))
    if node.subgraphs or not tensors or not node.defs or not node.op.startswith(PREFIX) or pieces < 2:
        return None
    rules = [
        each
        for each in applicable_rules(node, {BATCH: BY_BATCH, RESULT: BY_RESULT}.get(kind, {}))
        if each.extent >= pieces
    ]
    equal = [each for each in rules if each.extent % pieces == 0]
    chosen = next(iter(equal or rules), None)
    return None if chosen is not None and node.op == "nn.reshape" and chosen.extent % pieces else chosen


def applicable_rules(node: Node, table: RuleTable) -> list[SplitRule]:
    """Return all rules of a table for a command of the nn dialect."""
    makers = table.get(node.op.removeprefix(PREFIX), ()) if node.op.startswith(PREFIX) else ()
    return [each for make in makers if (each := make(node)) is not None]


def sums_pieces(node: Node, chosen: SplitRule) -> bool:
    """True if some result is a sum of pieces, rounded in a different order."""
    return any(row is None and value is not None for row, value in zip(chosen.gives, node.outputs, strict=False))


def _shape_of(value: Value | None) -> Shape:
    """Return the extents of a value; () for an absent value."""
    return spec_of(value).shape if value is not None else ()


def _leading_axis_rule(node: Node, whole: Collection[int] = (), attrs: Attrs | None = None) -> SplitRule | None:
    """Split along the first axis of all results and of all operands not at the positions `whole`."""
    first = _shape_of(node.outputs[0])
    if not first or not first[0]:
        return None
    reads = tuple(None if v is None or i in whole else _shape_of(v)[1:] for i, v in enumerate(node.inputs))
    cuts = [_shape_of(v) for i, v in enumerate(node.inputs) if v is not None and i not in whole]
    gives = [_shape_of(v) for v in node.outputs if v is not None]
    if any(not shape or shape[0] != first[0] for shape in (*cuts, *gives)) or not cuts:
        return None
    return SplitRule(first[0], reads, tuple(_shape_of(v)[1:] for v in node.outputs), attrs or (lambda rows: {}))


def _by_leading_axis(*whole: int) -> Callable[[Node], SplitRule | None]:
    """Return a rule along the first axis; operands at the positions `whole` are read whole."""
    return lambda node: _leading_axis_rule(node, whole)


def _by_leading_axis_with_shape(*whole: int) -> Callable[[Node], SplitRule | None]:
    """Return a rule like `_by_leading_axis`, for a command with the shape of the result as an attribute."""

    def make(node: Node) -> SplitRule | None:
        rest = _shape_of(node.outputs[0])[1:]
        return _leading_axis_rule(node, whole, lambda rows: {"shape": (rows, *rest)})

    return make


def _by_summing(*whole: int) -> Callable[[Node], SplitRule | None]:
    """Return a rule along the first axis of the operands; the results are sums of pieces."""

    def make(node: Node) -> SplitRule | None:
        cuts = [_shape_of(v) for i, v in enumerate(node.inputs) if v is not None and i not in whole]
        if not cuts or any(not shape or shape[0] != cuts[0][0] for shape in cuts):
            return None
        reads = tuple(None if v is None or i in whole else _shape_of(v)[1:] for i, v in enumerate(node.inputs))
        return SplitRule(cuts[0][0], reads, (None,) * len(node.outputs))

    return make


def _broadcast_rule(node: Node) -> SplitRule | None:
    """Split along the first axis; operands without the axis, or broadcast along the axis, are read whole."""
    shape = _shape_of(node.outputs[0])
    if not shape or any(_shape_of(v) != shape for v in node.outputs):
        return None
    cut_at = [len(_shape_of(v)) == len(shape) and _shape_of(v)[0] == shape[0] for v in node.inputs]
    reads = tuple(_shape_of(v)[1:] if along else None for v, along in zip(node.inputs, cut_at, strict=True))
    return SplitRule(shape[0], reads, (shape[1:],) * len(node.outputs)) if any(cut_at) else None


def _flat_rule(node: Node) -> SplitRule | None:
    """Split with all axes but the last as rows; operands have the shape of the result or at most one axis."""
    shape = _shape_of(node.outputs[0])
    if len(shape) < 2 or any(_shape_of(v) != shape for v in node.outputs):
        return None
    if any(_shape_of(v) != shape and len(_shape_of(v)) > 1 for v in node.inputs):
        return None
    reads = tuple(shape[-1:] if _shape_of(v) == shape else None for v in node.inputs)
    return SplitRule(prod(shape[:-1]), reads, (shape[-1:],) * len(node.outputs)) if any(reads) else None


def _linear_rule(node: Node) -> SplitRule | None:
    """Split by the rows of x."""
    x, y = _shape_of(node.inputs[0]), _shape_of(node.outputs[0])
    if len(x) < 2:
        return None
    return SplitRule(prod(x[:-1]), (x[-1:], *(None,) * (len(node.inputs) - 1)), (y[-1:],))


def _matmul_rule(node: Node) -> SplitRule | None:
    """Split by rows of a; or by summed rows, if both factors have the rows first; or by a batch axis of both."""
    a, b, y = _shape_of(node.inputs[0]), _shape_of(node.inputs[1]), _shape_of(node.outputs[0])
    if len(a) == len(b) and len(a) > 2:
        return _leading_axis_rule(node)
    if len(b) != 2:
        return None
    if len(a) > 2 and node.attrs["transpose_a"]:
        return _leading_axis_rule(node, (1,))
    if not node.attrs["transpose_a"]:
        return SplitRule(prod(a[:-1]), (a[-1:], None), (y[-1:],))
    return None if node.attrs["transpose_b"] else SplitRule(a[0], (a[1:], b[1:]), (None,))


def _gemm_rule(node: Node) -> SplitRule | None:
    """Split by summed rows, if both factors have the rows first; c is added to the first piece."""
    a, b = _shape_of(node.inputs[0]), _shape_of(node.inputs[1])
    if not node.attrs["transpose_a"] or node.attrs["transpose_b"]:
        return None
    return SplitRule(a[0], (a[1:], b[1:], *(None,) * (len(node.inputs) - 2)), (None,))


def _matmul_rows_rule(node: Node) -> SplitRule | None:
    """Split by rows of the result; columns of a transposed factor are copied."""
    a, b, y = _shape_of(node.inputs[0]), _shape_of(node.inputs[1]), _shape_of(node.outputs[0])
    if len(a) != 2 or len(b) != 2:
        return None
    if not node.attrs["transpose_a"]:
        return _matmul_rule(node)

    def write(emit: Emitter, node: Node, operands: Operands, begin: int, end: int) -> tuple[Value, ...]:
        first, second = operands
        assert first is not None
        return emit.all_outputs(node.op, slice_axis(emit, first, 1, begin, end), second, **node.attrs)

    return SplitRule(y[0], (None, None), (y[1:],), write=write)


def _embedding_gradient_rule(node: Node) -> SplitRule | None:
    """Split by rows of the table; gradients of rows outside of a piece are added to an extra row, then dropped."""

    def write(emit: Emitter, node: Node, operands: Operands, begin: int, end: int) -> tuple[Value, ...]:
        dy, indices = operands
        assert dy is not None
        assert indices is not None
        at = emit("nn.sub", indices, emit.constant(begin, indices))
        not_before = emit("nn.greater_equal", at, emit.constant(0, at))
        inside = emit("nn.logical_and", not_before, emit("nn.less", at, emit.constant(end - begin, at)))
        kept = emit("nn.where", inside, at, emit.constant(end - begin, indices))
        table = emit("nn.embedding_gradient", dy, kept, rows=end - begin + 1)
        return (slice_axis(emit, table, 0, 0, end - begin),)

    table = _shape_of(node.outputs[0])
    return SplitRule(table[0], (None, None), (table[1:],), write=write)


def _if_axis_after_first(make: Callable[[Node], SplitRule | None]) -> Callable[[Node], SplitRule | None]:
    """Return the rule, limited to commands along any axis but the first."""

    def apply_if_legal(node: Node) -> SplitRule | None:
        axis, rank = node.attrs["axis"], len(_shape_of(node.inputs[0]))
        return make(node) if isinstance(axis, int) and rank and axis % rank else None

    return apply_if_legal


def _if_trailing_axes(make: Callable[[Node], SplitRule | None]) -> Callable[[Node], SplitRule | None]:
    """Return the rule, limited to normalisations over fewer axes than the rank."""

    def apply_if_legal(node: Node) -> SplitRule | None:
        count = node.attrs["axes"]
        return make(node) if isinstance(count, int) and count < len(_shape_of(node.outputs[0])) else None

    return apply_if_legal


def _norm_gradient_rule(node: Node) -> SplitRule | None:
    """Split (dy, x, scale, statistics...) -> (dx, gradients of scale and bias): the latter two are sums."""
    rule = _leading_axis_rule(_with_first_output(node), (2,))
    return (
        None
        if rule is None
        else SplitRule(rule.extent, rule.reads, (rule.gives[0], *(None,) * (len(node.outputs) - 1)))
    )


def _with_first_output(node: Node) -> Node:
    """Return the node with the first output only."""
    return Node(node.name, node.op, node.inputs, node.outputs[:1], node.attrs)


def _reduction_rule(node: Node) -> SplitRule | None:
    """Split a reduction: over the first axis a sum of pieces, over later axes by rows."""
    axes, rank = node.attrs["axes"], len(_shape_of(node.inputs[0]))
    assert isinstance(axes, tuple)
    first = not axes or 0 in {int(axis) % max(rank, 1) for axis in axes}
    if not first:
        return _leading_axis_rule(node)
    return _by_summing()(node) if node.op == "nn.sum" else None


def _sum_to_rule(node: Node) -> SplitRule | None:
    """Split `sum_to` by rows, or as a sum of pieces if the first axis is reduced."""
    x, y = _shape_of(node.inputs[0]), _shape_of(node.outputs[0])
    if len(x) == len(y) and x and x[0] == y[0] and x[0] > 1:
        return _by_leading_axis_with_shape()(node)
    return _by_summing()(node)


def _broadcast_to_rule(node: Node) -> SplitRule | None:
    """Split `broadcast_to` by rows; an operand repeated along the first axis is read whole."""
    x, y = _shape_of(node.inputs[0]), _shape_of(node.outputs[0])
    if len(x) == len(y) and x and x[0] == y[0]:
        return _by_leading_axis_with_shape()(node)
    if not y or not y[0]:
        return None
    return SplitRule(y[0], (None,), (y[1:],), lambda rows: {"shape": (rows, *y[1:])})


def _attention_rule(mask: int) -> Callable[[Node], SplitRule | None]:
    """Return a rule for attention with the mask at the position `mask`, a mask for each sample or a common mask."""

    def make(node: Node) -> SplitRule | None:
        found = _shape_of(node.inputs[mask]) if len(node.inputs) > mask else ()
        one = len(found) < len(_shape_of(node.inputs[0])) or found[0] == 1
        return _leading_axis_rule(node, (mask,) if one else ())

    return make


def _transpose_rule(node: Node) -> SplitRule | None:
    """Split a transpose keeping the first axis first."""
    axes = node.attrs["axes"]
    return _leading_axis_rule(node) if isinstance(axes, tuple) and axes and axes[0] == 0 else None


def _slice_rule(node: Node) -> SplitRule | None:
    """Split a slice with the whole first axis."""
    starts, ends, steps = (tuple(pick(node.attrs, key)) for key in ("starts", "ends", "steps"))
    x = _shape_of(node.inputs[0])
    if not x or starts[0] != 0 or ends[0] != x[0] or steps[0] != 1:
        return None
    return _leading_axis_rule(node, (), lambda rows: {"ends": (rows, *(int(end) for end in ends[1:]))})


def _reshape_rule(node: Node) -> SplitRule | None:
    """Split into any equal pieces: a reshape keeps the order of elements."""
    size = prod(_shape_of(node.inputs[0]))
    return SplitRule(size, ((),), ((),))


def _optimizer_rule(node: Node) -> SplitRule | None:
    """Split an optimiser by rows: (w, gradient, rate, state...), all element-wise."""
    w = _shape_of(node.inputs[0])
    if not w:
        return None
    reads = tuple(w[1:] if _shape_of(v) == w and v is not None else None for v in node.inputs)
    return SplitRule(w[0], reads, tuple(w[1:] for _ in node.outputs))


POINTWISE = (
    *(each.name for each in (*elementwise.COMMANDS, *activation.COMMANDS)),
    *("cast", "copy", "stop_gradient", "mse", "mse_gradient", "smooth_l1", "smooth_l1_gradient"),
    *("binary_cross_entropy", "sigmoid_binary_cross_entropy"),
)
_POINTWISE: RuleTable = dict.fromkeys(POINTWISE, (_broadcast_rule, _flat_rule))

BY_BATCH: RuleTable = {
    **_POINTWISE,
    "conv": (_by_leading_axis(1, 2),),
    "conv_transpose": (_by_leading_axis(1, 2),),
    "conv_input_gradient": (_by_leading_axis_with_shape(1),),
    "conv_weight_gradient": (_by_summing(),),
    "max_pool": (_by_leading_axis(),),
    "max_pool_gradient": (_by_leading_axis(),),
    "max_pool_gather": (_by_leading_axis(),),
    "avg_pool": (_by_leading_axis(),),
    "avg_pool_gradient": (_by_leading_axis_with_shape(),),
    "batch_norm_inference": (_if_axis_after_first(_by_leading_axis(1, 2, 3, 4)),),
    "layer_norm": (_if_trailing_axes(_by_leading_axis(1, 2)),),
    "layer_norm_gradient": (_if_trailing_axes(_norm_gradient_rule),),
    "rms_norm": (_if_trailing_axes(_by_leading_axis(1, 2)),),
    "rms_norm_gradient": (_if_trailing_axes(_norm_gradient_rule),),
    "softmax": (_if_axis_after_first(_by_leading_axis()),),
    "softmax_gradient": (_if_axis_after_first(_by_leading_axis()),),
    "log_softmax": (_if_axis_after_first(_by_leading_axis()),),
    "log_softmax_gradient": (_if_axis_after_first(_by_leading_axis()),),
    **dict.fromkeys(
        ("upsample", "one_hot", "lstm_cell", "gru_cell", "categorical_cross_entropy"), (_by_leading_axis(),)
    ),
    **dict.fromkeys(("argmax", "argmin", "cumsum"), (_if_axis_after_first(_by_leading_axis()),)),
    "softmax_cross_entropy": (_by_leading_axis(),),
    "softmax_cross_entropy_gradient": (_by_leading_axis(),),
    "linear": (_linear_rule,),
    "matmul": (_matmul_rule,),
    "gemm": (_gemm_rule,),
    **dict.fromkeys(("sum", "mean", "max", "min"), (_reduction_rule,)),
    "sum_to": (_sum_to_rule,),
    "broadcast_to": (_broadcast_to_rule,),
    "transpose": (_transpose_rule,),
    "slice": (_slice_rule,),
    "concat": (_if_axis_after_first(_by_leading_axis()),),
    "split": (_if_axis_after_first(_by_leading_axis()),),
    "reshape": (_reshape_rule,),
    "attention": (_attention_rule(3),),
    "attention_gradient": (_attention_rule(4),),
    "embedding": (_by_leading_axis(0),),
    "embedding_gradient": (_by_summing(),),
}
"""The batch rules by command; operands read whole are named by position."""

OF_A_PART: RuleTable = {
    "batch_norm": (lambda node: _if_axis_after_first(_by_leading_axis(1, 2, 3, 4))(_with_first_output(node)),),
    "dropout": (_by_leading_axis(1),),
}
"""Commands with different results for a part: by the statistics, or by the random numbers. The caller decides."""

BY_RESULT: RuleTable = {
    **_POINTWISE,
    "matmul": (_matmul_rows_rule,),
    "embedding_gradient": (_embedding_gradient_rule,),
    "reshape": (_reshape_rule,),
    **dict.fromkeys(("sgd", "adam", "adamw", "rmsprop"), (_optimizer_rule,)),
}
"""The result rules by command."""
