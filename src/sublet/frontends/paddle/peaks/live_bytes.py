"""What must be there at least: the most bytes alive at one moment of a run, whoever holds them and under what names.

A value is alive from the operator that writes it to the last that reads its bytes, in whatever trip. At that operator
it may hand its bytes to an output, where that is known to be safe (`inplace`) and they are as many. An operator that
writes what it reads (`assign`, `reshape2`) is taken to make nothing new. What arrays hold is left out. So this is a
lower bound for every plan that runs the same operators in the same order.
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
"""Operators whose output `Out` may be taken for their input `X`: the same elements in the same order."""


@dataclass(slots=True)
class _Value:
    """Bytes that are written at one moment of the run and read for the last time at another, or never."""

    nbytes: int
    born: int
    read: int = -1
    takes_over: bool = False

    @property
    def begin(self) -> int:
        """In half moments: at moment t what is read is there in 2t, and what takes over its bytes only in 2t + 1."""
        return 2 * self.born + self.takes_over

    @property
    def end(self) -> int:
        return 2 * self.read + 1 if self.read > self.born else 2 * self.born + 2


def may_share(op_type: str) -> Pairs:
    """Slots of an input and an output that may be the same bytes, by one name or as views at one place."""
    facts = of(op_type)
    return facts.inplace | facts.placed | facts.placed_first | facts.shares


def live_bytes(asked: Asked, scopes: Scopes) -> int:
    """The most bytes that are alive at one moment of a run."""
    lives = _Lives(asked, scopes)
    lives.run()
    lives.now_is += 1
    for place in asked.keep:
        lives.reads(place)
    return lives.most()


class _Lives(Walk[_Value]):
    """A walk in which a variable holds a value."""

    def __init__(self, asked: Asked, scopes: Scopes) -> None:
        super().__init__(asked, scopes)
        self.now_is = 0
        self.values: list[_Value] = []
        self.offers: list[tuple[_Value, list[_Value]]] = []  # what is written, and what it may take the bytes of

    def operator(self, block: int, index: int, op: Op) -> None:
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
        self.is_now(inner, self.held(outer))

    def shared(self, outer: Place, inner: Place) -> None:
        self.is_now(inner, self.held(outer))

    def zeros(self, place: Place) -> None:
        if self.held(place) is None and not self.scopes.is_array(place) and not self.persistable(place):
            self.now_is += 1
            self.new(place, self.sizes.declared(place))

    def added(self, outer: Place, inner: Place, carried: bool) -> None:
        if carried:
            self.is_now(outer, self.held(inner))
            return
        self.now_is += 1
        self.reads(inner)
        if self.reads(outer) is None and not self.scopes.is_array(outer):
            self.new(outer, self.sizes.declared(outer))

    def reads(self, place: Place) -> _Value | None:
        value = self.held(place)
        if value is not None:
            value.read = self.now_is
        return value

    def new(self, place: Place, nbytes: int) -> _Value:
        value = _Value(nbytes, self.now_is)
        self.values.append(value)
        self.is_now(place, value)
        return value

    def is_now(self, place: Place, value: _Value | None) -> None:
        """A variable stands for a value; for none if it is a feed or lasts anyway."""
        held = self.now[place.block].held
        held.pop(place.name, None)
        if value is not None:
            held[place.name] = value

    def most(self) -> int:
        """The peak, when each value that dies hands its bytes to one that is as large and may take them."""
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
