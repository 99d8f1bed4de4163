"""Which scopes a graph has: numbered where nobody gave a name, and one for each module, however often it is called."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Named(Protocol):
    """What a graph knows of a module: parameters that it asks for belong to it."""

    @property
    def name(self) -> str | None:
        """The name it was given; None for none, "" where it has no scope of its own."""

    @property
    def kind(self) -> str:
        """What it is called by when it was given no name."""

    def children(self) -> Iterable[tuple[str, object]]:
        """The modules that it is made of, by their names in it."""


def name_in(around: Named | None, module: Named) -> str | None:
    """The name of a module that is called by another: its own, or what it is called there. None when it has none."""
    if module.name is not None or around is None:
        return module.name
    return next((name for name, child in around.children() if child is module), None)


def free(taken: Container[str], prefix: str, name: str) -> str:
    """The first of `name`, `name_2`, `name_3`, ... whose scope below `prefix` is not taken."""
    number, found = 1, name
    while f"{prefix}{found}/" in taken:
        number += 1
        found = f"{name}_{number}"
    return found


class Naming:
    """The scopes that were open so far.

    scopes    all of them, in the order in which they were opened first
    paths     the scope of each module that was called, by its identity, for modules may be equal; with the module
    again     whether a module is called that was called before: what it asks for is there already
    repeated  how often the innermost module was called before
    """

    def __init__(self) -> None:
        self.scopes: dict[str, None] = {}
        self.paths: dict[int, tuple[Named, str]] = {}
        self.again = False
        self.repeated = 0
        self._calls: dict[int, int] = {}
        self._around: Named | None = None
        self._used: set[str] | None = None

    def unused(self, prefix: str, name: str) -> str:
        """A name for a scope that has not been open yet: `name`, `name_2`, `name_3`, ...

        In a module that is called again, one that has not been open since it is.
        """
        return free(self.scopes if self._used is None else self._used, prefix, name)

    def path(self, prefix: str, module: Named) -> str:
        """The scope of a module that is called in the scope `prefix`: the one of its first call."""
        if id(module) not in self.paths:
            name = name_in(self._around, module)
            name = self.unused(prefix, module.kind) if name is None else name
            self.paths[id(module)] = (module, f"{prefix}{name}/" if name else prefix)
        return self.paths[id(module)][1]

    @contextmanager
    def inside(self, path: str, module: Named | None = None) -> Iterator[None]:
        """Around what is written in a scope, that of a module or any other."""
        before = self.again, self.repeated, self._around, self._used
        self.scopes.setdefault(path)
        if self._used is not None:
            self._used.add(path)
        if module is not None:
            self._around, self.repeated = module, self._calls.get(id(module), 0)
            self._calls[id(module)] = self.repeated + 1
            self.again = self.again or self.repeated > 0
        self._used = set() if self.again else None
        try:
            yield
        finally:
            self.again, self.repeated, self._around, self._used = before
