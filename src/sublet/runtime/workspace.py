"""What running a plan takes, counted and measured: the arena, bound memory, and what libraries take behind its back.

The plan knows its own bytes. What a kernel's library allocates while it runs (buffers of a matrix product, an
arena of its own, prepared weights) is measured on the whole process, around one run that nothing else should
disturb:

    held   how much more the C library has handed out (`mallinfo2`: blocks in use, large ones included) after the
           kernels were chosen, bound and run once than before, less the storages of the plan and the values
           outside it: what stays from run to run
    peak   how far the resident memory of the process rises above its start during a later run (`VmHWM`, which
           writing 5 to `/proc/self/clear_refs` resets, less `VmRSS`): what comes and goes. Free memory is given
           back before (`malloc_trim`, and `mallopt` for what the heaps of other threads free) and the pages of the
           plan's storages are touched, so that taking bytes anew shows

Both are counted in pages or blocks, so some hundred kilobytes are noise. Other threads of the process are counted
too; memory of a device is not, nor of another process. See docs/memory.md.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sublet.plan import ARENA, MemoryPlan
from sublet.runtime.memory import Raw

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
RESET_PEAK = "5"
PAGE = 4096

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST_MMAP_THRESHOLD = 32 << 20


NOT_YET = "not measured yet: call `measured`"


@dataclass(frozen=True, slots=True)
class Allocated:
    """What libraries took on their own, in bytes; None where it is not known, with the reason."""

    held_bytes: int | None = None
    peak_bytes: int | None = None
    reason: str = ""

    @property
    def total_bytes(self) -> int | None:
        """The most taken at one time; None when a part is not known."""
        if self.held_bytes is None or self.peak_bytes is None:
            return None
        return self.held_bytes + self.peak_bytes


@dataclass(frozen=True, slots=True)
class Workspace:
    """All memory that running a plan takes, in bytes.

    arena          the block the planner fills
    inputs, outputs, weights   bound to memory outside the arena
    scratch        the most that one kernel asked for: it lies in the arena, and is part of `arena`
    outside_values, outside    the values that cannot be planned, and their content since the latest run
    allocated      what libraries took on their own, measured
    """

    arena: int
    inputs: int
    outputs: int
    weights: int
    scratch: int
    outside_values: int
    outside: int
    allocated: Allocated


def workspace(plan: MemoryPlan, scratch: Iterable[int], contents: Iterable[Any], allocated: Allocated) -> Workspace:
    """The record of a plan, given what its kernels ask for and what lies outside it."""
    bound = {"input": 0, "output": 0, "weight": 0}
    for storage in plan.storages:
        if storage.kind != ARENA:
            bound[storage.kind] += storage.nbytes
    return Workspace(
        arena=plan.arena_bytes,
        inputs=bound["input"],
        outputs=bound["output"],
        weights=bound["weight"],
        scratch=max(scratch, default=0),
        outside_values=len(plan.outside),
        outside=sum(map(content_bytes, contents)),
        allocated=allocated,
    )


def content_bytes(content: Any) -> int:
    """Bytes of the elements of a value outside the plan: arrays, lists of them, strings; 0 for None."""
    if isinstance(content, np.ndarray):
        strings = sum(content_bytes(element) for element in content.flat) if content.dtype.hasobject else 0
        return content.nbytes + strings
    if isinstance(content, list | tuple):
        return sum(map(content_bytes, content))
    if isinstance(content, dict):
        return sum(content_bytes(key) + content_bytes(value) for key, value in content.items())
    return len(content.encode()) if isinstance(content, str) else int(getattr(content, "nbytes", 0))


def bytes_in_use() -> int | None:
    """Bytes the C library has handed out, from its heap and by mapping; None when it does not tell."""
    if _libc() is None:
        return None
    figures = _libc().mallinfo2()
    return int(figures.uordblks + figures.hblkhd)


def growth(before: int | None) -> int | None:
    """How many more bytes are in use than `before`; may be negative."""
    now = bytes_in_use()
    return None if before is None or now is None else now - before


def peak_of(action: Callable[[], None], storages: Iterable[Raw]) -> tuple[int | None, str]:
    """How far resident memory rises while `action` runs, which writes to `storages`; or None, and the reason.

    `action` has run before, `giving_back`, as now.
    """
    for raw in storages:
        if raw.flags.writeable:
            touched = raw[::PAGE]
            np.bitwise_or(touched, 0, out=touched)
    _give_back()
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
        start, _ = _status("VmRSS"), _status("VmHWM")
    except (OSError, ValueError) as error:
        action()
        return None, f"the peak of this process cannot be reset: {error}"
    action()
    return max(0, _status("VmHWM") - start), ""


def _status(field: str) -> int:
    """Bytes that /proc/self/status tells. Raises ValueError when it does not."""
    for line in STATUS.read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == field:
            return int(amount.removesuffix("kB")) * 1024
    raise ValueError(f"{STATUS} has no {field}")


class _MallInfo(ctypes.Structure):
    _fields_ = [(f"unused{i}", ctypes.c_size_t) for i in range(4)] + [
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]


@cache
def _libc() -> Any:
    """glibc, whose functions tell what it handed out; None elsewhere."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2") or not hasattr(libc, "malloc_trim"):
        return None
    libc.mallinfo2.restype = _MallInfo
    libc.malloc_trim.argtypes = [ctypes.c_size_t]
    libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    return libc


@contextmanager
def giving_back() -> Iterator[None]:
    """Within, freed memory goes back to the system at once, so that taking it again raises the resident memory.

    `malloc_trim` does that only for the main heap, hence the threshold. Setting one ends glibc's own growing of
    them; afterwards they stand where they grow to by themselves.
    """
    if _libc() is None:
        yield
        return
    _libc().mallopt(M_TRIM_THRESHOLD, 0)
    try:
        yield
    finally:
        _libc().mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        _libc().mallopt(M_TRIM_THRESHOLD, 2 * LARGEST_MMAP_THRESHOLD)


def _give_back() -> None:
    if _libc() is not None:
        _libc().malloc_trim(0)
