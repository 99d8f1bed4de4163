"""Repair of the standard streams if the caller closed a stream, or the reader of the output leaves early."""

from __future__ import annotations

import os
import sys

READER_LEFT = 141
"""Exit status if the reader closed the pipe: the status in a shell of a process ended by SIGPIPE (128 + 13)."""


def open_missing_streams() -> None:
    """Open the null device for each standard stream closed by the caller (`>&-`).

    An output to a closed stream is discarded, as with `>/dev/null`, and the exit status stays that of the command.
    Without the null device, the next file opened by the process would get the descriptor, and would receive the output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: the missing one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the end


def discard_answers() -> None:
    """Send the rest of the output to the null device: the interpreter fails at exit if a stream cannot be flushed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
