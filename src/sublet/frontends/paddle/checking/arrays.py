"""Symbolic execution of tensor array operators: element access, and split and merge by rank table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sublet.frontends.paddle.checking.storage import TermArray, TermVariable
from sublet.frontends.paddle.checking.symbolic_machine import SymbolicStep


def _write_element(step: SymbolicStep) -> None:
    """Execute `write_to_array`. A write without a value leaves the element unchanged, as in Paddle."""
    index = step.run.integer_value(step.read_term(step.single_name("I")), step.where)
    variable = step.scope.find_or_create(step.single_name("Out"))
    array = variable.array or TermArray()
    if index is not None:
        term = step.read_term(step.single_name("X"))
        if term == step.run.terms.nothing:  # a write of nothing leaves the element unchanged
            there = array.element(step.run.terms, index)
            term = term if there is None else there
        variable.array = TermArray(array.elements | {index: term}, array.source)


def _read_element(step: SymbolicStep) -> None:
    """Execute `read_from_array`. A missing gradient element reads as zeros with the shape of `X_W`."""
    index = step.run.integer_value(step.read_term(step.single_name("I")), step.where)
    variable = step.find_variable(step.single_name("X"))
    term = None
    if index is not None and variable is not None and variable.array is not None:
        term = variable.array.element(step.run.terms, index)
    like = step.single_name("X_W")  # a missing gradient is zeros in the shape of its variable
    if term is None:
        term = step.run.terms.term_of("zeros like", step.shape_term(like)) if like else None
    if term is None or term == step.run.terms.nothing:
        step.report_absent_operand(step.single_name("X"))
        step.scope.find_or_create(step.single_name("Out")).take_over(TermVariable())
    else:
        step.write_term(step.single_name("Out"), term)


def _split_by_rank_table(step: SymbolicStep) -> None:
    """Execute `lod_tensor_to_array`."""
    parts = step.run.terms.term_of(
        "apart", step.read_term(step.single_name("X")), step.read_term(step.single_name("RankTable"))
    )
    step.scope.find_or_create(step.single_name("Out")).array = TermArray(source=parts)


def _merge_by_rank_table(step: SymbolicStep) -> None:
    """Execute `array_to_lod_tensor`."""
    whole = step.run.terms.term_of(
        "together", step.read_term(step.single_name("X")), step.read_term(step.single_name("RankTable"))
    )
    step.write_term(step.single_name("Out"), whole)


ARRAY_OPERATORS: Mapping[str, Callable[[SymbolicStep], None]] = {
    "write_to_array": _write_element,
    "read_from_array": _read_element,
    "lod_tensor_to_array": _split_by_rank_table,
    "array_to_lod_tensor": _merge_by_rank_table,
}
