"""Fused commands, written by the fusing passes.

`chain` holds element-wise commands as text, a command per step:

    nn.chain(%x, %b) {steps = ["mul x0 x0", "add s0 x1", "clamp s1 low=0.0 high=6.0"]}

x0, x1, ... are the inputs of the chain; s0, s1, ... are results of earlier steps; the last step is the result. Every
step is an element-wise command of the dialect, with a result of the shape of the chain's result.
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
from sublet.ops.nn.command import PREFIX, REQUIRED_TEXTS, Command, pick
from sublet.ops.nn.rules import require_present
from sublet.ops.op import Attrs, Emit, GradientByExpansion, Specs, overwrite_any

NOT_STEPS = ("softplus_gradient", "hard_swish_gradient")
"""Commands with kernels that write before the last read of an operand.

No chain has them, because a step may overwrite any operand without later readers.
"""

STEPS: Mapping[str, Command] = {
    record.name: record
    for record in (*elementwise.COMMANDS, *activation.ELEMENTWISE_ACTIVATIONS)
    if record.name not in NOT_STEPS
}
"""The element-wise commands, allowed as steps of a chain."""

OPERAND = re.compile(r"[xs][0-9]{1,9}")
"""An input of the chain or an earlier step, by number."""


@dataclass(frozen=True)
class ChainStep:
    """A step of a chain: command, operands ("x0", "s3") and attributes."""

    command: Command
    operands: tuple[str, ...]
    attrs: Mapping[str, Attr]

    @property
    def text(self) -> str:
        """The step in text form, as stored in a chain."""
        given = (f"{key}={value!r}" for key, value in self.attrs.items())
        return " ".join([self.command.name, *self.operands, *given])


def chain_steps(attrs: Attrs) -> tuple[ChainStep, ...]:
    """Return the steps of a chain. Raises SpecError for an invalid step."""
    return tuple(_parse_step(str(text)) for text in pick(attrs, "steps"))


def _parse_step(text: str) -> ChainStep:
    words = text.split()
    if not words or words[0] not in STEPS:
        raise SpecError(f"nn.chain: the step {text!r} is no element-wise command")
    record = STEPS[words[0]]
    given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    try:
        attrs = {key: float(number) if _is_float(number) else int(number) for key, number in given.items()}
    except ValueError:
        raise SpecError(f"nn.chain: an attribute in the step {text!r} is no number") from None
    return ChainStep(record, tuple(word for word in words[1:] if "=" not in word), record.complete_attributes(attrs))


def _is_float(number: str) -> bool:
    return any(mark in number for mark in (".", "e", "inf", "nan"))


def _resolve_operand(name: str, position: int, inputs: Sequence[Any], steps: Sequence[Any]) -> Any:
    """Return the operand `name` of the step at `position`: an input of the chain or an earlier result."""
    of = inputs if name.startswith("x") else steps
    if not OPERAND.fullmatch(name) or int(name[1:]) >= len(of):
        raise SpecError(f"nn.chain: step {position} reads {name!r}, which is neither an input nor an earlier step")
    return of[int(name[1:])]


def specs_of_steps(specs: Specs, attrs: Attrs) -> list[TensorSpec]:
    """Return the spec of the result of each step. Raises SpecError unless all steps have equal shape."""
    given = [require_present(spec, f"input {i}") for i, spec in enumerate(specs)]
    outputs: list[TensorSpec] = []
    for position, step in enumerate(chain_steps(attrs)):
        operands = [_resolve_operand(name, position, given, outputs) for name in step.operands]
        least, most = step.command.inputs
        if not least <= len(operands) <= most:
            raise SpecError(f"nn.chain: step {position}, {step.text!r}, has {len(operands)} operands")
        outputs += step.command.infer(operands, step.attrs)
    if not outputs:
        raise SpecError("nn.chain has no steps")
    for position, spec in enumerate(outputs):
        if spec.shape != outputs[-1].shape:
            raise SpecError(
                f"nn.chain: step {position} gives {spec}, the last step {outputs[-1]}, expected equal shapes"
            )
    return outputs


def _infer(specs: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (specs_of_steps(specs, attrs)[-1],)


def _compute(*inputs: Any, steps: tuple[str, ...]) -> Any:
    outputs: list[Any] = []
    for position, step in enumerate(chain_steps({"steps": steps})):
        operands = [_resolve_operand(name, position, inputs, outputs) for name in step.operands]
        outputs.append(step.command.compute(*operands, **step.attrs))
    return outputs[-1]


def _expand(emit: Emit, node: Node) -> Sequence[Value]:
    emitted: list[Value] = []
    for position, step in enumerate(chain_steps(node.attrs)):
        operands = [_resolve_operand(name, position, node.inputs, emitted) for name in step.operands]
        emitted.append(emit(PREFIX + step.command.name, *operands, **step.attrs))
    return emitted[-1:]


MAX_CHAIN_INPUTS = 64
"""Maximum inputs of a chain."""

COMMANDS: tuple[Command, ...] = (
    Command(
        "chain",
        'A sequence of element-wise commands, as text: ("mul x0 x1", "add s0 x2").',
        _infer,
        _compute,
        GradientByExpansion(_expand),
        {"steps": REQUIRED_TEXTS},
        inputs=(1, MAX_CHAIN_INPUTS),
        inplace=overwrite_any(*range(MAX_CHAIN_INPUTS)),
    ),
)
