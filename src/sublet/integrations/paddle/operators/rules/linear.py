"""Shape rules of matrix products, losses and metrics."""

from __future__ import annotations

from sublet.base.errors import SpecError
from sublet.base.tensor import format_dims
from sublet.integrations.paddle.operators.rules.call import (
    PaddleCall,
    Result,
    Rule,
    broadcast_shapes,
    common_extent,
    element_count,
)


def matrix_product(call: PaddleCall) -> Result:
    """Return the extents of a matrix product; vectors are matrices of a single row or column."""
    x, y = call.dims("X"), call.dims("Y")
    if not x or not y:
        raise SpecError(f"cannot multiply {format_dims(x)} by {format_dims(y)}")
    flip_x, flip_y = (call.integer(f"trans_{s}", call.integer(f"transpose_{s.upper()}", 0)) for s in ("x", "y"))
    a, b = (1, *x) if len(x) == 1 else x, (*y, 1) if len(y) == 1 else y
    if flip_x and len(x) > 1:
        a = (*a[:-2], a[-1], a[-2])
    if flip_y and len(y) > 1:
        b = (*b[:-2], b[-1], b[-2])
    common_extent(a[-1], b[-2], f"cannot multiply {format_dims(x)} by {format_dims(y)}")
    rows = () if len(x) == 1 else (a[-2],)
    columns = () if len(y) == 1 else (b[-1],)
    return {"Out": [(*broadcast_shapes(a[:-2], b[:-2]), *rows, *columns)]}


def flat_product(call: PaddleCall) -> Result:
    """Return the extents of `mul`, a product of operands flattened to matrices."""
    x, y = call.dims("X"), call.dims("Y")
    lead, tail = call.integer("x_num_col_dims", 1), call.integer("y_num_col_dims", 1)
    common_extent(
        element_count(x[lead:]), element_count(y[:tail]), f"cannot multiply {format_dims(x)} by {format_dims(y)}"
    )
    return {"Out": [(*x[:lead], *y[tail:])]}


def batch_matrix_product(call: PaddleCall) -> Result:
    """Return the extents of a batch of matrix products."""
    x, y = call.dims("X"), call.dims("Y")
    common_extent(x[-1], y[-2], f"cannot multiply {format_dims(x)} by {format_dims(y)}")
    return {"Out": [(*x[:-1], y[-1])]}


def fully_connected(call: PaddleCall) -> Result:
    """Return the extents of a fully connected layer."""
    x, w = call.dims("Input"), call.dims("W")
    return {"Out": [(*x[: call.integer("in_num_col_dims", 1)], w[-1])]}


def softmax_loss(call: PaddleCall) -> Result:
    """Return the extents of softmax and loss."""
    logits = call.dims("Logits")
    axis = call.axis("axis", len(logits), -1)
    return {"Softmax": [logits], "Loss": [(*logits[:axis], 1, *logits[axis + 1 :])]}


def cross_entropy(call: PaddleCall) -> Result:
    """Return the extents of a cross entropy."""
    x = call.dims()
    rows = (*x[:-1], 1)
    return {"Y": [rows], "MatchX": [rows], "XShape": [(*x, 0)]}


def accuracy(call: PaddleCall) -> Result:
    """Return the extents of the metrics: scalars."""
    return {slot: [()] for slot in ("Accuracy", "Correct", "Total")}


LINEAR_RULES: dict[str, Rule] = {
    "matmul": matrix_product, "matmul_v2": matrix_product, "mul": flat_product, "bmm": batch_matrix_product,
    "fc": fully_connected, "softmax_with_cross_entropy": softmax_loss, "cross_entropy": cross_entropy,
    "cross_entropy2": cross_entropy, "accuracy": accuracy,
}  # fmt: skip


# Shape rules for tensors with a level of detail (concatenated sequences), and arrays with a row of each sequence.
#
# An array has the extents of an element. Sequences end at different steps, so a step has at most one row of each.


def lstm(call: PaddleCall) -> Result:
    """Return the extents of the states and gates of an LSTM."""
    rows, width = call.dims("Input")[0], call.dims("Weight")[0]
    state = (rows, width)
    gates = (rows, None if width is None else 4 * width)
    return {"Hidden": [state], "Cell": [state], "BatchGate": [gates], "BatchCellPreAct": [state]}


def sequence_pool(call: PaddleCall) -> Result:
    """Return the extents of pooled sequences: a row for each sequence."""
    out = (call.sequences, *call.dims()[1:])
    return {"Out": [out], "MaxIndex": [out if call.text("pooltype", "MAX") == "MAX" else (0,)]}


def tensor_to_array(call: PaddleCall) -> Result:
    """Return the extents of an array element: a row for each sequence."""
    return {"Out": [(call.sequences, *call.dims()[1:])]}


def rank_table(call: PaddleCall) -> Result:
    """Return the extents of the ranked tensor: a table has the extents of its tensor."""
    return {"Out": [call.dims()]}


def array_to_tensor(call: PaddleCall) -> Result:
    """Return the extents of the tensor merged from an array, with the rows of the rank table."""
    return {"Out": [(call.dims("RankTable")[0], *call.dims()[1:])]}


def array_element(call: PaddleCall) -> Result:
    """Return the extents of an array element. A gradient element has the extents of its forward element."""
    return {"Out": [call.dims("X_W") if call.has_input("X_W") else call.dims()]}


RULES: dict[str, Rule] = {
    **LINEAR_RULES,
    "lstm": lstm, "sequence_pool": sequence_pool, "lod_rank_table": rank_table, "lod_tensor_to_array": tensor_to_array,
    "array_to_lod_tensor": array_to_tensor, "read_from_array": array_element,
    "write_to_array": lambda call: {"Out": [call.dims()]}, "max_sequence_len": lambda call: {"Out": [(1,)]},
    "lod_array_length": lambda call: {"Out": [(1,)]}, "sequence_softmax": lambda call: {"Out": [call.dims()]},
}  # fmt: skip
