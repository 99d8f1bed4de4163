"""Training and evaluation loops over batches, with means, progress, and interrupts after whole steps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sublet.base.arrays import array_over
from sublet.base.errors import RunError
from sublet.base.interrupts import record_first_interrupt
from sublet.base.safetensors import write_tensors
from sublet.base.tensor import CACHE_LINE_BYTES, TensorSpec
from sublet.plan import bound_storage_name
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Array
from sublet.runtime.memory import aligned_bytes

Batch = Mapping[str, Any]
"""Input arrays by name."""

Batches = Iterable[Batch] | Callable[[int], Iterable[Batch]]
"""The batches of an epoch, iterable once per epoch; or a function from the epoch, from 0, to the batches."""

Step = Executable | Callable[..., Any]
"""An executable, or a function of the inputs, by name, returning outputs by name, or a loss."""

BATCH_EXAMPLE = "pass batches of inputs and targets by name, as fit(step, [{'x': x, 'y': y}])"

SLOTS = 2
"""Number of input buffers: one is filled while the other is computed from."""


@dataclass
class History:
    """The record of a training run by `fit`.

    epochs       for each epoch the means of all scalar outputs, by name
    interrupted  True if an interrupt ended the training
    best_epoch   the number of the epoch with the best monitored value, from 0; None without `monitor`
    stopped      True if `patience` ended the training
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    interrupted: bool = False
    best_epoch: int | None = None
    stopped: bool = False


@dataclass
class _EpochMonitor:
    """The best epoch so far, and the file with the weights of the best or latest epoch.

    weights  the weights of the step, saved to the file; None without a file
    """

    name: str | None
    maximize: bool
    patience: int | None
    path: str | Path | None
    weights: Any

    def end_epoch(self, history: History) -> None:
        """Compare the latest epoch with the best epoch, save the weights, and set `history.stopped`.

        Raises RunError if the epoch has no value of the monitored name.
        """
        latest, is_best = len(history.epochs) - 1, True
        if self.name is not None:
            if self.name not in history.epochs[-1]:
                known = ", ".join(history.epochs[-1]) or "nothing"
                raise RunError(f"monitor={self.name!r} is not among the values of an epoch: {known}")
            is_best = self._is_better(history)
            history.best_epoch = latest if is_best else history.best_epoch
        if is_best and self.path is not None:
            with self.weights.reading() as arrays:
                write_tensors(self.path, arrays)
        best = -1 if history.best_epoch is None else history.best_epoch
        history.stopped = self.patience is not None and latest - best >= self.patience

    def _is_better(self, history: History) -> bool:
        """True if the latest monitored value is better than the best; NaN is worse than every number."""
        assert self.name is not None
        value = history.epochs[-1][self.name]
        if history.best_epoch is None or isnan(value):
            return not isnan(value)
        best = history.epochs[history.best_epoch][self.name]
        return value > best if self.maximize else value < best


def fit(
    step: Step,
    batches: Batches,
    *others: Any,
    epochs: int = 1,
    validate: Callable[[], Mapping[str, float]] | None = None,
    progress: bool | None = None,
    monitor: str | None = None,
    maximize: bool = False,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
) -> History:
    """Run a training step over all batches, `epochs` times, and return the history.

    step      an executable; or a function of the inputs, by name, returning outputs by name, or a loss
    batches   the batches of an epoch, each a mapping from input names to arrays; or a function from the number of the
              epoch, from 0, to the batches
    others    none; targets belong into the batches, beside the inputs
    epochs    the number of epochs
    validate  a function returning metrics by name, called after each epoch (`lambda: sublet.evaluate(net, tests)`)
    progress  show a progress bar on standard error; by default only on a terminal
    monitor   the name of the mean or metric by which epochs are compared; "loss" by default with `patience`
    maximize  compare for the largest value instead of the smallest
    patience  the number of epochs in a row without a better value after which the training ends
    checkpoint  a safetensors file for the weights after each epoch, with `monitor` or `patience` only after each best
              epoch; written as a whole or not at all, and read by `sublet.load_weights`

    After each epoch the history receives the means of the loss and of all other scalar outputs, and the metrics of
    `validate`; a metric named like an output is recorded as "validation <name>". At Ctrl-C the running step is finished
    and the history returned. The state is then the state after a whole step, and another `fit` continues from there. A
    second Ctrl-C raises KeyboardInterrupt at once.

    Raises RunError for several epochs over an iterator, as an iterator can be consumed only once; for a batch that is
    no mapping; for `others`; for an unknown `monitor`; and for a `checkpoint` of a function without weights.
    """
    if others:
        raise RunError(f"fit has {len(others) + 2} arguments by position, expected fit(step, batches): {BATCH_EXAMPLE}")
    if epochs > 1 and isinstance(batches, Iterator):
        raise RunError("batches can be iterated only once: pass a list, or a function of the epoch")
    if checkpoint is not None and not hasattr(step, "weights"):
        raise RunError(
            "a plain function has no weights to save: pass an executable or a jit function, or no checkpoint"
        )
    name = "loss" if monitor is None and patience is not None else monitor
    watch = _EpochMonitor(name, maximize, patience, checkpoint, getattr(step, "weights", None))
    history = History()
    with record_first_interrupt() as interrupts, _progress_display(progress) as display:
        for epoch in range(epochs):
            epoch_batches = batches(epoch) if callable(batches) else batches
            total = len(epoch_batches) if isinstance(epoch_batches, Sized) else None
            task = display.add_task(f"epoch {epoch + 1}/{epochs}", total=total, means="")
            means = _OutputMeans()
            for batch in epoch_batches:
                means.add(_scalar_outputs(step, batch))
                display.update(task, advance=1, means=str(means))
                if interrupts:
                    break
            metrics = means.averages
            if validate is not None and not interrupts:
                metrics |= {
                    f"{name}" if name not in metrics else f"validation {name}": v for name, v in validate().items()
                }
                display.update(task, means=_format_means(metrics))
            history.epochs.append(metrics)
            history.interrupted = bool(interrupts)
            if not interrupts:
                watch.end_epoch(history)
            if history.interrupted or history.stopped:
                break
    return history


def evaluate(net: Step, batches: Iterable[Batch]) -> dict[str, float]:
    """Return the mean over all batches of every scalar output, by name.

    `net` is an executable or a function, and `batches` are mappings from input names to arrays, as for `fit`. Raises
    RunError if there are no batches, and for a batch that is no mapping.
    """
    means = _OutputMeans()
    for batch in batches:
        means.add(_scalar_outputs(net, batch))
    if not means.count:
        raise RunError("there are no batches to evaluate")
    return means.averages


def prefetch(net: Executable, fill: Callable[[dict[str, Array], int], Any], batches: int) -> Iterator[Batch]:
    """Yield `batches` batches for an executable, each filled by a thread while the batch before is computed.

    `fill(slot, number)` writes batch `number` into the arrays in `slot`, one for each input by name. The arrays are
    bound to the executable: nothing is copied. There are two slots, filled and computed in turn. The yielded batches
    are empty mappings, as the inputs are bound already: `for batch in prefetch(net, fill, n): net(batch)`, or `fit(net,
    lambda epoch: prefetch(net, fill, 100))`.

    The executable needs a plan with `sublet.Options(io="bound")`. Raises RunError for an input without bound memory. An
    error in `fill` is raised when the batch is due.
    """
    storages = {storage.name for storage in net.plan.storages}
    slots: list[dict[str, Array]] = [{} for _ in range(SLOTS)]
    for name, value in net.inputs.items():
        if value in net.graph.updated_values:
            continue
        if not isinstance(value.spec, TensorSpec) or bound_storage_name(value.name) not in storages:
            raise RunError(f"the input {name!r} has no bound memory: plan with io='bound'")
        for slot in slots:
            slot[name] = array_over(aligned_bytes(value.nbytes, CACHE_LINE_BYTES), value.spec)
    return _fill_batches(net, slots, fill, batches)


def _fill_batches(net: Executable, slots: list[dict[str, Array]], fill: Any, batches: int) -> Iterator[Batch]:
    """Yield an empty batch after binding each filled slot; fill the next slot meanwhile."""
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


def _scalar_outputs(step: Step, batch: Batch) -> dict[str, float]:
    """Return the scalar outputs of a step by name. Raises RunError for a batch that is no mapping."""
    if not hasattr(batch, "keys"):  # enough for `**batch`
        raise RunError(f"a batch is of type {type(batch).__name__}, expected a mapping: {BATCH_EXAMPLE}")
    result = step(batch) if isinstance(step, Executable) else step(**batch)
    outputs = result if isinstance(result, Mapping) else {"loss": result}
    arrays = {name: np.asarray(one) for name, one in outputs.items() if getattr(one, "size", 1) in (1, None)}
    return {name: float(one.reshape(())) for name, one in arrays.items() if one.size == 1 and one.dtype.kind != "O"}


class _OutputMeans:
    """The means of outputs over batches."""

    def __init__(self) -> None:
        self.count = 0
        self._sums: dict[str, float] = {}

    def add(self, found: Mapping[str, float]) -> None:
        """Add the outputs of a batch."""
        self.count += 1
        for name, number in found.items():
            self._sums[name] = self._sums.get(name, 0.0) + number

    @property
    def averages(self) -> dict[str, float]:
        """The means so far, by name."""
        return {name: total / self.count for name, total in self._sums.items()}

    def __str__(self) -> str:
        return _format_means(self.averages)


def _format_means(found: Mapping[str, float]) -> str:
    """Return the means as text, with four significant digits."""
    return ", ".join(f"{name} {number:.4g}" for name, number in found.items())


def _progress_display(progress: bool | None) -> Progress:
    """Return the progress display, one bar for each epoch; disabled by default unless standard error is a terminal."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    disable = not (console.is_terminal if progress is None else progress)
    return Progress(*columns, TextColumn("{task.fields[means]}", markup=False), console=console, disable=disable)
