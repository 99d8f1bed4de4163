"""Names unique in a program or a file."""

from __future__ import annotations

from collections.abc import Iterable


class NameGenerator:
    """A generator of unique names. A hint already taken gets a number: `x`, `x_2`, `x_3`.

    separator  the text between hint and number
    first      the first number
    is_shared  True to count all numbers together, instead of separately for each hint
    """

    def __init__(
        self, taken: Iterable[str] = (), separator: str = "_", first: int = 2, *, is_shared: bool = False
    ) -> None:
        self._separator, self._first, self._is_shared = separator, first, is_shared
        self._given = dict.fromkeys(taken, ("", first))
        """By name, in order: the counter used, and the next number of the counter before the name was given."""
        self._next: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """Return `hint`, with a number if taken."""
        counter = "" if self._is_shared else hint
        name, number = hint, self._next.get(counter, self._first)
        before = counter, number
        if name in self._given:
            while (name := f"{hint}{self._separator}{number}") in self._given:
                number += 1
            self._next[counter] = number + 1
        self._given[name] = before
        return name

    @property
    def last_number(self) -> int:
        """The last number given by a generator with a shared count; the number before `first` initially."""
        return self._next.get("", self._first) - 1

    @property
    def mark(self) -> int:
        """The count of names so far, for `rewind`."""
        return len(self._given)

    def rewind(self, mark: int) -> None:
        """Release every name given since `mark`."""
        while len(self._given) > mark:
            _, (counter, number) = self._given.popitem()
            self._next[counter] = number


def unused_name(name: str, taken: set[str]) -> str:
    """Return `name`, with underscores appended while taken, and add the result to `taken`."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
