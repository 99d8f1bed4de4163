"""The `nn` dialect: Sublet's commands, few, closed under differentiation, each with a NumPy reference.

A family of commands is a module with a tuple COMMANDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from sublet.base.errors import SubletError
from sublet.ops.nn.command import PREFIX, Command
from sublet.ops.op import Op

FAMILIES = (
    *("activation", "attention", "conversion", "convolution", "elementwise", "fused", "indexing", "layout", "linear"),
    *("loss", "normalization", "optimizer", "pooling", "random", "recurrent", "reduction"),
)
"""The modules of commands; the modules of PyTorch kernels have the same names, see `integrations.torch.kernels`."""


def _collect_commands() -> dict[str, Command]:
    commands: dict[str, Command] = {}
    for family in FAMILIES:
        for record in import_module(f"{__name__}.{family}").COMMANDS:
            if record.name in commands:
                raise SubletError(f"two commands have the name nn.{record.name}")
            commands[record.name] = record
    return commands


COMMANDS: Mapping[str, Command] = _collect_commands()
"""Every command by name, without the prefix."""

_OPS = {PREFIX + record.name: record.op for record in COMMANDS.values()}


def command(op: str) -> Command:
    """Return the record of the op "nn.name". Raises SubletError if the dialect lacks the op."""
    try:
        return COMMANDS[op.removeprefix(PREFIX)]
    except KeyError:
        raise SubletError(f"there is no command {op!r}; the dialect nn has {', '.join(sorted(COMMANDS))}") from None


def nn_op(name: str) -> Op:
    """Return the facts of the op "nn.name". Raises SubletError if the dialect lacks the op."""
    return _OPS[name] if name in _OPS else command(name).op
