"""Cache of the bound programs of an executable: a program per arrangement of swapped storages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sublet.base.errors import SubletError
from sublet.ir.graph import Value
from sublet.runtime.memory import ExecutableMemory
from sublet.runtime.program import BoundProgram
from sublet.runtime.rebinding import BindNode


class ProgramCache:
    """The programs of an executable, bound on demand, and rebound after a change of memory."""

    def __init__(self, memory: ExecutableMemory, build: Callable[[], BoundProgram]) -> None:
        self._memory = memory
        self._build = build
        self._programs: dict[tuple[int, ...], BoundProgram] = {}  # by the addresses of swapped storages

    def current_program(self) -> BoundProgram:
        """Return the program for the current arrangement; also bind programs for the following arrangements."""
        found, memory = self._programs, self._memory
        if memory.arrangement not in found:
            with memory.restoring_storages():
                while (arrangement := memory.arrangement) not in found:
                    found[arrangement] = self._build()
                    memory.swap_storages()
        return found[memory.arrangement]

    def forget(self) -> None:
        """Drop all programs; each is bound again on demand."""
        self._programs.clear()

    def try_repoint(self, name: str, given: Any) -> bool:
        """True if repointing a few calls sufficed to bind new memory. Raises RunError if the memory does not fit."""
        program = self._programs.get(())
        try:
            return program is not None and program.holders.try_repoint(name, given)
        except SubletError:
            raise
        except BaseException:  # some calls may be repointed, and others not
            self.forget()
            raise

    def rebind(self, storage: str, bind: Callable[[], BindNode]) -> bool:
        """Rebind the calls holding addresses of a storage; False if the whole program must be bound again."""
        if not self._programs:
            return False
        done = False
        try:
            program = self._programs.get(())
            done = program is not None and program.holders.rebind(storage, bind())
        finally:
            if not done:
                self.forget()
        return done

    def learn(self, name: str, value: Value) -> None:
        """Prepare fast repointing of a value under the name `name`, since callers rebind the same value often."""
        self._programs[()].holders.learn(name, value)
