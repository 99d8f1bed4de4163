"""Operator calls as data storable in a plan: the arguments as JSON in the attributes of a node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from sublet.base.errors import Finding, GraphError
from sublet.ir.graph import Attr, Node

MOST_CALLS = 1 << 13
"""Maximum decoded calls in the cache, about 2 KB each: more than one graph has. Beyond the limit, the least recently
used call is dropped.
"""


@dataclass(frozen=True, slots=True)
class Strided:
    """A strided view of a value's elements: extents, strides and offset, all counted in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @classmethod
    def contiguous(cls, size: Sequence[int], offset: int = 0) -> Strided:
        """Return a row-major view without gaps."""
        return cls(tuple(size), tuple(prod(max(n, 1) for n in size[axis + 1 :]) for axis in range(len(size))), offset)

    @property
    def elements(self) -> int:
        return prod(self.size)

    @property
    def is_contiguous(self) -> bool:
        """True for a row-major view without gaps; strides of axes with one element do not matter."""
        return not self.elements or (
            self.ordered == tuple(axis for axis, n in enumerate(self.size) if n != 1) and self.is_dense
        )

    @property
    def ordered(self) -> tuple[int, ...]:
        """The axes with more than one element, from the largest stride to the smallest."""
        axes = [axis for axis, n in enumerate(self.size) if n != 1]
        return tuple(sorted(axes, key=lambda axis: -self.stride[axis]))

    @property
    def is_dense(self) -> bool:
        """True if the view covers a contiguous range, each element once, in any order of axes."""
        step = 1
        for axis in reversed(self.ordered):
            if self.stride[axis] != step:
                return False
            step *= self.size[axis]
        return True

    @property
    def in_memory(self) -> tuple[int, ...]:
        """The extents of a dense view in the order of memory."""
        ones = (1,) * sum(n == 1 for n in self.size)
        return (*ones, *(self.size[axis] for axis in self.ordered))

    @property
    def normal(self) -> Strided:
        """The same view, with strides of one-element axes as in a contiguous view."""
        usual = Strided.contiguous(self.size).stride
        stride = tuple(own if n > 1 else other for n, own, other in zip(self.size, self.stride, usual, strict=True))
        return Strided(self.size, stride, self.offset)


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor argument: the node's input number `input`, viewed with `layout`; None for the layout of the spec."""

    input: int
    layout: Strided | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """A named PyTorch constant: a dtype, device, layout or memory format."""

    kind: str
    name: str


Argument = Use | Named | None | bool | int | float | str | tuple["Argument", ...]
KINDS = ("dtype", "device", "layout", "memory_format")


@dataclass(frozen=True, slots=True)
class Call:
    """The positional and keyword arguments of a call, and the layouts of the outputs (None: the spec's layout)."""

    args: tuple[Argument, ...] = ()
    kwargs: tuple[tuple[str, Argument], ...] = ()
    outputs: tuple[Strided | None, ...] = ()

    def uses(self) -> Iterator[Use]:
        """Yield the tensor arguments in order."""
        for argument in (*self.args, *(argument for _, argument in self.kwargs)):
            yield from _uses(argument)


def _uses(argument: Argument) -> Iterator[Use]:
    if isinstance(argument, Use):
        yield argument
    elif isinstance(argument, tuple):
        for inner in argument:
            yield from _uses(inner)


def encode(call: Call) -> dict[str, Attr]:
    """Return the call as attributes of a node."""
    record = {
        "args": [_encoded(argument) for argument in call.args],
        "kwargs": {name: _encoded(argument) for name, argument in call.kwargs},
        "outputs": [None if layout is None else _layout(layout) for layout in call.outputs],
    }
    return {"call": json.dumps(record, separators=(",", ":"))}


def decode(node: Node) -> Call:
    """Return the call of a node. Raises GraphError if the attributes hold no valid call."""
    text = node.attrs.get("call")
    if not isinstance(text, str):
        what = f"{node.op} has no attribute `call` that says what it is called with"
        raise GraphError([Finding("call", f"node {node.name}", what)])
    return _decoded(text)


def _layout(layout: Strided) -> list[Any]:
    return [list(layout.size), list(layout.stride), layout.offset]


def _encoded(argument: Argument) -> Any:
    if isinstance(argument, Use):
        return {"use": argument.input} | ({"as": _layout(argument.layout)} if argument.layout else {})
    if isinstance(argument, Named):
        return {argument.kind: argument.name}
    if isinstance(argument, tuple):
        return [_encoded(inner) for inner in argument]
    return argument


@lru_cache(maxsize=MOST_CALLS)
def _decoded(text: str) -> Call:
    try:
        record = json.loads(text)
        return Call(
            tuple(_argument(item) for item in record["args"]),
            tuple((name, _argument(item)) for name, item in record["kwargs"].items()),
            tuple(None if item is None else _strided(item) for item in record["outputs"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise GraphError([Finding("call", "attribute `call`", f"{text[:80]!r} is no call: {error}")]) from None


def _argument(found: Any) -> Argument:
    if isinstance(found, list):
        return tuple(_argument(inner) for inner in found)
    if isinstance(found, dict):
        if "use" in found:
            return Use(int(found["use"]), _strided(found["as"]) if "as" in found else None)
        ((kind, name),) = found.items()
        if kind not in KINDS or not isinstance(name, str):
            raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}")
        return Named(kind, name)
    return found  # type: ignore[no-any-return]  # the remaining JSON types: None, bool, int, float, str


def _strided(found: Any) -> Strided:
    size, stride, offset = found
    if len(size) != len(stride):
        raise ValueError("a layout has as many steps as extents")
    return Strided(tuple(map(int, size)), tuple(map(int, stride)), int(offset))
