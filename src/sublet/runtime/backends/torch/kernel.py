"""What a kernel on ATen is: a function that is given tensors over planned bytes, and gives a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

from sublet.base.arrays import torch_over
from sublet.base.errors import RunError
from sublet.base.extras import imported, require
from sublet.base.tensor import DType
from sublet.ir.graph import Node
from sublet.ops.nn.command import spec_of
from sublet.runtime.kernel import Array, Call, Compute

Tensor = Any
"""A torch.Tensor over the bytes of a value. torch has types, but is only there with the extra `torch`."""

Operands = Sequence[Tensor]
"""Tensors by position; None in the place of an omitted one."""

Calls = Call | Sequence[Call]
"""A call without arguments, or several to be made in turn."""

Make = Callable[[Node, Operands, Operands, Tensor], Calls]
"""(node, inputs, outputs, scratch) -> calls that write the outputs in full.

`scratch` is a tensor of bytes, None when the kernel asks for none. Everything that can be done beforehand (views,
attributes, looking functions up) is done before they are returned: each should be one function of torch's.
"""


Arguments = Callable[[Node, Operands], Sequence[Any]]
"""(node, inputs) -> what follows the tensors in the call of a function of torch's."""


def tensors_only(node: Node, inputs: Operands) -> Sequence[Any]:
    """Of a function that takes no more."""
    return ()


@dataclass(frozen=True)
class Calling:
    """A kernel that is one call, `torch.function(*inputs, *arguments, out=output)`, whatever it calls its output."""

    function: str
    arguments: Arguments = tensors_only
    out: str = "out"

    def __call__(self, node: Node, inputs: Operands, outputs: Operands, scratch: Tensor) -> Calls:
        over = in_place(self.function, inputs[0], outputs[0]) if inputs and self.out == "out" else None
        if over is not None:
            return partial(over, *inputs[1:], *self.arguments(node, inputs))
        return partial(self._found(), *inputs, *self.arguments(node, inputs), **{self.out: outputs[0]})

    def at_once(self, node: Node) -> Compute:
        """The same, with the function looked up once for all operands."""
        call, arguments, out = self._found(), self.arguments, self.out
        if arguments is tensors_only and out == "out":
            return lambda inputs, outputs, scratch: call(*inputs, out=outputs[0])
        return lambda inputs, outputs, scratch: call(*inputs, *arguments(node, inputs), **{out: outputs[0]})

    def _found(self) -> Callable[..., Any]:
        found: Callable[..., Any] = attrgetter(self.function)(torch())
        return found


def in_place(function: str, x: Tensor, out: Tensor) -> Callable[..., Any] | None:
    """The method of `x` that does what `torch.function(x, ..., out=out)` does, where `out` is the same elements; None
    where there is none. It takes a tenth of a microsecond less to call."""
    method: Callable[..., Any] | None = getattr(x, f"{function}_", None)
    if method is None or x.data_ptr() != out.data_ptr():
        return None
    alike = x.dtype is out.dtype and x.shape == out.shape and x.stride() == out.stride()
    return method if alike else None


def calling(function: str, arguments: Arguments = tensors_only, out: str = "out") -> Make:
    """A kernel that is one call, see `Calling`."""
    return Calling(function, arguments, out)


def backward(name: str, arguments: Arguments = tensors_only) -> Make:
    """`torch.ops.aten.name(dy, y or x, *arguments, grad_input=dx)`: Python sees these functions only as overloads."""
    return calling(f"ops.aten.{name}.grad_input", arguments, "grad_input")


def no_scratch(node: Node) -> int:
    """Of a kernel that needs no memory of its own."""
    return 0


def always(node: Node) -> bool:
    """Of a kernel that computes every node of its command."""
    return True


def single(node: Node) -> bool:
    """Of a kernel for f32 and f64: in halves it would lose too much, or ATen has no such function or allocates."""
    return spec_of(next(iter(node.uses))).dtype in (DType.F32, DType.F64)


@dataclass(frozen=True)
class Fast:
    """A kernel on ATen.

    scratch     bytes it asks for, by node; planned like a tensor
    takes       whether it computes a node; the reference does where not
    moves       whether it only moves or sets elements: ATen does so for every type, but does not compute with unsigned
                integers of more than 8 bits
    keeps       whether it leaves alone what lies in its place already, see `runtime.kernel.Kernel`
    allocates   whether PyTorch allocates memory during the call that grows with the tensors: such bytes are
                measured and told, not planned. A test watches the allocator of those that say they do not.
    """

    make: Make
    scratch: Callable[[Node], int] = no_scratch
    takes: Callable[[Node], bool] = always
    moves: bool = False
    keeps: bool = False
    allocates: bool = False


def torch() -> ModuleType:
    """PyTorch. Raises MissingExtraError, which names the extra, when it is not installed."""
    module: ModuleType = imported("torch") or require("torch", extra="torch")
    return module


def tensor_over(array: Array) -> Tensor:
    """A tensor over the bytes of an array."""
    return torch_over(array)  # weights may be read-only, and are only read


def put(place: Tensor, made: Tensor) -> None:
    """Copy a result of PyTorch's to its place. Raises RunError when its extents are not those planned: PyTorch might
    repeat it."""
    if made.shape != place.shape:
        raise RunError(f"PyTorch gives a tensor {list(made.shape)}, and one {list(place.shape)} was planned")
    place.copy_(made)


def bytes_as(scratch: Tensor, dtype: Any, shape: Sequence[int], offset: int = 0) -> Tensor:
    """Scratch bytes from `offset` on as a tensor."""
    count = 1
    for extent in shape:
        count *= extent
    return scratch[offset : offset + count * dtype.itemsize].view(dtype).view(tuple(shape))
