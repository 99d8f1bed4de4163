"""Weights in safetensors files: written as a whole, read by memory mapping, with optional renaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sublet.base.arrays import array_of
from sublet.base.errors import ModelError
from sublet.base.formatting import known_names, printable
from sublet.base.safetensors import Tensors, write_tensors
from sublet.runtime.kernel import Array

Names = Mapping[str, str] | Callable[[str], str]
"""The name in a file of each weight: a dict of the names that differ, or a function."""


@runtime_checkable
class HasWeights(Protocol):
    """An object with weights: an executable or a dynamic graph."""

    @property
    def weights(self) -> Any:
        """The weights by name."""


class WeightStore(Protocol):
    """Weights to be read and set together."""

    def reading(self) -> AbstractContextManager[Mapping[str, Array]]:
        """Yield all weights as arrays over their memory, while no run is possible."""

    def take(self, contents: Mapping[str, Any]) -> None:
        """Set several contents: all or none."""

    def set_initial_contents(self, contents: Mapping[str, Any]) -> None:
        """Set the initial content of weights created later."""


def save_weights(path: str | Path, of: HasWeights | Mapping[str, Any], *, names: Names | None = None) -> None:
    """Write all weights of an executable, a dynamic graph or a mapping to a safetensors file.

    The file contains every parameter and state, including the state and the step of the optimiser, and the random key.
    A failed write leaves no partial file. `names` maps the names of weights to differing names in the file: a dict, or
    a function.

    Raises ModelError for two weights with one name in the file, and for a file that cannot be written.
    """
    if isinstance(of, HasWeights):
        with of.weights.reading() as arrays:
            _write_file(path, arrays, names)
    else:
        _write_file(path, {name: array_of(given, printable(name)) for name, given in of.items()}, names)


def _write_file(path: str | Path, arrays: Mapping[str, Array], names: Names | None) -> None:
    """Write arrays under their names in the file. Raises ModelError for two arrays with one name."""
    names_in_file = {name: _name_in_file(names, name) for name in arrays}
    taken_names = list(names_in_file.values())
    if len(set(taken_names)) < len(taken_names):
        twice = next(name for name in taken_names if taken_names.count(name) > 1)
        raise ModelError(f"{path}: two weights would be called {printable(twice)!r}")
    write_tensors(path, {names_in_file[name]: array for name, array in arrays.items()})


def open_weights(path: str | Path, *, names: Names | None = None) -> Mapping[str, Array]:
    """Return the tensors of a safetensors file by name, for `sublet.compile(..., weights=)`.

    The file is mapped into memory: only the tensors used are read. `names` maps the names of weights to differing names
    in the file: a dict, or a function.

    Raises ModelError for a file with a wrong header.
    """
    return _RenamedTensors(Tensors(path), names)


def load_weights(
    path: str | Path, into: HasWeights, *, names: Names | None = None, strict: bool = True
) -> tuple[str, ...]:
    """Load weights from a safetensors file into an executable or a dynamic graph; return the loaded names.

    names   maps the names of weights to differing names in the file: a dict, or a function
    strict  require a tensor in the file for every weight; otherwise missing weights keep their content

    Tensors without a weight are ignored. All contents are checked before the first is written. A dynamic graph also
    takes the initial content of parameters created later from the file.

    Raises ModelError for an unreadable file or a missing tensor, RunError or SpecError for a tensor of another shape or
    type than the weight.
    """
    file = open_weights(path, names=names)
    weights = into.weights
    missing = [name for name in weights if name not in file]
    if missing and strict:
        raise ModelError(
            f"{path}: lacks {len(missing)} weight(s): {known_names(missing)}; strict=False loads the others"
        )
    loaded = tuple(name for name in weights if name in file)
    weights.take({name: file[name] for name in loaded})
    weights.set_initial_contents(file)
    return loaded


def _name_in_file(names: Names | None, name: str) -> str:
    """Return the name of a weight in the file."""
    if names is None:
        return name
    return names(name) if callable(names) else names.get(name, name)


class _RenamedTensors(Mapping[str, Array]):
    """The tensors of a file under the names of the weights; tensors without a weight keep their names."""

    def __init__(self, file: Tensors, names: Names | None) -> None:
        self._file, self._names = file, names

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _name_in_file(self._names, name) in self._file

    def __getitem__(self, name: str) -> Array:
        return self._file[_name_in_file(self._names, name)]

    def __iter__(self) -> Iterator[str]:
        ours = {} if self._names is None or callable(self._names) else {v: k for k, v in self._names.items()}
        return (ours.get(name, name) for name in self._file)

    def __len__(self) -> int:
        return len(self._file)
