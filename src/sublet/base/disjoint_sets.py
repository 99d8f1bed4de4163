"""Disjoint sets by union-find, with path halving (Tarjan and van Leeuwen 1984)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DisjointSets(Generic[T]):
    """A partition of elements; an element is alone in a set until merged.

    SciPy has the same, but `scipy.cluster` takes 17 ms to import.
    """

    def __init__(self) -> None:
        self._parents: dict[T, T] = {}

    def find(self, element: T) -> T:
        """Return the representative of the set of an element."""
        parents = self._parents
        while (above := parents.get(element, element)) != element:
            parents[element] = parents.get(above, above)
            element = above
        return element

    def union(self, *elements: T) -> None:
        """Merge the sets of the elements. The representative of the first set stays."""
        for other in elements[1:]:
            self._parents[self.find(other)] = self.find(elements[0])
