"""The samples of PyTorch's operators with their tensors laid out in several ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

SEED = 3
"""That the samples are drawn with."""


def reversed_axes(x: torch.Tensor) -> torch.Tensor:
    """The same tensor with its first axis the closest in memory."""
    axes = tuple(reversed(range(x.dim())))
    return x.permute(axes).contiguous().permute(axes)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """The same tensor with its second axis the closest in memory, or its last but one if there is no batch."""
    if x.dim() in (4, 5):
        return x.contiguous(memory_format=(torch.channels_last, torch.channels_last_3d)[x.dim() - 4])
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


GIVEN = "as given"
LAYOUTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    GIVEN: lambda x: x,
    "reversed": reversed_axes,
    "last": channels_last,
}
"""Ways to lay out a tensor of several axes, by name."""


def laid(given: Any, layout: str) -> Any:
    """What an operator is given, with all dense tensors of several axes laid out so."""

    def again(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.dim() < 2:
            return x
        made = LAYOUTS[layout](x.detach())
        return x if made.stride() == x.stride() else made.requires_grad_(x.requires_grad)

    return pytree.tree_map(again, given)
