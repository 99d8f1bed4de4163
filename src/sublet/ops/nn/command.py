"""Commands of the `nn` dialect: all facts of a command in a single record [NNC: command].

A command is defined by a single record in a single file: facts, NumPy reference and gradient. The tests check every
fact of every record on the examples in `tests/nn/examples.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from sublet.base.errors import SpecError, SubletError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.op import (
    Attrs,
    Gradient,
    GradientByExpansion,
    Infer,
    Op,
    Share,
    Shares,
    Specs,
    Strided,
    can_overwrite,
    no_shares,
    no_strides,
)
from sublet.ops.slice_maps import Slices, no_slices

PREFIX = "nn."

Compute = Callable[..., Any]
"""`compute(*inputs, **attrs)`: NumPy arrays in (None for an omitted input), an array or a tuple of arrays out.

The function must not change the inputs. Arrays of 16-bit floats arrive as float32; results are rounded to the type
given by `infer`. The function is the definition of the command: simple, total, and as exact as the type allows.
"""


@dataclass(frozen=True)
class Required:
    """A marker in `Command.attrs` for a required attribute, of the kind of `like`."""

    like: Attr


REQUIRED_INTEGER = Required(0)
REQUIRED_NUMBER = Required(0.0)
REQUIRED_TEXT = Required("")
REQUIRED_INTEGERS = Required(())
REQUIRED_TEXTS = Required(("",))

INTEGER_RANGE = range(-(1 << 63), 1 << 63)
"""The range of integer attributes: kernels store integers in 64 bits."""


@dataclass(frozen=True)
class Command:
    """A command of the nn dialect.

    name       the name without the dialect prefix
    text       a description with shapes and literature: the help of `sublet.nn.<name>`
    infer      the specs of the outputs. Raises SpecError
    compute    the NumPy reference
    attrs      every attribute with the default, or a marker for a required attribute; a node stores all attributes. The
               default defines the kind: False for 0 or 1, 0, 0.0, "" or () for integers
    gradient   the rule of reverse mode, a graph of commands; None without a gradient
    inputs, outputs   minimum and maximum number
    views, parts, inplace, slices, strided, pure   see `Op`
    """

    name: str
    text: str
    infer: Infer
    compute: Compute
    gradient: Gradient | GradientByExpansion | None = None
    attrs: Mapping[str, Attr | Required] = field(default_factory=dict)
    inputs: tuple[int, int] = (1, 1)
    outputs: tuple[int, int] = (1, 1)
    views: Shares = no_shares
    parts: Shares = no_shares
    inplace: Shares = no_shares
    slices: Slices = no_slices
    strided: Strided = no_strides
    pure: bool = True

    @property
    def op(self) -> Op:
        """The facts as an op record."""
        return Op(
            PREFIX + self.name,
            views=self.views,
            parts=self.parts,
            inplace=self.inplace,
            slices=self.slices,
            by_rows=True,
            strided=self.strided,
            pure=self.pure,
            inputs=self.inputs,
            outputs=self.outputs,
            infer=self._infer_checked,
            gradient=self.gradient,
        )

    def _infer_checked(self, specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        """Return the specs of the outputs of a node with complete attributes. Raises SpecError."""
        complete = self.complete_attributes(attrs)
        missing = [key for key in complete if key not in attrs]
        if missing:
            raise SpecError(f"the attribute {missing[0]!r} is missing: a node needs a value for every attribute")
        try:
            return self.infer(specs, complete)
        except SpecError:
            raise
        except SubletError as error:  # a tensor with an invalid shape
            raise SpecError(str(error)) from None

    def complete_attributes(self, attrs: Attrs) -> dict[str, Attr]:
        """Return the attributes with defaults filled in, in the form stored by a graph (tuples, flags as 0 or 1).

        Raises SpecError for an unknown, missing or ill-typed attribute.
        """
        unknown = [key for key in attrs if key not in self.attrs]
        if unknown:
            known = ", ".join(self.attrs) or "none"
            raise SpecError(f"nn.{self.name} has no attribute {unknown[0]!r}. Its attributes: {known}.")
        complete: dict[str, Attr] = {}
        for key, default in self.attrs.items():
            if key not in attrs and isinstance(default, Required):
                raise SpecError(f"nn.{self.name} needs the attribute {key!r}")
            like = default.like if isinstance(default, Required) else default
            complete[key] = _coerce_attribute(f"nn.{self.name}: {key}", attrs.get(key, like), like)
        return complete


def _coerce_attribute(name: str, value: Any, like: Attr) -> Any:
    """Return an attribute converted to the kind of `like`. Raises SpecError for a value of a different kind."""
    if not isinstance(like, tuple):
        return _coerce_item(name, value, like)
    if not isinstance(value, list | tuple):
        raise SpecError(f"{name} = {value!r} must be a list")
    return tuple(_coerce_item(name, item, like[0] if like else 0) for item in value)


def _coerce_item(name: str, value: Any, like: Any) -> Any:
    kind, read = next((kind, read) for type_, kind, read in _KINDS if isinstance(like, type_))
    converted = read(value)
    if converted is None:
        raise SpecError(f"{name} = {value!r} must be {kind}")
    return converted


def _flag(value: Any) -> int | None:
    return int(value) if isinstance(value, Integral) and value in (0, 1) else None


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, Integral) and int(value) in INTEGER_RANGE else None


def _number(value: Any) -> float | None:
    """Return a float; an integer without an equal float stays an integer, for nn.fill.

    None for integers of magnitude 2^64 or more.
    """
    if isinstance(value, Integral):
        integer = int(value)
        return None if abs(integer) >= 1 << 64 else integer if float(integer) != integer else float(integer)
    return float(value) if isinstance(value, Real) else None


def _text(value: Any) -> str | None:
    text = value.text if isinstance(value, DType) else value
    return text if isinstance(text, str) else None


_KINDS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (bool, "0 or 1", _flag),
    (int, "an integer of 64 bits", _integer),
    (float, "a number", _number),
    (str, "text", _text),
)
"""For each kind of attribute the name and the reader; a reader returns None for a value of a different kind."""


def overwrite_unless_repeated(*pairs: tuple[int, int]) -> Shares:
    """Return the fact: for each (o, i), output o may overwrite input i, unless the node reads input i twice."""

    def shares(node: Node) -> tuple[Share, ...]:
        shares_found = []
        for output, i in pairs:
            is_present = output < len(node.outputs) and i < len(node.inputs)
            if (
                is_present
                and can_overwrite(node.inputs[i], node.outputs[output])
                and node.inputs.count(node.inputs[i]) == 1
            ):
                shares_found.append(Share(output, i))
        return tuple(shares_found)

    return shares


def same_bytes(node: Node) -> tuple[Share, ...]:
    """Return the share of output 0 with all bytes of input 0, as for a reshape."""
    source, result = node.inputs[0], node.outputs[0]
    if source is None or result is None or not source.nbytes or source.nbytes != result.nbytes:
        return ()
    return (Share(0, 0),)


def spec_of(value: Value) -> TensorSpec:
    """Return the spec of a value of the dialect. Raises SpecError if the value is not plannable."""
    if not isinstance(value.spec, TensorSpec):
        raise SpecError(f"%{value.name} is {value.spec}: commands of the nn dialect take tensors of known shape")
    return value.spec


def pick(attrs: Attrs, key: str) -> Any:
    """Return an attribute without a static type; the command record defines the type."""
    return attrs[key]
