"""Extents that depend on dimensions with ranges: integer expressions, compared for all points of a box at once.

A `Dimension` ranges over whole numbers. An `Extent` is a sum of products of dimensions with integer factors; floor
divisions by a constant, minima and maxima may be factors too. A *point* gives each dimension a number, and the *box* is
the set of all points.

`<`, `<=`, `>`, `>=` and truth are proven for the whole box, or raise `Undecided`: a computation that raises nothing
takes the same path at every point. `==` is True only for expressions equal at every point; False says "not proven".
An expression without dimensions is a plain int, never an Extent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import ClassVar, cast

from sublet.base.errors import SubletError

MOST_PARTS = 1000
"""Parts of an expression, shared parts counted each time; a larger one is no extent of a real model."""

MOST_ENUMERATED = 4096
"""Numbers of a dimension tried one by one for exact bounds."""

MOST_COMBINED = 512
"""Points of several dimensions tried one by one for exact bounds: about 1 ms for each expression."""
MOST_TERMS = 64
"""Terms of an expression; larger expressions have no proofs in reasonable time."""


class Undecided(SubletError):
    """A comparison with different results at different points of the box, or without a proof."""

    def __init__(self, difference: Extent) -> None:
        text = str(difference) if difference.size <= MOST_PARTS else f"an extent of {difference.size:,} parts"
        super().__init__(f"the sign of {text} differs within the ranges, or has no proof")
        self.difference = difference


@dataclass(frozen=True)
class Dimension:
    """A dimension: whole numbers from `low` to `high`, both at least 0."""

    name: str
    low: int
    high: int
    size: ClassVar[int] = 1

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.low, self.high))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.name

    def value_at(self, point: Mapping[str, int]) -> int:
        """Return the number of the dimension at a point."""
        return point[self.name]


@dataclass(frozen=True)
class Compound:
    """A factor computed from expressions: "//" of two, "min" or "max" of two. The divisor is a positive int."""

    kind: str
    left: Extent
    right: Extent | int

    @cached_property
    def size(self) -> int:
        """The number of parts."""
        return 1 + self.left.size + (self.right.size if isinstance(self.right, Extent) else 1)

    @cached_property
    def _hash(self) -> int:
        return hash((self.kind, self.left, self.right))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"(({self.left})//{self.right})" if self.kind == "//" else f"{self.kind}({self.left}, {self.right})"

    def value_at(self, point: Mapping[str, int]) -> int:
        """Return the number of the factor at a point."""
        left, right = self.left.at(point), extent_at(self.right, point)
        return left // right if self.kind == "//" else min(left, right) if self.kind == "min" else max(left, right)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """A lower and an upper bound over the box."""
        (low, high), (least, most) = bounds_of(self.left), bounds_of(self.right)
        if self.kind == "//":
            return low // most, high // most
        return (min(low, least), min(high, most)) if self.kind == "min" else (max(low, least), max(high, most))


Factor = Dimension | Compound
Monomial = tuple[Factor, ...]
"""A product of factors, sorted by text; the empty product is 1."""


class Extent:
    """An integer expression over dimensions. See the module for the meaning of comparisons."""

    __slots__ = ("_bounds", "_hash", "size", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        """Create the sum of `terms`: (product, factor) pairs in the order of `_sum`, not all constant.

        Raises Undecided for an expression of more than MOST_PARTS parts.
        """
        self.terms = terms
        self._hash = hash(terms)
        self._bounds: tuple[int, int] | None = None
        self.size = sum(1 + sum(each.size for each in factors) for factors, _ in terms)
        if self.size > MOST_PARTS:
            raise Undecided(self)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Extent) and self._hash == other._hash and self.terms == other.terms)

    def __add__(self, other: Extent | int) -> Extent | int:
        return _sum((*self.terms, *_terms(other)))

    __radd__ = __add__

    def __sub__(self, other: Extent | int) -> Extent | int:
        return _sum((*self.terms, *((factors, -factor) for factors, factor in _terms(other))))

    def __rsub__(self, other: int) -> Extent | int:
        return -self + other

    def __neg__(self) -> Extent:
        return Extent(tuple((factors, -factor) for factors, factor in self.terms))

    def __mul__(self, other: Extent | int) -> Extent | int:
        return _product(self, other)

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Extent | int) -> Extent | int:
        """Return the quotient, rounded down. Raises Undecided for a divisor that may be 0 or divides with a rest."""
        if isinstance(divisor, Extent):
            return _quotient(self, divisor)
        if divisor <= 0:
            return -self // -divisor if divisor else _never(self)
        whole = [(factors, factor // divisor) for factors, factor in self.terms if factor % divisor == 0]
        rest = _sum((factors, factor) for factors, factor in self.terms if factor % divisor)
        if isinstance(rest, int):
            return _sum(whole) + rest // divisor
        first, *constant = rest.terms
        if len(first[0]) == 1 and first[1] == 1 and not any(factors for factors, _ in constant):
            inner = first[0][0]
            if isinstance(inner, Compound) and inner.kind == "//":  # (n // d + c) // e is (n + c * d) // (d * e)
                assert isinstance(inner.right, int)
                return _sum(whole) + (inner.left + _sum(constant) * inner.right) // (inner.right * divisor)
        low, high = bounds_of(rest)
        left = low // divisor if low // divisor == high // divisor else as_extent(Compound("//", rest, divisor))
        return _sum(whole) + left

    def __rfloordiv__(self, dividend: int) -> Extent | int:
        return 0 if dividend == 0 and bool(self) else _never(self)

    def __mod__(self, divisor: Extent | int) -> Extent | int:
        return self - self // divisor * divisor

    def __lt__(self, other: Extent | int) -> bool:
        return _is_positive(other - self)

    def __le__(self, other: Extent | int) -> bool:
        return not _is_positive(self - other)

    def __gt__(self, other: Extent | int) -> bool:
        return _is_positive(self - other)

    def __ge__(self, other: Extent | int) -> bool:
        return not _is_positive(other - self)

    def __bool__(self) -> bool:
        low, high = bounds_of(self)
        if low > 0 or high < 0 or is_at_least_zero(self - 1) or is_at_least_zero(-self - 1):
            return True
        raise Undecided(self)

    def __str__(self) -> str:
        texts = []
        for factors, factor in self.terms:
            names = "*".join(map(str, factors))
            size = names if factors and abs(factor) == 1 else "*".join(filter(None, (str(abs(factor)), names)))
            texts.append(f"{'-' if factor < 0 else '+'} {size}")
        first, *others = texts
        return " ".join((first.removeprefix("+ ") if first[0] == "+" else f"-{first[2:]}", *others))

    __repr__ = __str__

    def at(self, point: Mapping[str, int]) -> int:
        """Return the number at a point: the number of each dimension by name."""
        total = 0
        for factors, number in self.terms:  # plain loops: a server evaluates all extents at each new shape
            for each in factors:
                number *= each.value_at(point)
            total += number
        return total

    @property
    def dimensions(self) -> frozenset[Dimension]:
        """The dimensions of the expression."""
        found: set[Dimension] = set()
        for factors, _ in self.terms:
            for each in factors:
                if isinstance(each, Dimension):
                    found.add(each)
                else:
                    found |= each.left.dimensions | (
                        each.right.dimensions if isinstance(each.right, Extent) else frozenset()
                    )
        return frozenset(found)


def is_ranged(extent: object) -> bool:
    """True for an extent that depends on a dimension."""
    return isinstance(extent, Extent)


def extent_at(extent: Extent | int, point: Mapping[str, int]) -> int:
    """Return the number of an extent at a point."""
    return extent.at(point) if isinstance(extent, Extent) else extent


def least(left: Extent | int, right: Extent | int) -> Extent | int:
    """Return the minimum of two extents, simplified where the order is proven."""
    return _either("min", left, right)


def greatest(left: Extent | int, right: Extent | int) -> Extent | int:
    """Return the maximum of two extents, simplified where the order is proven."""
    return _either("max", left, right)


def clamp(extent: int, most: int) -> int:
    """Return an extent, at least 0 and at most `most`; all may be expressions."""
    return cast(int, least(greatest(extent, 0), most))


def upper_bound(extent: Extent | int) -> int:
    """Return the least known upper bound over the box; the maximum if no factor has a negative sign or is compound."""
    return bounds_of(extent)[1]


def bounds_of(extent: Extent | int) -> tuple[int, int]:
    """Return a lower and an upper bound over the box.

    Both are exact for an expression of one dimension, and without compound factors for one of at most four dimensions
    that is linear in each.
    """
    if isinstance(extent, int):
        return extent, extent
    if extent._bounds is None:
        extent._bounds = _bounds(extent)
    return extent._bounds


def substitute(extent: Extent | int, changed: Mapping[Dimension, Extent | int]) -> Extent | int:
    """Return the extent with other expressions in place of dimensions."""
    if isinstance(extent, int) or changed.keys().isdisjoint(extent.dimensions):
        return extent
    return sum(
        factor * prod(_substituted_factor(each, changed) for each in factors) for factors, factor in extent.terms
    )


def bounds_at(extent: Extent | int, numbers: Mapping[str, int]) -> tuple[int, int]:
    """Return a lower and an upper bound at the known numbers of some dimensions, by name; see `bounds_of`."""
    if isinstance(extent, int):
        return extent, extent
    return bounds_of(substitute(extent, {d: numbers[d.name] for d in extent.dimensions if d.name in numbers}))


def is_at_least_zero(extent: Extent | int) -> bool:
    """True if the extent is proven to be at least 0 at every point of the box."""
    return extent >= 0 if isinstance(extent, int) else _is_proven(extent)


def _substituted_factor(factor: Factor, changed: Mapping[Dimension, Extent | int]) -> Extent | int:
    """Return a factor with other expressions in place of dimensions."""
    if isinstance(factor, Dimension):
        return changed.get(factor, as_extent(factor))
    left, right = substitute(factor.left, changed), substitute(factor.right, changed)
    return left // right if factor.kind == "//" else _either(factor.kind, left, right)


def as_extent(factor: Factor) -> Extent:
    """Return a single factor as an extent."""
    return Extent((((factor,), 1),))


def _terms(extent: Extent | int) -> tuple[tuple[Monomial, int], ...]:
    """Return the terms of an extent or a number."""
    return extent.terms if isinstance(extent, Extent) else (((), int(extent)),) if extent else ()


def _sum(terms: Iterable[tuple[Monomial, int]]) -> Extent | int:
    """Return the sum of terms in normal form: equal products joined, in a fixed order."""
    joined: dict[Monomial, int] = {}
    for factors, factor in terms:
        joined[factors] = joined.get(factors, 0) + factor
    kept = [(factors, factor) for factors, factor in joined.items() if factor]
    if not kept or (len(kept) == 1 and not kept[0][0]):
        return kept[0][1] if kept else 0
    return Extent(tuple(sorted(kept, key=_order_of)))


def _order_of(term: tuple[Monomial, int]) -> tuple[int, tuple[str, ...]]:
    """Return the sort key of a term: products of many factors first, the constant last."""
    return -len(term[0]), tuple(map(str, term[0]))


def _product(left: Extent | int, right: Extent | int) -> Extent | int:
    """Return the product in normal form."""
    return _sum(
        (tuple(sorted((*ours, *theirs), key=str)), one * other)
        for ours, one in _terms(left)
        for theirs, other in _terms(right)
    )


def exact_quotient(dividend: Extent | int, divisor: Extent | int) -> Extent | int:
    """Return the quotient by a divisor of one term that divides every term; the divisor may be 0 where the dividend is.

    Raises Undecided without such a quotient.
    """
    if isinstance(divisor, int):
        return dividend // divisor
    if isinstance(dividend, int) or len(divisor.terms) != 1:
        raise Undecided(divisor)
    (shared, number) = divisor.terms[0]
    quotients: list[tuple[Monomial, int]] = []
    for factors, factor in dividend.terms:
        for each in shared:
            if each not in factors:
                raise Undecided(divisor)
            factors = _remove_factor(factors, each)
        if factor % number:
            raise Undecided(divisor)
        quotients.append((factors, factor // number))
    return _sum(quotients)


def _quotient(dividend: Extent, divisor: Extent) -> Extent | int:
    """Return dividend / divisor, without a rest, for a divisor that is never 0. Raises Undecided otherwise."""
    if not bool(divisor):
        raise Undecided(divisor)
    return 1 if dividend == divisor else exact_quotient(dividend, divisor)


def _never(extent: Extent) -> Extent:
    raise Undecided(extent)


def _either(kind: str, left: Extent | int, right: Extent | int) -> Extent | int:
    """Return the minimum or maximum of two extents."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right) if kind == "min" else max(left, right)
    if left == right:
        return left
    for smaller, larger in ((left, right), (right, left)):
        if is_at_least_zero(larger - smaller):
            return smaller if kind == "min" else larger
    if isinstance(left, int):
        left, right = right, left
    assert isinstance(left, Extent)
    return as_extent(Compound(kind, left, right))


def _is_positive(difference: Extent | int) -> bool:
    """True if the difference is positive at every point, False if at no point. Raises Undecided otherwise."""
    if isinstance(difference, int):
        return difference > 0
    low, high = bounds_of(difference)
    if low > 0:
        return True
    if high <= 0:
        return False
    if is_at_least_zero(difference - 1):
        return True
    if is_at_least_zero(-difference):
        return False
    raise Undecided(difference)


def _bounds_of_factor(factor: Factor) -> tuple[int, int]:
    return (factor.low, factor.high) if isinstance(factor, Dimension) else factor.bounds


@lru_cache(maxsize=1 << 16)
def _bounds(extent: Extent) -> tuple[int, int]:
    """Return bounds: exact by corners or by enumeration where possible, else by interval arithmetic."""
    dims = sorted(extent.dimensions, key=str)
    if all(isinstance(each, Dimension) for factors, _ in extent.terms for each in factors):
        if len({factor > 0 for factors, factor in extent.terms if factors}) == 1:  # rises, or falls, in every dimension
            ends = [extent.at(corner) for corner in _two_corners(extent)]
            return min(ends), max(ends)
        if len(dims) <= 4 and all(len(set(factors)) == len(factors) for factors, _ in extent.terms):
            points = product(*[[(each.name, each.low), (each.name, each.high)] for each in dims])
            corners = [extent.at(dict(point)) for point in points]
            return min(corners), max(corners)
    count = prod(each.high - each.low + 1 for each in dims)
    if count <= (MOST_ENUMERATED if len(dims) == 1 else MOST_COMBINED):
        all_numbers = product(*(range(each.low, each.high + 1) for each in dims))
        numbers = [extent.at({each.name: n for each, n in zip(dims, point, strict=True)}) for point in all_numbers]
        return min(numbers), max(numbers)
    shared = _shared_factor(extent)
    if shared is not None:
        rest = _sum((_remove_factor(factors, shared), factor) for factors, factor in extent.terms)
        products = [one * other for one in _bounds_of_factor(shared) for other in bounds_of(rest)]
        return min(products), max(products)
    low = high = 0
    for factors, factor in extent.terms:
        least_, most = factor, factor
        for each in factors:
            products = [a * b for a in (least_, most) for b in _bounds_of_factor(each)]
            least_, most = min(products), max(products)
        low, high = low + least_, high + most
    return low, high


def _shared_factor(extent: Extent) -> Factor | None:
    """Return a factor of every term; None without one, and for a single factor."""
    first = extent.terms[0][0]
    if len(extent.terms) == 1 and len(first) < 2:
        return None
    return next((each for each in first if all(each in factors for factors, _ in extent.terms)), None)


def _remove_factor(factors: Monomial, factor: Factor) -> Monomial:
    """Return a product without one occurrence of a factor."""
    left = list(factors)
    left.remove(factor)
    return tuple(left)


@lru_cache(maxsize=1 << 16)
def _is_proven(extent: Extent) -> bool:
    """True if the extent is proven to be at least 0 at every point: by bounds, by sign after a shift, by relaxation."""
    if bounds_of(extent)[0] >= 0:
        return True
    if len(extent.terms) > MOST_TERMS or any(extent.at(corner) < 0 for corner in _two_corners(extent)):
        return False
    compound = next((each for factors, _ in extent.terms for each in factors if isinstance(each, Compound)), None)
    if compound is not None:
        return _is_proven_without(compound, extent)
    shifted = substitute(extent, {each: each.low + as_extent(_from_zero(each)) for each in extent.dimensions})
    return bounds_of(shifted)[0] >= 0 or all(factor > 0 for _, factor in _terms(shifted))


def _from_zero(each: Dimension) -> Dimension:
    """Return the dimension of the distances from the least number."""
    return Dimension(f"{each.name}'", 0, each.high - each.low)


def _two_corners(extent: Extent) -> Iterator[dict[str, int]]:
    """Yield the point of all least and the point of all largest numbers."""
    yield {each.name: each.low for each in extent.dimensions}
    yield {each.name: each.high for each in extent.dimensions}


def _is_proven_without(compound: Compound, extent: Extent) -> bool:
    """True if a lower bound of the extent without the compound factor is proven to be at least 0."""
    within = [(factors, factor) for factors, factor in extent.terms if compound in factors]
    others = _sum((factors, factor) for factors, factor in extent.terms if compound not in factors)
    if any(factors.count(compound) > 1 or any(_bounds_of_factor(e)[0] < 0 for e in factors) for factors, _ in within):
        return False
    left, right = compound.left, compound.right
    if compound.kind == "//":  # times the divisor: n - (d - 1) <= d * (n // d) <= n
        assert isinstance(right, int)
        ends = (left, left - (right - 1))
        total = sum(factor * _without(factors, compound) * ends[factor > 0] for factors, factor in within)
        return is_at_least_zero(others * right + total)
    proofs = (
        is_at_least_zero(others + sum(factor * _without(factors, compound) * each for factors, factor in within))
        for each in (left, right)
    )
    towards = [factor > 0 if compound.kind == "max" else factor < 0 for _, factor in within]
    return any(proofs) if all(towards) else all(proofs)


def _without(factors: Monomial, compound: Compound) -> Extent | int:
    """Return a product without one factor, as an extent."""
    return _sum([(_remove_factor(factors, compound), 1)])
