"""Kernels of the aten dialect: PyTorch's own operators, writing where they are told.

An operator with an overload that writes to tensors it is given is one call, bound once. Any other gives tensors of its
own, which are copied: `allocates` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.base.arrays import torch_name
from sublet.base.errors import RunError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.aten import AS_STRIDED, PREFIX, Argument, Named, Strided, Use, decode
from sublet.ops.aten.dialect import COPIES, Facts, facts, other_version
from sublet.ops.aten.registry import find_named, find_operator
from sublet.runtime.backends.torch.bound import Bound
from sublet.runtime.backends.torch.kernel import Tensor, in_place, put, tensor_over, torch
from sublet.runtime.backends.torch.pieced import is_faster_in_pieces, pieces_of
from sublet.runtime.backends.torch.written import WRITTEN
from sublet.runtime.calls import in_turn
from sublet.runtime.kernel import Array, Call, Cell, Operand

BOUND = {
    "abs", "add", "addcdiv", "addcmul", "addmm", "amax", "baddbmm", "bmm", "cat", "clamp", "cos", "div", "eq",
    "exp", "ge", "gt", "index_select", "le", "log", "lt", "maximum", "mean", "minimum", "mm", "mul", "ne",
    "neg", "pow", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt", "sub", "sum", "tanh", "where",
}  # fmt: skip
"""Operators that `torch` has a function of the same name and arguments for: called so they take a microsecond less."""


@dataclass(frozen=True)
class AtenKernel:
    """An operator of PyTorch's, by the facts of its name."""

    node: Node
    scratch: int = 0

    @property
    def allocates(self) -> int:
        """Bytes of tensors of its own that it gives at once, which are copied to their places."""
        known, name = _known(self.node), self.node.op.removeprefix(PREFIX)
        if self.node.op in (AS_STRIDED, *COPIES) or known.inside:
            return 0
        results, args, kwargs = operands(
            self.node, [on_meta(v) for v in self.node.inputs], map(on_meta, self.node.outputs)
        )
        if known.out and not is_faster_in_pieces(name, args):
            return 0
        if _written(self.node, results, args, kwargs) is not None:
            return 0
        whole = sum(value.nbytes for value in self.node.defs)
        pieces = pieces_of(name, operator_of(name, self.node), args, kwargs, results)
        return whole if pieces is None else pieces.nbytes

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """One call of torch's. Raises RunError for an operator that this PyTorch has not, and for another PyTorch than
        the facts are of: a plan may come from a file."""
        wrong = other_version(torch().__version__)
        if wrong:
            raise RunError(f"node {self.node.name}: {wrong}")
        results, args, kwargs = operands(self.node, [over(operand) for operand in inputs], map(over, outputs))
        return Bound(self._call(results, args, kwargs), results, self.node)

    def _call(self, results: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        if self.node.op in (AS_STRIDED, *COPIES):  # elements of another type are converted on the way
            return partial(results[0].copy_, args[0])
        known = _known(self.node)
        if known.inside:
            function = partial(operator_of(known.inside, self.node), results[0], *args[1:], **kwargs)
            if args[0].data_ptr() == results[0].data_ptr():
                return function
            return in_turn([partial(results[0].copy_, args[0]), function])
        if known.out and not is_faster_in_pieces(self.node.op.removeprefix(PREFIX), args):
            function = operator_of(known.out, self.node)
            names = [each.name for each in function._schema.arguments]
            places = [each.name for each in function._schema.arguments if each.is_out]
            told = {name: value for name, value in kwargs.items() if name in names}
            short = known.out.partition(".")[0]
            if short in BOUND and places == ["out"]:
                over = in_place(short, args[0], results[0])
                if over is not None:
                    return partial(over, *args[1:], **told)
                function = getattr(torch(), short)
            return partial(function, *args, **told, **dict(zip(places, results, strict=True)))
        written = _written(self.node, results, args, kwargs)
        if written is not None:
            return in_turn(written)
        name = self.node.op.removeprefix(PREFIX)
        function = operator_of(name, self.node)
        pieces = pieces_of(name, function, args, kwargs, results)
        return _Copied(partial(function, *args, **kwargs), results) if pieces is None else pieces


def operands(
    node: Node, given: Sequence[Tensor], places: Iterable[Tensor]
) -> tuple[list[Tensor], list[Any], dict[str, Any]]:
    """Results, arguments by position and by name of a call, seen as it says."""
    call = decode(node)
    results = [
        None if place is None else seen(place, layout) for place, layout in zip(places, call.outputs, strict=True)
    ]
    args = [_argument(argument, given) for argument in call.args]
    return results, args, {name: _argument(argument, given) for name, argument in call.kwargs}


def on_meta(value: Value | None) -> Tensor:
    """A tensor like a value's, without bytes."""
    if value is None:
        return None
    t = torch()
    assert isinstance(value.spec, TensorSpec)
    return t.empty(value.spec.shape, dtype=getattr(t, torch_name(value.spec.dtype)), device="meta")


def _written(node: Node, results: Sequence[Tensor | None], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The calls of an operator that is written with others; None where it is not."""
    write = WRITTEN.get(node.op.removeprefix(PREFIX))
    return None if write is None or results[0] is None else write(results[0], *args, **kwargs)


class _Copied:
    """A call whose results are copied to their places."""

    __slots__ = ("function", "results")

    def __init__(self, function: Callable[[], Any], results: Sequence[Tensor | None]) -> None:
        self.function, self.results = function, results

    def __call__(self) -> None:
        made = self.function()
        found = made if isinstance(made, tuple | list) else (made,) if self.results else ()
        for place, result in zip(self.results, found, strict=True):
            if place is not None:
                put(place, result)


def _known(node: Node) -> Facts:
    """What is known of the operator, if all its outputs are there."""
    found = facts().get(node.op.removeprefix(PREFIX), Facts())
    return found if all(value is not None for value in node.outputs) else Facts()


def operator_of(name: str, node: Node) -> Any:
    """Return the operator `name.overload`. Raises RunError for an operator that a program may not call."""
    operator = find_operator(f"{PREFIX}{name}")
    if operator is None:
        raise RunError(
            f"node {node.name}: PyTorch {torch().__version__} has no operator {PREFIX}{name[:80]} for programs"
        )
    return operator


def over(operand: Operand | None) -> Tensor:
    """A tensor over the bytes of an operand, None for one that is left out."""
    assert not isinstance(operand, Cell), "the backend takes no such node"
    return None if operand is None else tensor_over(operand)


def seen(tensor: Tensor, layout: Strided | None) -> Tensor:
    """The elements of a tensor that a layout names; all of them for None."""
    return (
        tensor
        if layout is None
        else tensor.as_strided(layout.size, layout.stride, tensor.storage_offset() + layout.offset)
    )


def _argument(argument: Argument, given: Sequence[Tensor]) -> Any:
    if isinstance(argument, Use):
        return seen(given[argument.input], argument.layout)
    if isinstance(argument, Named):
        found = find_named(argument.kind, argument.name)
        if found is None:
            raise RunError(f"PyTorch {torch().__version__} has no {argument.kind} {argument.name[:40]!r}")
        return found
    if isinstance(argument, tuple):
        return [_argument(inner, given) for inner in argument]
    return argument
