"""The standard streams of a process whose caller closed one, or whose reader leaves early."""

from __future__ import annotations

import os
import sys

READER_LEFT = 141
"""Exit status if the reader of the answer leaves early: what a shell tells of a process that SIGPIPE ended."""


def open_missing_streams() -> None:
    """Open the null device for each standard stream that the caller closed (`>&-`).

    An answer to a closed stream is discarded, as with `>/dev/null`, and the exit status stays that of the command.
    Without this, the next file that the process opens would get the descriptor, and would receive the answer.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open until the end


def discard_answers() -> None:
    """Send the rest of the answer to the null device: the interpreter fails at its end if it cannot flush a stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
