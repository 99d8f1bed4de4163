"""Symbolic execution of tensor array operators: element access, and split and merge by rank table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sublet.frontends.paddle.checking.machine import Step
from sublet.frontends.paddle.checking.storage import Array, Variable


def _write(step: Step) -> None:
    """Execute `write_to_array`. A write without a value leaves the element unchanged, as in Paddle."""
    index = step.run.literal_int(step.read(step.one("I")), step.where)
    variable = step.scope.found(step.one("Out"))
    array = variable.array or Array()
    if index is not None:
        term = step.read(step.one("X"))
        if term == step.run.terms.nothing:  # a write of nothing leaves the element unchanged
            there = array.element(step.run.terms, index)
            term = term if there is None else there
        variable.array = Array(array.elements | {index: term}, array.source)


def _read(step: Step) -> None:
    """Execute `read_from_array`. A missing gradient element reads as zeros with the shape of `X_W`."""
    index = step.run.literal_int(step.read(step.one("I")), step.where)
    variable = step.variable(step.one("X"))
    term = None
    if index is not None and variable is not None and variable.array is not None:
        term = variable.array.element(step.run.terms, index)
    like = step.one("X_W")  # a missing gradient is zeros in the shape of its variable
    if term is None:
        term = step.run.terms.of("zeros like", step.shape(like)) if like else None
    if term is None or term == step.run.terms.nothing:
        step.absent(step.one("X"))
        step.scope.found(step.one("Out")).be(Variable())
    else:
        step.write(step.one("Out"), term)


def _take_apart(step: Step) -> None:
    """Execute `lod_tensor_to_array`."""
    parts = step.run.terms.of("apart", step.read(step.one("X")), step.read(step.one("RankTable")))
    step.scope.found(step.one("Out")).array = Array(source=parts)


def _put_together(step: Step) -> None:
    """Execute `array_to_lod_tensor`."""
    whole = step.run.terms.of("together", step.read(step.one("X")), step.read(step.one("RankTable")))
    step.write(step.one("Out"), whole)


ARRAYS: Mapping[str, Callable[[Step], None]] = {
    "write_to_array": _write,
    "read_from_array": _read,
    "lod_tensor_to_array": _take_apart,
    "array_to_lod_tensor": _put_together,
}
