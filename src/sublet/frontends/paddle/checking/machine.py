"""A program, run with terms for numbers, the way Paddle's executor runs it: scopes, garbage collection, allocations.

What is modelled is what rewriting can break: which name leads to which bytes, which bytes an op may write over while
it reads them, what the executor frees and when, what a loop keeps of each round for its gradient, and what gradient
blocks find only because of a name.
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
from sublet.frontends.paddle.checking.storage import Allocation, Place, Scope, Variable
from sublet.frontends.paddle.checking.terms import Choices, Term, Terms
from sublet.frontends.paddle.format.program import EMPTY, Block, Op, Program
from sublet.frontends.paddle.operators.effects import facts_declared
from sublet.frontends.paddle.operators.facts import OpFacts

ASIDE = {
    *("op_callstack", "op_role", "op_role_var", "op_namescope", "op_device"),
    *("with_quant_attr", "skip_eager_deletion_vars", "is_test"),
}
"""Attributes that change no number: where an op comes from, what it is for, what its block may not free."""


Applied = tuple[str, tuple[tuple[str, object], ...], tuple[tuple[str, tuple[Term | None, ...]], ...]]
"""An op by its type, its attributes, and what its operands hold or show."""


Absence = tuple[int, str, int | None, str]
"""A block, an op, the block that it runs, and what is not there: a slot, or more of it in words."""


class Sizes(Protocol):
    """What is known of the tensors of a program: extents, None where they are open; `written` by (block, op, name)."""

    @property
    def written(self) -> Mapping[tuple[int, int, str], Dims]: ...

    def dims(self, block: int, name: str) -> Dims: ...

    def dtype(self, block: int, name: str) -> DType | None: ...


TOTAL = {"fill_constant"}
"""Ops that fail for no operand. Those whose bytes are followed (`control.py`) are not asked either: `assign`, views."""


@dataclass
class Known:
    """What the run of the original tells of that of the rewritten program.

    nbytes   the bytes of terms whose extents are known
    dtypes   the types of terms, as declared where they are written
    applied  what ops were applied to, those without a result that is used as well
    absent   how often an op finds nothing where it needs something: it can do without, or Paddle fails there
    observed what left the program, or decided where it went, by op and in order
    """

    nbytes: dict[Term, int] = field(default_factory=dict)
    dtypes: dict[Term, DType] = field(default_factory=dict)
    applied: set[Applied] = field(default_factory=set)
    absent: Counter[Absence] = field(default_factory=Counter)
    observed: dict[tuple[object, ...], list[Term]] = field(default_factory=dict)


@dataclass
class Run:
    """What a run of a program has in common in all of its blocks.

    `sizes` are those of the original program, None while the rewritten one runs: then `known` tells of its terms.
    `usual` are the (op, input slot, output slot) that the original itself computes in place.
    """

    program: Program
    terms: Terms
    choices: Choices
    trips: int
    keep: frozenset[str]
    usual: frozenset[tuple[str, str, str]]
    known: Known
    sizes: Sizes | None = None
    top: Scope = field(default_factory=Scope)
    observed: dict[tuple[object, ...], list[Term]] = field(default_factory=dict)
    absent: Counter[Absence] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    drawn: int = 0  # ops so far that draw random numbers
    asked: bool = False  # whether the number of rounds mattered

    def tell(self, where: str, what: str, rule: str) -> None:
        self.findings.append(Finding(rule, where, what))

    def literal_int(self, term: Term, where: str) -> int | None:
        """The integer that a term is, told when it is none."""
        value = self.terms.literal.get(term)
        if value is None:
            self.tell(where, "the index into an array is no number that is known", "index")
            return None
        return int(value)


def inplace_of(program: Program) -> frozenset[tuple[str, str, str]]:
    """What a program computes in place as it is: an op and the slots in which it has one name."""
    return frozenset(
        (op.type, source, target)
        for block in program.blocks
        for op in block.ops
        for source, names in op.inputs.items()
        for target, written in op.outputs.items()
        if set(names) & set(written) - {EMPTY}
    )


@dataclass
class Step:
    """One op of one block, in the scope in which it runs."""

    run: Run
    block: Block
    index: int
    op: Op
    scope: Scope

    @property
    def where(self) -> str:
        return f"block {self.block.index}, op {self.index} ({self.op.type})"

    @cached_property
    def facts(self) -> OpFacts:
        return facts_declared(self.run.program, self.block.index, self.op)

    def one(self, slot: str) -> str:
        """The name in a slot that takes one; empty where there is none."""
        names = self.op.inputs.get(slot) or self.op.outputs.get(slot) or ()
        return names[0] if names and names[0] != EMPTY else ""

    def variable(self, name: str) -> Variable | None:
        return self.scope.find(name)

    def observe(self, term: Term) -> bool:
        """Note what leaves the program, or decides where it goes; each op of its own, as these may change places.
        Whether that is what the original observes there.
        """
        column = self.op.attrs.get("col")
        op = (self.op.type, self.op.block(), column.value if column is not None else None)
        observed = self.run.observed.setdefault(op, [])
        observed.append(term)
        known = self.run.known.observed.get(op, [])
        return self.run.sizes is not None or known[len(observed) - 1 : len(observed)] == [term]

    def read(self, name: str) -> Term:
        """What a name holds; told where that is nothing, or not what was written there."""
        terms, term = self.run.terms, self._held(name)
        if term == terms.nothing:
            self.absent(name)
            return term
        if term is None:
            self.run.tell(self.where, f"%{name} was partly written over", "destroyed")
            return terms.lost(name)
        why = terms.why_lost(term)
        if why:
            self.run.tell(self.where, f"%{name} {why}", "destroyed")
        return term

    def _held(self, name: str) -> Term | None:
        return content(self.run.terms, self.scope.find(name))

    def absent(self, name: str) -> None:
        """An op that finds nothing where it looks for an operand fails in Paddle, unless the original is so too."""
        for slot in (slot for slot, names in self.op.inputs.items() if name in names):
            self.missing(slot, never_written(name))

    def assigned(self, term: Term) -> None:
        """To assign what has no memory leaves a tensor that has some with 0 extents: what reads it computes of that,
        and fails where there is no memory. Told where there is some, unless the original is so too.
        """
        nothing, out = self.run.terms.nothing, self.one("Out")
        if term == nothing != self._held(out):
            self.missing("Out", f"%{out} gets nothing, and holds something else")

    def missing(self, what: str, told: str) -> None:
        """Something that an op needs is not there: told, unless the original is so too, and as often."""
        key = (self.block.index, self.op.type, self.op.block(), what)
        self.run.absent[key] += 1
        if self.run.sizes is None and self.run.absent[key] > self.run.known.absent[key]:
            self.run.tell(self.where, told, "absent")

    def applied(self) -> Applied:
        """What an op is applied to."""
        shape_only = self.facts.shape_only
        operands = (
            (slot, tuple(self._seen(name, slot in shape_only) for name in names if name != EMPTY))
            for slot, names in sorted(self.op.inputs.items())
        )
        return self.op.type, attributes(self.op), tuple(operands)

    def _seen(self, name: str, shape_only: bool) -> Term | None:
        variable = self.scope.find(name)
        if not shape_only or variable is None:
            return self._held(name)
        shown = self._held(name) if variable.shown is None or variable.array is not None else variable.shown
        return None if shown is None else self.run.terms.shape(shown)

    def require_applied(self, applied: Applied) -> None:
        """What the original does not do as well may fail in Paddle (by types, say), whoever uses its result."""
        run, nothing = self.run, self.run.terms.nothing
        if run.sizes is not None:
            run.known.applied.add(applied)
        elif applied not in run.known.applied and self.op.type not in TOTAL:
            absent = [name for name in self.op.reads if name != EMPTY and self._held(name) == nothing]
            for name in absent:
                run.tell(self.where, never_written(name), "absent")
            if not absent:
                run.tell(self.where, "is applied to what the original program applies no such op to", "new")

    def shape(self, name: str) -> Term:
        """What a name shows to an op that reads its shape only."""
        terms, variable = self.run.terms, self.scope.find(name)
        shown = variable.shown if variable is not None and variable.array is None else None
        if shown is None:
            return terms.shape(self.read(name))
        why = terms.why_lost(shown)
        if why:
            self.run.tell(self.where, f"%{name} {why}", "destroyed")
        return terms.shape(shown)

    def place(self, name: str, term: Term) -> Place:
        """Where a term goes that is written to a name: over what is there, if it fits."""
        nbytes = max(1, self._nbytes(name, term))
        variable = self.scope.found(name)
        return variable.place.sized(nbytes) if variable.place else Place(Allocation(nbytes), 0, nbytes)

    def write(self, name: str, term: Term, place: Place | None = None) -> None:
        var = self.run.program.var(self.block.index, name)
        if var is not None and var.dtype is not None and term != self.run.terms.nothing:
            dtype = self.run.known.dtypes.setdefault(term, var.dtype)
            if dtype != var.dtype:
                self.run.tell(self.where, f"%{name} is declared as {var.dtype}, and gets {dtype}", "dtype")
        variable = self.scope.found(name)
        variable.place, variable.shown, variable.array = place or self.place(name, term), term, None
        variable.place.put(term)

    def _nbytes(self, name: str, term: Term) -> int:
        """Bytes of a term; 1 where its extents are open, and of nothing, which goes by names of any extents."""
        run = self.run
        if term == run.terms.nothing:
            return 1
        if run.sizes is not None and term not in run.known.nbytes:
            own = run.program.home(self.block.index, name) is not None
            here = self.block.index if own else self.block.forward  # a gradient block sees what the forward one left
            dims = run.sizes.written.get((self.block.index, self.index, name)) or run.sizes.dims(here, name)
            dtype = run.sizes.dtype(here, name)
            if dims is not None and None not in dims and dtype is not None:
                known = tuple(extent for extent in dims if extent is not None)
                run.terms.dims.setdefault(term, known)
                run.known.nbytes[term] = (prod(known) * dtype.bits + 7) // 8
        return run.known.nbytes.get(term, 1)


def content(terms: Terms, variable: Variable | None) -> Term | None:
    """What a variable holds: what was written by its name, if those bits are there, since it has that shape.

    None where its bytes are parts of several terms.
    """
    if variable is None or (variable.place is None and variable.array is None):
        return terms.nothing
    if variable.array is not None:
        return terms.of(*variable.array.whole)
    assert variable.place is not None
    term, shown = variable.place.term, variable.shown
    if term is None or terms.why_lost(term):
        return term
    return shown if shown is not None and terms.same_bits(term, shown) else terms.lost("was written by another name")


def never_written(name: str) -> str:
    return f"%{name} was never written"


def attributes(op: Op) -> tuple[tuple[str, object], ...]:
    """The attributes of an op that decide what it computes."""
    return tuple(
        (name, _frozen(attr.value))
        for name, attr in sorted(op.attrs.items())
        if name not in ASIDE and attr.kind not in ("BLOCK", "BLOCKS")
    )


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
