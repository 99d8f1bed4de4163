"""Symbolic model of Paddle's executor: scopes, garbage collection and allocations, with terms instead of numbers.

The model covers everything that a rewriting can break: the bytes behind each name, the bytes an operator may write
while it reads, the executor's frees, the scopes kept for the gradient of a loop, and the gradients found only by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Protocol

from sublet.base.errors import Finding
from sublet.base.tensor import Dims, DType
from sublet.integrations.paddle.checking.storage import (
    Allocation,
    AllocationRange,
    BranchOutcomes,
    Term,
    Terms,
    TermScope,
    TermVariable,
)
from sublet.integrations.paddle.format.program import EMPTY_NAME, PaddleBlock, PaddleOp, PaddleProgram
from sublet.integrations.paddle.operators.dialect import OpFacts, facts_from_declaration

IGNORED_ATTRIBUTES = {
    *("op_callstack", "op_role", "op_role_var", "op_namescope", "op_device"),
    *("with_quant_attr", "skip_eager_deletion_vars", "is_test"),
}
"""Attributes without influence on results: source location, role, device, names excluded from garbage collection."""


Application = tuple[str, tuple[tuple[str, object], ...], tuple[tuple[str, tuple[Term | None, ...]], ...]]
"""The application of an operator: type, attributes, and the terms (or shape terms) of its operands."""


Absence = tuple[int, str, int | None, str]
"""A missing operand: block, operator type, nested block, and the slot (or a description)."""


class KnownExtents(Protocol):
    """Known extents of a program's tensors; an open extent is None.

    `dims_at_writes` has the extents of each assignment, by (block, operator, name).
    """

    @property
    def dims_at_writes(self) -> Mapping[tuple[int, int, str], Dims]: ...

    def dims(self, block: int, name: str) -> Dims: ...

    def dtype(self, block: int, name: str) -> DType | None: ...


NEVER_FAILING = {"fill_constant"}
"""Operators that fail for no operand. Operators with followed bytes (`control.py`: `assign`, views) are exempt too."""


@dataclass
class OriginalFacts:
    """Facts from the run of the original program, for the run of the rewritten program.

    nbytes   the bytes of each term with known extents
    dtypes   the declared type of each term
    applied  the applications of operators in the original
    absent   the number of times an operator misses an operand: the operator works without, or Paddle fails there
    observed the terms fetched or used as a condition, by operator and in order
    """

    nbytes: dict[Term, int] = field(default_factory=dict)
    dtypes: dict[Term, DType] = field(default_factory=dict)
    applied: set[Application] = field(default_factory=set)
    absent: Counter[Absence] = field(default_factory=Counter)
    observed: dict[tuple[object, ...], list[Term]] = field(default_factory=dict)


@dataclass
class SymbolicRun:
    """State of a symbolic run, common to all blocks.

    `sizes` has the extents of the original program, and is None during the run of the rewritten program; `known` then
    has the facts about terms. `original_inplace` has the (operator, input slot, output slot) triples that the original
    computes in place.
    """

    program: PaddleProgram
    terms: Terms
    choices: BranchOutcomes
    trips: int
    keep: frozenset[str]
    original_inplace: frozenset[tuple[str, str, str]]
    known: OriginalFacts
    sizes: KnownExtents | None = None
    top: TermScope = field(default_factory=TermScope)
    observed: dict[tuple[object, ...], list[Term]] = field(default_factory=dict)
    absent: Counter[Absence] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    random_draws: int = 0  # number of random draws so far
    used_requested_trips: bool = False  # True if a loop used the requested trip count

    def add_finding(self, where: str, what: str, rule: str) -> None:
        """Add a finding."""
        self.findings.append(Finding(rule, where, what))

    def integer_value(self, term: Term, where: str) -> int | None:
        """Return the integer value of a term. If unknown, add a finding and return None."""
        value = self.terms.literal.get(term)
        if value is None:
            self.add_finding(where, "the index into an array is not a known number", "index")
            return None
        return int(value)


def inplace_slots_of(program: PaddleProgram) -> frozenset[tuple[str, str, str]]:
    """Return the (operator, input slot, output slot) triples for which the program itself uses a common name."""
    return frozenset(
        (op.type, source, target)
        for block in program.blocks
        for op in block.ops
        for source, names in op.inputs.items()
        for target, written in op.outputs.items()
        if set(names) & set(written) - {EMPTY_NAME}
    )


@dataclass
class SymbolicStep:
    """An operator of a block, in the scope of its execution."""

    run: SymbolicRun
    block: PaddleBlock
    index: int
    op: PaddleOp
    scope: TermScope

    @property
    def where(self) -> str:
        """The location for findings: block, operator index and type."""
        return f"block {self.block.index}, op {self.index} ({self.op.type})"

    @cached_property
    def facts(self) -> OpFacts:
        """The facts of the operator, for declared extents."""
        return facts_from_declaration(self.run.program, self.block.index, self.op)

    def single_name(self, slot: str) -> str:
        """Return the name in a slot for a single name; "" if the slot is empty."""
        names = self.op.inputs.get(slot) or self.op.outputs.get(slot) or ()
        return names[0] if names and names[0] != EMPTY_NAME else ""

    def find_variable(self, name: str) -> TermVariable | None:
        """Return the variable of a name, or None."""
        return self.scope.find(name)

    def observe(self, term: Term) -> bool:
        """Note a fetched term or a condition. Return True if the original observes the same term here, or runs now.

        Each operator type, block and fetch column has a separate sequence: different operators may change places.
        """
        column = self.op.attrs.get("col")
        op = (self.op.type, self.op.block_index(), column.value if column is not None else None)
        observed = self.run.observed.setdefault(op, [])
        observed.append(term)
        known = self.run.known.observed.get(op, [])
        return self.run.sizes is not None or known[len(observed) - 1 : len(observed)] == [term]

    def read_term(self, name: str) -> Term:
        """Return the term held by a name. Add a finding if the name is unwritten, or lost the last written content."""
        terms, term = self.run.terms, self._term_of(name)
        if term == terms.nothing:
            self.report_absent_operand(name)
            return term
        if term is None:
            self.run.add_finding(self.where, f"%{name} was partly written over", "destroyed")
            return terms.lost_term(name)
        why = terms.reason_lost(term)
        if why:
            self.run.add_finding(self.where, f"%{name} {why}", "destroyed")
        return term

    def _term_of(self, name: str) -> Term | None:
        """Return the term held by a name; None for mixed bytes."""
        return content_of(self.run.terms, self.scope.find(name))

    def report_absent_operand(self, name: str) -> None:
        """Report a missing operand: Paddle fails there, unless the original misses the operand too."""
        for slot in (slot for slot, names in self.op.inputs.items() if name in names):
            self.report_missing(slot, never_written_text(name))

    def check_assignment(self, term: Term) -> None:
        """Report an assignment of nothing to a variable with content, unless the original does the same.

        In Paddle such an assignment leaves a tensor with memory at 0 extents. A reader then computes on the 0 extents,
        and fails only if the tensor has no memory.
        """
        nothing, out = self.run.terms.nothing, self.single_name("Out")
        if term == nothing != self._term_of(out):
            self.report_missing("Out", f"%{out} is assigned an unwritten value, and holds a written value")

    def report_missing(self, operand: str, message: str) -> None:
        """Count a missing operand, and report it if the original misses the operand less often."""
        key = (self.block.index, self.op.type, self.op.block_index(), operand)
        self.run.absent[key] += 1
        if self.run.sizes is None and self.run.absent[key] > self.run.known.absent[key]:
            self.run.add_finding(self.where, message, "absent")

    def application(self) -> Application:
        """Return the application: type, attributes and operand terms of the operator."""
        shape_only = self.facts.shape_only
        operands = (
            (slot, tuple(self._operand_term(name, slot in shape_only) for name in names if name != EMPTY_NAME))
            for slot, names in sorted(self.op.inputs.items())
        )
        return self.op.type, semantic_attributes(self.op), tuple(operands)

    def _operand_term(self, name: str, shape_only: bool) -> Term | None:
        """Return the term of an operand, or its shape term if the operator reads only the shape."""
        variable = self.scope.find(name)
        if not shape_only or variable is None:
            return self._term_of(name)
        shown = (
            self._term_of(name)
            if variable.last_written is None or variable.array is not None
            else variable.last_written
        )
        return None if shown is None else self.run.terms.shape_term(shown)

    def require_known_application(self, applied: Application) -> None:
        """Report an application absent from the original: Paddle may refuse the application, for example by types."""
        run, nothing = self.run, self.run.terms.nothing
        if run.sizes is not None:
            run.known.applied.add(applied)
        elif applied not in run.known.applied and self.op.type not in NEVER_FAILING:
            absent = [name for name in self.op.reads if name != EMPTY_NAME and self._term_of(name) == nothing]
            for name in absent:
                run.add_finding(self.where, never_written_text(name), "absent")
            if not absent:
                run.add_finding(self.where, "is applied to operands that no such op of the original program has", "new")

    def shape_term(self, name: str) -> Term:
        """Return the shape term of a name for an operator that reads only the shape."""
        terms, variable = self.run.terms, self.scope.find(name)
        shown = variable.last_written if variable is not None and variable.array is None else None
        if shown is None:
            return terms.shape_term(self.read_term(name))
        why = terms.reason_lost(shown)
        if why:
            self.run.add_finding(self.where, f"%{name} {why}", "destroyed")
        return terms.shape_term(shown)

    def place_for_write(self, name: str, term: Term) -> AllocationRange:
        """Return the bytes for a term written to a name: the present bytes if the term fits, else a new allocation."""
        nbytes = max(1, self._bytes_of_term(name, term))
        variable = self.scope.find_or_create(name)
        return variable.place.with_size(nbytes) if variable.place else AllocationRange(Allocation(nbytes), 0, nbytes)

    def write_term(self, name: str, term: Term, place: AllocationRange | None = None) -> None:
        """Write a term to a name. Report a difference between the declared type and the type of the term."""
        var = self.run.program.find_var(self.block.index, name)
        if var is not None and var.dtype is not None and term != self.run.terms.nothing:
            dtype = self.run.known.dtypes.setdefault(term, var.dtype)
            if dtype != var.dtype:
                self.run.add_finding(self.where, f"%{name} is declared as {var.dtype}; the value is {dtype}", "dtype")
        variable = self.scope.find_or_create(name)
        variable.place, variable.last_written, variable.array = place or self.place_for_write(name, term), term, None
        variable.place.write_term(term)

    def _bytes_of_term(self, name: str, term: Term) -> int:
        """Return the bytes of a term; 1 for open extents, and for the missing value, which fits any extents."""
        run = self.run
        if term == run.terms.nothing:
            return 1
        if run.sizes is not None and term not in run.known.nbytes:
            own = run.program.declaring_block(self.block.index, name) is not None
            here = self.block.index if own else self.block.forward  # a gradient block sees forward variables
            dims = run.sizes.dims_at_writes.get((self.block.index, self.index, name)) or run.sizes.dims(here, name)
            dtype = run.sizes.dtype(here, name)
            if dims is not None and None not in dims and dtype is not None:
                known = tuple(extent for extent in dims if extent is not None)
                run.terms.dims.setdefault(term, known)
                run.known.nbytes[term] = (prod(known) * dtype.bits + 7) // 8
        return run.known.nbytes.get(term, 1)


def content_of(terms: Terms, variable: TermVariable | None) -> Term | None:
    """Return the term held by a variable: the last written term, if its bits are present.

    Return None if the bytes are parts of several terms.
    """
    if variable is None or (variable.place is None and variable.array is None):
        return terms.nothing
    if variable.array is not None:
        return terms.term_of(*variable.array.as_parts)
    assert variable.place is not None
    term, shown = variable.place.term, variable.last_written
    if term is None or terms.reason_lost(term):
        return term
    return (
        shown
        if shown is not None and terms.have_same_bits(term, shown)
        else terms.lost_term("was overwritten through another name")
    )


def never_written_text(name: str) -> str:
    """Return the finding text for a name without content."""
    return f"%{name} was never written"


def semantic_attributes(op: PaddleOp) -> tuple[tuple[str, object], ...]:
    """Return the attributes with influence on the result of an operator."""
    return tuple(
        (name, _hashable(attr.value))
        for name, attr in sorted(op.attrs.items())
        if name not in IGNORED_ATTRIBUTES and attr.kind not in ("BLOCK", "BLOCKS")
    )


def _hashable(value: object) -> object:
    """Return a hashable copy of an attribute's value."""
    return tuple(value) if isinstance(value, list) else value
