"""Calls of torch's with their results bound to places: neighbours run as one, and the first run watches the places."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from sublet.base.errors import RunError
from sublet.ir.graph import Node
from sublet.runtime.backends.torch.kernel import Tensor, tensor_over, torch
from sublet.runtime.calls import InTurn
from sublet.runtime.kernel import Array, Call

Arguments = Sequence[Sequence[int | str]]
"""By operand which arguments of a call it is: by position or name, or `SELF`."""

SELF = -1
"""Stands for the tensor that a call is a method of."""


def _relaid(shape: Sequence[int], before: Sequence[int], now: Sequence[int]) -> bool:
    """Whether elements of a tensor have moved by its strides; those of axes with one element say nothing."""
    return before != now and any(n > 1 and a != b for n, a, b in zip(shape, before, now, strict=True))


class Bound:
    """A call of torch's; neighbours run as one, in one inference mode.

    ATen moves a result elsewhere, or lays it out otherwise, when its place has another shape or other strides than it
    thinks right: the first run watches that.
    """

    __slots__ = ("call", "given", "node", "places", "results")

    def __init__(self, call: Call, places: Sequence[Tensor], node: Node, given: Sequence[Tensor] = ()) -> None:
        """`places` are those of the results, and `given` the inputs, if others may take their places."""
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
        """Raise RunError unless every result still lies where it was planned."""
        for result, address, shape, strides in self.results:
            if result.data_ptr() != address or result.shape != shape or _relaid(shape, strides, result.stride()):
                raise RunError(f"node {self.node.name}, {self.node.op}: PyTorch did not write where it was told")

    def arguments(self) -> Arguments | None:
        """Which arguments of the call the operands are, inputs and then outputs; None unless it is one call of just
        them and of plain values."""
        call, operands = self.call, (*self.given, *self.places)
        if not isinstance(call, partial) or not self.given:
            return None
        told: dict[int | str, Any] = dict([*enumerate(call.args), *call.keywords.items()])
        owner = getattr(call.func, "__self__", None)
        if isinstance(owner, torch().Tensor):
            told[SELF] = owner
        known = {id(operand) for operand in operands}
        plain = (int, float, bool, str, type(None), torch().dtype)
        if not all(id(each) in known or isinstance(each, plain) for each in told.values()):
            return None
        return [[place for place, each in told.items() if each is operand] for operand in operands]

    def moved(self, operands: Collection[int], tensor: Tensor) -> Bound:
        """The same with other memory for some operands, to be watched."""
        moved = [tensor if i in operands else each for i, each in enumerate((*self.given, *self.places))]
        return Bound(self.call, moved[len(self.given) :], self.node, moved[: len(self.given)])

    def joined(self, following: Sequence[Call]) -> tuple[Call, int]:
        """One call for this one and all of the following that are torch's too."""
        bounds = [self]
        for other in following:
            if not isinstance(other, Bound):
                break
            bounds.append(other)
        return _Joined(bounds), len(bounds) - 1


class _Joined(InTurn):
    """Neighbours as one call.

    watched    by number those that have not run yet
    arguments  by number, of those that were bound anew
    """

    __slots__ = ("arguments", "inference_mode", "watched")

    def __init__(self, bounds: Sequence[Bound]) -> None:
        super().__init__([bound.call for bound in bounds])
        self.inference_mode = torch().inference_mode
        self.watched = dict(enumerate(bounds))
        self.arguments: dict[int, Arguments | None] = {}

    def patch(self, number: int, call: Call) -> bool:
        """See `kernel.Patchable`."""
        if not isinstance(call, Bound):
            return False
        self.calls[number] = call.call
        self.watched[number] = call
        if number not in self.arguments:
            self.arguments[number] = call.arguments()
        return True

    def pointing(self, number: int, operands: Collection[int]) -> Callable[[Array], None] | None:
        """See `kernel.Pointable`."""
        found = self.arguments.get(number)
        if found is None:
            return None
        calls, watched = self.calls, self.watched
        by_position = [place for operand in operands for place in found[operand] if isinstance(place, int)]
        by_name = [place for operand in operands for place in found[operand] if isinstance(place, str)]

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
                watched[number] = watched[number].moved(operands, tensor)

        return point

    def __call__(self) -> None:
        with self.inference_mode():
            super().__call__()
        while self.watched:
            self.watched.popitem()[1].verify()
