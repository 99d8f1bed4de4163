"""Bound calls with the result in a new place at every run: only the arguments over the result are made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

from sublet.integrations.torch.kernels.kernel import Tensor, torch
from sublet.runtime.calls import CallSequence

Template = Callable[[Tensor], Any]
"""A function from the new place to a part of a call, such as an argument."""

CONSTANTS = (int, float, complex, str, type(None), slice, type, BuiltinFunctionType, MethodDescriptorType)
"""Types of parts without a tensor inside."""


class OpaquePartError(Exception):
    """A part of a call with an unknown type: tensors may hide inside."""


def template_of(part: Any, place: Tensor) -> Template | None:
    """Return the template of a part of a call, for a tensor in the place of `place`; None for a constant part.

    A new place is contiguous as `place`, with the same type and shape. The template keeps no reference to `place`.

    Raises OpaquePartError for a part of an unknown type.
    """
    t = torch()
    receiver = getattr(part, "__self__", None)
    if isinstance(part, t.Tensor):
        return _tensor_template(part, place)
    if isinstance(receiver, t.Tensor):  # a bound method, such as x.zero_
        return template_of(partial(part), place)
    if isinstance(part, partial):
        return _partial_template(part, place)
    if isinstance(part, CallSequence):
        calls = _items_template(part.calls, place)
        return None if calls is None else lambda new: CallSequence(calls(new))
    if isinstance(part, tuple | list):
        return _items_template(part, place)
    torch_constants = (t.dtype, t.layout, t.device, t.memory_format, t._ops.OpOverload, t._ops.OpOverloadPacket)
    is_closed = isinstance(part, FunctionType) and part.__closure__ is None
    if is_closed or isinstance(part, (*CONSTANTS, *torch_constants)):
        return None
    raise OpaquePartError


def _tensor_template(part: Tensor, place: Tensor) -> Template | None:
    if part.untyped_storage().data_ptr() != place.untyped_storage().data_ptr():
        return None
    if part.dtype != place.dtype:
        raise OpaquePartError
    size, stride, offset = part.size(), part.stride(), part.storage_offset() - place.storage_offset()
    if (size, stride, offset) == (place.size(), place.stride(), 0):
        return lambda new: new
    return lambda new: new.as_strided(size, stride, new.storage_offset() + offset)


def _partial_template(part: partial[Any], place: Tensor) -> Template | None:
    function, args, names = part.func, part.args, tuple(part.keywords)
    receiver = getattr(function, "__self__", None)
    if isinstance(receiver, torch().Tensor):
        function, args = getattr(type(receiver), function.__name__), (receiver, *args)
    items, count = _items_template([function, *args, *part.keywords.values()], place), 1 + len(args)
    if items is None:
        return None

    def build(new: Tensor) -> partial[Any]:
        first, *rest = items(new)
        return partial(first, *rest[: count - 1], **dict(zip(names, rest[count - 1 :], strict=True)))

    return build


def _items_template(items: Sequence[Any], place: Tensor) -> Callable[[Tensor], list[Any]] | None:
    templates = {i: made for i, each in enumerate(items) if (made := template_of(each, place)) is not None}
    constants = [None if i in templates else each for i, each in enumerate(items)]

    def build(new: Tensor) -> list[Any]:
        built = constants.copy()
        for i, template in templates.items():
            built[i] = template(new)
        return built

    return build if templates else None
