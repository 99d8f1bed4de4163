"""Training as it is mostly written: rounds over batches, with means, progress, and an interrupt that loses nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sublet.base.errors import RunError
from sublet.base.interrupts import awaited
from sublet.base.tensor import TensorSpec
from sublet.plan import bound_to
from sublet.runtime.dtypes import array_over
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array
from sublet.runtime.memory import aligned_bytes

Batch = Mapping[str, Any]
"""Inputs by name."""

Batches = Iterable[Batch] | Callable[[int], Iterable[Batch]]
"""Something that can be gone through once an epoch, or a function of the epoch, from 0 on, that gives it."""

Step = Executable | Callable[..., Any]
"""An executable, or any function of the inputs, by name, that gives outputs by name, or a loss."""

SLOTS = 2
LINE = 64
"""Bytes that an input's memory begins at a multiple of."""


@dataclass
class History:
    """What `fit` saw: for each epoch the means of all outputs of one number, and whether an interrupt ended it."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    interrupted: bool = False


def fit(
    step: Step,
    batches: Batches,
    *,
    epochs: int = 1,
    validate: Callable[[], Mapping[str, float]] | None = None,
    progress: bool | None = None,
) -> History:
    """Run a training step over all batches, `epochs` times.

    After each epoch the means of the loss and all other outputs of one number go to the history, with what `validate`
    gives, as `lambda: sublet.evaluate(net, tests)`. Progress is shown on a terminal, unless `progress` says otherwise.
    At Ctrl-C the step that runs is finished, and the history comes back: all state is that of whole steps, so another
    `fit` goes on from there. A second Ctrl-C does not wait.
    """
    if epochs > 1 and isinstance(batches, Iterator):
        raise RunError("batches can be gone through only once: give a list, or a function of the epoch")
    history = History()
    with awaited() as interrupts, _shown(progress) as shown:
        for epoch in range(epochs):
            given = batches(epoch) if callable(batches) else batches
            total = len(given) if isinstance(given, Sized) else None
            task = shown.add_task(f"epoch {epoch + 1}/{epochs}", total=total, means="")
            means = _Means()
            for batch in given:
                means.add(_outputs(step, batch))
                shown.update(task, advance=1, means=str(means))
                if interrupts:
                    break
            found = means.found
            if validate is not None and not interrupts:
                found |= {f"{name}" if name not in found else f"validation {name}": v for name, v in validate().items()}
                shown.update(task, means=_told(found))
            history.epochs.append(found)
            if interrupts:
                history.interrupted = True
                break
    return history


def evaluate(net: Step, batches: Iterable[Batch]) -> dict[str, float]:
    """The means over all batches of the outputs that are one number. Raises RunError when there is no batch."""
    means = _Means()
    for batch in batches:
        means.add(_outputs(net, batch))
    if not means.count:
        raise RunError("there are no batches to evaluate")
    return means.found


def prefetch(net: Executable, fill: Callable[[dict[str, Array], int], Any], batches: int) -> Iterator[Batch]:
    """Let `fill(slot, number)` write each batch where the executable reads it, while the batch before is computed.

    `slot` has an array for each input. There are two slots: a thread fills one while the other is bound and computed
    from, so that nothing is copied. What comes out is no input, for they are bound: `for given in prefetch(...):
    net(given)`, or `fit(net, lambda epoch: prefetch(net, fill, 100))`. It is for plans made with
    `sublet.Options(io="bound")`. An error of `fill` is raised when its batch is due.
    """
    storages = {storage.name for storage in net.plan.storages}
    slots: list[dict[str, Array]] = [{} for _ in range(SLOTS)]
    for name, value in net.inputs.items():
        if value in net.graph.updated:
            continue
        if not isinstance(value.spec, TensorSpec) or bound_to(value.name) not in storages:
            raise RunError(f"the input {name!r} has no memory that could be bound: plan with io='bound'")
        for slot in slots:
            slot[name] = array_over(aligned_bytes(value.nbytes, LINE), value.spec)
    return _filled(net, slots, fill, batches)


def _filled(net: Executable, slots: list[dict[str, Array]], fill: Any, batches: int) -> Iterator[Batch]:
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(fill, slots[0], 0) if batches else None
        for number in range(batches):
            assert coming is not None
            coming.result()
            for name, memory in slots[number % SLOTS].items():
                net.bind(name, memory)
            if number + 1 < batches:
                coming = thread.submit(fill, slots[(number + 1) % SLOTS], number + 1)
            yield {}


def _outputs(step: Step, batch: Batch) -> dict[str, float]:
    """The outputs that are one number."""
    made = step(batch) if isinstance(step, Executable) else step(**batch)
    named = made if isinstance(made, Mapping) else {"loss": made}
    numbers = {name: np.asarray(one) for name, one in named.items() if getattr(one, "size", 1) in (1, None)}
    return {name: float(one.reshape(())) for name, one in numbers.items() if one.size == 1 and one.dtype.kind != "O"}


class _Means:
    """The means of outputs over batches."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, float] = {}

    def add(self, found: Mapping[str, float]) -> None:
        """Another batch."""
        self.count += 1
        for name, number in found.items():
            self._sums[name] = self._sums.get(name, 0.0) + number

    @property
    def found(self) -> dict[str, float]:
        return {name: total / self.count for name, total in self._sums.items()}

    def __str__(self) -> str:
        return _told(self.found)


def _told(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.4g}" for name, number in found.items())


def _shown(progress: bool | None) -> Progress:
    """A bar an epoch; none where nobody looks."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    disable = not (console.is_terminal if progress is None else progress)
    return Progress(*columns, TextColumn("{task.fields[means]}", markup=False), console=console, disable=disable)
