"""Convolutions and their gradients, which are convolutions too."""

from __future__ import annotations

from sublet.ops.nn.command import Command

COMMANDS: tuple[Command, ...] = ()
