"""Every block of 16 KiB or more that a process allocates and frees, except the Python interpreter's own blocks."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


def counter(folder: Path) -> Path:
    """The counter, compiled."""
    made = folder / "allocations.so"
    source = Path(__file__).with_name("allocations.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    return made


class Blocks:
    """What the preloaded counter has noted."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.allocations_events.restype = ctypes.c_void_p
        self._library.allocations_count.restype = ctypes.c_long

    def record(self, on: bool) -> None:
        self._library.allocations_record(int(on))

    def __len__(self) -> int:
        count = int(self._library.allocations_count())
        assert count >= 0, "more events than the counter holds"
        return count

    def events(self) -> np.ndarray[Any, Any]:
        """Address and size, in order."""
        count, address = len(self), self._library.allocations_events()
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64)), (count, 2)).copy()


def peak(events: np.ndarray[Any, Any], begin: int, left_out: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the bytes alive at event `begin`, and the most bytes alive from there on.

    `left_out` holds pairs of a number of events and an address: the block alive at the address after so many events
    does not count.
    """
    noted, ignored = sorted(left_out, reverse=True), set[int]()
    blocks: list[list[int]] = []  # begin, end, size
    lives: dict[int, int] = {}  # the number of the block that begins at an address

    def leave_out(until: int) -> None:
        while noted and noted[-1][0] <= until:
            address = noted.pop()[1]
            ignored.update(block for start, block in lives.items() if start <= address < start + blocks[block][2])

    for number, (address, size) in enumerate(events.tolist()):
        leave_out(number)
        if size:
            lives[address] = len(blocks)
            blocks.append([number, len(events), size])
        elif address in lives:
            blocks[lives.pop(address)][1] = number
    leave_out(len(events))
    change = np.zeros(len(events) + 2, np.int64)
    for block, (born, end, size) in enumerate(blocks):
        if block not in ignored:
            change[born] += size
            change[end] -= size
    alive = np.cumsum(change)
    return int(alive[begin - 1]) if begin else 0, int(alive[max(begin - 1, 0) :].max())
