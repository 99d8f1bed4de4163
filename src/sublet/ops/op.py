"""An op is a record of facts. The planner, the passes, the checker and the runtime know only these.

A dialect is a function from an op's name to its record, registered under a prefix; `lookup` finds
the record of any node. Facts are functions of one node: its specs, attributes and literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sublet.base.errors import SubletError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value


class Share(NamedTuple):
    """Output `output` and input `input` of one node may be the same bytes.

    The output's byte 0 and the input's byte 0 are `offset` bytes apart: for a view the output
    starts at `offset` in the input; for a part the input starts at `offset` in the output.
    """

    output: int
    input: int
    offset: int = 0


def shared(node: Node, shares: Iterable[Share]) -> list[tuple[Value, Value, int]]:
    """(output, input, offset) of each share of a node of which both are there."""
    found = ((node.outputs[share.output], node.inputs[share.input], share.offset) for share in shares)
    return [(output, read, offset) for output, read, offset in found if output is not None and read is not None]


Shares = Callable[[Node], tuple[Share, ...]]

Specs = Sequence[TensorSpec | None]
Attrs = Mapping[str, Attr]
Infer = Callable[[Specs, Attrs], tuple[TensorSpec, ...]]
"""(specs of the inputs, None for an omitted one; attributes) -> specs of the outputs. Raises SpecError."""


class Emit(Protocol):
    """Appends nodes to a graph; what gradient rules and passes write with."""

    def __call__(self, op: str, *inputs: Value | None, **attrs: Attr) -> Value:
        """The only output of a new node. Raises SpecError when the op does not take such inputs."""

    def several(self, op: str, *inputs: Value | None, **attrs: Attr) -> tuple[Value, ...]:
        """All outputs of a new node."""

    def constant(self, number: float, like: Value, shape: tuple[int, ...] = ()) -> Value:
        """A constant of the type of `like`, the same number everywhere."""


Grads = tuple[Value | None, ...]
Gradient = Callable[[Emit, Node, Grads], Sequence[Value | None]]
"""(emit, node, gradients of its outputs) -> gradients of its inputs. None stands for zero; not all given are None."""


@dataclass(frozen=True)
class ByParts:
    """In the place of a gradient: `expand` writes the node in smaller commands and gives its outputs; these are
    differentiated."""

    expand: Callable[[Emit, Node], Sequence[Value]]


def none(node: Node) -> tuple[Share, ...]:
    """The fact of an op that shares nothing."""
    return ()


@dataclass(frozen=True)
class Op:
    """Facts about one command.

    views     the output *is* bytes of the input (Reshape, a contiguous Slice): no work when they
              lie at the same place, else a copy. Nothing is overwritten.
    parts     the output *contains* the input (Concat): no work for an input that was written in
              its place, else a copy. Nothing is overwritten.
    inplace   the kernel may overwrite the input with the output (Relu), provided the input is not
              read afterwards. Both have the same number of bytes.
    pure      the same inputs give the same outputs, and nothing else happens.
    arity     least and greatest number of inputs and of outputs; None where the op does not say.
    infer     the specs of the outputs; None where the op does not say
    gradient  the rule of reverse mode, written with ops; None where there is none
    """

    name: str
    views: Shares = none
    parts: Shares = none
    inplace: Shares = none
    pure: bool = True
    inputs: tuple[int, int] | None = None
    outputs: tuple[int, int] | None = None
    infer: Infer | None = None
    gradient: Gradient | ByParts | None = None


_dialects: dict[str, Callable[[str], Op]] = {}


def register(prefix: str, dialect: Callable[[str], Op]) -> None:
    """Make `dialect` answer for every op named `prefix.*`."""
    _dialects[prefix] = dialect


def registered(prefix: str) -> bool:
    """Whether some dialect answers for `prefix.*`."""
    return prefix in _dialects


def lookup(name: str) -> Op:
    """The record of the op called `name` ("dialect.Name"). Raises SubletError when there is none."""
    prefix = name.partition(".")[0]
    try:
        dialect = _dialects[prefix]
    except KeyError:
        known = ", ".join(sorted(_dialects)) or "none"
        raise SubletError(f"op {name!r} is of no known dialect (known: {known})") from None
    return dialect(name)
