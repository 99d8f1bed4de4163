"""What TensorFlow Lite Micro destroys when it copies the operands of IF and WHILE, one tensor after another.

Both copy their operands into the subgraph that they run, whose tensors TFLM keeps apart from theirs, and then what it
gives into their results. WHILE copies its operands into its results first, where what it carries lies between rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from sublet.base.tensor import TensorSpec
from sublet.frontends.tflite.program import Operator, Program

Place = tuple[int, int]
"""The first byte, and the first one behind."""


@dataclass(frozen=True, slots=True)
class Destroyed:
    """At an operator of the first subgraph, the tensor `written` lies over `lost`, which is needed then."""

    position: int
    written: int
    lost: int


def destroyed(program: Program, offsets: Sequence[int | None]) -> Iterator[Destroyed]:
    """What is lost when the tensors of the first subgraph lie at these offsets."""
    places = {}
    for i, (tensor, at) in enumerate(zip(program.subgraphs[0].tensors, offsets, strict=True)):
        if at is not None and isinstance(tensor.spec, TensorSpec):
            places[i] = at, at + tensor.spec.nbytes
    for position, operator in enumerate(program.subgraphs[0].operators):
        if operator.name in ("IF", "WHILE"):
            for written, lost in (*_results(operator, places), *_carried(operator, places)):
                yield Destroyed(position, written, lost)


def _results(operator: Operator, places: dict[int, Place]) -> Iterator[tuple[int, int]]:
    """Results that lie over each other, also where nobody reads one of them."""
    for first, second in combinations([i for i in operator.outputs if i in places], 2):
        if _overlap(places[first], places[second]):
            yield second, first


def _carried(operator: Operator, places: dict[int, Place]) -> Iterator[tuple[int, int]]:
    """Operands that are overwritten before they are copied into their own results."""
    if operator.name != "WHILE":
        return
    for i, (operand, result) in enumerate(zip(operator.inputs, operator.outputs, strict=False)):
        if result in places and places[result] != places.get(operand):
            behind = (other for other in operator.inputs[i:] if other in places)
            yield from ((result, other) for other in behind if _overlap(places[result], places[other]))


def _overlap(one: Place, other: Place) -> bool:
    return one[0] < other[1] and other[0] < one[1]
