"""Results of a run: conversion to the array type of the caller, and views with a limited validity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sublet.base.arrays import torch_over
from sublet.base.dlpack import SharedArray
from sublet.base.errors import RunError
from sublet.base.formatting import known_names, printable
from sublet.runtime.kernel import Array

Form = Callable[[Array], Any]


def as_numpy(array: Array) -> Array:
    """Return the NumPy array unchanged."""
    return array


FORMS: Mapping[str, Form] = {"numpy": as_numpy, "torch": torch_over, "dlpack": SharedArray}


def output_form(form: str | Callable[[Any], Any]) -> Form:
    """Return the converter of outputs: by name, or a function of a `Shared`. Raises RunError for another name."""
    if callable(form):
        make = form
        return lambda array: make(SharedArray(array))
    if form not in FORMS:
        raise RunError(
            f"outputs cannot be returned as {printable(str(form))!r}: pass {known_names(FORMS)}, or a function"
        )
    return FORMS[form]


class Views(Mapping[str, Any]):
    """Outputs by name, as views of the memory of an executable; valid until the next run or `bind`.

    After the next run, access raises RunError, since other values lie in the memory. `hold` keeps an output.
    """

    def __init__(
        self, found: Mapping[str, Any], runs: Callable[[], int], hold: Callable[[str], Any], owner: str
    ) -> None:
        self._outputs = dict(found)
        self._runs, self._made_at = runs, runs()
        self._hold = hold
        self._owner = owner
        self._held_names: set[str] = set()

    @property
    def good(self) -> bool:
        """True if the executable has not run since."""
        return self._runs() == self._made_at

    def __getitem__(self, name: str) -> Any:
        found = self._outputs[name]
        if name not in self._held_names and not self.good:
            raise RunError(
                f"the view of {printable(name)!r} was valid until the next run of {self._owner}. Call hold() before."
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def __repr__(self) -> str:
        until = "valid until the next run" if self.good else "no longer valid, because the executable ran again"
        return f"<Views of {self._owner}: {known_names(self._outputs)}; {until}>"

    def hold(self, name: str) -> Any:
        """Return an output that stays valid permanently: see `Executable.hold`."""
        if name not in self._held_names:
            self[name]
            self._outputs[name] = self._hold(name)
            self._held_names.add(name)
        return self._outputs[name]
