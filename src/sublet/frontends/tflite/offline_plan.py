"""Offline memory plans for TensorFlow Lite Micro, stored in the metadata of a .tflite file.

The metadata buffer holds 32-bit integers: a version, the number of subgraphs, the number of offsets, and the arena
offset in bytes of each tensor, subgraph after subgraph, or -1 for a tensor to be placed by TFLM.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sublet.base.errors import ModelError
from sublet.frontends.tflite.program import TFLiteProgram

METADATA = "OfflineMemoryAllocation"
VERSION, PLACED_BY_TFLM = 1, -1

Offsets = tuple[tuple[int | None, ...], ...]
"""For each subgraph the arena offset of each tensor in bytes; None for a tensor to be placed by TFLM."""


def offline_plan(program: TFLiteProgram) -> Offsets | None:
    """Return the offline plan in a file; None without a plan.

    Raises ModelError for a plan of another number of tensors.
    """
    stored = program.metadata_content(METADATA)
    if stored is None:
        return None
    counts = [len(subgraph.tensors) for subgraph in program.subgraphs]
    length = len(stored) // 4
    numbers = struct.unpack_from(f"<{length}i", stored)
    if length < 3 or numbers[2] != sum(counts) or length < 3 + sum(counts):
        size = f"{numbers[2]} offsets" if length > 2 else f"{len(stored)} bytes"
        raise ModelError(
            f"{program.where}: the offline memory plan has {size}, the model {sum(counts)} tensors: plan again"
        )
    plan, at = [], 3
    for count in counts:
        plan.append(tuple(None if offset == PLACED_BY_TFLM else offset for offset in numbers[at : at + count]))
        at += count
    return tuple(plan)


def encode_offsets(offsets: Sequence[Sequence[int | None]]) -> bytes:
    """Return the content of the metadata buffer for a plan."""
    flat = [PLACED_BY_TFLM if offset is None else offset for subgraph in offsets for offset in subgraph]
    return struct.pack(f"<{3 + len(flat)}i", VERSION, len(offsets), len(flat), *flat)
