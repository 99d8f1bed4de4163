"""Where a node comes from: the running line of the user's program, and the scopes of names in a graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sublet.base.tensor import NUMPY, TensorSpec

PACKAGE = str(Path(__file__).parent.parent)


CodePosition = tuple[CodeType, int]
"""A position in the user's program: code object and byte offset of the instruction."""

_IS_USER_FILE: dict[str, bool] = {}
"""Cache: True for a file of the user's, False for a file of this package."""


def user_position() -> CodePosition | None:
    """Return the innermost running position outside of the package; None without a position.

    `format_position` converts the position to text.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        is_user_file = _IS_USER_FILE.get(name)
        if is_user_file is None:
            is_user_file = _IS_USER_FILE[name] = not name.startswith(PACKAGE) and not name.endswith("contextlib.py")
        if is_user_file:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def format_position(code: CodePosition | None) -> str:
    """Return a position as "file:line"; "" for None."""
    if code is None:
        return ""
    running, at = code
    lines = (line for begin, end, line in running.co_lines() if begin <= at < end and line is not None)
    return f"{running.co_filename}:{next(lines, running.co_firstlineno)}"


def user_line() -> str:
    """Return the innermost running line outside of this package as "file:line"; "" without a line."""
    return format_position(user_position())


def at_line(message: str) -> str:
    """Return the message, with the user's line in front."""
    line = user_line()
    return f"{line}: {message}" if line else message


# Scopes of names: numbered scopes for layers without a name, and one scope a module.


class NamedModule(Protocol):
    """The interface of modules for graphs: the graph assigns parameters to the module requesting the parameters."""

    @property
    def name(self) -> str | None:
        """The given name; None without a name, "" for a module without its own scope."""

    @property
    def kind(self) -> str:
        """The default name."""

    def children(self) -> Iterable[tuple[str, object]]:
        """Return the inner modules by name."""


def name_in_parent(around: NamedModule | None, module: NamedModule) -> str | None:
    """Return the name of a module in the module `around`: the given name, or the attribute's name, or None."""
    if module.name is not None or around is None:
        return module.name
    return next((name for name, child in around.children() if child is module), None)


def first_free_name(taken: Container[str], prefix: str, name: str) -> str:
    """Return the first of `name`, `name_2`, `name_3`, ... with an unused scope below `prefix`."""
    number, candidate = 1, name
    while f"{prefix}{candidate}/" in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


class ScopeNames:
    """The opened scopes.

    scopes          all scopes, in order of first opening
    paths           the scope of each called module by the module's identity (modules may be equal), with the module
    is_repeated_call  True inside a module called before: the module's declarations exist already
    prior_calls     the number of earlier calls of the innermost module
    """

    def __init__(self) -> None:
        self.scopes: dict[str, None] = {}
        self.paths: dict[int, tuple[NamedModule, str]] = {}
        self.is_repeated_call = False
        self.prior_calls = 0
        self._calls: dict[int, int] = {}
        self._around: NamedModule | None = None
        self._used: set[str] | None = None

    def unused_scope_name(self, prefix: str, name: str) -> str:
        """Return a name for a new scope: the first unused of `name`, `name_2`, `name_3`, ...

        In a module called again, the first name not opened since the beginning of the call.
        """
        return first_free_name(self.scopes if self._used is None else self._used, prefix, name)

    def scope_of_module(self, prefix: str, module: NamedModule) -> str:
        """Return the scope of a module called in the scope `prefix`: the scope of the first call."""
        if id(module) not in self.paths:
            name = name_in_parent(self._around, module)
            name = self.unused_scope_name(prefix, module.kind) if name is None else name
            self.paths[id(module)] = (module, f"{prefix}{name}/" if name else prefix)
        return self.paths[id(module)][1]

    @contextmanager
    def enter_scope(self, path: str, module: NamedModule | None = None) -> Iterator[None]:
        """Enter a scope, of a module or any other, inside `with`."""
        before = self.is_repeated_call, self.prior_calls, self._around, self._used
        self.scopes.setdefault(path)
        if self._used is not None:
            self._used.add(path)
        if module is not None:
            self._around, self.prior_calls = module, self._calls.get(id(module), 0)
            self._calls[id(module)] = self.prior_calls + 1
            self.is_repeated_call = self.is_repeated_call or self.prior_calls > 0
        self._used = set() if self.is_repeated_call else None
        try:
            yield
        finally:
            self.is_repeated_call, self.prior_calls, self._around, self._used = before


# Initial values of parameters and states.

Array = NDArray[Any]

Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
"""A function `draw(generator, shape)` returning an array of the shape."""


@dataclass(frozen=True)
class ArrayContent:
    """An initial value given as an array."""

    content: Array

    def array(self) -> Array:
        """Return the array."""
        return self.content


@dataclass(frozen=True)
class RandomContent:
    """An initial value drawn at compile time, reproducibly: the parameter's name seeds the generator."""

    name: str
    spec: TensorSpec
    draw: Draw

    def array(self) -> Array:
        """Return the drawn array, of the shape and type of `spec`."""
        random = np.random.default_rng(crc32(self.name.encode()))
        return np.array(self.draw(random, self.spec.shape), NUMPY[self.spec.dtype], order="C")
