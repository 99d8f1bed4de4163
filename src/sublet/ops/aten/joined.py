"""Operators of ATen's that are computed as one, some rows at a time: what lies between them is never there whole.

    a = nll_loss_backward(dy, y, labels, weight, reduction, ignored, total)     y = _log_softmax(x, -1)
    dx = _log_softmax_backward_data(a, y, -1, dtype)

    dx = LOGITS_GRADIENT(dy, y, labels, weight, reduction, ignored, total)

Of the logits x [N, C] of a language model, `a` is as large as `x`, and but one number a row of it is not 0.
"""

from __future__ import annotations

from functools import cache

from sublet.ops.aten.dialect import overwriting
from sublet.ops.op import Op

JOINED = "joined."
LOGITS_GRADIENT = f"{JOINED}nll_loss_log_softmax_backward"

OVERWRITES = {LOGITS_GRADIENT: (1,)}
"""By position the arguments that the result may lie over: each row is read before it is written."""


@cache
def joined(name: str) -> Op:
    """The record of such an operator."""
    return Op(name, inplace=overwriting(OVERWRITES.get(name, ())), pure=name in OVERWRITES)
