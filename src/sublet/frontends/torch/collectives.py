"""Functional collectives in traced programs: a node where one begins, and one where somebody waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.conversion import Level
from sublet.frontends.torch.tensors import Tensor
from sublet.ops.aten import WAIT
from sublet.ops.aten.collectives import COPYING

KNOWN = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")
KINDS = (*KNOWN, *(f"{name}_coalesced" for name in KNOWN[:3]), "wait_tensor")
"""Collectives that compute new tensors of tensors."""


def add_collective(
    level: Level, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], like: Any, source: str
) -> Any:
    """What a collective gives, or a wait for it. Raises ModelError for one that is not known."""
    full = str(target)
    if full.split(".")[1] not in KINDS:
        raise ModelError(f"{source}: the collective {target} cannot be planned; there are {', '.join(KINDS)}")
    if level.conversion.device:
        raise ModelError(f"{source}: {target} on {level.conversion.device}: collectives are planned on the CPU alone")
    begun = level.conversion.begun
    if full == WAIT:
        (started,) = args
        return level.call(full, name, (started, *begun.get(started.value, ())), {}, [like], source)[0]
    made = level.call(full, name, args, kwargs, list(like) if isinstance(like, list | tuple) else [like], source)
    reads = () if full in COPYING else tuple(_tensors(args))
    begun.update({each.value: reads for each in made if each is not None})
    return made if isinstance(like, list | tuple) else made[0]


def _tensors(args: Any) -> list[Tensor]:
    if isinstance(args, list | tuple):
        return [each for inner in args for each in _tensors(inner)]
    return [args] if isinstance(args, Tensor) else []
