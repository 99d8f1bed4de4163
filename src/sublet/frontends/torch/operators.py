"""Calls of operators in a graph of FX: views become layouts, all else nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.collectives import add_collective
from sublet.frontends.torch.conversion import Level
from sublet.frontends.torch.extents import as_computed
from sublet.frontends.torch.tensors import Tensor, fixed, torch
from sublet.frontends.torch.twins import twin
from sublet.ops.aten import COLLECTIVES, PREFIX, Strided
from sublet.ops.aten.elsewhere import unsound

ALIASES = ("aten._unsafe_view.default", "aten.alias.default", "aten.detach.default", "aten.detach_.default")
"""Views of their first argument, though some of their schemas do not say so, or say that they write it."""

QUANTIZED = (
    "aten.quantize",
    "aten._empty_affine_quantized",
    "aten._empty_per_channel_affine_quantized",
    "aten._make_per_",
)
"""Operators whose results tracing takes for tensors of plain numbers."""


PRIMS = ("prims.fma.default", "prims.convert_element_type.default")
"""Operators that Dynamo writes the updates of torch.optim with."""


def add_operator(
    level: Level, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], like: Any, source: str
) -> Any:
    """What an operator gives for these arguments: a tensor, or a list of tensors; `like` are traced ones."""
    if str(target).startswith(COLLECTIVES):
        return add_collective(level, target, name, args, kwargs, like, source)
    if str(target) in PRIMS:
        target, args, kwargs = _in_aten(str(target), args)
    full = _name(target, source)
    if full.startswith(QUANTIZED):
        raise ModelError(f"{source}: {full} gives a quantized tensor, which cannot be planned")
    schema = target._schema
    if full in ALIASES or _gives_views(schema):
        return _view(level, target, name, args, kwargs, source)
    if schema.is_mutable:
        raise ModelError(f"{source}: {full} writes its arguments: trace the program functionalised")
    results: list[Any] = list(like) if isinstance(like, list | tuple) else [like]
    device = level.conversion.device
    numbers = _on_device(level, target, full, args, kwargs, results, source) if device else {}
    if not all(result is None or hasattr(result, "stride") for result in results):
        raise ModelError(f"{source}: {full} gives a number that only a run knows, which nothing can be planned with")
    found = twin(level, full, name, args, kwargs, source)
    if found is not None:
        return found
    computed = as_computed(target, args, kwargs, results, source, device)
    made: list[Any] = [*level.call(full, name, args, kwargs, computed, source)]
    for position, number in numbers.items():
        made[position] = number
    return made if isinstance(like, list | tuple) else made[0]


def _on_device(
    level: Level, target: Any, full: str, args: Sequence[Any], kwargs: dict[str, Any], results: list[Any], source: str
) -> dict[int, int]:
    """The results that are numbers, by position, as attention has there; they are taken out. Raises ModelError."""
    names = [each.name for each in target._schema.arguments]
    why = unsound(full, {**dict(zip(names, args, strict=False)), **kwargs})
    if why:
        raise ModelError(f"{source}: on {level.conversion.device}, {why}")
    kinds = (int, torch().SymInt)
    found = {i: fixed(each, level.conversion.extents, source) for i, each in enumerate(results) if type(each) in kinds}
    for position in found:
        results[position] = None
    return found


def _in_aten(prim: str, args: Sequence[Any]) -> tuple[Any, Sequence[Any], dict[str, Any]]:
    """What ATen calls an operator of PyTorch's inner ones: its operator, arguments by position and by name."""
    aten = torch().ops.aten
    if prim == PRIMS[1]:
        return aten._to_copy.default, args[:1], {"dtype": args[1]}
    a, b, c = args
    if isinstance(b, Tensor):
        return aten.addcmul.default, (c, a, b), {}
    return aten.add.Tensor, (c, a), {"alpha": b}


def _name(target: Any, source: str) -> str:
    namespace, _, rest = str(target).partition(".")
    if namespace != PREFIX.rstrip("."):
        raise ModelError(f"{source}: {target} is no operator of ATen's, and cannot be planned")
    return f"{PREFIX}{rest}"


def _gives_views(schema: Any) -> bool:
    """Whether all results are views of an argument, which is not written."""
    alias = [result.alias_info for result in schema.returns]
    return bool(alias) and all(info is not None and not info.is_write for info in alias)


def _view(level: Level, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], source: str) -> Any:
    base = args[0]
    if not isinstance(base, Tensor):
        raise ModelError(f"{source}: {target} is given no tensor first")
    aten = torch().ops.aten
    if target in (aten.detach_.default, aten.detach.default, aten.alias.default):
        return base
    try:
        seen = target(base.on_meta(), *args[1:], **kwargs)
    except (RuntimeError, ValueError):  # a view that the eager strides allow, of a tensor that lies otherwise here
        base = level.as_eager(base)
        seen = target(base.on_meta(), *args[1:], **kwargs)
    if isinstance(seen, list | tuple):
        return [_part(level, base, each, source) for each in seen]
    if seen.dtype != base.on_meta().dtype:
        return level.call(f"{PREFIX}view_copy.dtype", name, (base, seen.dtype), {}, [seen], source)[0]
    return _part(level, base, seen, source)


def _part(level: Level, base: Tensor, seen: Any, source: str) -> Tensor:
    """A view as a tensor.

    A piece of what is computed is left to the planner: it may be copied, so that the rest can be given back.
    """
    part = Tensor(base.value, Strided(tuple(seen.shape), tuple(seen.stride()), seen.storage_offset()))
    piece = part.layout.is_contiguous and 0 < part.layout.elements < base.spec.size
    if not piece or base.value in level.conversion.weights:
        return part
    made = level.whole(part, source)
    level.conversion.parts[made.value] = part
    return made
