"""The trie of recorded calls. The present call is matched step by step with the children of a trie node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sublet.base.tensor import NUMPY
from sublet.dynamic.eager_executor import OMITTED
from sublet.dynamic.tensor import EagerTensor, NumberTensor, Parameter
from sublet.dynamic.tensor_storage import TensorKind
from sublet.nn.source_location import CodePosition, format_position

APPLY, GRADIENTS, UPDATE, DETACH, OBSERVE, END = "apply", "gradients", "update", "detach", "cut", "end"


class ExternalTensor:
    """A tensor operand from outside, at the first use in the call.

    A parameter is matched only by itself, any other tensor by any tensor of the same kind.
    """

    __slots__ = ("kind", "parameter", "slot")

    def __init__(self, kind: TensorKind, slot: int, parameter: Parameter | None) -> None:
        self.kind = kind
        self.slot = slot
        self.parameter = parameter

    def fits(self, given: Any, call: Any, inputs: Sequence[Any]) -> bool:
        """True if `given` is a tensor from outside of the same kind, and the same parameter for a parameter."""
        if not isinstance(given, EagerTensor) or given._kind is not self.kind or given._call is call:
            return False
        if isinstance(given, NumberTensor) or given._storage is None:
            return False
        return given is self.parameter if isinstance(given, Parameter) else self.parameter is None

    def __str__(self) -> str:
        return f"the parameter {self.parameter.name!r}" if self.parameter is not None else f"another {self.kind.spec}"


class NumberOperand:
    """A Python number as operand. After the first change the number is an input of the plan."""

    __slots__ = ("kind", "slot", "type", "value", "varies")

    def __init__(self, kind: TensorKind, slot: int, value: Any) -> None:
        self.kind = kind
        self.slot = slot
        self.type = type(value)
        self.value = value
        self.varies = False

    def fits(self, given: Any, call: Any, inputs: Sequence[Any]) -> bool:
        """True if `given` is a number of the same type, and equal for a bool.

        The first change of a value is noted at the call: the number becomes an input.
        """
        if isinstance(given, NumberTensor):
            if given._call is call or given._kind is not self.kind:
                return False
            given = given.number
        if given.__class__ is not self.type:
            return False
        if self.varies or are_same_number(given, self.value):
            return True
        if self.type is bool or self.type is np.bool_:
            return False
        self.varies = True
        call.varies(self)
        return True

    def element(self) -> Any:
        """Return the number as an element of its tensor."""
        return np.array(self.value).astype(NUMPY[self.kind.dtype]).item()

    def __str__(self) -> str:
        return "a number that changes" if self.varies else f"the number {self.value!r}"


class RepeatedOperand:
    """An operand equal to an earlier operand of the same step."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position

    def fits(self, given: Any, call: Any, inputs: Sequence[Any]) -> bool:
        """True if `given` is the earlier operand."""
        return given is inputs[self.position]

    def __str__(self) -> str:
        return f"the same as operand {self.position}"


class OmittedOperand:
    """An omitted operand."""

    __slots__ = ()

    def fits(self, given: Any, call: Any, inputs: Sequence[Any]) -> bool:
        """True if the operand is omitted."""
        return given is None or given is OMITTED

    def __str__(self) -> str:
        return "left out"


StepOperand = int | ExternalTensor | NumberOperand | RepeatedOperand | OmittedOperand
"""An operand: the slot of a value of the call, or the description of another operand."""


@dataclass(eq=False, slots=True)
class CallStep:
    """One step of a call: a command, gradients, an update, a detach, an observation, or the end.

    what       the kind of the step: APPLY, GRADIENTS, UPDATE, DETACH, OBSERVE or END
    operands   the operands
    kinds      the kinds of the results; the slots of the results begin at `base`
    recording  False in `no_grad`
    target     the parameter of an update
    kept       at an observation the slots to save, the observed slot first; at the end the slots of results
    command    the specialized command
    delicate   True if attributes must be compared as text
    fresh      True if some operand comes from outside
    opens      True if some operand is a tensor from outside
    scope      the scopes and modules around the step, for the names of its values
    """

    what: str
    operands: tuple[StepOperand, ...] = ()
    op: str = ""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    shown_attrs: str = ""
    kinds: tuple[TensorKind, ...] = ()
    base: int = 0
    recording: bool = True
    target: Parameter | None = None
    kept: tuple[int, ...] = ()
    command: Any = None
    line: CodePosition | None = None
    delicate: bool = False
    fresh: bool = False
    opens: bool = False
    scope: str = ""

    @property
    def external_operands(self) -> Iterator[ExternalTensor | NumberOperand]:
        """The operands from outside, at their first use."""
        return (entry for entry in self.operands if isinstance(entry, ExternalTensor | NumberOperand))

    @property
    def operand_slots(self) -> list[int | None]:
        """The slots of the operands by position; None for an omitted operand."""
        slots: list[int | None] = []
        for entry in self.operands:
            if isinstance(entry, int):
                slots.append(entry)
            elif isinstance(entry, ExternalTensor | NumberOperand):
                slots.append(entry.slot)
            else:
                slots.append(slots[entry.position] if isinstance(entry, RepeatedOperand) else None)
        return slots

    @property
    def source(self) -> str:
        """The user's line."""
        return format_position(self.line)

    @property
    def result_slots(self) -> range:
        """The slots of the results."""
        return range(self.base, self.base + len(self.kinds))

    def matches_operands(self, inputs: Sequence[Any], call: Any) -> bool:
        """True if the operands match the inputs.

        Numbers are matched last: a mismatch elsewhere must not turn a number into an input.
        """
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
            elif entry.__class__ is NumberOperand:
                varying = True
            elif not entry.fits(given, call, inputs):  # type: ignore[union-attr]
                return False
        return not varying or all(
            entry.fits(given, call, inputs)
            for entry, given in zip(self.operands, inputs, strict=True)
            if isinstance(entry, NumberOperand)
        )

    def matches_attributes(self, attrs: Mapping[str, Any]) -> bool:
        """True if the attributes of the command are equal."""
        try:
            return (attrs == self.attrs and not self.delicate) or repr(attrs) == self.shown_attrs
        except ValueError:  # arrays have no single truth value
            return False

    def __str__(self) -> str:
        name = self.op or {OBSERVE: "a read of a value", END: "the end"}.get(self.what, self.what)
        return f"{name} at {format_position(self.line)}" if self.line else name


def are_same_number(a: Any, b: Any) -> bool:
    """True if two numbers of one type are equal, including the sign of zero."""
    return bool(a == b) and (bool(a != 0) or repr(a) == repr(b))


def needs_exact_attributes(attrs: Mapping[str, Any]) -> bool:
    """True if attributes may compare equal with different meaning, as 0.0 and -0.0."""
    return any(
        isinstance(item, float) and not item
        for value in attrs.values()
        for item in (value if isinstance(value, list | tuple) else (value,))
    )


class TrieNode:
    """A node of the trie of recorded calls: a step, and as children the next steps, the most recent first."""

    __slots__ = ("children", "parent", "plan", "step")

    def __init__(self, step: CallStep | None, parent: TrieNode | None) -> None:
        self.step = step
        self.parent = parent
        self.children: list[TrieNode] = []
        self.plan: Any = None

    def path(self) -> list[TrieNode]:
        """Return the nodes from the first step to the node."""
        nodes: list[TrieNode] = []
        node: TrieNode | None = self
        while node is not None and node.step is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def latest_end(self) -> TrieNode:
        """Return the end of the most recent call through the node."""
        node = self
        while node.children:
            node = node.children[0]
        return node

    def call_ends(self) -> Iterator[TrieNode]:
        """Yield the ends of all calls through the node."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if not node.children and node.step is not None:
                yield node
            waiting += node.children

    def mark_latest(self) -> None:
        """Mark the path to the node as the most recent."""
        node = self
        while node.parent is not None:
            siblings = node.parent.children
            if siblings[0] is not node:
                siblings.remove(node)
                siblings.insert(0, node)
            node = node.parent

    def add_path(self, steps: Sequence[CallStep]) -> TrieNode:
        """Add a path of steps below the node and return the last node."""
        node = self
        for step in steps:
            child = TrieNode(step, node)
            node.children.insert(0, child)
            node = child
        return node

    def remove_path(self) -> None:
        """Remove the part of the path used only by the call ending here."""
        node, parent = self, self.parent
        while parent is not None and len(parent.children) == 1 and parent.parent is not None:
            node, parent = parent, parent.parent
        if parent is not None:
            parent.children.remove(node)


# Matching of the present step of a call with the next steps of recorded calls.


def match_latest(call: Any, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> TrieNode | None:
    """Return the next step of the most recent call if the command matches without conversions; None otherwise.

    The fast path of `match_command`: no number operand differs from the recorded number, and no number operand is zero,
    as 0.0 and -0.0 compare equal.
    """
    child: TrieNode = call.moment.children[0]
    step: Any = child.step
    operands = step.operands
    if step.op != op or len(inputs) != len(operands) or step.recording is not call.eager.recording:
        return None
    if (attrs or step.attrs) and not step.matches_attributes(attrs):
        return None
    for entry, given in zip(operands, inputs):  # noqa: B905
        what = entry.__class__
        if what is int:
            if not isinstance(given, EagerTensor) or given._slot != entry or given._call is not call:
                return None
        elif what is NumberOperand:
            if entry.varies or given.__class__ is not entry.type or given != entry.value or not given:
                return None
        elif not entry.fits(given, call, inputs):
            return None
    return child


def match_command(call: Any, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> TrieNode | None:
    """Return the next step of a recorded call equal to the command; None without a match."""
    moment, recording = call.moment, call.eager.recording
    for child in moment.children:
        step: Any = child.step
        if (
            step.op == op
            and step.recording is recording
            and step.matches_attributes(attrs)
            and step.matches_operands(inputs, call)
        ):
            found: TrieNode = child
            return found
    return None


def match_other_step(call: Any, what: str, inputs: Sequence[Any], target: Parameter | None = None) -> TrieNode | None:
    """Return the next step of a recorded call equal to a step of kind `what`; None without a match."""
    for child in call.moment.children:
        step: Any = child.step
        same = step.what is what and step.target is target and step.recording is call.eager.recording
        if same and step.matches_operands(inputs, call):
            found: TrieNode = child
            return found
    return None
