"""Results whose extents PyTorch traces otherwise than its kernels give them.

The samples that PyTorch tests its operators with (`op_db`), and their gradients, were run beside tracing: of the
operators whose results are all strided only these differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from sublet.base.arrays import torch_name
from sublet.base.errors import ModelError
from sublet.frontends.torch.tensors import Tensor, torch

ASKED = ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
"""What the bags are kept by for a gradient has the extents that the kernel has a use for: types, steps and arguments
decide, and never what the tensors hold."""

MOST = 1 << 26
"""Elements that are made to ask a kernel: a file may tell of any number."""


def as_computed(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], traced: Sequence[Any], source: str, device: str = ""
) -> Sequence[Any]:
    """The results of an operator as its kernel gives them: it is asked, with one row of the table and zeros.

    Raises ModelError where it cannot be, as that of another `device` than the CPU.
    """
    if str(target) not in ASKED:
        return traced
    if device:
        raise ModelError(f"{source}: what extents {target} gives on {device} is not known, and tracing tells others")
    table, *rest = args
    sizes = [each.layout.size for each in (*rest, *kwargs.values()) if isinstance(each, Tensor)]
    if sum(map(prod, (*sizes, *(each.shape for each in traced)))) > MOST:
        raise ModelError(f"{source}: {target} of so many elements: its kernel is not asked what extents it gives")
    by_name = {name: _zeros(argument) for name, argument in kwargs.items()}
    try:
        found: Sequence[Any] = target(_zeros(table, rows=1), *map(_zeros, rest), **by_name)
    except RuntimeError as error:
        raise ModelError(f"{source}: what extents {target} gives is not known: {error}") from None
    return found


def _zeros(argument: Any, rows: int | None = None) -> Any:
    """An argument that is a tensor as one of zeros, of so many rows, that lies as it does."""
    if not isinstance(argument, Tensor):
        return argument
    t, layout = torch(), argument.layout
    size = layout.size if rows is None else (rows, *layout.size[1:])
    return t.empty_strided(size, layout.stride, dtype=getattr(t, torch_name(argument.spec.dtype)), device="cpu").zero_()
