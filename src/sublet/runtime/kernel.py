"""Interface between the runtime and its backends: kernels for nodes, and their binding to memory.

Before planning, the runtime asks a kernel once for its scratch memory (`scratch`). The runtime then binds the
kernel to the bytes given by the plan; the resulting call has no arguments and touches only those bytes [NNC: a
command with its backend]. A backend without a kernel for a node returns None, and the runtime asks the next backend.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from ctypes import c_uint8
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sublet.base.arrays import is_packed, pack
from sublet.base.errors import KernelError
from sublet.base.tensor import NUMPY, Spec, TensorSpec
from sublet.ir.graph import Node, Value
from sublet.plan import Stride

Array = NDArray[Any]
Call = Callable[[], Any]


@dataclass(eq=False, slots=True)
class UnplannedCell:
    """The content of a value outside the plan: an array, a list of arrays, or None.

    The content shares no memory with other values: a kernel copies its result into the cell.
    """

    name: str
    content: Any = None


Operand = Array | UnplannedCell
"""An input or output of a kernel: an array over the bytes of a value, at a fixed address, or a cell.

The array has the shape and type of the value (ml_dtypes for types missing in NumPy); for types with fewer than 8 bits
it has the packed bytes, flat, of type uint8.
"""


class Kernel(Protocol):
    """A way to compute a node."""

    @property
    def scratch(self) -> int:
        """The bytes of scratch memory needed during a call, planned like a tensor; 0 for none."""

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """Return a call computing the node from the current content of the inputs.

        An output may share the bytes of an input where the facts of the op allow: of any input that the op may
        overwrite, and of several overwritable inputs with the same bytes. Outputs are written in full. Addresses are
        multiples of the alignment of the plan, which may be 1. The bytes outlive the call, and the kernel may keep
        pointers to the bytes.
        """


@runtime_checkable
class AliasAware(Protocol):
    """A kernel aware of views and of concat operands in place.

    A node with views or parts that is more than a copy gets no other kernel. Nodes that only copy bytes run without
    a kernel, see `runtime.moves`.
    """

    @property
    def keeps(self) -> bool:
        """True if a call leaves output bytes unchanged wherever an input already has the same bytes in place."""


@runtime_checkable
class Strided(Protocol):
    """A kernel aware of operands of which only each element of the leading axis is contiguous: arrays with strides.

    A node with such operands gets another kernel row by row, or no other kernel where the op cannot run by rows.
    """

    def takes_strides(self, inputs: Collection[int], outputs: Collection[int]) -> bool:
        """True if `bind` takes arrays with strides along the leading axis at these positions."""


Compute = Callable[[Sequence[Any], Sequence[Any], Any], Any]
"""(inputs, outputs, scratch): computes the outputs from the inputs at once."""


@runtime_checkable
class Immediate(Protocol):
    """A kernel able to compute without binding, for nodes that run once, as in a dynamic graph."""

    def library_view(self, array: Array) -> Any:
        """Return the same bytes as seen by the library of the kernel, for `at_once`. Valid as long as the bytes are."""

    def at_once(self) -> Compute:
        """Return a function computing at once; operands as for `bind`, but no input overlaps an output."""


@runtime_checkable
class Direct(Protocol):
    """A kernel equal to one function of arrays, `function(*inputs, output)`, for any content."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function. No operand is omitted, and no operand overlaps the output."""


@runtime_checkable
class Mergeable(Protocol):
    """A bound call mergeable with the following calls, at less cost than separate calls."""

    def __call__(self) -> Any:
        """Run the call alone."""

    def merge_following(self, following: Sequence[Call]) -> tuple[Call, int]:
        """Merge the call with the first n of `following`, in order; return the merged call and n."""


@runtime_checkable
class Patchable(Protocol):
    """A merged call of several nodes, with each node rebindable alone."""

    def patch(self, number: int, call: Call) -> bool:
        """Replace the call of node `number` by `call`: same kernel, new addresses. Return False if not possible."""


@runtime_checkable
class Repointable(Protocol):
    """A merged call of several nodes, with rebound nodes able to move to new addresses without their kernels."""

    def operand_setter(self, number: int, operands: Collection[int]) -> Callable[[Array], None] | None:
        """Return a setter of another array for `operands` of node `number`; None if only the kernel can rebind.

        The new array has the same type and shape. `operands` are positions, inputs before outputs.
        """


@runtime_checkable
class Relocatable(Protocol):
    """A bound call able to move to new addresses without rebinding."""

    def follow_iterations(self, strides: Mapping[str, tuple[Stride, ...]], current: Mapping[str, int]) -> Call | None:
        """Return a call with operands relocated to the current iterations; None if not possible.

        `strides` lists by name the strides of the values moving from iteration to iteration; `current` maps each loop
        to its iteration. The call itself was bound for iteration 0 of every loop.
        """


PlaceNumbers = tuple[int, int]
"""The number of the shape and the number of the address of an operand, in the lists of all shapes and addresses."""


class PointCall(Protocol):
    """A call bound to a point of ranges."""

    def __call__(self) -> Any:
        """Run the call."""

    def move(self, shapes: list[tuple[int, ...]], addresses: list[int]) -> None:
        """Bind the operands again of which shape or address changed; the lists have all shapes and addresses.

        An element of a list stays the same object as long as the shape or address stays the same.
        """


BindAtPoint = Callable[[list[tuple[int, ...]], list[int]], PointCall]
"""(all shapes, all addresses at a point) -> the call bound to the point."""


@runtime_checkable
class Ranged(Protocol):
    """A bound call that can be bound again for other shapes, without its kernels: see `runtime.ranged`."""

    def over_ranges(
        self,
        places: Mapping[str, PlaceNumbers],
        copied: Mapping[int, Sequence[PlaceNumbers]],
    ) -> BindAtPoint:
        """Return the function that binds the call to other shapes and addresses.

        places  the operands of kernels, by the name of the value
        copied  the operands of nodes that copy bytes, by the number of the node within the call: source and target of
                each copy, as arrays of bytes
        """


class Backend(Protocol):
    """A source of kernels."""

    @property
    def name(self) -> str:
        """The name used by the caller."""

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel for the node; None if the backend has none.

        `constants` are the weights read by the node, already in memory: a kernel may preprocess weights.
        """


def array_at(address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Return the array of a shape over the bytes at an address, which must outlive the array."""
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, cast(Any, (c_uint8 * nbytes).from_address(address)))


def no_op() -> None:
    """Return without effect: the call of a step without work."""


class CallSequence:
    """A sequence of calls as a single call.

    `reached` is the number of the call that raised in the latest run, None if none raised.
    """

    __slots__ = ("calls", "reached")

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = list(calls)
        self.reached: int | None = None

    def __call__(self) -> None:
        self.reached, number = None, 0
        try:
            for number, call in enumerate(self.calls):  # noqa: B007
                call()
        except BaseException:
            self.reached = number
            raise


class RowCalls(CallSequence):
    """The calls of the rows of a node, which may merge with the calls of other nodes one by one."""

    __slots__ = ()


def sequence_calls(calls: Sequence[Call]) -> Call:
    """Return one call for several; no-ops are dropped."""
    present = [call for call in calls if call is not no_op]
    return present[0] if len(present) == 1 else CallSequence(present)


def store(content: Any, to: Operand, what: object = "a value", spec: Spec | None = None) -> None:
    """Write a computed content to an operand; elements of `spec` smaller than a byte are packed.

    Raises KernelError, naming the value `what`, if type or shape differ from the plan.
    """
    if isinstance(to, UnplannedCell):
        to.content = content
        return
    if not isinstance(to, np.ndarray):  # a tensor on a device: type and shape are as planned, nothing to check
        to[...] = content
        return
    array, shape, dtype = np.asarray(content), to.shape, to.dtype
    shared = spec if isinstance(spec, TensorSpec) and is_packed(spec) else None
    if shared is not None:
        shape, dtype = shared.shape, NUMPY[shared.dtype]
    if array.shape != shape or array.dtype != dtype:
        found, planned = (f"{kind}{list(extents)}" for kind, extents in ((array.dtype, array.shape), (dtype, shape)))
        raise KernelError(f"{what} is {found}, expected {planned} as planned")
    to[...] = array if shared is None else pack(array, shared)
