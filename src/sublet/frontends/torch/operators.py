"""Conversion of operator calls: views become layouts, all other operators become nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.base.errors import ModelError
from sublet.frontends.torch.collectives import add_collective
from sublet.frontends.torch.conversion import ConversionLevel
from sublet.frontends.torch.kernel_extents import kernel_results
from sublet.frontends.torch.lower_to_nn import lower_to_nn
from sublet.frontends.torch.traced_tensor import TracedTensor, fixed_number, torch
from sublet.ops.aten import COLLECTIVES, PREFIX, StridedLayout
from sublet.ops.aten.device_exceptions import why_not_plannable

ALIAS_OPERATORS = ("aten._unsafe_view.default", "aten.alias.default", "aten.detach.default", "aten.detach_.default")
"""Views of the first argument, some with a schema without alias, or with a write of the argument."""

QUANTIZING_PREFIXES = (
    "aten.quantize",
    "aten._empty_affine_quantized",
    "aten._empty_per_channel_affine_quantized",
    "aten._make_per_",
)
"""Operators with quantized results; the trace shows plain numbers instead."""


PRIMS = ("prims.fma.default", "prims.convert_element_type.default")
"""Operators emitted by Dynamo for the updates of torch.optim."""


def add_operator(
    level: ConversionLevel, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], like: Any, source: str
) -> Any:
    """Convert a call of an operator, and return a tensor or a list of tensors; `like` are the traced results.

    Raises ModelError for an operator impossible to plan.
    """
    if str(target).startswith(COLLECTIVES):
        return add_collective(level, target, name, args, kwargs, like, source)
    if str(target) in PRIMS:
        target, args, kwargs = _prim_as_aten(str(target), args)
    full = _aten_name(target, source)
    if full.startswith(QUANTIZING_PREFIXES):
        raise ModelError(f"{source}: {full} gives a quantized tensor, which cannot be planned")
    schema = target._schema
    if full in ALIAS_OPERATORS or _returns_views(schema):
        return _convert_view(level, target, name, args, kwargs, source)
    if schema.is_mutable:
        raise ModelError(f"{source}: {full} writes its arguments: trace the program functionalised")
    results: list[Any] = list(like) if isinstance(like, list | tuple) else [like]
    device = level.conversion.device
    numbers = _take_out_numbers(level, target, full, args, kwargs, results, source) if device else {}
    if not all(result is None or hasattr(result, "stride") for result in results):
        raise ModelError(f"{source}: {full} gives a number that only a run knows, which nothing can be planned with")
    lowered = lower_to_nn(level, full, name, args, kwargs, source)
    if lowered is not None:
        return lowered
    computed = kernel_results(target, args, kwargs, results, source, device)
    outputs: list[Any] = [*level.add_call(full, name, args, kwargs, computed, source)]
    for position, number in numbers.items():
        outputs[position] = number
    return outputs if isinstance(like, list | tuple) else outputs[0]


def _take_out_numbers(
    level: ConversionLevel,
    target: Any,
    full: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    results: list[Any],
    source: str,
) -> dict[int, int]:
    """Remove results that are numbers, as of attention on devices, from `results`; return the numbers by position.

    Raises ModelError for an operator with a wrong schema on the device.
    """
    names = [each.name for each in target._schema.arguments]
    why = why_not_plannable(full, {**dict(zip(names, args, strict=False)), **kwargs})
    if why:
        raise ModelError(f"{source}: on {level.conversion.device}, {why}")
    kinds = (int, torch().SymInt)
    numbers = {
        i: fixed_number(each, level.conversion.extents, source) for i, each in enumerate(results) if type(each) in kinds
    }
    for position in numbers:
        results[position] = None
    return numbers


def _prim_as_aten(prim: str, args: Sequence[Any]) -> tuple[Any, Sequence[Any], dict[str, Any]]:
    """Return an ATen operator, arguments by position and arguments by name with the same result as a prim."""
    aten = torch().ops.aten
    if prim == PRIMS[1]:
        return aten._to_copy.default, args[:1], {"dtype": args[1]}
    a, b, c = args
    if isinstance(b, TracedTensor):
        return aten.addcmul.default, (c, a, b), {}
    return aten.add.Tensor, (c, a), {"alpha": b}


def _aten_name(target: Any, source: str) -> str:
    """Return the ATen name of an operator. Raises ModelError for an operator outside of ATen."""
    namespace, _, rest = str(target).partition(".")
    if namespace != PREFIX.rstrip("."):
        raise ModelError(f"{source}: {target} is no operator of ATen's, and cannot be planned")
    return f"{PREFIX}{rest}"


def _returns_views(schema: Any) -> bool:
    """True if all results are views of an argument, and no argument is written."""
    alias = [result.alias_info for result in schema.returns]
    return bool(alias) and all(info is not None and not info.is_write for info in alias)


def _convert_view(
    level: ConversionLevel, target: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], source: str
) -> Any:
    """Convert a view operator to layouts. A view with another element type becomes a copy."""
    base = args[0]
    if not isinstance(base, TracedTensor):
        raise ModelError(f"{source}: {target} is given no tensor first")
    aten = torch().ops.aten
    if target in (aten.detach_.default, aten.detach.default, aten.alias.default):
        return base
    try:
        view = target(base.meta_tensor(), *args[1:], **kwargs)
    except (RuntimeError, ValueError):  # the view is valid only for the eager strides
        base = level.with_eager_layout(base)
        view = target(base.meta_tensor(), *args[1:], **kwargs)
    if isinstance(view, list | tuple):
        return [_view_tensor(level, base, each, source) for each in view]
    if view.dtype != base.meta_tensor().dtype:
        return level.add_call(f"{PREFIX}view_copy.dtype", name, (base, view.dtype), {}, [view], source)[0]
    return _view_tensor(level, base, view, source)


def _view_tensor(level: ConversionLevel, base: TracedTensor, seen: Any, source: str) -> TracedTensor:
    """Return a view as a tensor.

    A contiguous piece of a computed value gets a value: the planner decides on a copy, so the rest of the value can be
    freed.
    """
    part = TracedTensor(base.value, StridedLayout(tuple(seen.shape), tuple(seen.stride()), seen.storage_offset()))
    is_piece = part.layout.is_contiguous and 0 < part.layout.elements < base.spec.size
    if not is_piece or base.value in level.conversion.weights:
        return part
    piece_value = level.as_row_major(part, source)
    level.conversion.piece_sources[piece_value.value] = part
    return piece_value
