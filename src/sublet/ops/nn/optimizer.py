"""Optimisers: commands that take a gradient and update weights in place."""

from __future__ import annotations

from sublet.ops.nn.command import Command

COMMANDS: tuple[Command, ...] = ()
