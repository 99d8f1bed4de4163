"""Op records: the facts of an operator, as the only interface of planner, passes, checker and runtime to operators.

A dialect is a function from the name of an op to the record, registered under a prefix; `lookup` finds the record for
any node. Facts are functions of one node: of specs, attributes and literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sublet.base.errors import SubletError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value


class Share(NamedTuple):
    """A statement that output `output` and input `input` of a node may share bytes.

    Byte 0 of the output and byte 0 of the input are `offset` bytes apart. For a view, the output starts at `offset` in
    the input. For a concat operand in place, the input starts at `offset` in the output.
    """

    output: int
    input: int
    offset: int = 0


def present_shares(node: Node, shares: Iterable[Share]) -> list[tuple[Value, Value, int]]:
    """Return (output, input, offset) for each share of a node, skipping shares with an omitted output or input."""
    present = ((node.outputs[share.output], node.inputs[share.input], share.offset) for share in shares)
    return [(output, read, offset) for output, read, offset in present if output is not None and read is not None]


Shares = Callable[[Node], tuple[Share, ...]]

Specs = Sequence[TensorSpec | None]
Attrs = Mapping[str, Attr]
Infer = Callable[[Specs, Attrs], tuple[TensorSpec, ...]]
"""(specs of the inputs, None if omitted; attributes) -> specs of the outputs. Raises SpecError."""


class Emit(Protocol):
    """A function appending nodes to a graph, used by gradient rules and passes."""

    def __call__(self, op: str, *inputs: Value | None, **attrs: Attr) -> Value:
        """Append a node and return the only output.

        Raises SpecError if the op rejects the inputs or has several outputs.
        """

    def all_outputs(self, op: str, *inputs: Value | None, **attrs: Attr) -> tuple[Value, ...]:
        """Append a node and return all outputs."""

    def constant(self, number: float, like: Value, shape: tuple[int, ...] = ()) -> Value:
        """Return a constant with the type of `like`, with `number` as every element."""


Grads = tuple[Value | None, ...]
Gradient = Callable[[Emit, Node, Grads], Sequence[Value | None]]
"""(emit, node, gradients of the outputs) -> gradients of the inputs. None is zero; not all outputs have None."""


@dataclass(frozen=True)
class GradientByExpansion:
    """A gradient by expansion, in place of a gradient rule.

    `expand` writes the node as smaller commands and returns their outputs; the smaller commands are differentiated.
    """

    expand: Callable[[Emit, Node], Sequence[Value]]


def no_shares(node: Node) -> tuple[Share, ...]:
    """Return no shares: the fact of an op without shared bytes."""
    return ()


@dataclass(frozen=True)
class Op:
    """The facts of an op.

    views     the output *is* bytes of the input (Reshape, a contiguous Slice): no work if both lie at the same place,
              else a copy. No bytes are overwritten.
    parts     the output *contains* the input (Concat): no work for an input already written in place, else a copy. No
              bytes are overwritten.
    inplace   the kernel may overwrite the input with the output (Relu), provided no later node reads the input. Both
              have the same number of bytes.
    pure      equal inputs give equal outputs, without side effects.
    inputs, outputs   minimum and maximum number; None if unknown.
    infer     the specs of the outputs; None if unknown
    gradient  the rule of reverse mode, written with ops; None if missing
    """

    name: str
    views: Shares = no_shares
    parts: Shares = no_shares
    inplace: Shares = no_shares
    pure: bool = True
    inputs: tuple[int, int] | None = None
    outputs: tuple[int, int] | None = None
    infer: Infer | None = None
    gradient: Gradient | GradientByExpansion | None = None


_dialects: dict[str, Callable[[str], Op]] = {}


def register(prefix: str, dialect: Callable[[str], Op]) -> None:
    """Register `dialect` for every op named `prefix.*`."""
    _dialects[prefix] = dialect


def is_registered(prefix: str) -> bool:
    """True if a dialect is registered for `prefix.*`."""
    return prefix in _dialects


def lookup(name: str) -> Op:
    """Return the record of the op `name` ("dialect.Name"). Raises SubletError if no dialect has the op."""
    prefix = name.partition(".")[0]
    try:
        dialect = _dialects[prefix]
    except KeyError:
        prefixes = ", ".join(sorted(_dialects)) or "none"
        raise SubletError(f"op {name!r} has an unknown dialect (known: {prefixes})") from None
    return dialect(name)
