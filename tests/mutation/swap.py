"""The code of functions, changed where they are: in their modules, classes and whatever else holds them.

So a mutant costs a fork and no import. What a function's `__code__` does not hold stays as it was: defaults, and what
was computed with the function before.
"""

from __future__ import annotations

import ast
import functools
import gc
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

HITS = "_lines_run"
"""The name under which a module that notes its lines finds where to."""


class Functions:
    """The functions of some files, as they are in memory."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._found: dict[Path, dict[tuple[str, int], list[FunctionType]]] = defaultdict(lambda: defaultdict(list))
        self._caches = []
        gc.unfreeze()  # as the suite has frozen them
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                path = Path(one.__code__.co_filename)
                if any(path.is_relative_to(folder) for folder in folders):
                    self._found[path][one.__code__.co_qualname, one.__code__.co_firstlineno].append(one)
            elif isinstance(one, functools._lru_cache_wrapper):
                self._caches.append(one)

    def paths(self) -> list[Path]:
        return sorted(self._found)

    def become(self, path: Path, tree: ast.Module) -> None:
        """Let the functions of a file be those of a tree. Raises ValueError where that cannot be."""
        codes = list(_codes(compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)))
        times = Counter((code.co_qualname, code.co_firstlineno) for code in codes)
        for code in codes:
            key = (code.co_qualname, code.co_firstlineno)
            for function in self._found[path].get(key, ()) if times[key] == 1 else ():
                function.__code__ = code
        for cache in self._caches:
            cache.cache_clear()

    def note_lines(self, path: Path, tree: ast.Module, lines: set[tuple[Path, int]]) -> None:
        """Let the functions of a file note the lines of statements that they run."""
        self.become(path, _Noting().visit(tree))
        for functions in self._found[path].values():
            for function in functions:
                function.__globals__[HITS] = lambda line: lines.add((path, line))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class _Noting(ast.NodeTransformer):
    """Puts a note of its line before each statement of a function."""

    def __init__(self) -> None:
        self._inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        outer, self._inside = self._inside, True
        self.generic_visit(node)
        self._inside = outer
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if self._inside:
            for field in ("body", "orelse", "finalbody"):
                statements = getattr(node, field, None)
                if isinstance(statements, list):
                    noted = [one for statement in statements for one in (_note(statement), statement)]
                    setattr(node, field, noted)
        return node


def _note(statement: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(HITS, ast.Load()), [ast.Constant(statement.lineno)], [])
    return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), statement))
