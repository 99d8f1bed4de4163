"""Every block of 16 KiB or more that a process allocates and frees, except the Python interpreter's own blocks."""

from __future__ import annotations

import ctypes
import subprocess
from bisect import bisect_right
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


def peak(events: np.ndarray[Any, Any], begin: int, left_out: Iterable[int]) -> tuple[int, int]:
    """Bytes alive at event `begin`, and the most from there on; blocks in which an address of `left_out` lies at the
    end do not count."""
    lives: dict[int, tuple[int, int]] = {}
    blocks: list[tuple[int, int, int, int]] = []  # begin, end, size, address
    for number, (address, size) in enumerate(events.tolist()):
        if size:
            lives[address] = (number, size)
        elif address in lives:
            born, size = lives.pop(address)
            blocks.append((born, number, size, address))
    last = len(events)
    starts = sorted(lives)
    for address in left_out:
        at = starts[bisect_right(starts, address) - 1] if starts and address >= starts[0] else None
        if at is not None and at in lives and address < at + lives[at][1]:
            del lives[at]
    blocks += [(born, last, size, address) for address, (born, size) in lives.items()]
    change = np.zeros(last + 2, np.int64)
    for born, end, size, _ in blocks:
        change[born] += size
        change[end] -= size
    alive = np.cumsum(change)
    return int(alive[begin - 1]) if begin else 0, int(alive[max(begin - 1, 0) :].max())
