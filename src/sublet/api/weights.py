"""Weights in files: written whole, read by memory map, under names of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sublet.base.arrays import array_of
from sublet.base.errors import ModelError
from sublet.base.printable import known_names, printable
from sublet.base.safetensors import Tensors, write_tensors
from sublet.runtime.kernel import Array

Names = Mapping[str, str] | Callable[[str], str]
"""What names of ours are called in a file: a dict, for those that differ, or a function."""


@runtime_checkable
class Weighted(Protocol):
    """What has weights: an executable, a dynamic graph."""

    @property
    def weights(self) -> Any:
        """Them, by name."""


class Several(Protocol):
    """Weights that can be read and set together."""

    def reading(self) -> AbstractContextManager[Mapping[str, Array]]:
        """All of them where they lie, while nobody runs."""

    def take(self, contents: Mapping[str, Any]) -> None:
        """Other contents for several, all or none."""

    def later(self, contents: Mapping[str, Any]) -> None:
        """What those start from that are made later."""


def save_weights(path: str | Path, of: Weighted | Mapping[str, Any], *, names: Names | None = None) -> None:
    """Write all weights of an executable, a dynamic graph or a mapping to a safetensors file, whole or not at all.

    That is every parameter and state, what the optimiser remembers, its step and the random key included. `names` tells
    what they are called in the file, where it differs. Raises ModelError where that cannot be.
    """
    if isinstance(of, Weighted):
        with of.weights.reading() as arrays:
            _save(path, arrays, names)
    else:
        _save(path, {name: array_of(given, printable(name)) for name, given in of.items()}, names)


def _save(path: str | Path, arrays: Mapping[str, Array], names: Names | None) -> None:
    called = {name: _name(names, name) for name in arrays}
    theirs = list(called.values())
    if len(set(theirs)) < len(theirs):
        twice = next(name for name in theirs if theirs.count(name) > 1)
        raise ModelError(f"{path}: two weights would be called {printable(twice)!r}")
    write_tensors(path, {called[name]: array for name, array in arrays.items()})


def open_weights(path: str | Path, *, names: Names | None = None) -> Mapping[str, Array]:
    """The tensors of a safetensors file by name, for `sublet.compile(..., weights=)`: read where they lie in the file.

    The file is mapped into memory, so only what is used is read. `names` tells what ours are called in it. Raises
    ModelError for a file that is not what its header says.
    """
    return _Renamed(Tensors(path), names)


def load_weights(
    path: str | Path, into: Weighted, *, names: Names | None = None, strict: bool = True
) -> tuple[str, ...]:
    """Let an executable or a dynamic graph go on from a file that `save_weights` or another wrote; gives their names.

    `names` tells what ours are called in the file. What only the file has is passed over. `strict` wants all that we
    have. Everything is checked before anything changes. What a dynamic graph makes later starts from the file too.
    Raises ModelError for the file, RunError or SpecError for what does not fit.
    """
    file = open_weights(path, names=names)
    held = into.weights
    missing = [name for name in held if name not in file]
    if missing and strict:
        raise ModelError(
            f"{path}: lacks {len(missing)} weight(s): {known_names(missing)}; strict=False loads the others"
        )
    found = tuple(name for name in held if name in file)
    held.take({name: file[name] for name in found})
    held.later(file)
    return found


def _name(names: Names | None, name: str) -> str:
    if names is None:
        return name
    return names(name) if callable(names) else names.get(name, name)


class _Renamed(Mapping[str, Array]):
    """The tensors of a file by our names, where they have one; what is left by its own."""

    def __init__(self, file: Tensors, names: Names | None) -> None:
        self._file, self._names = file, names

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _name(self._names, name) in self._file

    def __getitem__(self, name: str) -> Array:
        return self._file[_name(self._names, name)]

    def __iter__(self) -> Iterator[str]:
        ours = {} if self._names is None or callable(self._names) else {v: k for k, v in self._names.items()}
        return (ours.get(name, name) for name in self._file)

    def __len__(self) -> int:
        return len(self._file)
