"""Lower bound for the memory of a run: the most bytes live at any moment, independent of names and allocations.

A value is live from its definition to its last use, in any iteration. At its last use a value may pass its bytes to an
output of the same size, if the operator is known to be safe in place. An operator that copies its input (`assign`,
`reshape2`) defines no new value. The content of arrays is left out. So the result is a lower bound for every plan with
the same operators in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from sublet.frontends.paddle.format.program import Op
from sublet.frontends.paddle.lives.scopes import Place, Scopes
from sublet.frontends.paddle.operators.effects import effects
from sublet.frontends.paddle.operators.facts import Pairs, of
from sublet.frontends.paddle.peaks.walk import Asked, Walk

SAME = ("assign", "depend", "reshape2", "unsqueeze2", "squeeze2", "flatten_contiguous_range", "share_data")
"""Operators with an output `Out` equal to their input `X`: the same elements in the same order."""


@dataclass(slots=True)
class _Value:
    """A value of a run: its bytes, the moment of its definition, and the moment of its last use (-1 if none)."""

    nbytes: int
    born: int
    read: int = -1
    takes_over: bool = False

    @property
    def begin(self) -> int:
        """The start of the live range, in read and write slots.

        At moment t, operands are live in slot 2t; a value that takes over bytes of an operand is live only from slot 2t
        + 1 on.
        """
        return 2 * self.born + self.takes_over

    @property
    def end(self) -> int:
        """The end of the live range, in read and write slots."""
        return 2 * self.read + 1 if self.read > self.born else 2 * self.born + 2


def may_share(op_type: str) -> Pairs:
    """Return the (input, output) slot pairs allowed to have the same bytes, by a common name or as views."""
    facts = of(op_type)
    return facts.inplace | facts.placed | facts.placed_first | facts.shares


def live_bytes(asked: Asked, scopes: Scopes) -> int:
    """Return the most bytes live at any moment of a run."""
    lives = _Lives(asked, scopes)
    lives.run()
    lives.now_is += 1
    for place in asked.keep:
        lives.reads(place)
    return lives.most()


class _Lives(Walk[_Value]):
    """A walk with values as the content of variables."""

    def __init__(self, asked: Asked, scopes: Scopes) -> None:
        super().__init__(asked, scopes)
        self.now_is = 0
        self.values: list[_Value] = []
        self.offers: list[tuple[_Value, list[_Value]]] = []  # a new value, and the values whose bytes it may take

    def operator(self, block: int, index: int, op: Op) -> None:
        """Read the operands and define the outputs. An output equal to X takes over the value of X."""
        self.now_is += 1
        read = {name: self.reads(self.scopes.place(block, name)) for name in effects(op).reads}
        for slot, place in self.written(block, index, op):
            source = read.get(op.input("X") or "")
            if self.persistable(place) or self.scopes.is_array(place):
                continue
            nbytes = self.sizes.written(block, index, place)
            as_many = source is not None and source.nbytes == nbytes
            if slot == "Out" and (op.type in SAME or (as_many and ("X", "Out") in of(op.type).equal)):
                self.is_now(place, source)
                continue
            value = self.new(place, nbytes)
            offered = [
                (name, found)
                for taken, names in op.inputs.items()
                for name in names
                if (found := read.get(name)) is not None
                and ((taken, slot) in may_share(op.type) or self.scopes.place(block, name) == place)
            ]
            if offered:
                self.offers.append((value, [found for _, found in offered]))

    def copied(self, outer: Place, inner: Place) -> None:
        """Bind the copy to the value of the input."""
        self.is_now(inner, self.held(outer))

    def shared(self, outer: Place, inner: Place) -> None:
        """Bind the inner gradient to the value of the outer gradient."""
        self.is_now(inner, self.held(outer))

    def zeros(self, place: Place) -> None:
        """Define a new value for a missing gradient."""
        if self.held(place) is None and not self.scopes.is_array(place) and not self.persistable(place):
            self.now_is += 1
            self.new(place, self.sizes.declared(place))

    def added(self, outer: Place, inner: Place, carried: bool) -> None:
        """Read both gradients; a carried gradient passes its value to the outer name."""
        if carried:
            self.is_now(outer, self.held(inner))
            return
        self.now_is += 1
        self.reads(inner)
        if self.reads(outer) is None and not self.scopes.is_array(outer):
            self.new(outer, self.sizes.declared(outer))

    def reads(self, place: Place) -> _Value | None:
        """Read a variable and return its value, or None."""
        value = self.held(place)
        if value is not None:
            value.read = self.now_is
        return value

    def new(self, place: Place, nbytes: int) -> _Value:
        """Define a new value and bind the variable to the value."""
        value = _Value(nbytes, self.now_is)
        self.values.append(value)
        self.is_now(place, value)
        return value

    def is_now(self, place: Place, value: _Value | None) -> None:
        """Bind a variable to a value; None for feeds and persistable variables."""
        held = self.now[place.block].held
        held.pop(place.name, None)
        if value is not None:
            held[place.name] = value

    def most(self) -> int:
        """Return the peak. A dying value passes the bytes to at most one new value of the same size, if allowed."""
        given: set[int] = set()
        for value, sources in self.offers:
            for source in sources:
                if source.read == value.born and source.nbytes == value.nbytes and id(source) not in given:
                    given.add(id(source))
                    value.takes_over = True
                    break
        changes: dict[int, int] = {}
        for value in self.values:
            changes[value.begin] = changes.get(value.begin, 0) + value.nbytes
            changes[value.end] = changes.get(value.end, 0) - value.nbytes
        return max(accumulate(changes[moment] for moment in sorted(changes)), default=0)
