"""Losses: how far what a network says is from what is right."""

from __future__ import annotations

from sublet.ops.nn.command import Command

COMMANDS: tuple[Command, ...] = ()
