"""What calls were seen to do: a trie of steps, each compared with what Python does now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sublet.base.numpy_types import NUMPY
from sublet.dynamic.eager import OMITTED
from sublet.dynamic.storage import Kind
from sublet.dynamic.tensor import EagerTensor, NumberTensor, Parameter
from sublet.nn.lines import Line, line_of

APPLY, GRADIENTS, UPDATE, DETACH, CUT, END = "apply", "gradients", "update", "detach", "cut", "end"


class New:
    """A tensor from outside that the call had not used before. A parameter must be the same one again."""

    __slots__ = ("kind", "parameter", "slot")

    def __init__(self, kind: Kind, slot: int, parameter: Parameter | None) -> None:
        self.kind = kind
        self.slot = slot
        self.parameter = parameter

    def fits(self, given: Any, call: Any, inputs: Sequence[Any]) -> bool:
        if not isinstance(given, EagerTensor) or given._kind is not self.kind or given._call is call:
            return False
        if isinstance(given, NumberTensor) or given._storage is None:
            return False
        return given is self.parameter if isinstance(given, Parameter) else self.parameter is None

    def __str__(self) -> str:
        return f"the parameter {self.parameter.name!r}" if self.parameter is not None else f"another {self.kind.spec}"


class Number:
    """A number of Python's. One that is seen to change is an input from then on."""

    __slots__ = ("kind", "slot", "type", "value", "varies")

    def __init__(self, kind: Kind, slot: int, value: Any) -> None:
        self.kind = kind
        self.slot = slot
        self.type = type(value)
        self.value = value
        self.varies = False

    def fits(self, given: Any, call: Any, inputs: Sequence[Any]) -> bool:
        if isinstance(given, NumberTensor):
            if given._call is call or given._kind is not self.kind:
                return False
            given = given.number
        if given.__class__ is not self.type:
            return False
        if self.varies or same_number(given, self.value):
            return True
        if self.type is bool or self.type is np.bool_:
            return False
        self.varies = True
        call.varies(self)
        return True

    def element(self) -> Any:
        """It, as an element of the tensor that it is."""
        return np.array(self.value).astype(NUMPY[self.kind.dtype]).item()

    def __str__(self) -> str:
        return "a number that changes" if self.varies else f"the number {self.value!r}"


class Same:
    """The tensor that is given at an earlier position of the step."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position

    def fits(self, given: Any, call: Any, inputs: Sequence[Any]) -> bool:
        return given is inputs[self.position]

    def __str__(self) -> str:
        return f"the same as operand {self.position}"


class Left:
    """An operand that is left out."""

    __slots__ = ()

    def fits(self, given: Any, call: Any, inputs: Sequence[Any]) -> bool:
        return given is None or given is OMITTED

    def __str__(self) -> str:
        return "left out"


Entry = int | New | Number | Same | Left
"""An operand: a value of the call by its number, or what it is else."""


@dataclass(eq=False, slots=True)
class Step:
    """One thing that Python did in a call.

    operands   what it did it with
    kinds      of the values that it gave; they are numbered from `base` on
    recording  whether gradients may go through it
    target     of an update
    kept       at a cut the values that are kept, the one that is looked at first; at the end the ones that are left
    command    what computes it, of a command
    delicate   whether attributes are compared by how they are written
    fresh      whether something from outside comes in; `opens` whether that is a tensor
    """

    what: str
    operands: tuple[Entry, ...] = ()
    op: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    shown_attrs: str = ""
    kinds: tuple[Kind, ...] = ()
    base: int = 0
    recording: bool = True
    target: Parameter | None = None
    kept: tuple[int, ...] = ()
    command: Any = None
    line: Line | None = None
    delicate: bool = False
    fresh: bool = False
    opens: bool = False

    @property
    def new(self) -> Iterator[New | Number]:
        """What comes from outside here first."""
        return (entry for entry in self.operands if isinstance(entry, New | Number))

    @property
    def read(self) -> list[int | None]:
        """The values that it reads, by position; None for what is left out."""
        found: list[int | None] = []
        for entry in self.operands:
            if isinstance(entry, int):
                found.append(entry)
            elif isinstance(entry, New | Number):
                found.append(entry.slot)
            else:
                found.append(found[entry.position] if isinstance(entry, Same) else None)
        return found

    @property
    def source(self) -> str:
        """The line of it."""
        return line_of(self.line)

    @property
    def made(self) -> range:
        """The values that it gives."""
        return range(self.base, self.base + len(self.kinds))

    def takes(self, inputs: Sequence[Any], call: Any) -> bool:
        """Whether the operands are such as these."""
        operands = self.operands
        if len(inputs) != len(operands):
            return False
        varying = False
        for entry, given in zip(operands, inputs):  # noqa: B905
            if entry.__class__ is int:
                try:
                    if given._slot != entry or given._call is not call:
                        return False
                except AttributeError:
                    return False
            elif entry.__class__ is Number:
                varying = True
            elif not entry.fits(given, call, inputs):  # type: ignore[union-attr]
                return False
        return not varying or all(
            entry.fits(given, call, inputs)
            for entry, given in zip(self.operands, inputs, strict=True)
            if isinstance(entry, Number)
        )

    def like(self, attrs: Mapping[str, Any]) -> bool:
        """Whether its command was applied with these attributes."""
        try:
            return (attrs == self.attrs and not self.delicate) or repr(attrs) == self.shown_attrs
        except ValueError:  # arrays
            return False

    def __str__(self) -> str:
        name = self.op or {CUT: "a look at a value", END: "the end"}.get(self.what, self.what)
        return f"{name} at {line_of(self.line)}" if self.line else name


def same_number(a: Any, b: Any) -> bool:
    """Whether two numbers of one type are the same, also in sign."""
    return bool(a == b) and (bool(a != 0) or repr(a) == repr(b))


def delicate(attrs: Mapping[str, Any]) -> bool:
    """Whether attributes may compare equal and mean something else: 0.0 and -0.0."""
    return any(
        isinstance(item, float) and not item
        for value in attrs.values()
        for item in (value if isinstance(value, list | tuple) else (value,))
    )


class Moment:
    """A node of the trie: what was seen to follow, the latest first."""

    __slots__ = ("children", "parent", "plan", "step")

    def __init__(self, step: Step | None, parent: Moment | None) -> None:
        self.step = step
        self.parent = parent
        self.children: list[Moment] = []
        self.plan: Any = None

    def path(self) -> list[Moment]:
        """From the first step to this one."""
        found: list[Moment] = []
        moment: Moment | None = self
        while moment is not None and moment.step is not None:
            found.append(moment)
            moment = moment.parent
        return found[::-1]

    def latest(self) -> Moment:
        """The end of the call that came through here last."""
        moment = self
        while moment.children:
            moment = moment.children[0]
        return moment

    def ends(self) -> Iterator[Moment]:
        """The ends of all calls that came through here."""
        waiting = [self]
        while waiting:
            moment = waiting.pop()
            if not moment.children and moment.step is not None:
                yield moment
            waiting += moment.children

    def to_front(self) -> None:
        """Let the path to here be the latest."""
        moment = self
        while moment.parent is not None:
            siblings = moment.parent.children
            if siblings[0] is not moment:
                siblings.remove(moment)
                siblings.insert(0, moment)
            moment = moment.parent

    def grow(self, steps: Sequence[Step]) -> Moment:
        """Add a path of steps, and give its end."""
        moment = self
        for step in steps:
            made = Moment(step, moment)
            moment.children.insert(0, made)
            moment = made
        return moment

    def cut_off(self) -> None:
        """Forget the path that leads only to here."""
        moment, parent = self, self.parent
        while parent is not None and len(parent.children) == 1 and parent.parent is not None:
            moment, parent = parent, parent.parent
        if parent is not None:
            parent.children.remove(moment)
