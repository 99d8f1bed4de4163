"""Calls of torch's with their results bound to places: neighbours run as one, and the first run watches the places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sublet.errors import RunError
from sublet.ir.graph import Node
from sublet.runtime.backends.torch.kernel import torch
from sublet.runtime.calls import InTurn
from sublet.runtime.kernel import Call


class Bound:
    """A call of torch's; neighbours run as one, in one inference mode.

    ATen moves a result elsewhere when its place has another shape than it thinks right: the first run watches that.
    """

    __slots__ = ("call", "node", "results")

    def __init__(self, call: Call, results: Sequence[Any], node: Node) -> None:
        self.call = call
        self.node = node
        self.results = [(result, result.data_ptr(), result.shape) for result in results if result is not None]

    def __call__(self) -> None:
        with torch().inference_mode():
            self.call()
        self.verify()

    def verify(self) -> None:
        """Raise RunError unless every result still lies where it was planned."""
        for result, address, shape in self.results:
            if result.data_ptr() != address or result.shape != shape:
                raise RunError(f"node {self.node.name}, {self.node.op}: PyTorch did not write where it was told")

    def joined(self, following: Sequence[Call]) -> tuple[Call, int]:
        """One call for this one and all of the following that are torch's too."""
        bounds = [self]
        for other in following:
            if not isinstance(other, Bound):
                break
            bounds.append(other)
        return _Joined(bounds), len(bounds) - 1


class _Joined(InTurn):
    """Neighbours as one call."""

    __slots__ = ("inference_mode", "watched")

    def __init__(self, bounds: Sequence[Bound]) -> None:
        super().__init__([bound.call for bound in bounds])
        self.inference_mode = torch().inference_mode
        self.watched = list(bounds)

    def patch(self, number: int, call: Call) -> bool:
        """See `kernel.Patchable`."""
        if not isinstance(call, Bound):
            return False
        self.calls[number] = call.call
        self.watched.append(call)
        return True

    def __call__(self) -> None:
        with self.inference_mode():
            super().__call__()
        while self.watched:
            self.watched.pop().verify()
