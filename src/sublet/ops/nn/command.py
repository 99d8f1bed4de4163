"""A command of the `nn` dialect: everything there is to know about it, in one record [NNC: command].

A command is added by one record in one file: its facts, its NumPy reference and its gradient. The tests walk all
records and check every fact of each on the uses in `tests/nn/examples.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from sublet.base.errors import SpecError, SubletError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.op import Attrs, ByParts, Gradient, Infer, Op, Share, Shares, Specs, none

PREFIX = "nn."

Compute = Callable[..., Any]
"""`compute(*inputs, **attrs)`: NumPy arrays in (None for an omitted input), an array or a tuple of arrays out.

It must not change its inputs. Arrays of 16-bit floats come as float32; results are rounded to the type
that `infer` says. It is the definition of the command: plain, total, and as exact as its type allows.
"""


@dataclass(frozen=True)
class Required:
    """Stands in `Command.attrs` for an attribute that must be given, and says of what kind: one like `like`."""

    like: Attr


REQUIRED_INTEGER = Required(0)
REQUIRED_NUMBER = Required(0.0)
REQUIRED_TEXT = Required("")
REQUIRED_INTEGERS = Required(())
REQUIRED_TEXTS = Required(("",))

WIDEST = range(-(1 << 63), 1 << 63)
"""What an integer attribute may be: kernels keep them in 64 bits."""


@dataclass(frozen=True)
class Command:
    """One command.

    name       without the prefix of the dialect
    text       what it computes, of what shapes, and whose idea it is: the help of `sublet.nn.<name>`
    infer      the specs of the outputs. Raises SpecError
    compute    the NumPy reference
    attrs      every attribute with its default, or that it is required; a node holds them all. Their kind is that of
               the default: False for 0 or 1, 0, 0.0, "" or () for integers
    gradient   the rule of reverse mode, a graph of commands; None when there is no gradient
    constant   positions of inputs that have no gradient although they may be floating-point numbers
    inputs, outputs   least and greatest number
    views, parts, inplace, pure   see `Op`
    """

    name: str
    text: str
    infer: Infer
    compute: Compute
    gradient: Gradient | ByParts | None = None
    attrs: Mapping[str, Attr | Required] = field(default_factory=dict)
    inputs: tuple[int, int] = (1, 1)
    outputs: tuple[int, int] = (1, 1)
    views: Shares = none
    parts: Shares = none
    inplace: Shares = none
    pure: bool = True

    @property
    def op(self) -> Op:
        """Its facts, as every op has them."""
        return Op(
            PREFIX + self.name,
            views=self.views,
            parts=self.parts,
            inplace=self.inplace,
            pure=self.pure,
            inputs=self.inputs,
            outputs=self.outputs,
            infer=self._inferred,
            gradient=self.gradient,
        )

    def _inferred(self, specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        """The specs of the outputs of a node, whose attributes must be complete."""
        complete = self.completed(attrs)
        missing = [key for key in complete if key not in attrs]
        if missing:
            raise SpecError(f"the attribute {missing[0]!r} is missing: a node holds them all")
        try:
            return self.infer(specs, complete)
        except SpecError:
            raise
        except SubletError as error:  # a tensor of an impossible shape
            raise SpecError(str(error)) from None

    def completed(self, attrs: Attrs) -> dict[str, Attr]:
        """The attributes with defaults filled in, as the graph keeps them: lists as tuples, flags as 0 or 1, and so on.

        Raises SpecError for an unknown, missing or ill-typed one.
        """
        unknown = [key for key in attrs if key not in self.attrs]
        if unknown:
            known = ", ".join(self.attrs) or "none"
            raise SpecError(f"nn.{self.name} has no attribute {unknown[0]!r}; it has {known}")
        found: dict[str, Attr] = {}
        for key, default in self.attrs.items():
            if key not in attrs and isinstance(default, Required):
                raise SpecError(f"nn.{self.name} needs the attribute {key!r}")
            like = default.like if isinstance(default, Required) else default
            found[key] = _typed(f"nn.{self.name}: {key}", attrs.get(key, like), like)
        return found


def _typed(name: str, value: Any, like: Attr) -> Any:
    """An attribute of the kind of `like`. Raises SpecError for another one."""
    if not isinstance(like, tuple):
        return _single(name, value, like)
    if not isinstance(value, list | tuple):
        raise SpecError(f"{name} = {value!r} must be a list")
    return tuple(_single(name, item, like[0] if like else 0) for item in value)


def _single(name: str, value: Any, like: Any) -> Any:
    kind, read = next((kind, read) for type_, kind, read in _KINDS if isinstance(like, type_))
    found = read(value)
    if found is None:
        raise SpecError(f"{name} = {value!r} must be {kind}")
    return found


def _flag(value: Any) -> int | None:
    return int(value) if isinstance(value, Integral) and value in (0, 1) else None


def _integer(value: Any) -> int | None:
    return int(value) if isinstance(value, Integral) and int(value) in WIDEST else None


def _number(value: Any) -> float | None:
    """A float; an integer that no float is equal to stays one, for nn.fill."""
    if isinstance(value, Integral):
        whole = int(value)
        return None if abs(whole) >= 1 << 64 else whole if float(whole) != whole else float(whole)
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
"""How an attribute of each kind is called, and read: None where it is of another kind."""


def over(*positions: int, output: int = 0) -> Shares:
    """The fact that output `output` may overwrite any input at `positions` that has its spec."""

    def shares(node: Node) -> tuple[Share, ...]:
        result = node.outputs[output] if output < len(node.outputs) else None
        return tuple(Share(output, i) for i in positions if i < len(node.inputs) and _same(node.inputs[i], result))

    return shares


def over_only(*pairs: tuple[int, int]) -> Shares:
    """The fact that output o may overwrite input i for each (o, i), if that input is given at no other position."""

    def shares(node: Node) -> tuple[Share, ...]:
        found = []
        for output, i in pairs:
            given = output < len(node.outputs) and i < len(node.inputs)
            if given and _same(node.inputs[i], node.outputs[output]) and node.inputs.count(node.inputs[i]) == 1:
                found.append(Share(output, i))
        return tuple(found)

    return shares


def _same(source: Value | None, result: Value | None) -> bool:
    if source is None or result is None:
        return False
    a, b = source.spec, result.spec
    return (
        isinstance(a, TensorSpec)
        and isinstance(b, TensorSpec)
        and a.nbytes > 0
        and (a.shape == b.shape and a.dtype.bits == b.dtype.bits >= 8)
    )


def whole(node: Node) -> tuple[Share, ...]:
    """The fact that output 0 is all the bytes of input 0: a reshape."""
    source, result = node.inputs[0], node.outputs[0]
    if source is None or result is None or not source.nbytes or source.nbytes != result.nbytes:
        return ()
    return (Share(0, 0),)


def spec_of(value: Value) -> TensorSpec:
    """The spec of a value of the dialect, which is always planned. Raises SpecError when it is not."""
    if not isinstance(value.spec, TensorSpec):
        raise SpecError(f"%{value.name} is {value.spec}: commands of the nn dialect take tensors of known shape")
    return value.spec


def pick(attrs: Attrs, key: str) -> Any:
    """An attribute, untyped: its record says what it is."""
    return attrs[key]
