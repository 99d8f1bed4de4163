"""Terms for the contents of tensors: tensors with the same term hold the same bits, for any kernels."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

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
