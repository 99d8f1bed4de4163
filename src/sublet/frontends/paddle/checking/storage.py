"""Memory as Paddle's executor has it: allocations, tensors that are ranges of one, variables by name in scopes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from sublet.frontends.paddle.checking.terms import Term, Terms


class Allocation:
    """A run of bytes, and what lies in them: sorted segments (begin, end, term, offset of begin in the term)."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._segments: list[tuple[int, int, Term, int]] = []

    def put(self, begin: int, end: int, term: Term) -> None:
        """Write a term; what lay there is gone."""
        kept: list[tuple[int, int, Term, int]] = []
        for low, high, old, offset in self._overlapping(begin, end):
            if low < begin:
                kept.append((low, begin, old, offset))
            if high > end:
                kept.append((end, high, old, offset + end - low))
        first, last = self._range(begin, end)
        self._segments[first:last] = sorted([*kept, (begin, end, term, 0)])

    def get(self, begin: int, end: int) -> Term | None:
        """The term that lies there, whole; None when there is none."""
        match self._overlapping(begin, end):
            case [(low, high, term, 0)] if (low, high) == (begin, end):
                return term
        return None

    def _range(self, begin: int, end: int) -> tuple[int, int]:
        first = max(0, bisect_right(self._segments, begin, key=lambda segment: segment[0]) - 1)
        while first < len(self._segments) and self._segments[first][1] <= begin:
            first += 1
        last = first
        while last < len(self._segments) and self._segments[last][0] < end:
            last += 1
        return first, last

    def _overlapping(self, begin: int, end: int) -> list[tuple[int, int, Term, int]]:
        first, last = self._range(begin, end)
        return self._segments[first:last]


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes of a tensor."""

    allocation: Allocation
    begin: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.begin + self.nbytes

    def sized(self, nbytes: int) -> Place:
        """So many bytes from there on, in an allocation of their own where they do not fit."""
        if self.begin + nbytes > self.allocation.nbytes:
            return Place(Allocation(nbytes), 0, nbytes)
        return Place(self.allocation, self.begin, nbytes)

    def meets(self, other: Place) -> bool:
        return self.allocation is other.allocation and self.begin < other.end and other.begin < self.end

    @property
    def term(self) -> Term | None:
        return self.allocation.get(self.begin, self.end)

    def put(self, term: Term) -> None:
        self.allocation.put(self.begin, self.end, term)


@dataclass
class Array:
    """A tensor array. Of one made from a tensor, the elements that nobody wrote are parts of it (`source`)."""

    elements: dict[int, Term] = field(default_factory=dict)
    source: Term | None = None

    def element(self, terms: Terms, index: int) -> Term | None:
        if index not in self.elements and self.source is not None:
            return terms.of("element", self.source, index)
        return self.elements.get(index)

    @property
    def whole(self) -> tuple[object, ...]:
        return ("array", self.source, *sorted(self.elements.items()))


@dataclass
class Variable:
    """What a name stands for in a scope: a tensor, an array, or the scopes of a loop's rounds; or nothing yet.

    `shown` is what was written to the tensor by this name last: it has that shape, whatever its bytes are by now.
    """

    place: Place | None = None
    shown: Term | None = None
    array: Array | None = None
    scopes: list[Scope] = field(default_factory=list)

    def be(self, other: Variable) -> None:
        """Stand for what another variable stands for."""
        self.place, self.shown, self.array = other.place, other.shown, other.array


def tensor(term: Term, nbytes: int) -> Variable:
    """A tensor in an allocation of its own."""
    place = Place(Allocation(nbytes), 0, nbytes)
    place.put(term)
    return Variable(place, term)


class Scope:
    """Variables by name; what is not here may be in the scope around it."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.variables: dict[str, Variable] = {}

    def find(self, name: str) -> Variable | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return None

    def here(self, name: str) -> Variable:
        """The variable of this scope, made when there is none."""
        return self.variables.setdefault(name, Variable())

    def found(self, name: str) -> Variable:
        """The nearest variable of that name, made here when there is none."""
        return self.find(name) or self.here(name)
