"""Results with extents traced differently by PyTorch than computed by PyTorch's kernels.

All operators with strided results in PyTorch's own test samples (`op_db`), and their gradients, were run beside the
trace. Only the operators listed here differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from sublet.base.arrays import torch_name
from sublet.base.errors import ModelError
from sublet.frontends.torch.traced_tensor import TracedTensor, torch

PROBED_OPERATORS = ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
"""Operators probed for extents.

The bag offsets kept for the gradient have the extents needed by the kernel. Types, strides and arguments decide the
extents, never the content of the tensors.
"""

MAX_PROBE_ELEMENTS = 1 << 26
"""Maximum elements in a probe: a file may declare any number."""


def kernel_results(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], traced: Sequence[Any], source: str, device: str = ""
) -> Sequence[Any]:
    """Return an operator's results with the extents of the kernel, by a run with one row of the table and zeros.

    Raises ModelError if the kernel cannot run: outside of the CPU, or with too many elements.
    """
    if str(target) not in PROBED_OPERATORS:
        return traced
    if device:
        raise ModelError(
            f"{source}: the extents of the results of {target} on {device} are not known; run it on the CPU"
        )
    table, *rest = args
    sizes = [each.layout.size for each in (*rest, *kwargs.values()) if isinstance(each, TracedTensor)]
    if sum(map(prod, (*sizes, *(each.shape for each in traced)))) > MAX_PROBE_ELEMENTS:
        raise ModelError(
            f"{source}: {target} has too many elements (limit {MAX_PROBE_ELEMENTS}) for a run that shows its extents"
        )
    by_name = {name: _zeros_like_argument(argument) for name, argument in kwargs.items()}
    try:
        computed: Sequence[Any] = target(
            _zeros_like_argument(table, rows=1), *map(_zeros_like_argument, rest), **by_name
        )
    except RuntimeError as error:
        raise ModelError(f"{source}: the extents of the results of {target} are not known: {error}") from None
    return computed


def _zeros_like_argument(argument: Any, rows: int | None = None) -> Any:
    """Return a tensor of zeros with an argument's layout and, if given, `rows` rows; a plain argument unchanged."""
    if not isinstance(argument, TracedTensor):
        return argument
    t, layout = torch(), argument.layout
    size = layout.size if rows is None else (rows, *layout.size[1:])
    return t.empty_strided(size, layout.stride, dtype=getattr(t, torch_name(argument.spec.dtype)), device="cpu").zero_()
