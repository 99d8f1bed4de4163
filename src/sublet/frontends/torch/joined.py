"""Operators of a traced graph that are written as one, see `ops.aten.joined`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.frontends.torch.conversion import Level
from sublet.frontends.torch.tensors import torch
from sublet.ops.aten import LOGITS_GRADIENT

LOSS = "aten.nll_loss_backward.default"
SOFTMAX = "aten._log_softmax_backward_data.default"


def is_joined(node: Any) -> bool:
    """Whether only the gradient of a log_softmax of rows [N, C] reads a gradient of the loss, and gives its type."""
    if not isinstance(node, torch().fx.Node) or str(node.target) != LOSS or len(node.users) != 1:
        return False
    (reader,) = node.users
    if str(reader.target) != SOFTMAX or reader.args[0] is not node or node in reader.args[1:]:
        return False
    _, y, axis, dtype = reader.args
    made, y = node.meta["val"], y.meta["val"]
    return made.dim() == 2 and axis in (1, -1) and made.dtype == y.dtype == dtype


def add_joined(level: Level, node: Any, y: Any, loss: Sequence[Any], source: str) -> Any:
    """What the gradient of the log_softmax that gave `y` gives, where `loss` are the arguments of the gradient of the
    loss that it reads. Of its own second argument that takes the extents only."""
    dy, _, *rest = loss
    (made,) = level.call(LOGITS_GRADIENT, node.name, (dy, y, *rest), {}, [node.meta["val"]], source)
    return made
