"""Memory needed to run a plan, counted and measured: the arena, bound memory, and allocations of libraries.

The plan knows its bytes. Allocations of a kernel's library during a run (buffers of a matrix product, a private
arena, prepared weights) are measured on the whole process, around one run without other activity:

    held   the growth of the C library's bytes in use (`mallinfo2`, large blocks included) from before the kernels
           were chosen until after binding and one run, less the storages of the plan and the values
           outside: the bytes kept from run to run
    peak   the rise of the resident memory of the process above its start during a later run (`VmHWM`, reset by
           writing 5 to `/proc/self/clear_refs`, less `VmRSS`): the temporary bytes. Free memory is returned
           to the system before (`malloc_trim`, and `mallopt` for the heaps of other threads), and the pages of the
           plan's storages are touched, so that new allocations become visible

Both are counted in pages or blocks, with some hundred kilobytes of noise. Other threads of the process are counted
too; memory of devices and of other processes is not. See docs/memory.md.
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

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants of glibc's malloc.h
LARGEST_MMAP_THRESHOLD = 32 << 20


NOT_YET = "not measured yet. Call `measured`."


@dataclass(frozen=True, slots=True)
class Allocated:
    """The bytes allocated by libraries; None if unknown, with the reason."""

    held_bytes: int | None = None
    peak_bytes: int | None = None
    reason: str = ""

    @property
    def total_bytes(self) -> int | None:
        """The most bytes allocated at one time; None if a part is unknown."""
        if self.held_bytes is None or self.peak_bytes is None:
            return None
        return self.held_bytes + self.peak_bytes


@dataclass(frozen=True, slots=True)
class Workspace:
    """All memory needed to run a plan, in bytes.

    arena          the block filled by the planner
    inputs, outputs, weights   bound to memory outside the arena
    scratch        the largest scratch memory of a kernel: part of `arena`
    outside_values, outside    the number of values outside the plan, and the bytes of their content in the latest run
    allocated      the measured allocations of libraries
    """

    arena: int
    inputs: int
    outputs: int
    weights: int
    scratch: int
    outside_values: int
    outside: int
    allocated: Allocated


def workspace_of(plan: MemoryPlan, scratch: Iterable[int], contents: Iterable[Any], allocated: Allocated) -> Workspace:
    """Return the memory record of a plan, given scratch sizes of its kernels and contents outside the plan."""
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
    """Return the bytes of the elements of a value outside the plan: arrays, lists, strings; 0 for None."""
    if isinstance(content, np.ndarray):
        strings = sum(content_bytes(element) for element in content.flat) if content.dtype.hasobject else 0
        return content.nbytes + strings
    if isinstance(content, list | tuple):
        return sum(map(content_bytes, content))
    if isinstance(content, dict):
        return sum(content_bytes(key) + content_bytes(value) for key, value in content.items())
    return len(content.encode()) if isinstance(content, str) else int(getattr(content, "nbytes", 0))


def bytes_in_use() -> int | None:
    """Return the bytes in use of the C library, heap and mapped; None if unavailable."""
    if _libc() is None:
        return None
    figures = _libc().mallinfo2()
    return int(figures.uordblks + figures.hblkhd)


def growth_since(before: int | None) -> int | None:
    """Return the growth of the bytes in use since `before`; may be negative, None if unavailable."""
    now = bytes_in_use()
    return None if before is None or now is None else now - before


def measure_peak(action: Callable[[], None], storages: Iterable[Raw]) -> tuple[int | None, str]:
    """Return the rise of resident memory while `action` runs and writes to `storages`; or None, and the reason.

    The caller has run `action` before, and calls this function within `returning_freed_memory`.
    """
    for raw in storages:
        if raw.flags.writeable:
            touched = raw[::PAGE]
            np.bitwise_or(touched, 0, out=touched)
    _return_freed_memory()
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
        start, _ = _status_bytes("VmRSS"), _status_bytes("VmHWM")
    except (OSError, ValueError) as error:
        action()
        return None, f"the peak of this process cannot be reset: {error}"
    action()
    return max(0, _status_bytes("VmHWM") - start), ""


def _status_bytes(field: str) -> int:
    """Return the bytes of a field of /proc/self/status. Raises ValueError if absent."""
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
    """Return glibc, with the functions for allocation statistics; None elsewhere."""
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
def returning_freed_memory() -> Iterator[None]:
    """Return freed memory to the system at once inside the block, so that new allocations raise the resident memory.

    `malloc_trim` covers only the main heap, hence the threshold. A fixed threshold ends glibc's dynamic adjustment of
    its thresholds; afterwards the thresholds have the largest values that glibc would reach.
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


def _return_freed_memory() -> None:
    if _libc() is not None:
        _libc().malloc_trim(0)
