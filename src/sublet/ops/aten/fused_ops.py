"""Fused aten operators, computed some rows at a time: the intermediate tensor never exists as a whole.

    a = nll_loss_backward(dy, y, labels, weight, reduction, ignored, total)     y = _log_softmax(x, -1)
    dx = _log_softmax_backward_data(a, y, -1, dtype)

    dx = LOGITS_GRADIENT(dy, y, labels, weight, reduction, ignored, total)

For logits x [N, C] of a language model, `a` is as large as `x`, but only one number per row is not 0.
"""

from __future__ import annotations

from functools import cache

from sublet.ops.aten.dialect import overwrite_arguments
from sublet.ops.op import Op

FUSED_PREFIX = "joined."
LOGITS_GRADIENT = f"{FUSED_PREFIX}nll_loss_log_softmax_backward"

OVERWRITES = {LOGITS_GRADIENT: (1,)}
"""Positions of the arguments overwritable by the result: each row is read before it is written."""


@cache
def fused_op(name: str) -> Op:
    """Return the record of a fused operator."""
    return Op(name, inplace=overwrite_arguments(OVERWRITES.get(name, ())), pure=name in OVERWRITES)
