"""The record of applied commands for gradients, with exactly the lifetime needed.

A value not held by the user stays in the record while a gradient may pass through: while the value depends on a held
value, and a held value depends on the value. Two mechanisms maintain the conditions. A value references the application
that computed it, and an application references its inputs; values without held dependents are freed by reference
counts. An application counts the inputs with a possible gradient (`live`); at zero, the outputs drop the reference to
the application. Of the elements only those read by a gradient rule are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from sublet.dynamic.tensor_storage import TensorKind, TensorStorage
from sublet.nn.source_location import CodePosition


class Symbol:
    """A value of the record, without elements.

    maker      the application of a command that computed the value; None for values from outside and values without a
               possible gradient
    held       True if a tensor of the user has the value
    ended      True for a result of a jit function, with a record ended at the end of the call
    readers    weak references to the applications with the value as input
    """

    __slots__ = ("__weakref__", "ended", "held", "kind", "maker", "readers")
    maker: RecordedApplication | SingleResult | None

    def __init__(self, kind: TensorKind, held: bool) -> None:
        self.kind = kind
        self.held = held
        self.ended = False
        self.maker = None
        self.readers: list[ref[RecordedApplication | SingleResult]] | None = None

    def release_handle(self) -> None:
        """Note the end of the user's tensor, and drop the part of the record without a possible gradient."""
        self.held = False
        if self.readers and self.maker is None:
            _drop_without_gradient([self])


class RecordedApplication:
    """An application of a command in the record.

    live    the number of inputs with a possible gradient: held inputs, and inputs computed by recorded commands
    kept    the storages of the inputs and outputs read by the gradient rule
    number  the serial number, increasing with each application
    """

    __slots__ = ("__weakref__", "command", "inputs", "kept", "line", "live", "number", "outputs")

    def __init__(
        self,
        command: Any,
        inputs: Sequence[Symbol | None],
        outputs: Sequence[Symbol],
        kept: Sequence[TensorStorage | None],
        number: int,
        line: CodePosition | None,
    ) -> None:
        self.command = command
        self.inputs = inputs
        self.outputs = [ref(symbol) for symbol in outputs]
        self.kept = kept
        self.number = number
        self.line = line
        self.live = _register_reader(self, inputs)
        if self.live:
            for symbol in outputs:
                symbol.maker = self

    def live_outputs(self) -> list[Symbol]:
        """Return the outputs still alive."""
        return [symbol for output in self.outputs if (symbol := output()) is not None]

    def results(self) -> list[Symbol]:
        """Return all outputs; an output no longer alive is replaced by a new symbol."""
        symbols = []
        for position, kind in enumerate(self.command.outputs):
            symbol = self.outputs[position]()
            if symbol is None:
                symbol = Symbol(kind, False)
                symbol.maker = self
                self.outputs[position] = ref(symbol)
            symbols.append(symbol)
        return symbols


class SingleResult(Symbol):
    """A value that is also its own application: the only output of a command.

    The merged object saves memory and time for commands with a single output.
    """

    __slots__ = ("command", "inputs", "kept", "line", "live", "number")

    def __init__(
        self,
        command: Any,
        inputs: Sequence[Symbol | None],
        kept: Sequence[TensorStorage | None],
        number: int,
        line: CodePosition | None,
    ) -> None:
        self.kind = command.kind
        self.held = True
        self.ended = False
        self.readers = None
        self.command = command
        self.number = number
        self.line = line
        live = self.live = _register_reader(self, inputs)
        self.inputs = inputs if live else ()
        self.kept = kept if live else ()

    @property
    def maker(self) -> RecordedApplication | SingleResult | None:
        return self if self.live else None

    @maker.setter
    def maker(self, none: RecordedApplication | SingleResult | None) -> None:
        """The application of the value: the object itself while a gradient is possible; None afterwards."""
        self.live, self.inputs, self.kept = 0, (), ()

    def live_outputs(self) -> list[Symbol]:
        """Return the output."""
        return [self]

    def results(self) -> list[Symbol]:
        """Return the output."""
        return [self]


PURGE_FROM = 64
"""Readers of one value from which dead readers are removed, and again at each doubling of the number of readers."""


def _register_reader(reader: RecordedApplication | SingleResult, inputs: Sequence[Symbol | None]) -> int:
    """Register an application as reader of its inputs; return the number of inputs with a possible gradient."""
    live, own = 0, None
    for symbol in inputs:
        if symbol is not None and (symbol.held or symbol.maker is not None):
            live += 1
            own = own or ref(reader)
            readers = symbol.readers
            if readers is None:
                symbol.readers = [own]
            else:
                readers.append(own)
                count = len(readers)
                if count >= PURGE_FROM and not count & (count - 1):
                    readers[:] = [each for each in readers if each() is not None]
    return live


def _drop_without_gradient(waiting: list[Symbol]) -> None:
    """Drop the record of the values without a possible gradient: values computed only from values in `waiting`."""
    while waiting:
        readers, symbol = waiting[-1].readers, waiting.pop()
        symbol.readers = None
        for reader in readers or ():
            applied = reader()
            if applied is None:
                continue
            applied.live -= 1
            if not applied.live:
                for made in applied.live_outputs():
                    made.maker = None
                    if not made.held:
                        waiting.append(made)
