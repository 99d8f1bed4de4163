"""Tensor arrays: what is written to an index and read from it, and tensors taken apart and put together by rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sublet.frontends.paddle.checking.machine import Step
from sublet.frontends.paddle.checking.storage import Array, Variable


def _write(step: Step) -> None:
    index = step.run.literal_int(step.read(step.one("I")), step.where)
    variable = step.scope.found(step.one("Out"))
    array = variable.array or Array()
    if index is not None:
        term = step.read(step.one("X"))
        if term == step.run.terms.nothing:  # it leaves what is there
            there = array.element(step.run.terms, index)
            term = term if there is None else there
        variable.array = Array(array.elements | {index: term}, array.source)


def _read(step: Step) -> None:
    index = step.run.literal_int(step.read(step.one("I")), step.where)
    variable = step.variable(step.one("X"))
    found = None
    if index is not None and variable is not None and variable.array is not None:
        found = variable.array.element(step.run.terms, index)
    like = step.one("X_W")  # a gradient that nobody wrote is zeros in the shape of what it belongs to
    if found is None:
        found = step.run.terms.of("zeros like", step.shape(like)) if like else None
    if found is None or found == step.run.terms.nothing:
        step.absent(step.one("X"))
        step.scope.found(step.one("Out")).be(Variable())
    else:
        step.write(step.one("Out"), found)


def _take_apart(step: Step) -> None:
    parts = step.run.terms.of("apart", step.read(step.one("X")), step.read(step.one("RankTable")))
    step.scope.found(step.one("Out")).array = Array(source=parts)


def _put_together(step: Step) -> None:
    whole = step.run.terms.of("together", step.read(step.one("X")), step.read(step.one("RankTable")))
    step.write(step.one("Out"), whole)


ARRAYS: Mapping[str, Callable[[Step], None]] = {
    "write_to_array": _write,
    "read_from_array": _read,
    "lod_tensor_to_array": _take_apart,
    "array_to_lod_tensor": _put_together,
}
