"""The commands of the nn dialect as functions: `nn.relu(x)`, `nn.conv(x, w, b, strides=(2, 2), pads=(1, 1, 1, 1))`.

Each record of the dialect has one function; `nn.composed` has functions composed of commands. Inputs are Tensors of
one graph; numbers and arrays become constants; attributes are keywords. A command with several outputs returns a tuple.
Every function raises SpecError, beginning with the user's line, for inputs or attributes not accepted by the command.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from difflib import get_close_matches
from inspect import Parameter, Signature, signature
from typing import Any

from sublet.nn import composed
from sublet.nn.keywords import require_known_keywords
from sublet.nn.tensor import FUNCTION_NAMES, first_tensor
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import PREFIX, Command, Required


def _command_function(record: Command) -> Callable[..., Any]:
    """Return the public function of a command."""

    def apply(*inputs: Any, **attrs: Any) -> Any:
        if len(inputs) == 1 and isinstance(inputs[0], list | tuple):  # as nn.concat([a, b], axis=0)
            inputs = tuple(inputs[0])
        outputs = first_tensor(inputs, record.name).graph.apply(PREFIX + record.name, *inputs, **attrs)
        return outputs if len(outputs) > 1 else outputs[0]

    apply.__name__ = apply.__qualname__ = record.name
    apply.__doc__ = textwrap.fill(f"Write a node of nn.{record.name}. {record.text}", 88, break_on_hyphens=False)
    apply.__signature__ = _command_signature(record)  # type: ignore[attr-defined]
    return apply


def _command_signature(record: Command) -> Signature:
    """Return the signature: the inputs as named by the reference implementation, then the attributes."""
    try:
        known = signature(record.compute).parameters.values()
        named = [p for p in known if p.name not in record.attrs][: record.inputs[1]]
    except (ValueError, TypeError):  # one of NumPy's own functions
        named = [Parameter(f"x{i}", Parameter.POSITIONAL_ONLY) for i in range(record.inputs[1])]
    inputs = [p.replace(kind=Parameter.POSITIONAL_ONLY, annotation=Parameter.empty) for p in named if p.kind < 2]
    attrs = [
        Parameter(key, Parameter.KEYWORD_ONLY, default=Parameter.empty if isinstance(value, Required) else value)
        for key, value in record.attrs.items()
    ]
    return Signature([*inputs, *attrs])


_FUNCTIONS = {
    **{name: _command_function(record) for name, record in COMMANDS.items()},
    **{name: require_known_keywords(getattr(composed, name)) for name in composed.__all__},
}
__all__ = sorted(_FUNCTIONS)
globals().update(_FUNCTIONS)
FUNCTION_NAMES.update(_FUNCTIONS)


def __getattr__(name: str) -> Callable[..., Any]:
    like = get_close_matches(name, __all__, 1)
    hint = f"; did you mean nn.{like[0]}?" if like else ""
    raise AttributeError(f"there is no command nn.{name}{hint}")
