"""Fusion of two operators into one: the gradients of nll_loss and log_softmax, see `ops.aten.joined`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.frontends.torch.conversion import ConversionLevel
from sublet.frontends.torch.traced_tensor import torch
from sublet.ops.aten import LOGITS_GRADIENT

LOSS = "aten.nll_loss_backward.default"
SOFTMAX = "aten._log_softmax_backward_data.default"


def is_fused_loss_gradient(node: Any) -> bool:
    """True for a loss gradient [N, C] read only by the gradient of a log_softmax over the classes, all of one type."""
    if not isinstance(node, torch().fx.Node) or str(node.target) != LOSS or len(node.users) != 1:
        return False
    (reader,) = node.users
    if str(reader.target) != SOFTMAX or reader.args[0] is not node or node in reader.args[1:]:
        return False
    _, y, axis, dtype = reader.args
    gradient, y = node.meta["val"], y.meta["val"]
    return gradient.dim() == 2 and axis in (1, -1) and gradient.dtype == y.dtype == dtype


def add_logits_gradient(level: ConversionLevel, node: Any, y: Any, loss: Sequence[Any], source: str) -> Any:
    """Add the fused gradient by the logits, and return the result.

    `y` is the result of the log_softmax, and `loss` are the arguments of the loss gradient. Of the loss gradient's
    second argument, only the extents matter, so `y` replaces the argument.
    """
    dy, _, *rest = loss
    (gradient,) = level.add_call(LOGITS_GRADIENT, node.name, (dy, y, *rest), {}, [node.meta["val"]], source)
    return gradient
