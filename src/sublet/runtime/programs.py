"""Cache of the bound programs of an executable: a program per arrangement of swapped storages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sublet.base.errors import SubletError
from sublet.ir.graph import Value
from sublet.runtime.memory import Memory
from sublet.runtime.program import Program
from sublet.runtime.rebinding import BindNode


class Programs:
    """The programs of an executable, bound on demand, and rebound after a change of memory."""

    def __init__(self, memory: Memory, build: Callable[[], Program]) -> None:
        self._memory = memory
        self._build = build
        self._found: dict[tuple[int, ...], Program] = {}  # by the addresses of swapped storages

    def current(self) -> Program:
        """Return the program for the current arrangement; also bind programs for the following arrangements."""
        found, memory = self._found, self._memory
        if memory.arrangement not in found:
            with memory.put_back():
                while (arrangement := memory.arrangement) not in found:
                    found[arrangement] = self._build()
                    memory.turn()
        return found[memory.arrangement]

    def forget(self) -> None:
        """Drop all programs; each is bound again on demand."""
        self._found.clear()

    def patched(self, name: str, given: Any) -> bool:
        """True if repointing a few calls sufficed to bind new memory. Raises RunError if the memory does not fit."""
        program = self._found.get(())
        try:
            return program is not None and program.holders.patched(name, given)
        except SubletError:
            raise
        except BaseException:  # some calls may be repointed, and others not
            self.forget()
            raise

    def rebind(self, storage: str, bind: Callable[[], BindNode]) -> bool:
        """Rebind the calls holding addresses of a storage; False if the whole program must be bound again."""
        if not self._found:
            return False
        done = False
        try:
            program = self._found.get(())
            done = program is not None and program.holders.rebind(storage, bind())
        finally:
            if not done:
                self.forget()
        return done

    def learn(self, name: str, value: Value) -> None:
        """Prepare fast repointing of a value under the name `name`, since callers rebind the same value often."""
        self._found[()].holders.learn(name, value)
