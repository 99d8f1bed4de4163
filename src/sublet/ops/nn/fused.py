"""Commands that do the work of several, made by the passes that fuse.

`chain` holds element-wise commands as text, one a step:

    nn.chain(%x, %b) {steps = ["mul x0 x0", "add s0 x1", "clamp s1 low=0.0 high=6.0"]}

x0, x1, ... are its inputs, s0, s1, ... the results of earlier steps; the last step is the result. A step is a command
of the dialect that works element by element, and what it gives has the shape of the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.base.errors import SpecError
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Attr, Node, Value
from sublet.ops.nn import activation, elementwise
from sublet.ops.nn.command import PREFIX, REQUIRED_TEXTS, Command, over, pick
from sublet.ops.nn.shapes import present
from sublet.ops.op import Attrs, ByParts, Emit, Specs

NOT_STEPS = ("softplus_gradient", "hard_swish_gradient")
"""Their kernels write before they have read both operands: a chain, and a step of it, may be written over any."""

STEPS: Mapping[str, Command] = {
    record.name: record for record in (*elementwise.COMMANDS, *activation.COMMANDS) if record.name not in NOT_STEPS
}
"""The commands that work element by element, so that a chain may hold them."""

OPERAND = re.compile(r"[xs][0-9]{1,9}")
"""An input of the chain or an earlier step, by its number."""


@dataclass(frozen=True)
class ChainStep:
    """One step: its command, its operands ("x0", "s3"), its attributes."""

    command: Command
    operands: tuple[str, ...]
    attrs: Mapping[str, Attr]

    @property
    def text(self) -> str:
        """As a chain holds it."""
        given = (f"{key}={value!r}" for key, value in self.attrs.items())
        return " ".join([self.command.name, *self.operands, *given])


def chain_steps(attrs: Attrs) -> tuple[ChainStep, ...]:
    """The steps of a chain. Raises SpecError for one that cannot be read."""
    return tuple(_read(str(text)) for text in pick(attrs, "steps"))


def _read(text: str) -> ChainStep:
    words = text.split()
    if not words or words[0] not in STEPS:
        raise SpecError(f"nn.chain: the step {text!r} is no command that works element by element")
    record = STEPS[words[0]]
    given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    try:
        attrs = {key: float(number) if _is_float(number) else int(number) for key, number in given.items()}
    except ValueError:
        raise SpecError(f"nn.chain: an attribute in the step {text!r} is no number") from None
    return ChainStep(record, tuple(word for word in words[1:] if "=" not in word), record.completed(attrs))


def _is_float(number: str) -> bool:
    return any(mark in number for mark in (".", "e", "inf", "nan"))


def _operand(name: str, position: int, given: Sequence[Any], made: Sequence[Any]) -> Any:
    """What an operand of the step at `position` is: an input of the chain or an earlier result."""
    of = given if name.startswith("x") else made
    if not OPERAND.fullmatch(name) or int(name[1:]) >= len(of):
        raise SpecError(f"nn.chain: step {position} reads {name!r}, which is no input and no earlier step")
    return of[int(name[1:])]


def specs_of_steps(specs: Specs, attrs: Attrs) -> list[TensorSpec]:
    """The spec of the result of each step. Raises SpecError unless all have one shape."""
    given = [present(spec, f"input {i}") for i, spec in enumerate(specs)]
    made: list[TensorSpec] = []
    for position, step in enumerate(chain_steps(attrs)):
        operands = [_operand(name, position, given, made) for name in step.operands]
        least, most = step.command.inputs
        if not least <= len(operands) <= most:
            raise SpecError(f"nn.chain: step {position}, {step.text!r}, has {len(operands)} operands")
        made += step.command.infer(operands, step.attrs)
    if not made:
        raise SpecError("nn.chain has no steps")
    for position, spec in enumerate(made):
        if spec.shape != made[-1].shape:
            raise SpecError(f"nn.chain: step {position} gives {spec}, the last {made[-1]}: they must have one shape")
    return made


def _infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (specs_of_steps(specs, attrs)[-1],)


def _compute(*inputs: Any, steps: tuple[str, ...]) -> Any:
    made: list[Any] = []
    for position, step in enumerate(chain_steps({"steps": steps})):
        operands = [_operand(name, position, inputs, made) for name in step.operands]
        made.append(step.command.compute(*operands, **step.attrs))
    return made[-1]


def _expand(emit: Emit, node: Node) -> Sequence[Value]:
    made: list[Value] = []
    for position, step in enumerate(chain_steps(node.attrs)):
        operands = [_operand(name, position, node.inputs, made) for name in step.operands]
        made.append(emit(PREFIX + step.command.name, *operands, **step.attrs))
    return made[-1:]


MOST = 64
"""Inputs of a chain at most."""

COMMANDS: tuple[Command, ...] = (
    Command(
        "chain",
        'Element-wise commands one after the other, as text: ("mul x0 x1", "add s0 x2").',
        _infer,
        _compute,
        ByParts(_expand),
        {"steps": REQUIRED_TEXTS},
        inputs=(1, MOST),
        inplace=over(*range(MOST)),
    ),
)
