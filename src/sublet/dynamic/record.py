"""The record: which command made which value of which, as long as a gradient may ask for it.

A value that nobody holds stays in the record while a gradient could go through it: while the record still leads from
something that is held to it, and from it to something that is held. Both directions go by themselves: what is held
holds what made it, and what made it its inputs; and where nothing a command was applied to is held any more, nor is
anything that these were made of, its outputs forget it. Of the bytes only those are kept that a rule of
differentiation reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from sublet.dynamic.storage import Kind, Storage
from sublet.nn.lines import Line


class Symbol:
    """A value of the record, without its bytes.

    maker      the application of a command that made it; None for what was given, and where no gradient can ask
    held       whether a tensor of the user's is it
    ended      whether it was made by a remembered call, whose record ended with it
    readers    the applications that read it
    """

    __slots__ = ("__weakref__", "ended", "held", "kind", "maker", "readers")
    maker: Applied | Result | None

    def __init__(self, kind: Kind, held: bool) -> None:
        self.kind = kind
        self.held = held
        self.ended = False
        self.maker = None
        self.readers: list[ref[Applied | Result]] | None = None

    def dropped(self) -> None:
        """Nobody holds it any more: forget what no gradient can ask for now."""
        self.held = False
        if self.readers and self.maker is None:
            _forget([self])


class Applied:
    """An application of a command, in the record.

    live    how many of the inputs a gradient can be asked by, or goes on through
    kept    the storages of the inputs, and outputs, that the rule of the command reads
    number  grows from one application to the next
    """

    __slots__ = ("__weakref__", "command", "inputs", "kept", "line", "live", "number", "outputs")

    def __init__(
        self,
        command: Any,
        inputs: Sequence[Symbol | None],
        outputs: Sequence[Symbol],
        kept: Sequence[Storage | None],
        number: int,
        line: Line | None,
    ) -> None:
        self.command = command
        self.inputs = inputs
        self.outputs = [ref(symbol) for symbol in outputs]
        self.kept = kept
        self.number = number
        self.line = line
        self.live = _read_by(self, inputs)
        if self.live:
            for symbol in outputs:
                symbol.maker = self

    def made(self) -> list[Symbol]:
        """The outputs that are there."""
        return [symbol for output in self.outputs if (symbol := output()) is not None]

    def results(self) -> list[Symbol]:
        """The outputs; where nobody has one any more, another that was made here too."""
        found = []
        for position, kind in enumerate(self.command.outputs):
            symbol = self.outputs[position]()
            if symbol is None:
                symbol = Symbol(kind, False)
                symbol.maker = self
                self.outputs[position] = ref(symbol)
            found.append(symbol)
        return found


class Result(Symbol):
    """A value that is all that an application gives: both in one, as long as the record leads to it."""

    __slots__ = ("command", "inputs", "kept", "line", "live", "number")

    def __init__(
        self,
        command: Any,
        inputs: Sequence[Symbol | None],
        kept: Sequence[Storage | None],
        number: int,
        line: Line | None,
    ) -> None:
        self.kind = command.kind
        self.held = True
        self.ended = False
        self.readers = None
        self.command = command
        self.number = number
        self.line = line
        live = self.live = _read_by(self, inputs)
        self.inputs = inputs if live else ()
        self.kept = kept if live else ()

    @property
    def maker(self) -> Applied | Result | None:
        return self if self.live else None

    @maker.setter
    def maker(self, none: Applied | Result | None) -> None:
        self.live, self.inputs, self.kept = 0, (), ()

    def made(self) -> list[Symbol]:
        """The output."""
        return [self]

    def results(self) -> list[Symbol]:
        """The output."""
        return [self]


CLEARED = 64
"""Readers among which those that are gone are looked for, and again whenever they are twice as many."""


def _read_by(reader: Applied | Result, inputs: Sequence[Symbol | None]) -> int:
    """How many of the inputs a gradient can be asked by, or goes on through; they know their reader."""
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
                if count >= CLEARED and not count & (count - 1):
                    readers[:] = [each for each in readers if each() is not None]
    return live


def _forget(waiting: list[Symbol]) -> None:
    """No gradient can be asked by these, nor goes on through them: so it is with all that is made of nothing else."""
    while waiting:
        readers, symbol = waiting[-1].readers, waiting.pop()
        symbol.readers = None
        for reader in readers or ():
            applied = reader()
            if applied is None:
                continue
            applied.live -= 1
            if not applied.live:
                for made in applied.made():
                    made.maker = None
                    if not made.held:
                        waiting.append(made)
