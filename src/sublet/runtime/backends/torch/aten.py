"""Kernels of the aten dialect: PyTorch's own operators, writing where they are told.

An operator with an overload that writes to tensors it is given is one call, bound once. Any other gives tensors of its
own, which are copied: `allocates` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.errors import RunError
from sublet.ir.graph import Node
from sublet.ops.aten import AS_STRIDED, PREFIX, Argument, Named, Strided, Use, decode
from sublet.ops.aten import Call as Arguments
from sublet.ops.aten.dialect import COPIES, Facts, facts
from sublet.runtime.backends.torch.bound import Bound
from sublet.runtime.backends.torch.kernel import Tensor, tensor_over, torch
from sublet.runtime.calls import in_turn
from sublet.runtime.kernel import Array, Call, Cell, Operand


@dataclass(frozen=True)
class AtenKernel:
    """An operator of PyTorch's, by the facts of its name."""

    node: Node
    scratch: int = 0

    @property
    def allocates(self) -> bool:
        """Whether it gives tensors of its own, which are copied to their places."""
        known = _known(self.node)
        return self.node.op not in (AS_STRIDED, *COPIES) and not (known.out or known.inside)

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """One call of torch's. Raises RunError for an operator that this PyTorch has not."""
        call = decode(self.node)
        results: list[Tensor] = [
            None if operand is None else seen(over(operand), layout)
            for operand, layout in zip(outputs, call.outputs, strict=True)
        ]
        return Bound(self._call(call, [over(operand) for operand in inputs], results), results, self.node)

    def _call(self, call: Arguments, given: Sequence[Tensor], results: Sequence[Tensor]) -> Call:
        args = [_argument(argument, given) for argument in call.args]
        kwargs = {name: _argument(argument, given) for name, argument in call.kwargs}
        if self.node.op in (AS_STRIDED, *COPIES):  # elements of another type are converted on the way
            return partial(results[0].copy_, args[0])
        known = _known(self.node)
        if known.inside:
            function = partial(operator_of(known.inside, self.node), results[0], *args[1:], **kwargs)
            if args[0].data_ptr() == results[0].data_ptr():
                return function
            return in_turn([partial(results[0].copy_, args[0]), function])
        if known.out:
            function = operator_of(known.out, self.node)
            names = [each.name for each in function._schema.arguments]
            places = [each.name for each in function._schema.arguments if each.is_out]
            told = {name: value for name, value in kwargs.items() if name in names}
            return partial(function, *args, **told, **dict(zip(places, results, strict=True)))
        return _Copied(partial(operator_of(self.node.op.removeprefix(PREFIX), self.node), *args, **kwargs), results)


class _Copied:
    """A call whose results are copied to their places."""

    __slots__ = ("function", "results")

    def __init__(self, function: Callable[[], Any], results: Sequence[Tensor | None]) -> None:
        self.function, self.results = function, results

    def __call__(self) -> None:
        made = self.function()
        for place, result in zip(self.results, made if isinstance(made, tuple | list) else (made,), strict=True):
            if place is not None:
                place.copy_(result)


def _known(node: Node) -> Facts:
    """What is known of the operator, if all its outputs are there."""
    found = facts().get(node.op.removeprefix(PREFIX), Facts())
    return found if all(value is not None for value in node.outputs) else Facts()


def operator_of(name: str, node: Node) -> Any:
    """The operator `name.overload`. Raises RunError when this PyTorch has none."""
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(torch().ops.aten, packet), overload)
    except AttributeError:
        raise RunError(f"node {node.name}: PyTorch {torch().__version__} has no operator aten.{name}") from None


def over(operand: Operand | None) -> Tensor:
    """A tensor over the bytes of an operand, None for one that is left out."""
    assert not isinstance(operand, Cell), "the backend takes no such node"
    return None if operand is None else tensor_over(operand)


def seen(tensor: Tensor, layout: Strided | None) -> Tensor:
    """The elements of a tensor that a layout names; all of them for None."""
    return tensor if layout is None else tensor.as_strided(layout.size, layout.stride, layout.offset)


def _argument(argument: Argument, given: Sequence[Tensor]) -> Any:
    if isinstance(argument, Use):
        return seen(given[argument.input], argument.layout)
    if isinstance(argument, Named):
        return torch().device(argument.name) if argument.kind == "device" else getattr(torch(), argument.name)
    if isinstance(argument, tuple):
        return [_argument(inner, given) for inner in argument]
    return argument
