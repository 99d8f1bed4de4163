"""The memory plan that a .tflite file may carry for TensorFlow Lite Micro, in its metadata.

Its buffer holds 32-bit numbers: a version, how many subgraphs there are, how many offsets follow, and for each tensor
of each subgraph, one subgraph after another, the byte of the arena where it lies, or -1 where TFLM is to find a place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sublet.base.errors import ModelError
from sublet.frontends.tflite.program import Program

METADATA = "OfflineMemoryAllocation"
VERSION, ONLINE = 1, -1

Offsets = tuple[tuple[int | None, ...], ...]
"""For each subgraph the byte where each of its tensors lies; None for one that TFLM finds a place for."""


def offline_plan(program: Program) -> Offsets | None:
    """The plan in a file; None when there is none. Raises ModelError for one that is not for these tensors."""
    stored = program.stored(METADATA)
    if stored is None:
        return None
    counts = [len(subgraph.tensors) for subgraph in program.subgraphs]
    length = len(stored) // 4
    numbers = struct.unpack_from(f"<{length}i", stored)
    if length < 3 or numbers[2] != sum(counts) or length < 3 + sum(counts):
        told = f"{numbers[2]} offsets" if length > 2 else f"{len(stored)} bytes"
        raise ModelError(
            f"{program.where}: its offline memory plan has {told}, and the model {sum(counts)} tensors: plan it again"
        )
    found, at = [], 3
    for count in counts:
        found.append(tuple(None if offset == ONLINE else offset for offset in numbers[at : at + count]))
        at += count
    return tuple(found)


def encoded(offsets: Sequence[Sequence[int | None]]) -> bytes:
    """A plan as the content of the metadata's buffer."""
    flat = [ONLINE if offset is None else offset for subgraph in offsets for offset in subgraph]
    return struct.pack(f"<{3 + len(flat)}i", VERSION, len(offsets), len(flat), *flat)
