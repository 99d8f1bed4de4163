"""Memory of Paddle's executor: allocations, tensors as byte ranges of an allocation, and scopes of named variables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

# Terms for the contents of tensors: tensors with the same term hold the same bits, for any kernels.

Term = int


class Terms:
    """Hash-consed terms: applications of operators to terms, initial contents, and lost contents.

    dims     the shape of each term made by an operator of the original
    literal  the value of each known scalar, such as a loop counter
    bits     the source of each term that copies the bits of another term, as a reshape does
    nothing  the term for unwritten memory
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Term] = {}
        self.parts: list[Hashable] = []
        self.dims: dict[Term, tuple[int, ...]] = {}
        self.literal: dict[Term, float] = {}
        self.bits: dict[Term, Term] = {}
        self._lost: dict[Term, str] = {}
        self.nothing = self.term_of("nothing")

    def term_of(self, *parts: Hashable) -> Term:
        """Return the term of the given parts; equal parts give the same term."""
        term = self._known.setdefault(parts, len(self.parts))
        if term == len(self.parts):
            self.parts.append(parts)
        return term

    def number_term(self, value: float) -> Term:
        """Return the term of a known scalar."""
        term = self.term_of("number", float(value))
        self.literal[term] = float(value)
        return term

    def lost_term(self, why: str) -> Term:
        """Return a new term, different from all others: unknown bytes."""
        term = self.term_of("lost", len(self.parts), why)
        self._lost[term] = why
        return term

    def reason_lost(self, term: Term) -> str:
        """Return the reason for a lost term; "" for a known term."""
        return self._lost.get(term, "")

    def have_same_bits(self, one: Term, other: Term) -> bool:
        """Return True if two terms are known to have the same bits, possibly in different shapes."""
        return self._origin(one) == self._origin(other)

    def _origin(self, term: Term) -> Term:
        """Return the source at the end of a chain of copies."""
        while term in self.bits:
            term = self.bits[term]
        return term

    def shape_term(self, term: Term) -> Term:
        """Return the term for the shape of an operand, for operators that read only the shape."""
        dims = self.dims.get(term)
        return self.term_of("shape", dims) if dims is not None else self.term_of("shape of", term)


class BranchOutcomes:
    """Outcomes of conditions: each condition is a term, with the same outcome in both programs."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._prefix: list[bool] = []
        self._made: dict[Term, bool] = {}
        self.all_tried = False

    def combinations(self, limit: int) -> Iterator[None]:
        """Yield once for each combination of outcomes that the runs encounter, at most `limit` times."""
        left: list[list[bool]] = [[]]
        for _ in range(limit):
            self._prefix, self._made = left.pop(), {}
            yield
            taken = list(self._made.values())
            left += [[*taken[:i], True] for i in range(len(self._prefix), len(taken))]
            if not left:
                self.all_tried = True
                return

    def is_met(self, term: Term) -> bool:
        """Return the outcome of a condition in the current combination."""
        literal = self._terms.literal.get(term)
        if literal is not None:
            return bool(literal)
        parts = self._terms.parts[term]
        if isinstance(parts, tuple) and parts[:1] == ("not",):
            return not self.is_met(parts[1])
        if isinstance(parts, tuple) and parts[:1] == ("cast",):
            return self.is_met(parts[1])
        if term not in self._made:
            i = len(self._made)
            self._made[term] = i < len(self._prefix) and self._prefix[i]
        return self._made[term]


class Allocation:
    """An allocation and its content: sorted segments (begin, end, term, offset of `begin` in the term)."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._segments: list[tuple[int, int, Term, int]] = []

    def write_term(self, begin: int, end: int, term: Term) -> None:
        """Write a term over [begin, end)."""
        kept: list[tuple[int, int, Term, int]] = []
        for low, high, old, offset in self._overlapping(begin, end):
            if low < begin:
                kept.append((low, begin, old, offset))
            if high > end:
                kept.append((end, high, old, offset + end - low))
        first, last = self._range(begin, end)
        self._segments[first:last] = sorted([*kept, (begin, end, term, 0)])

    def term_at(self, begin: int, end: int) -> Term | None:
        """Return the term that fills exactly [begin, end); None otherwise."""
        match self._overlapping(begin, end):
            case [(low, high, term, 0)] if (low, high) == (begin, end):
                return term
        return None

    def _range(self, begin: int, end: int) -> tuple[int, int]:
        """Return the index range of the segments that overlap [begin, end)."""
        first = max(0, bisect_right(self._segments, begin, key=lambda segment: segment[0]) - 1)
        while first < len(self._segments) and self._segments[first][1] <= begin:
            first += 1
        last = first
        while last < len(self._segments) and self._segments[last][0] < end:
            last += 1
        return first, last

    def _overlapping(self, begin: int, end: int) -> list[tuple[int, int, Term, int]]:
        """Return the segments that overlap [begin, end)."""
        first, last = self._range(begin, end)
        return self._segments[first:last]


@dataclass(frozen=True, slots=True)
class AllocationRange:
    """The bytes of a tensor: a range of an allocation."""

    allocation: Allocation
    begin: int
    nbytes: int

    @property
    def end(self) -> int:
        """The end of the range."""
        return self.begin + self.nbytes

    def with_size(self, nbytes: int) -> AllocationRange:
        """Return a range of `nbytes` at the same begin; a new allocation if the range does not fit."""
        if self.begin + nbytes > self.allocation.nbytes:
            return AllocationRange(Allocation(nbytes), 0, nbytes)
        return AllocationRange(self.allocation, self.begin, nbytes)

    def overlaps(self, other: AllocationRange) -> bool:
        """Return True if the ranges overlap."""
        return self.allocation is other.allocation and self.begin < other.end and other.begin < self.end

    @property
    def term(self) -> Term | None:
        """The term that fills the range, or None."""
        return self.allocation.term_at(self.begin, self.end)

    def write_term(self, term: Term) -> None:
        """Write a term over the range."""
        self.allocation.write_term(self.begin, self.end, term)


@dataclass
class TermArray:
    """A tensor array. In an array made from a tensor, elements without a write are parts of the tensor (`source`)."""

    elements: dict[int, Term] = field(default_factory=dict)
    source: Term | None = None

    def element(self, terms: Terms, index: int) -> Term | None:
        """Return the term of an element, or None."""
        if index not in self.elements and self.source is not None:
            return terms.term_of("element", self.source, index)
        return self.elements.get(index)

    @property
    def as_parts(self) -> tuple[object, ...]:
        """The parts of the term for the whole array."""
        return ("array", self.source, *sorted(self.elements.items()))


@dataclass
class TermVariable:
    """The content of a name in a scope: a tensor, an array, the kept scopes of a loop, or nothing yet.

    `last_written` is the term last written by the name, and determines the shape; the bytes may have changed since.
    """

    place: AllocationRange | None = None
    last_written: Term | None = None
    array: TermArray | None = None
    scopes: list[TermScope] = field(default_factory=list)

    def take_over(self, other: TermVariable) -> None:
        """Take over the content of another variable."""
        self.place, self.last_written, self.array = other.place, other.last_written, other.array


def new_tensor(term: Term, nbytes: int) -> TermVariable:
    """Return a tensor variable in a new allocation."""
    place = AllocationRange(Allocation(nbytes), 0, nbytes)
    place.write_term(term)
    return TermVariable(place, term)


class TermScope:
    """Variables by name, with an enclosing scope."""

    def __init__(self, parent: TermScope | None = None) -> None:
        self.parent = parent
        self.variables: dict[str, TermVariable] = {}

    def find(self, name: str) -> TermVariable | None:
        """Return the nearest variable of the name, or None."""
        scope: TermScope | None = self
        while scope is not None:
            if name in scope.variables:
                return scope.variables[name]
            scope = scope.parent
        return None

    def local(self, name: str) -> TermVariable:
        """Return the variable of the name in this scope; create the variable if missing."""
        return self.variables.setdefault(name, TermVariable())

    def find_or_create(self, name: str) -> TermVariable:
        """Return the nearest variable of the name; create the variable in this scope if missing."""
        return self.find(name) or self.local(name)
