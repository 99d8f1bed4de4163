"""What tensors hold, as terms: two tensors with one term hold the same bits, whatever the kernels compute."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

Term = int


class Terms:
    """Terms, each made once: applications of an op to terms, what is known at the start, and what is lost.

    `dims` tells the shapes of those that an op of the original program made; `literal` the value of those that are
    one number, such as counters; `bits` the term whose bits a term has, of those that a reshape or the like made;
    `nothing` is held where nobody wrote.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, Term] = {}
        self.parts: list[Hashable] = []
        self.dims: dict[Term, tuple[int, ...]] = {}
        self.literal: dict[Term, float] = {}
        self.bits: dict[Term, Term] = {}
        self._lost: dict[Term, str] = {}
        self.nothing = self.of("nothing")

    def of(self, *parts: Hashable) -> Term:
        """The term of these parts; equal parts give the same one."""
        term = self._known.setdefault(parts, len(self.parts))
        if term == len(self.parts):
            self.parts.append(parts)
        return term

    def number(self, value: float) -> Term:
        """The term of a scalar that is known."""
        term = self.of("number", float(value))
        self.literal[term] = float(value)
        return term

    def lost(self, why: str) -> Term:
        """A term unlike all others: nobody knows these bytes."""
        term = self.of("lost", len(self.parts), why)
        self._lost[term] = why
        return term

    def why_lost(self, term: Term) -> str:
        """Why nobody knows these bytes, where they are what went wrong first; empty if they are known."""
        return self._lost.get(term, "")

    def same_bits(self, one: Term, other: Term) -> bool:
        """Whether two terms are known to be the same bits, in one shape or in two."""
        return self._origin(one) == self._origin(other)

    def _origin(self, term: Term) -> Term:
        while term in self.bits:
            term = self.bits[term]
        return term

    def shape(self, term: Term) -> Term:
        """What an op sees of an operand of which it only reads the shape."""
        dims = self.dims.get(term)
        return self.of("shape", dims) if dims is not None else self.of("shape of", term)


class Choices:
    """Which way control flow goes: every condition is a term, and goes the same way in both programs."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._prefix: list[bool] = []
        self._made: dict[Term, bool] = {}
        self.all_tried = False

    def ways(self, most: int) -> Iterator[None]:
        """Stop once for each combination of choices that comes up in what is run between, but at most so often."""
        left: list[list[bool]] = [[]]
        for _ in range(most):
            self._prefix, self._made = left.pop(), {}
            yield
            taken = list(self._made.values())
            left += [[*taken[:i], True] for i in range(len(self._prefix), len(taken))]
            if not left:
                self.all_tried = True
                return

    def holds(self, term: Term) -> bool:
        """Whether a condition holds on the way that is being explored."""
        literal = self._terms.literal.get(term)
        if literal is not None:
            return bool(literal)
        parts = self._terms.parts[term]
        if isinstance(parts, tuple) and parts[:1] == ("not",):
            return not self.holds(parts[1])
        if isinstance(parts, tuple) and parts[:1] == ("cast",):
            return self.holds(parts[1])
        if term not in self._made:
            i = len(self._made)
            self._made[term] = i < len(self._prefix) and self._prefix[i]
        return self._made[term]
