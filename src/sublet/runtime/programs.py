"""The programs of one executable: one for each way in which memory that runs exchange may lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sublet.base.errors import SubletError
from sublet.ir.graph import Value
from sublet.runtime.memory import Memory
from sublet.runtime.program import Program
from sublet.runtime.rebinding import BindNode


class Programs:
    """Binds them when they are needed, and lets them find other memory."""

    def __init__(self, memory: Memory, build: Callable[[], Program]) -> None:
        self._memory = memory
        self._build = build
        self._found: dict[tuple[int, ...], Program] = {}  # by where exchanged memory is

    def current(self) -> Program:
        """The one for where memory is now. Those for where it will be after other runs are bound with it."""
        found, memory = self._found, self._memory
        if memory.arrangement not in found:
            with memory.put_back():
                while (arrangement := memory.arrangement) not in found:
                    found[arrangement] = self._build()
                    memory.turn()
        return found[memory.arrangement]

    def forget(self) -> None:
        """All are bound anew when they are needed."""
        self._found.clear()

    def patched(self, name: str, given: Any) -> bool:
        """Whether it sufficed to tell a few calls where a value is from now on. Raises RunError like `Memory.bring`."""
        program = self._found.get(())
        try:
            return program is not None and program.holders.patched(name, given)
        except SubletError:
            raise
        except BaseException:  # some calls may know, and others not
            self.forget()
            raise

    def rebind(self, storage: str, bind: Callable[[], BindNode]) -> bool:
        """Let those calls be bound anew that hold addresses of a storage; False where all of the program must be."""
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
        """A value whose storage was rebound will be bound often, by this name."""
        self._found[()].holders.learn(name, value)
