"""Building blocks of kernels on ATen: functions receiving tensors over planned bytes and returning bound calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

from sublet.base.arrays import torch_over
from sublet.base.errors import RunError
from sublet.base.optional_imports import imported_module, require
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.ops.nn.command import spec_of
from sublet.runtime.kernel import Array, Call, Compute

Tensor = Any
"""A torch.Tensor over the bytes of a value. PyTorch has types, but is installed only with the extra `torch`."""

Operands = Sequence[Tensor]
"""Tensors by position; None for an omitted operand."""

Calls = Call | Sequence[Call]
"""A call without arguments, or several calls to run in sequence."""

Make = Callable[[Node, Operands, Operands, Tensor], Calls]
"""(node, inputs, outputs, scratch) -> calls writing the outputs in full.

`scratch` is a tensor of bytes, or None for a kernel without scratch memory. Binding does all possible work in advance
(views, attributes, function lookup): each returned call should be a single PyTorch function.
"""


ExtraArguments = Callable[[Node, Operands], Sequence[Any]]
"""(node, inputs) -> the arguments after the tensors in the call of a PyTorch function."""


def no_arguments(node: Node, inputs: Operands) -> Sequence[Any]:
    """Return no arguments: the function receives only tensors."""
    return ()


@dataclass(frozen=True)
class SingleCallKernel:
    """A kernel of a single call, `torch.function(*inputs, *arguments, out=output)`.

    `out` is the keyword of the output, by default "out".
    """

    function: str
    arguments: ExtraArguments = no_arguments
    out: str = "out"

    def __call__(self, node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
        over = in_place_method(self.function, inputs[0], outputs[0]) if inputs and self.out == "out" else None
        if over is not None:
            return partial(over, *inputs[1:], *self.arguments(node, inputs))
        return partial(self._torch_function(), *inputs, *self.arguments(node, inputs), **{self.out: outputs[0]})

    def at_once(self, node: Node) -> Compute:
        """Return a function computing the node at once, with the PyTorch function looked up only here."""
        call, arguments, out = self._torch_function(), self.arguments, self.out
        if arguments is no_arguments and out == "out":
            return lambda inputs, outputs, scratch: call(*inputs, out=outputs[0])
        return lambda inputs, outputs, scratch: call(*inputs, *arguments(node, inputs), **{out: outputs[0]})

    def _torch_function(self) -> Callable[..., Any]:
        """Return the PyTorch function, looked up by dotted name."""
        function: Callable[..., Any] = attrgetter(self.function)(torch())
        return function


def in_place_method(function: str, x: Tensor, out: Tensor) -> Callable[..., Any] | None:
    """Return the method `x.function_` if `out` has the same elements as `x`; else None.

    The method computes `torch.function(x, ..., out=out)`, and a call takes a tenth of a microsecond less. Type, shape,
    strides and address of `out` and `x` must be equal. None also if PyTorch lacks the method.
    """
    method: Callable[..., Any] | None = getattr(x, f"{function}_", None)
    if method is None or x.data_ptr() != out.data_ptr():
        return None
    is_same_view = x.dtype is out.dtype and x.shape == out.shape and x.stride() == out.stride()
    return method if is_same_view else None


def single_call_kernel(function: str, arguments: ExtraArguments = no_arguments, out: str = "out") -> Make:
    """Return a kernel of a single call, see `SingleCallKernel`."""
    return SingleCallKernel(function, arguments, out)


def backward_kernel(name: str, arguments: ExtraArguments = no_arguments) -> Make:
    """Return a kernel calling `torch.ops.aten.name(dy, y or x, *arguments, grad_input=dx)`.

    Python can reach these backward functions only as overloads.
    """
    return single_call_kernel(f"ops.aten.{name}.grad_input", arguments, "grad_input")


def no_scratch(node: Node) -> int:
    """Return 0, the scratch bytes of a kernel without scratch memory."""
    return 0


def supports_every_node(node: Node) -> bool:
    """True: the kernel computes every node of the command."""
    return True


def has_f32_or_f64(node: Node) -> bool:
    """True if the first input is f32 or f64.

    For kernels losing too much precision with 16-bit floats, or without an ATen function for 16-bit floats, or with
    memory allocated by ATen for 16-bit floats.
    """
    return spec_of(next(iter(node.uses))).dtype in (DType.F32, DType.F64)


def takes_no_strides(node: Node, inputs: Collection[int]) -> bool:
    """False: the kernel needs contiguous operands."""
    return False


def takes_all_strides(node: Node, inputs: Collection[int]) -> bool:
    """True: PyTorch iterates over any strides, in the same time."""
    return True


@dataclass(frozen=True)
class TorchKernel:
    """A kernel on ATen for all nodes of a command.

    make        binds a node to tensors, see `Make`
    scratch     the scratch bytes of a node; planned like a tensor
    supports    True if the kernel computes the node; otherwise the reference does
    only_moves  True if the kernel only moves or sets elements. ATen moves elements of every type, but does not compute
                with unsigned integers of more than 8 bits
    keeps       True if the kernel leaves output bytes unchanged wherever an input already has the bytes in place, see
                `runtime.kernel.AliasAware`
    strided     True if the kernel takes strides along the leading axis in inputs at the given positions, and in outputs
    allocates   True if PyTorch allocates memory during the call in proportion to the tensors. Sublet measures and
                reports the memory, but cannot plan it. A test watches the allocator for all kernels with False.
    """

    make: Make
    scratch: Callable[[Node], int] = no_scratch
    supports: Callable[[Node], bool] = supports_every_node
    only_moves: bool = False
    keeps: bool = False
    allocates: bool = False
    strided: Callable[[Node, Collection[int]], bool] = takes_no_strides


def torch() -> ModuleType:
    """Return the module torch. Raises MissingExtraError, with the name of the extra, if PyTorch is not installed."""
    module: ModuleType = imported_module("torch") or require("torch", extra="torch")
    return module


def tensor_over(array: Array) -> Tensor:
    """Return a tensor over the bytes of an array."""
    return torch_over(array)  # weights may be read-only arrays, and kernels only read weights


def copy_result(place: Tensor, made: Tensor) -> None:
    """Copy a PyTorch result to the planned place.

    Raises RunError if the shapes differ; without the check, PyTorch might broadcast the result.
    """
    if made.shape != place.shape:
        raise RunError(f"PyTorch gives a tensor {list(made.shape)}, and one {list(place.shape)} was planned")
    place.copy_(made)


def scratch_tensor(scratch: Tensor, dtype: Any, shape: Sequence[int], offset: int = 0) -> Tensor:
    """Return scratch bytes from `offset` (in bytes) as a tensor with type `dtype` and shape `shape`."""
    count = 1
    for extent in shape:
        count *= extent
    return scratch[offset : offset + count * dtype.itemsize].view(dtype).view(tuple(shape))


# Mixed precision: an f32 kernel as a kernel for 16-bit floats.
#
# The kernel widens operands into scratch memory, computes in f32 and rounds the results. The reference computes in the
# same way, so no sum or quotient is rounded to 16 bits in between.

HALF_TYPES = (DType.F16, DType.BF16)
CACHE_LINE = 64
"""Alignment of widened operands in scratch memory, in bytes: a cache line."""


def computed_in_f32(fast: TorchKernel) -> TorchKernel:
    """Return the kernel extended to 16-bit floats; computation is in f32."""

    def scratch(node: Node) -> int:
        wide = _widened_node(node)
        return (
            fast.scratch(node)
            if wide is node
            else _round_up_to_line(fast.scratch(wide)) + sum(map(_widened_bytes, _half_operands(node)))
        )

    def make(node: Node, inputs: Operands, outputs: Operands, given: Tensor) -> Calls:
        wide = _widened_node(node)
        if wide is node:
            return fast.make(node, inputs, outputs, given)
        begin = _round_up_to_line(fast.scratch(wide))
        own = given[: fast.scratch(wide)] if fast.scratch(wide) else None
        places: list[Tensor] = []
        for value, operand in zip((*node.inputs, *node.outputs), (*inputs, *outputs), strict=True):
            if value is not None and _is_half(value):
                places.append(scratch_tensor(given, torch().float32, operand.shape, begin))
                begin += _widened_bytes(value)
            else:
                places.append(operand)
        count = len(inputs)
        calls = fast.make(wide, places[:count], places[count:], own)
        return [
            *_copies_between(inputs, places[:count]),
            *((calls,) if callable(calls) else calls),
            *_copies_between(places[count:], outputs),
        ]

    return replace(fast, make=make, scratch=scratch, supports=lambda node: fast.supports(_widened_node(node)))


def _copies_between(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Call]:
    pairs = zip(sources, targets, strict=True)
    return [_copy_call(source, to) for source, to in pairs if source is not to]


def _copy_call(source: Tensor, to: Tensor) -> Call:
    return lambda: to.copy_(source)


def _is_half(value: Value) -> bool:
    return spec_of(value).dtype in HALF_TYPES


def _half_operands(node: Node) -> list[Value]:
    """Return the operands to widen, in order; a repeated operand appears repeatedly."""
    return [value for value in (*node.inputs, *node.outputs) if value is not None and _is_half(value)]


def _widened_bytes(value: Value) -> int:
    return _round_up_to_line(4 * spec_of(value).size)


def _round_up_to_line(nbytes: int) -> int:
    return -(-nbytes // CACHE_LINE) * CACHE_LINE


def _widened_node(node: Node) -> Node:
    """Return the node with f32 in place of 16-bit floats; the same node if no operand is a 16-bit float."""
    if not _half_operands(node):
        return node
    inputs, outputs = (tuple(map(_widened_value, side)) for side in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def _widened_value(value: Value | None) -> Value | None:
    if value is None or not _is_half(value):
        return value
    return replace(value, spec=TensorSpec(DType.F32, spec_of(value).shape))
