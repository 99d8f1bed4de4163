"""Random numbers, and dropout: functions of a key, so that a run can be repeated."""

from __future__ import annotations

from sublet.ops.nn.command import Command

COMMANDS: tuple[Command, ...] = ()
