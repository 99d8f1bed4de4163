"""Kernels of the aten dialect: PyTorch operators, writing results to the planned places.

An operator with an `out=` or in-place overload becomes one call, bound once. Every remaining operator allocates
results, and the kernel copies the results to the planned places; `allocates` gives the bytes.
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
from sublet.ops.aten import AS_STRIDED, PREFIX, Argument, NamedConstant, StridedLayout, TensorArgument, decode
from sublet.ops.aten.dialect import COPIES, OperatorFacts, facts_by_name, version_mismatch
from sublet.ops.aten.registry import find_named, find_operator
from sublet.runtime.backends.torch.bound_call import BoundTorchCall
from sublet.runtime.backends.torch.chunked import chunked_call, is_faster_in_chunks
from sublet.runtime.backends.torch.kernel import Tensor, copy_result, in_place_method, tensor_over, torch
from sublet.runtime.backends.torch.out_variants import OUT_VARIANTS
from sublet.runtime.calls import sequence_calls
from sublet.runtime.kernel import Array, Call, Operand, UnplannedCell

TORCH_FUNCTIONS = {
    "abs", "add", "addcdiv", "addcmul", "addmm", "amax", "baddbmm", "bmm", "cat", "clamp", "cos", "div", "eq",
    "exp", "ge", "gt", "index_select", "le", "log", "lt", "maximum", "mean", "minimum", "mm", "mul", "ne",
    "neg", "pow", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt", "sub", "sum", "tanh", "where",
}  # fmt: skip
"""Operators with a `torch` function of equal name and arguments; calling the function takes a microsecond less."""


@dataclass(frozen=True)
class AtenKernel:
    """A kernel calling a PyTorch operator, chosen by the facts of the operator."""

    node: Node
    scratch: int = 0

    @property
    def allocates(self) -> int:
        """The bytes that PyTorch allocates at the same time for results, before the kernel copies them into place.

        0 if the operator writes to the planned place. For an operator called in chunks: the bytes of the largest chunk.
        """
        op_facts, name = _facts_of(self.node), self.node.op.removeprefix(PREFIX)
        if self.node.op in (AS_STRIDED, *COPIES) or op_facts.inside:
            return 0
        results, args, kwargs = call_operands(
            self.node, [meta_tensor(v) for v in self.node.inputs], map(meta_tensor, self.node.outputs)
        )
        if op_facts.out and not is_faster_in_chunks(name, args):
            return 0
        if _out_variant_calls(self.node, results, args, kwargs) is not None:
            return 0
        result_bytes = sum(value.nbytes for value in self.node.defs)
        pieces = chunked_call(name, require_operator(name, self.node), args, kwargs, results)
        return result_bytes if pieces is None else pieces.nbytes

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the bound call of the operator.

        Raises RunError if the installed PyTorch lacks the operator, or is not the version of the facts: a plan may come
        from a file.
        """
        wrong = version_mismatch(torch().__version__)
        if wrong:
            raise RunError(f"node {self.node.name}: {wrong}")
        results, args, kwargs = call_operands(
            self.node, [operand_tensor(operand) for operand in inputs], map(operand_tensor, outputs)
        )
        return BoundTorchCall(self._bind_call(results, args, kwargs), results, self.node)

    def _bind_call(self, results: Sequence[Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        if self.node.op in (AS_STRIDED, *COPIES):  # copy_ converts the type if needed
            return partial(results[0].copy_, args[0])
        op_facts = _facts_of(self.node)
        if op_facts.inside:
            function = partial(require_operator(op_facts.inside, self.node), results[0], *args[1:], **kwargs)
            if args[0].data_ptr() == results[0].data_ptr():
                return function
            return sequence_calls([partial(results[0].copy_, args[0]), function])
        if op_facts.out and not is_faster_in_chunks(self.node.op.removeprefix(PREFIX), args):
            function = require_operator(op_facts.out, self.node)
            parameters = [each.name for each in function._schema.arguments]
            out_names = [each.name for each in function._schema.arguments if each.is_out]
            keywords = {name: value for name, value in kwargs.items() if name in parameters}
            function_name = op_facts.out.partition(".")[0]
            if function_name in TORCH_FUNCTIONS and out_names == ["out"]:
                method = in_place_method(function_name, args[0], results[0])
                if method is not None:
                    return partial(method, *args[1:], **keywords)
                function = getattr(torch(), function_name)
            return partial(function, *args, **keywords, **dict(zip(out_names, results, strict=True)))
        variant_calls = _out_variant_calls(self.node, results, args, kwargs)
        if variant_calls is not None:
            return sequence_calls(variant_calls)
        name = self.node.op.removeprefix(PREFIX)
        function = require_operator(name, self.node)
        pieces = chunked_call(name, function, args, kwargs, results)
        return _CopiedResults(partial(function, *args, **kwargs), results) if pieces is None else pieces


def call_operands(
    node: Node, given: Sequence[Tensor], places: Iterable[Tensor]
) -> tuple[list[Tensor], list[Any], dict[str, Any]]:
    """Return the results, positional arguments and keyword arguments of the call of a node.

    `given` are the tensors of the node's inputs, `places` the tensors of the outputs. Every tensor is viewed with the
    layout recorded in the call. A result is None for an omitted output.
    """
    call = decode(node)
    results = [
        None if place is None else strided_tensor(place, layout)
        for place, layout in zip(places, call.outputs, strict=True)
    ]
    args = [_bind_argument(argument, given) for argument in call.args]
    return results, args, {name: _bind_argument(argument, given) for name, argument in call.kwargs}


def meta_tensor(value: Value | None) -> Tensor:
    """Return a tensor on the meta device, without bytes, with the spec of a value; None for an omitted value."""
    if value is None:
        return None
    t = torch()
    assert isinstance(value.spec, TensorSpec)
    return t.empty(value.spec.shape, dtype=getattr(t, torch_name(value.spec.dtype)), device="meta")


def _out_variant_calls(
    node: Node, results: Sequence[Tensor | None], args: Sequence[Any], kwargs: dict[str, Any]
) -> Any:
    """Return the calls of an operator with an out variant of Sublet; None for an operator without."""
    write = OUT_VARIANTS.get(node.op.removeprefix(PREFIX))
    return None if write is None or results[0] is None else write(results[0], *args, **kwargs)


class _CopiedResults:
    """A call of an operator allocating results, then copied to the planned places."""

    __slots__ = ("function", "results")

    def __init__(self, function: Callable[[], Any], results: Sequence[Tensor | None]) -> None:
        self.function, self.results = function, results

    def __call__(self) -> None:
        returned = self.function()
        results = returned if isinstance(returned, tuple | list) else (returned,) if self.results else ()
        for place, result in zip(self.results, results, strict=True):
            if place is not None:
                copy_result(place, result)


def _facts_of(node: Node) -> OperatorFacts:
    """Return the facts of the operator; empty facts if an output is omitted or the operator has no entry."""
    op_facts = facts_by_name().get(node.op.removeprefix(PREFIX), OperatorFacts())
    return op_facts if all(value is not None for value in node.outputs) else OperatorFacts()


def require_operator(name: str, node: Node) -> Any:
    """Return the PyTorch operator `name.overload`. Raises RunError if programs may not call the operator."""
    operator = find_operator(f"{PREFIX}{name}")
    if operator is None:
        raise RunError(
            f"node {node.name}: PyTorch {torch().__version__} has no operator {PREFIX}{name[:80]} for programs"
        )
    return operator


def operand_tensor(operand: Operand | None) -> Tensor:
    """Return a tensor over the bytes of an operand; None for an omitted operand."""
    assert not isinstance(operand, UnplannedCell), "the backend takes no such node"
    return None if operand is None else tensor_over(operand)


def strided_tensor(tensor: Tensor, layout: StridedLayout | None) -> Tensor:
    """Return the elements of a tensor selected by a layout; the tensor for a layout of None."""
    return (
        tensor
        if layout is None
        else tensor.as_strided(layout.size, layout.stride, tensor.storage_offset() + layout.offset)
    )


def _bind_argument(argument: Argument, given: Sequence[Tensor]) -> Any:
    if isinstance(argument, TensorArgument):
        return strided_tensor(given[argument.input], argument.layout)
    if isinstance(argument, NamedConstant):
        constant = find_named(argument.kind, argument.name)
        if constant is None:
            raise RunError(f"PyTorch {torch().__version__} has no {argument.kind} {argument.name[:40]!r}")
        return constant
    if isinstance(argument, tuple):
        return [_bind_argument(inner, given) for inner in argument]
    return argument
