"""Shape rules for tensors with a level of detail (concatenated sequences), and arrays with a row of each sequence.

An array has the extents of an element. Sequences end at different steps, so a step has at most one row of each.
"""

from __future__ import annotations

from sublet.frontends.paddle.operators.rules.call import PaddleCall, Result, Rule


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
    "lstm": lstm, "sequence_pool": sequence_pool, "lod_rank_table": rank_table, "lod_tensor_to_array": tensor_to_array,
    "array_to_lod_tensor": array_to_tensor, "read_from_array": array_element,
    "write_to_array": lambda call: {"Out": [call.dims()]}, "max_sequence_len": lambda call: {"Out": [(1,)]},
    "lod_array_length": lambda call: {"Out": [(1,)]}, "sequence_softmax": lambda call: {"Out": [call.dims()]},
}  # fmt: skip
