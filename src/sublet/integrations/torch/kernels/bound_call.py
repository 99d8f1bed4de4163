"""Bound PyTorch calls: neighbouring calls merge into a single call, and the first run verifies results' places."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

from sublet.base.errors import RunError
from sublet.integrations.torch.kernels.kernel import Tensor, tensor_over, torch
from sublet.ir.graph import Node
from sublet.runtime.kernel import Array, Call, CallSequence

# Bound calls with the result in a new place at every run: only the arguments over the result are made again.

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
    begin = part.data_ptr() - place.data_ptr()
    if not 0 <= begin < place.nbytes:
        return None
    if part.dtype != place.dtype:
        raise OpaquePartError
    size, stride, offset = part.size(), part.stride(), begin // place.element_size()
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


ArgumentPositions = Sequence[Sequence[int | str]]
"""For each operand the arguments of a call holding the operand: positions, keywords, or `SELF`."""

SELF = -1
"""The position of the tensor whose method is called."""


def _strides_differ(shape: Sequence[int], before: Sequence[int], now: Sequence[int]) -> bool:
    """True if two lists of strides address different elements; strides of axes with one element do not matter."""
    return before != now and any(n > 1 and a != b for n, a, b in zip(shape, before, now, strict=True))


class BoundTorchCall:
    """A PyTorch call with operands bound to memory; neighbouring calls run as a single call and inference mode.

    ATen moves or re-lays a result if shape or strides of the place differ from ATen's expectation. The first run
    verifies the results.
    """

    __slots__ = ("call", "given", "node", "places", "results")

    def __init__(self, call: Call, places: Sequence[Tensor], node: Node, given: Sequence[Tensor] = ()) -> None:
        """Bind `call` of `node` with results in `places`; pass the inputs as `given` to allow rebinding."""
        self.call = call
        self.node = node
        self.given = given
        self.places = places
        self.results = [(each, each.data_ptr(), each.shape, each.stride()) for each in places if each is not None]

    def __call__(self) -> None:
        with torch().inference_mode():
            self.call()
        self.verify()

    def verify(self) -> None:
        """Raise RunError unless every result still has the planned address, shape and strides."""
        for result, address, shape, strides in self.results:
            if (
                result.data_ptr() != address
                or result.shape != shape
                or _strides_differ(shape, strides, result.stride())
            ):
                raise RunError(f"node {self.node.name}, {self.node.op}: PyTorch did not write where it was told")

    def argument_positions(self) -> ArgumentPositions | None:
        """Return for every operand, inputs before outputs, the argument positions; None if the call cannot be rebound.

        A call can be rebound if it is one `partial` with only operands and plain values as arguments.
        """
        call, operands = self.call, (*self.given, *self.places)
        if not isinstance(call, partial) or not self.given:
            return None
        supplied: dict[int | str, Any] = dict([*enumerate(call.args), *call.keywords.items()])
        receiver = getattr(call.func, "__self__", None)
        if isinstance(receiver, torch().Tensor):
            supplied[SELF] = receiver
        operand_ids = {id(operand) for operand in operands}
        plain = (int, float, bool, str, type(None), torch().dtype)
        if not all(id(each) in operand_ids or isinstance(each, plain) for each in supplied.values()):
            return None
        return [[place for place, each in supplied.items() if each is operand] for operand in operands]

    def with_tensor(self, operands: Collection[int], tensor: Tensor) -> BoundTorchCall:
        """Return the same call with `tensor` in place of the operands at positions `operands`, for verification."""
        moved = [tensor if i in operands else each for i, each in enumerate((*self.given, *self.places))]
        return BoundTorchCall(self.call, moved[len(self.given) :], self.node, moved[: len(self.given)])

    def template(self, place: Tensor) -> Template | None:
        """Return the template of the call, for its single result in a new place; None if a part is opaque.

        `place` holds the result of the call, without the result's layout.
        """
        try:
            return template_of(self.call, place)
        except OpaquePartError:
            return None

    def merge_following(self, following: Sequence[Call]) -> tuple[Call, int]:
        """Merge the call with directly following PyTorch calls; return the merged call and the number merged."""
        bounds = [self]
        for other in following:
            if not isinstance(other, BoundTorchCall):
                break
            bounds.append(other)
        return _MergedTorchCalls(bounds), len(bounds) - 1


class _MergedTorchCalls(CallSequence):
    """Neighbouring PyTorch calls as a single call.

    watched    by number, the calls not yet verified by a run
    arguments  by number, the argument positions of rebound calls
    """

    __slots__ = ("arguments", "inference_mode", "watched")

    def __init__(self, bounds: Sequence[BoundTorchCall]) -> None:
        super().__init__([bound.call for bound in bounds])
        self.inference_mode = torch().inference_mode()  # entered again by every run
        self.watched = dict(enumerate(bounds))
        self.arguments: dict[int, ArgumentPositions | None] = {}

    def patch(self, number: int, call: Call) -> bool:
        """Rebind one node, see `kernel.Patchable`."""
        if not isinstance(call, BoundTorchCall):
            return False
        self.calls[number] = call.call
        self.watched[number] = call
        if number not in self.arguments:
            self.arguments[number] = call.argument_positions()
        return True

    def operand_setter(self, number: int, operands: Collection[int]) -> Callable[[Array], None] | None:
        """Return a setter of new memory for operands of one node, see `kernel.Repointable`."""
        positions = self.arguments.get(number)
        if positions is None:
            return None
        calls, watched = self.calls, self.watched
        by_position = [place for operand in operands for place in positions[operand] if isinstance(place, int)]
        by_name = [place for operand in operands for place in positions[operand] if isinstance(place, str)]

        def point(array: Array) -> None:
            call, tensor = calls[number], tensor_over(array)
            assert isinstance(call, partial)
            function, args, keywords = call.func, call.args, call.keywords
            if SELF in by_position:
                function = getattr(tensor, function.__name__)
            if by_position:
                args = tuple([tensor if i in by_position else each for i, each in enumerate(args)])
            if by_name:
                keywords = {**keywords, **dict.fromkeys(by_name, tensor)}
            calls[number] = partial(function, *args, **keywords)
            if number in watched:
                watched[number] = watched[number].with_tensor(operands, tensor)

        return point

    def __call__(self) -> None:
        with self.inference_mode:
            super().__call__()
        while self.watched:
            self.watched.popitem()[1].verify()
