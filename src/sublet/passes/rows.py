"""Commands that compute sample by sample: which of them do with some leading rows what they do with all.

A value has rows when its first axis is that of the samples, or that and more: its first k-th is of the first k-th of
the samples. A command that is not known here, or whose axes are others, is said not to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn import activation, elementwise
from sublet.ops.nn.command import PREFIX, pick, spec_of

MEAN, SUM = "mean", "sum"
BATCH_NORM = "nn.batch_norm"
"""It computes with what it is given: its statistics are those of a part. Who cuts must know."""

Attrs = Mapping[str, Attr]

Rule = Callable[[Node, Collection[int], int], Attrs | None]
"""(node, positions of the operands with rows, parts) -> its attributes for a part; None where it cannot be cut."""


def attrs_of_part(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    """The attributes of a node that computes one of so many parts of the rows; None where nobody knows that it may."""
    rule = RULES.get(node.op.removeprefix(PREFIX)) if node.op.startswith(PREFIX) else None
    made = [shape(value) for value in having_rows(node)]
    if rule is None or any(not each or each[0] % parts for each in made):
        return None
    return rule(node, rows, parts)


def having_rows(node: Node) -> tuple[Value, ...]:
    """The outputs that have rows, where some operand has."""
    return node.defs[:1] if node.op == BATCH_NORM else node.defs


def reduced_over_rows(node: Node) -> str | None:
    """MEAN or SUM for what takes one of all rows; None for anything else."""
    name = node.op.removeprefix(PREFIX)
    if name not in (MEAN, SUM) or node.op == name:
        return None
    axes, rank = pick(node.attrs, "axes"), len(shape(node.uses[0]) or ())
    return name if rank and (not axes or 0 in {axis % rank for axis in axes}) else None


def shape(value: Value | None) -> tuple[int, ...] | None:
    """The extents of a value that is there."""
    return None if value is None else spec_of(value).shape


def _size(node: Node, position: int) -> tuple[int, ...]:
    found = shape(node.inputs[position])
    assert found is not None
    return found


def _broadcast(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    """What has rows has all axes of the result, and as many rows; what has none has one row, or fewer axes."""
    whole = shape(node.outputs[0]) or ()
    for i, value in enumerate(node.inputs):
        each = shape(value)
        if each is None:
            continue
        along = len(each) == len(whole) and each[0] == whole[0]
        if (i in rows) != along and not (i not in rows and whole[0] == 1):
            return None
    return node.attrs


def _leading(*whole: int) -> Rule:
    """All operands have rows but those at the positions `whole`."""

    def rule(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
        wanted = {i for i, value in enumerate(node.inputs) if value is not None and i not in whole}
        return node.attrs if wanted == set(rows) else None

    return rule


def _axis(rule: Rule, key: str = "axis") -> Rule:
    """The axis is another than the first."""

    def checked(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
        rank = len(_size(node, min(rows)))
        return rule(node, rows, parts) if pick(node.attrs, key) % rank else None

    return checked


def _reduction(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    axes, rank = pick(node.attrs, "axes"), len(_size(node, 0))
    return node.attrs if axes and 0 not in {axis % rank for axis in axes} else None


def _shaped(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    """Rows keep their order, whatever their shape."""
    given = pick(node.attrs, "shape")
    if node.op == "nn.broadcast_to" and (len(given) != len(_size(node, 0)) or _size(node, 0)[0] != given[0]):
        return None
    return {**node.attrs, "shape": (given[0] // parts, *given[1:])}


def _transposed(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    axes = pick(node.attrs, "axes")
    return node.attrs if axes and axes[0] == 0 else None


def _sliced(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    starts, ends, steps = (pick(node.attrs, key) for key in ("starts", "ends", "steps"))
    if (starts[0], ends[0], steps[0]) != (0, _size(node, 0)[0], 1):
        return None
    return {**node.attrs, "ends": (ends[0] // parts, *ends[1:])}


def _matmul(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    a, b = _size(node, 0), _size(node, 1)
    both = set(rows) == {0, 1} and len(a) == len(b) > 2
    first = set(rows) == {0} and len(b) == 2 and not (len(a) == 2 and pick(node.attrs, "transpose_a"))
    return node.attrs if both or first else None


def _normalised(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    """Over trailing axes, the first not among them."""
    return node.attrs if set(rows) == {0} and pick(node.attrs, "axes") < len(_size(node, 0)) else None


def _attention(node: Node, rows: Collection[int], parts: int) -> Attrs | None:
    """With a mask for each sample, or one for all."""
    if not {0, 1, 2} <= set(rows):
        return None
    mask = shape(node.inputs[3]) if len(node.inputs) > 3 else None
    one = mask is None or 3 in rows or len(mask) < len(_size(node, 0)) or mask[0] == 1
    return node.attrs if one else None


POINTWISE = (
    *(each.name for each in (*elementwise.COMMANDS, *activation.COMMANDS)),
    *("cast", "copy", "stop_gradient", "mse", "smooth_l1", "binary_cross_entropy", "sigmoid_binary_cross_entropy"),
)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(POINTWISE, _broadcast),
    **dict.fromkeys(("conv", "conv_transpose"), _leading(1, 2)),
    **dict.fromkeys(("max_pool", "avg_pool", "upsample"), _leading()),
    **dict.fromkeys(("softmax_cross_entropy", "categorical_cross_entropy", "lstm_cell", "gru_cell"), _leading()),
    **dict.fromkeys(("softmax", "log_softmax", "argmax", "argmin", "cumsum", "concat", "split"), _axis(_leading())),
    **dict.fromkeys(("sum", "mean", "max", "min"), _reduction),
    **dict.fromkeys(("reshape", "broadcast_to"), _shaped),
    "linear": _leading(1, 2),
    "matmul": _matmul,
    "embedding": _leading(0),
    "one_hot": _leading(),
    "dropout": _leading(1),
    "batch_norm": _axis(_leading(1, 2, 3, 4)),
    "batch_norm_inference": _axis(_leading(1, 2, 3, 4)),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normalised),
    "transpose": _transposed,
    "slice": _sliced,
    "attention": _attention,
}
"""By the name of the command."""
