"""What a backend is: the kernels it has for nodes, and how they are tied to memory.

A kernel is asked once what it needs (`scratch`), before anything is planned, and then bound to the bytes
the plan gave it; the call that comes out has no arguments and touches only those bytes [NNC: a command
with its backend]. A backend that has no kernel for a node says None, and the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from sublet.ir.graph import Node, Value
from sublet.plan import Stride

Array = NDArray[Any]
Call = Callable[[], Any]


@dataclass(eq=False, slots=True)
class Cell:
    """Holds the content of a value that the plan cannot place: an array, a list of arrays, None.

    Its content is nobody else's memory: a kernel that fills a cell copies what it was given.
    """

    name: str
    content: Any = None


Operand = Array | Cell
"""Where a kernel reads or writes: an array over the value's bytes, which never moves, or a cell.

The array has the value's shape and type (ml_dtypes for types NumPy lacks); of a type with fewer than 8 bits
it is the packed bytes, flat and of type uint8.
"""


class Kernel(Protocol):
    """One way to compute one node."""

    @property
    def scratch(self) -> int:
        """Bytes of memory it needs while it runs, planned like a tensor; 0 for none."""

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        """A call that computes the node, each time from what then lies in the inputs.

        An output may lie on an input's bytes where the op's facts allow it: over any of the inputs it may overwrite,
        and over several, which are the same bytes then. Outputs are written in full. Addresses are multiples of the
        plan's alignment, which may be 1. The bytes outlive the call; the kernel may keep pointers to them.
        """


@runtime_checkable
class Keeping(Protocol):
    """A kernel that knows of views and parts: a node that has such facts, and is more than copies, gets no other.

    Nodes that are only copies run without a kernel, see `runtime.copying`.
    """

    @property
    def keeps(self) -> bool:
        """Whether bytes of an output that are an input's, and lie where they are, are the same after the call."""


Compute = Callable[[Sequence[Any], Sequence[Any], Any], Any]
"""(inputs, outputs, scratch) -> computes the one from the others, at once."""


@runtime_checkable
class Immediate(Protocol):
    """A kernel that also computes without being bound: for what runs once, as in a dynamic graph."""

    def over(self, array: Array) -> Any:
        """What `at_once` takes for an array: the same bytes, as the library sees them. Good for as long as they are."""

    def at_once(self) -> Compute:
        """Computes from what lies in the operands now. They are as `bind` takes them, but none overlaps an output."""


@runtime_checkable
class Direct(Protocol):
    """A kernel that is one function of arrays, `function(*inputs, output)`, whatever lies in them."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function. No operand is left out, and none overlaps the output."""


@runtime_checkable
class Joinable(Protocol):
    """A bound call that can run as one with those after it, at less cost than one by one."""

    def __call__(self) -> Any:
        """Run alone."""

    def joined(self, following: Sequence[Call]) -> tuple[Call, int]:
        """One call for this one and the first of `following`, in their order; and how many of them."""


@runtime_checkable
class Patchable(Protocol):
    """A call of several nodes that were joined, of which one can be bound anew while the others stay."""

    def patch(self, number: int, call: Call) -> bool:
        """Let `call`, of the same kernel at other places, take the place of one; False when it cannot."""


@runtime_checkable
class Pointable(Protocol):
    """A call of several nodes, of which those that were patched can read and write elsewhere without their kernels."""

    def pointing(self, number: int, operands: Collection[int]) -> Callable[[Array], None] | None:
        """What gives a call another array of the same type and shape for these of its operands, by position, inputs
        before outputs; None when only the kernel can do that."""


@runtime_checkable
class Movable(Protocol):
    """A bound call that can run at other places without being bound anew."""

    def following(self, strides: Mapping[str, tuple[Stride, ...]], current: Mapping[str, int]) -> Call | None:
        """A call that finds its operands where they are in the rounds of `current`; None when it cannot.

        `strides` are those of the values that move, by name; it was bound for the rounds 0.
        """


class Backend(Protocol):
    """A source of kernels."""

    @property
    def name(self) -> str:
        """As the user calls it."""

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """How this backend computes the node; None when it cannot.

        `constants` are the weights the node may read, in memory already: a kernel may prepare them.
        """
