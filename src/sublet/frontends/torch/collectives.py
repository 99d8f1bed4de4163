"""Functional collectives in traced programs: a node starts the collective, a later node waits for the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.conversion import ConversionLevel
from sublet.frontends.torch.traced_tensor import TracedTensor
from sublet.ops.aten import WAIT
from sublet.ops.aten.collectives import COPY_FIRST_ARGUMENT

BASE_COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
PLANNED_COLLECTIVES = (*BASE_COLLECTIVES, *(f"{name}_coalesced" for name in BASE_COLLECTIVES[:3]), "wait_tensor")
"""Collectives with a plan: each computes new tensors from tensors."""


def add_collective(
    level: ConversionLevel, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], like: Any, source: str
) -> Any:
    """Add a collective, or a wait for a collective, and return the results.

    Raises ModelError for an unknown collective, and for a collective outside of the CPU.
    """
    full = str(target)
    if full.split(".")[1] not in PLANNED_COLLECTIVES:
        raise ModelError(
            f"{source}: the collective {target} cannot be planned; there are {', '.join(PLANNED_COLLECTIVES)}"
        )
    if level.conversion.device:
        raise ModelError(f"{source}: {target} on {level.conversion.device}: collectives are planned on the CPU alone")
    begun = level.conversion.pending_reads
    if full == WAIT:
        (started,) = args
        return level.add_call(full, name, (started, *begun.get(started.value, ())), {}, [like], source)[0]
    results = level.add_call(full, name, args, kwargs, list(like) if isinstance(like, list | tuple) else [like], source)
    reads = () if full in COPY_FIRST_ARGUMENT else tuple(_nested_tensors(args))
    begun.update({each.value: reads for each in results if each is not None})
    return results if isinstance(like, list | tuple) else results[0]


def _nested_tensors(args: Any) -> list[TracedTensor]:
    """Return all tensors in nested lists of arguments."""
    if isinstance(args, list | tuple):
        return [each for inner in args for each in _nested_tensors(inner)]
    return [args] if isinstance(args, TracedTensor) else []
