"""Lower bound for the memory of a run: the most bytes live at any moment, independent of names and allocations.

A value is live from its definition to its last use, in any iteration. At its last use a value may pass its bytes to an
output of the same size, if the operator is known to be safe in place. An operator that copies its input (`assign`,
`reshape2`) defines no new value. The content of arrays is left out. So the result is a lower bound for every plan with
the same operators in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from sublet.frontends.paddle.format.program import PaddleOp
from sublet.frontends.paddle.lives.scopes import PaddleScopes, ScopedVariable
from sublet.frontends.paddle.operators.effects import effects_of
from sublet.frontends.paddle.operators.facts import SlotPairs, facts_of
from sublet.frontends.paddle.peaks.simulated_run import RunRequest, SimulatedRun

COPY_OPERATORS = ("assign", "depend", "reshape2", "unsqueeze2", "squeeze2", "flatten_contiguous_range", "share_data")
"""Operators with an output `Out` equal to their input `X`: the same elements in the same order."""


@dataclass(slots=True)
class _LiveValue:
    """A value of a run: its bytes, the moment of its definition, and the moment of its last use (-1 if none)."""

    nbytes: int
    defined_at: int
    last_use: int = -1
    takes_over: bool = False

    @property
    def begin(self) -> int:
        """The start of the live range, in read and write slots.

        At moment t, operands are live in slot 2t; a value that takes over bytes of an operand is live only from slot 2t
        + 1 on.
        """
        return 2 * self.defined_at + self.takes_over

    @property
    def end(self) -> int:
        """The end of the live range, in read and write slots."""
        return 2 * self.last_use + 1 if self.last_use > self.defined_at else 2 * self.defined_at + 2


def may_share(op_type: str) -> SlotPairs:
    """Return the (input, output) slot pairs allowed to have the same bytes, by a common name or as views."""
    facts = facts_of(op_type)
    return facts.inplace | facts.placed | facts.placed_first | facts.shares


def peak_live_bytes(request: RunRequest, scopes: PaddleScopes) -> int:
    """Return the most bytes live at any moment of a run."""
    lives = _LiveBytesRun(request, scopes)
    lives.run()
    lives.moment += 1
    for place in request.keep:
        lives.read_value(place)
    return lives.peak_bytes()


class _LiveBytesRun(SimulatedRun[_LiveValue]):
    """A walk with values as the content of variables."""

    def __init__(self, request: RunRequest, scopes: PaddleScopes) -> None:
        super().__init__(request, scopes)
        self.moment = 0
        self.values: list[_LiveValue] = []
        self.offers: list[
            tuple[_LiveValue, list[_LiveValue]]
        ] = []  # a new value, and the values whose bytes it may take

    def visit_operator(self, block: int, index: int, op: PaddleOp) -> None:
        """Read the operands and define the outputs. An output equal to X takes over the value of X."""
        self.moment += 1
        read = {name: self.read_value(self.scopes.resolve(block, name)) for name in effects_of(op).reads}
        for slot, place in self.written_variables(block, index, op):
            source = read.get(op.first_input("X") or "")
            if self.is_persistable(place) or self.scopes.is_array(place):
                continue
            nbytes = self.sizes.written_bytes(block, index, place)
            as_many = source is not None and source.nbytes == nbytes
            if slot == "Out" and (op.type in COPY_OPERATORS or (as_many and ("X", "Out") in facts_of(op.type).equal)):
                self.bind_value(place, source)
                continue
            value = self.define_value(place, nbytes)
            offered = [
                (name, found)
                for taken, names in op.inputs.items()
                for name in names
                if (found := read.get(name)) is not None
                and ((taken, slot) in may_share(op.type) or self.scopes.resolve(block, name) == place)
            ]
            if offered:
                self.offers.append((value, [found for _, found in offered]))

    def copy_input(self, outer: ScopedVariable, inner: ScopedVariable) -> None:
        """Bind the copy to the value of the input."""
        self.bind_value(inner, self.content_of(outer))

    def share_gradient(self, outer: ScopedVariable, inner: ScopedVariable) -> None:
        """Bind the inner gradient to the value of the outer gradient."""
        self.bind_value(inner, self.content_of(outer))

    def fill_zeros(self, place: ScopedVariable) -> None:
        """Define a new value for a missing gradient."""
        if self.content_of(place) is None and not self.scopes.is_array(place) and not self.is_persistable(place):
            self.moment += 1
            self.define_value(place, self.sizes.declared_bytes(place))

    def add_gradient(self, outer: ScopedVariable, inner: ScopedVariable, carried: bool) -> None:
        """Read both gradients; a carried gradient passes its value to the outer name."""
        if carried:
            self.bind_value(outer, self.content_of(inner))
            return
        self.moment += 1
        self.read_value(inner)
        if self.read_value(outer) is None and not self.scopes.is_array(outer):
            self.define_value(outer, self.sizes.declared_bytes(outer))

    def read_value(self, place: ScopedVariable) -> _LiveValue | None:
        """Read a variable and return its value, or None."""
        value = self.content_of(place)
        if value is not None:
            value.last_use = self.moment
        return value

    def define_value(self, place: ScopedVariable, nbytes: int) -> _LiveValue:
        """Define a new value and bind the variable to the value."""
        value = _LiveValue(nbytes, self.moment)
        self.values.append(value)
        self.bind_value(place, value)
        return value

    def bind_value(self, place: ScopedVariable, value: _LiveValue | None) -> None:
        """Bind a variable to a value; None for feeds and persistable variables."""
        held = self.current_scopes[place.block].held
        held.pop(place.name, None)
        if value is not None:
            held[place.name] = value

    def peak_bytes(self) -> int:
        """Return the peak. A dying value passes the bytes to at most one new value of the same size, if allowed."""
        given: set[int] = set()
        for value, sources in self.offers:
            for source in sources:
                if source.last_use == value.defined_at and source.nbytes == value.nbytes and id(source) not in given:
                    given.add(id(source))
                    value.takes_over = True
                    break
        changes: dict[int, int] = {}
        for value in self.values:
            changes[value.begin] = changes.get(value.begin, 0) + value.nbytes
            changes[value.end] = changes.get(value.end, 0) - value.nbytes
        return max(accumulate(changes[moment] for moment in sorted(changes)), default=0)
