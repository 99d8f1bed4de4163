"""Operator calls as data storable in a plan: the arguments as JSON in the attributes of a node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any

from sublet.base.errors import Finding, GraphError
from sublet.base.optional_imports import require
from sublet.ir.graph import Attr, Node

# Lookup of PyTorch's operators and enumerations by name.
#
# A name may come from a file: a `.pt2` program, a graph in text form, a plan. `getattr` on PyTorch's modules would
# import modules and reach any attribute. A name is therefore looked up only in tables of registered PyTorch operators.

NAMESPACES = ("aten", "_c10d_functional")
"""Namespaces of operators callable by programs."""

REFUSED_OPERATORS = re.compile(r"from_file|_print|_cufft_\w+|set_data|retain_grad|record_stream|_backward")
"""Operators, without overloads, that open files, print, or change PyTorch's state."""

ALLOWED_TYPES = {
    *("Tensor", "int", "float", "bool", "number", "str"),
    *("ScalarType", "Layout", "Device", "MemoryFormat", "Generator", "Any"),
}
"""Types of arguments allowed in programs, alone or in lists. A generator is always None there, and an argument of any
type (the group of a collective) is a text.
"""

DEVICE_NAME = re.compile(r"(cpu|cuda|meta)(:[0-9]{1,3})?")


@cache
def operators() -> frozenset[str]:
    """Return the names of all operators callable by programs, for example `aten.add.Tensor`."""
    c = require("torch", extra="torch")._C
    names = set()
    for full in c._dispatch_get_all_op_names():
        namespace, _, rest = full.partition("::")
        name, _, overload = rest.partition(".")
        if namespace not in NAMESPACES or REFUSED_OPERATORS.fullmatch(name):
            continue
        if _takes_data(c._get_schema(f"{namespace}::{name}", overload)):
            names.add(f"{namespace}.{name}.{overload or 'default'}")
    return frozenset(names)


def _takes_data(schema: Any) -> bool:
    """True if all arguments of an operator are tensors, numbers, texts or enumerations."""
    words = {word for each in schema.arguments for word in re.findall(r"\w+", str(each.real_type))}
    return words <= {*ALLOWED_TYPES, "Optional", "List"}


def find_operator(name: str) -> Any:
    """Return the operator of a name like `aten.add.Tensor`; None if missing or not callable by programs."""
    if name not in operators():
        return None
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(require("torch", extra="torch").ops, namespace), packet), overload)


@cache
def _enumerations() -> dict[str, dict[str, Any]]:
    t = require("torch", extra="torch")
    kinds = {"dtype": t.dtype, "layout": t.layout, "memory_format": t.memory_format}
    return {
        kind: {name: each for name, each in vars(t).items() if isinstance(each, cls)} for kind, cls in kinds.items()
    }


def find_named(kind: str, name: str) -> Any:
    """Return the dtype, layout, memory format or device with a name like `float32`; None if PyTorch lacks the name."""
    if kind == "device":
        return require("torch", extra="torch").device(name) if DEVICE_NAME.fullmatch(name) else None
    return _enumerations()[kind].get(name)


MAX_CACHED_CALLS = 1 << 13
"""Maximum decoded calls in the cache, about 2 KB each: more than one graph has. Beyond the limit, the least recently
used call is dropped.
"""


@dataclass(frozen=True, slots=True)
class StridedLayout:
    """A strided view of a value's elements: extents, strides and offset, all counted in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @classmethod
    def contiguous(cls, size: Sequence[int], offset: int = 0) -> StridedLayout:
        """Return a row-major view without gaps."""
        return cls(tuple(size), tuple(prod(max(n, 1) for n in size[axis + 1 :]) for axis in range(len(size))), offset)

    @property
    def elements(self) -> int:
        return prod(self.size)

    @property
    def is_contiguous(self) -> bool:
        """True for a row-major view without gaps; strides of axes with one element do not matter."""
        return not self.elements or (
            self.axes_by_stride == tuple(axis for axis, n in enumerate(self.size) if n != 1) and self.is_dense
        )

    @property
    def axes_by_stride(self) -> tuple[int, ...]:
        """The axes with more than one element, from the largest stride to the smallest."""
        axes = [axis for axis, n in enumerate(self.size) if n != 1]
        return tuple(sorted(axes, key=lambda axis: -self.stride[axis]))

    @property
    def is_dense(self) -> bool:
        """True if the view covers a contiguous range, each element once, in any order of axes."""
        step = 1
        for axis in reversed(self.axes_by_stride):
            if self.stride[axis] != step:
                return False
            step *= self.size[axis]
        return True

    @property
    def extents_in_memory(self) -> tuple[int, ...]:
        """The extents of a dense view in the order of memory."""
        ones = (1,) * sum(n == 1 for n in self.size)
        return (*ones, *(self.size[axis] for axis in self.axes_by_stride))

    @property
    def canonical(self) -> StridedLayout:
        """The same view, with strides of one-element axes as in a contiguous view."""
        usual = StridedLayout.contiguous(self.size).stride
        stride = tuple(own if n > 1 else other for n, own, other in zip(self.size, self.stride, usual, strict=True))
        return StridedLayout(self.size, stride, self.offset)


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """A tensor argument: the node's input number `input`, viewed with `layout`; None for the layout of the spec."""

    input: int
    layout: StridedLayout | None = None


@dataclass(frozen=True, slots=True)
class NamedConstant:
    """A named PyTorch constant: a dtype, device, layout or memory format."""

    kind: str
    name: str


Argument = TensorArgument | NamedConstant | None | bool | int | float | str | tuple["Argument", ...]
KINDS = ("dtype", "device", "layout", "memory_format")


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """The positional and keyword arguments of a call, and the layouts of the outputs (None: the spec's layout)."""

    args: tuple[Argument, ...] = ()
    kwargs: tuple[tuple[str, Argument], ...] = ()
    outputs: tuple[StridedLayout | None, ...] = ()

    def tensor_arguments(self) -> Iterator[TensorArgument]:
        """Yield the tensor arguments in order."""
        for argument in (*self.args, *(argument for _, argument in self.kwargs)):
            yield from _tensor_arguments(argument)


def _tensor_arguments(argument: Argument) -> Iterator[TensorArgument]:
    if isinstance(argument, TensorArgument):
        yield argument
    elif isinstance(argument, tuple):
        for inner in argument:
            yield from _tensor_arguments(inner)


def encode(call: OperatorCall) -> dict[str, Attr]:
    """Return the call as attributes of a node."""
    record = {
        "args": [_encode_argument(argument) for argument in call.args],
        "kwargs": {name: _encode_argument(argument) for name, argument in call.kwargs},
        "outputs": [None if layout is None else _encode_layout(layout) for layout in call.outputs],
    }
    return {"call": json.dumps(record, separators=(",", ":"))}


def decode(node: Node) -> OperatorCall:
    """Return the call of a node. Raises GraphError if the attributes hold no valid call."""
    text = node.attrs.get("call")
    if not isinstance(text, str):
        what = f"{node.op} has no attribute `call` with its arguments"
        raise GraphError([Finding("call", f"node {node.name}", what)])
    return _decode_text(text)


def _encode_layout(layout: StridedLayout) -> list[Any]:
    return [list(layout.size), list(layout.stride), layout.offset]


def _encode_argument(argument: Argument) -> Any:
    if isinstance(argument, TensorArgument):
        return {"use": argument.input} | ({"as": _encode_layout(argument.layout)} if argument.layout else {})
    if isinstance(argument, NamedConstant):
        return {argument.kind: argument.name}
    if isinstance(argument, tuple):
        return [_encode_argument(inner) for inner in argument]
    return argument


@lru_cache(maxsize=MAX_CACHED_CALLS)
def _decode_text(text: str) -> OperatorCall:
    try:
        record = json.loads(text)
        return OperatorCall(
            tuple(_decode_argument(item) for item in record["args"]),
            tuple((name, _decode_argument(item)) for name, item in record["kwargs"].items()),
            tuple(None if item is None else _decode_layout(item) for item in record["outputs"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GraphError([Finding("call", "attribute `call`", f"{text[:80]!r} is no call: {error}")]) from None


def _decode_argument(argument: Any) -> Argument:
    if isinstance(argument, list):
        return tuple(_decode_argument(inner) for inner in argument)
    if isinstance(argument, dict):
        if "use" in argument:
            return TensorArgument(int(argument["use"]), _decode_layout(argument["as"]) if "as" in argument else None)
        ((kind, name),) = argument.items()
        if kind not in KINDS or not isinstance(name, str):
            raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}")
        return NamedConstant(kind, name)
    return argument  # type: ignore[no-any-return]  # the remaining JSON types: None, bool, int, float, str


def _decode_layout(text: Any) -> StridedLayout:
    size, stride, offset = text
    if len(size) != len(stride):
        raise ValueError("a layout needs as many strides as extents")
    return StridedLayout(tuple(map(int, size)), tuple(map(int, stride)), int(offset))
