"""An inference in parts: a few samples at a time, all in the same bytes.

    args (8 samples) -> [part of 1] -> arena of one sample -> its rows of the results
                        [part of 1] -> the same arena      -> the next rows

It is done where tensors are large, and the graph computes sample by sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sublet.api.torch.cheap import nbytes
from sublet.base.errors import ModelError
from sublet.frontends.torch.fewer import Fewer, of_these_extents, with_fewer_samples
from sublet.frontends.torch.rows import Rows, State
from sublet.frontends.torch.tensors import Extents, is_dense, torch
from sublet.frontends.torch.traced import placeholders, results_of

LARGE = 1 << 21
"""Bytes of a tensor from which on samples are not computed all at once."""


@dataclass(frozen=True)
class Parts:
    """How a graph is computed for a few samples at a time.

    count       parts
    fewer       the graph of one
    results     tensors without bytes that lie as the results for all samples do, None for what is none
    handed_on   the results that are arguments, by position: the position of each argument
    """

    count: int
    fewer: Fewer
    results: tuple[Any, ...]
    handed_on: Mapping[int, int]

    def run(self, run: Callable[[Sequence[Any], Mapping[int, Any]], Sequence[Any]], args: Sequence[Any]) -> list[Any]:
        """What the graph gives, run part by part by `run`, which takes arguments and where results are to lie."""
        given, rows_of = self.fewer.given, self.fewer.results
        places = {i: self._place(i) for i, rows in enumerate(rows_of) if rows is not None and i not in self.handed_on}
        found: Sequence[Any] = ()
        for number in range(self.count):
            part = [self._part(each, rows, number) for each, rows in zip(args, given, strict=True)]
            found = run(part, {i: self._part(place, rows_of[i], number) for i, place in places.items()})
        wholes = {**places, **{i: args[position] for i, position in self.handed_on.items()}}
        return [wholes.get(i, each) for i, each in enumerate(found)]

    def _place(self, position: int) -> Any:
        """A new tensor for a result, of all samples."""
        fake = self.results[position]
        return torch().empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)

    def _part(self, tensor: Any, rows: State, number: int) -> Any:
        """The elements of a tensor that belong to a part; all where they are the same for every sample."""
        if rows is None:
            return tensor
        extent = tensor.shape[rows.axis] // self.count
        return tensor.narrow(rows.axis, number * extent, extent)


def in_parts(module: Any, static: Collection[int], at_once: int | None, extents: Extents) -> Parts | None:
    """How to compute a graph a few samples at a time; None to compute all at once.

    at_once   samples of a part, a divisor of all; None for as many as keep tensors small
    extents   what the symbols of the graph stand for
    Samples lie on the first axis of arguments, other than those in `static`. Raises ModelError where the graph does not
    compute sample by sample.
    """
    module = of_these_extents(module, extents) if extents else module
    nodes = placeholders(module)
    fakes = [node.meta["val"] for node in nodes]
    given = [i for i, fake in enumerate(fakes) if i not in static and hasattr(fake, "stride") and fake.dim()]
    leading = Counter(fakes[i].shape[0] for i in given if isinstance(fakes[i].shape[0], int))
    error: ModelError | None = None
    for samples, _ in leading.most_common():
        part = _part(module, nodes, samples) if at_once is None else at_once
        if samples < 2 or part >= samples or samples % part:
            continue
        states = [Rows(0) if i in given and fakes[i].shape[0] == samples else None for i in range(len(fakes))]
        try:
            fewer = with_fewer_samples(module, states, samples, part)
            return Parts(samples // part, fewer, _results(module, fewer), _handed_on(module, nodes))
        except ModelError as refused:
            error = error or refused
    if error is not None:
        raise error
    return None


def _part(module: Any, given: Collection[Any], samples: int) -> int:
    """The most samples, a divisor of all, with which no tensor is large; one where there are none."""
    outside = {*given, *(node for node in results_of(module) if isinstance(node, torch().fx.Node))}
    largest = max((nbytes(node) for node in module.graph.nodes if node not in outside), default=0)
    fitting = (part for part in range(samples, 0, -1) if samples % part == 0 and largest * part <= LARGE * samples)
    return next(fitting, 1)


def _results(module: Any, fewer: Fewer) -> tuple[Any, ...]:
    """Raises ModelError for a result that does not lie together."""
    found = []
    for node, rows in zip(results_of(module), fewer.results, strict=True):
        fake: Any = node.meta["val"] if isinstance(node, torch().fx.Node) else None
        if rows is not None and not is_dense(fake):
            raise ModelError(f"{node.name}: a result with gaps")
        found.append(fake)
    return tuple(found)


def _handed_on(module: Any, given: Sequence[Any]) -> dict[int, int]:
    return {i: given.index(node) for i, node in enumerate(results_of(module)) if node in given}
