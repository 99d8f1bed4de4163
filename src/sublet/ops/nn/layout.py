"""What only moves elements: transpose, slice, concat, split, pad."""

from __future__ import annotations

from sublet.ops.nn.command import Command

COMMANDS: tuple[Command, ...] = ()
