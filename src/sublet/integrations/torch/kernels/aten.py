"""Kernels of the aten dialect: PyTorch operators, writing results to the planned places.

An operator with an `out=` or in-place overload becomes one call, bound once. Every remaining operator allocates
results, and the kernel copies the results to the planned places; `allocates` gives the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sublet.base.arrays import torch_name
from sublet.base.errors import RunError
from sublet.base.tensor import TensorSpec
from sublet.integrations.torch.dialect import (
    AS_STRIDED,
    COLLECTIVES,
    COPIES,
    PREFIX,
    WAIT,
    Argument,
    NamedConstant,
    StridedLayout,
    TensorArgument,
    decode,
)
from sublet.integrations.torch.kernels.bound_call import BoundTorchCall
from sublet.integrations.torch.kernels.kernel import (
    Tensor,
    copy_result,
    in_place_method,
    scratch_tensor,
    tensor_over,
    torch,
)
from sublet.integrations.torch.kernels.out_variants import CHUNK_BYTES, OUT_VARIANTS, chunked_call, is_faster_in_chunks
from sublet.integrations.torch.operator_call import find_named, find_operator
from sublet.integrations.torch.operator_facts import OperatorFacts, facts_by_name, require_supported_version
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import spec_of
from sublet.runtime.kernel import Array, Call, Operand, UnplannedCell, sequence_calls

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
        results, args, kwargs = _meta_operands(self.node)
        if op_facts.out and not is_faster_in_chunks(name, args):
            return 0
        if _out_variant_calls(self.node, results, args, kwargs) is not None:
            return 0
        result_bytes = sum(value.nbytes for value in self.node.defs)
        pieces = chunked_call(name, require_operator(name, self.node), args, kwargs, results)
        return result_bytes if pieces is None else pieces.nbytes

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the bound call of the operator.

        Raises RunError if the installed PyTorch lacks the operator, or is too old: a plan may come from a file.
        """
        results, args, kwargs = _planned_operands(self.node, inputs, outputs)
        return BoundTorchCall(self._bind_call(results, args, kwargs), results, self.node)

    def run_on(self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None]) -> None:
        """Run the operator on tensors, as for fake tensors."""
        results, args, kwargs = call_operands(self.node, inputs, outputs)
        self._bind_call(results, args, kwargs)()

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
            out_names = [each.name for each in function._schema.arguments if each.is_out]
            keywords = keywords_beside_out(function, kwargs)
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


def _planned_operands(
    node: Node, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None]
) -> tuple[list[Tensor], list[Any], dict[str, Any]]:
    """Return the results and arguments of the call of a node in planned memory, as `call_operands` does.

    Raises RunError if PyTorch is too old: a plan may come from a file.
    """
    require_supported_version(torch().__version__, RunError, f"node {node.name}: ")
    return call_operands(node, [operand_tensor(each) for each in inputs], map(operand_tensor, outputs))


def _meta_operands(node: Node) -> tuple[list[Tensor], list[Any], dict[str, Any]]:
    """Return the results and arguments of the call of a node on tensors without bytes, as `call_operands` does."""
    return call_operands(node, [meta_tensor(each) for each in node.inputs], map(meta_tensor, node.outputs))


def keywords_beside_out(function: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of an `out=` overload; the tensor given by `out=` has a layout already."""
    known = {each.name for each in function._schema.arguments} - {"memory_format"}
    return {name: value for name, value in kwargs.items() if name in known}


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


# Kernels of fused aten operators: PyTorch operators called in sequence on a few rows at a time.


@dataclass(frozen=True)
class LogitsGradient:
    """A kernel for the gradient of a cross entropy with respect to logits [N, C].

    The kernel holds the gradient with respect to log_softmax only for a few rows.
    """

    node: Node

    @property
    def scratch(self) -> int:
        """The bytes of the log_softmax gradient of the rows computed at a time."""
        rows, row = self._rows_and_bytes
        return rows * row

    @property
    def _rows_and_bytes(self) -> tuple[int, int]:
        """The number of rows computed at a time, and the bytes of a row."""
        spec = spec_of(self.node.defs[0])
        count, row = spec.shape[0], spec.nbytes // max(1, spec.shape[0])
        return min(count, max(1, CHUNK_BYTES // max(1, row))), row

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the bound call.

        Raises RunError if PyTorch is too old: a plan may come from a file.
        """
        (dx,), args, _ = _planned_operands(self.node, inputs, outputs)
        return BoundTorchCall(sequence_calls(list(self._calls(dx, args, operand_tensor(scratch)))), [dx], self.node)

    def _calls(self, dx: Tensor, args: Sequence[Any], scratch: Tensor) -> Iterator[Call]:
        dy, y, labels, weight, reduction, ignored, total = args
        step, _ = self._rows_and_bytes
        aten = torch().ops.aten
        for begin in range(0, dx.shape[0], max(1, step)):
            rows = slice(begin, begin + step)
            from_above = dy[rows] if dy.dim() else dy
            piece = scratch_tensor(scratch, dx.dtype, dx[rows].shape)
            loss = (from_above, y[rows], labels[rows], weight, reduction, ignored, total)
            yield partial(aten.nll_loss_backward.grad_input, *loss, grad_input=piece)
            yield partial(aten._log_softmax_backward_data.out, piece, y[rows], 1, dx.dtype, out=dx[rows])


@dataclass(frozen=True)
class EmbeddingSum:
    """A kernel adding the gradient of an embedding to a gradient [rows, width] of the table.

    The kernel sums the gradient of each different row first, as PyTorch does, and then adds the sums to the table.
    """

    node: Node

    @property
    def scratch(self) -> int:
        """The bytes of the sums: one row for each index, and at most one for each row of the table."""
        table, argument = spec_of(self.node.defs[0]), decode(self.node).args[2]
        assert isinstance(argument, TensorArgument)
        indices = self.node.inputs[argument.input]
        assert indices is not None
        return min(table.shape[0], spec_of(indices).size) * (table.nbytes // max(1, table.shape[0]))

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the bound call.

        Raises RunError if PyTorch is too old: a plan may come from a file.
        """
        (place,), args, _ = _planned_operands(self.node, inputs, outputs)
        return BoundTorchCall(partial(_add_rows, place, operand_tensor(scratch), *args), [place], self.node)


def _add_rows(place: Tensor, scratch: Tensor, table: Tensor, dy: Tensor, indices: Tensor, padding: int) -> None:
    """Write a table with rows of `dy` added at `indices` to `place`, which may be the table."""
    if place.data_ptr() != table.data_ptr():
        place.copy_(table)
    rows, positions = torch().unique(indices.reshape(-1), return_inverse=True)
    width = place.shape[1]
    sums = scratch_tensor(scratch, place.dtype, (len(rows), width))
    sums.zero_().index_add_(0, positions, dy.reshape(-1, width))
    if padding >= 0:
        sums.masked_fill_((rows == padding)[:, None], 0)
    place.index_add_(0, rows, sums)


@dataclass(frozen=True)
class LinearLoss:
    """A kernel for the cross entropy of a linear layer and its gradients, in groups of rows.

    The logits of a group turn into the gradient of the group in place.
    """

    node: Node

    @property
    def scratch(self) -> int:
        """The bytes of the logits of a group, and of as many rows of x."""
        _, args, _ = _meta_operands(self.node)
        (x, weight), groups = args[:2], args[-1]
        return int(-(-len(x) // groups) * (len(weight) + x.shape[1]) * x.itemsize)

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the bound call.

        Raises RunError if PyTorch is too old: a plan may come from a file.
        """
        places, args, _ = _planned_operands(self.node, inputs, outputs)
        tensors = [*places, operand_tensor(scratch), *args]
        return BoundTorchCall(partial(_linear_loss, *tensors), [p for p in places if p is not None], self.node)


def _linear_loss(
    loss: Tensor, dx: Tensor, dw: Tensor, db: Tensor, scratch: Tensor, x: Tensor, weight: Tensor, bias: Tensor,
    labels: Tensor, ignored: int, mean: bool, groups: int,
) -> None:  # fmt: skip
    """Write the loss, and the gradients of the loss that are no None.

    Raises IndexError for a label that is neither a class nor ignored, as PyTorch does.
    """
    t, count, classes = torch(), len(x), len(weight)
    counted = labels != ignored
    outside = counted & ((labels < 0) | (labels >= classes))
    if outside.any():
        raise IndexError(f"Target {labels[outside][0].item()} is out of bounds.")
    columns, not_counted = t.where(counted, labels, 0)[:, None], ~counted[:, None]
    divisor = counted.sum() if mean else 1
    scale = t.where(counted, t.full_like(loss, 1) / divisor, 0)[:, None]  # of the gradient of each row
    rows, begun = -(-count // groups), False
    loss.zero_()
    for begin in range(0, count, rows):
        part = slice(begin, begin + rows)
        given, column = x[part], columns[part]
        logits = scratch_tensor(scratch, x.dtype, (len(given), classes))
        scaled = scratch_tensor(scratch, x.dtype, given.shape, rows * classes * x.itemsize)
        if bias is None:
            t.mm(given, weight.t(), out=logits)
        else:
            t.addmm(bias, given, weight.t(), out=logits)
        t.ops.aten._log_softmax.out(logits, 1, False, out=logits)
        by_row = logits.gather(1, column).masked_fill_(not_counted[part], 0)
        loss.sub_(by_row.sum())
        logits.exp_().scatter_add_(1, column, t.full_like(by_row, -1))
        if dw is not None:
            t.mul(given, scale[part], out=scaled)
            _add_product(dw, logits.t(), scaled, begun)
        if db is not None:
            _add_product(db[None], scale[part].t(), logits, begun)
        if dx is not None:
            t.mm(logits, weight, out=dx[part]).mul_(scale[part])
        begun = True
    loss.div_(divisor)


def _add_product(place: Tensor, a: Tensor, b: Tensor, begun: bool) -> None:
    """Add a product to `place`, or write the first product."""
    if begun:
        place.addmm_(a, b)
    else:
        torch().mm(a, b, out=place)


# Kernels of collectives. A kernel starts a collective and waits for completion; a wait node only copies the result.

IN_PLACE_FORMS = {"all_reduce", "broadcast"}
"""Collectives with a form working on the argument."""

OUT_FORMS = {"all_gather_into_tensor", "reduce_scatter_tensor"}
"""Collectives with a form writing to a given tensor."""


@dataclass(frozen=True)
class CollectiveKernel:
    """A kernel for a collective of the process group named by the arguments, run in the current process."""

    node: Node
    scratch: int = 0

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return the call of the collective.

        Raises RunError if PyTorch lacks the operator. The call raises RunError if the process group does not exist.
        """
        if find_operator(self.node.op) is None:
            raise RunError(f"node {self.node.name}: PyTorch {torch().__version__} has no operator {self.node.op[:80]}")
        results, args, kwargs = call_operands(
            self.node, list(map(operand_tensor, inputs)), map(operand_tensor, outputs)
        )
        name = self.node.op.removeprefix(COLLECTIVES).partition(".")[0]
        if self.node.op == WAIT:  # the collective's kernel has already waited
            return BoundTorchCall(partial(results[0].copy_, args[0]), results, self.node)
        return BoundTorchCall(_CollectiveCall(self.node, name, results, args, kwargs), results, self.node)


@dataclass(frozen=True)
class _CollectiveCall:
    node: Node
    name: str
    results: Sequence[Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def __call__(self) -> None:
        functional = torch().ops._c10d_functional
        place, (first, *rest) = self.results[0], self.args
        try:
            if self.name in IN_PLACE_FORMS and place.is_contiguous():
                place.copy_(first)
                begun = getattr(functional, f"{self.name}_")(place, *rest, **self.kwargs)
            elif self.name in OUT_FORMS and place.is_contiguous():
                begun = getattr(functional, f"{self.name}_out")(first.contiguous(), *rest, **self.kwargs, out=place)
            else:
                begun = getattr(functional, self.name)(first, *rest, **self.kwargs)
        except RuntimeError as error:
            if torch().distributed.is_initialized():
                raise
            words = str(error).splitlines()[0]
            raise RunError(
                f"node {self.node.name}: {self.name} needs a process group of torch.distributed: {words}"
            ) from None
        for result, pending in zip(self.results, begun if isinstance(begun, list | tuple) else [begun], strict=True):
            complete = functional.wait_tensor(pending)
            if complete.data_ptr() != result.data_ptr():
                result.copy_(complete)
