"""Tensors overwritten by TFLM while copying the operands and results of IF and WHILE, one tensor after another.

Both operators copy their operands into the called subgraph, whose tensors TFLM places apart from the caller's, and copy
the subgraph's outputs into their results. WHILE first copies the operands into the results, where the loop-carried
values lie between iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from sublet.base.tensor import TensorSpec
from sublet.frontends.tflite.program import Operator, TFLiteProgram

ByteInterval = tuple[int, int]
"""The half-open byte interval [begin, end)."""


@dataclass(frozen=True, slots=True)
class LostTensor:
    """A tensor `lost`, overwritten by the copy of `written` at operator `position`, and read afterwards."""

    position: int
    written: int
    lost: int


def lost_tensors(program: TFLiteProgram, offsets: Sequence[int | None]) -> Iterator[LostTensor]:
    """Yield the tensors lost when the tensors of the first subgraph lie at `offsets`."""
    places = {}
    for i, (tensor, at) in enumerate(zip(program.subgraphs[0].tensors, offsets, strict=True)):
        if at is not None and isinstance(tensor.spec, TensorSpec):
            places[i] = at, at + tensor.spec.nbytes
    for position, operator in enumerate(program.subgraphs[0].operators):
        if operator.name in ("IF", "WHILE"):
            for written, lost in (*_overlapping_results(operator, places), *_overwritten_operands(operator, places)):
                yield LostTensor(position, written, lost)


def _overlapping_results(operator: Operator, places: dict[int, ByteInterval]) -> Iterator[tuple[int, int]]:
    """Yield pairs of overlapping results, even if a result has no reader."""
    for first, second in combinations([i for i in operator.outputs if i in places], 2):
        if _intervals_overlap(places[first], places[second]):
            yield second, first


def _overwritten_operands(operator: Operator, places: dict[int, ByteInterval]) -> Iterator[tuple[int, int]]:
    """Yield pairs of a WHILE result and an operand overwritten before the copy of the operand."""
    if operator.name != "WHILE":
        return
    for i, (operand, result) in enumerate(zip(operator.inputs, operator.outputs, strict=False)):
        if result in places and places[result] != places.get(operand):
            behind = (other for other in operator.inputs[i:] if other in places)
            yield from ((result, other) for other in behind if _intervals_overlap(places[result], places[other]))


def _intervals_overlap(one: ByteInterval, other: ByteInterval) -> bool:
    """True if the byte intervals overlap."""
    return one[0] < other[1] and other[0] < one[1]
