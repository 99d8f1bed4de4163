"""The plan of a recorded call, run piece by piece in an arena shared by all plans of a graph."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sublet.api.binding import equipped
from sublet.dynamic.refusing import written_early
from sublet.dynamic.storage import Storage
from sublet.dynamic.tensor import Parameter
from sublet.dynamic.trace import Trace, traced
from sublet.dynamic.traces import Moment
from sublet.ir.graph import Node, Value
from sublet.plan import bound_to
from sublet.planning.pipeline import plan_memory
from sublet.runtime.cuts import Cuts
from sublet.runtime.kernel import Array, Backend, Kernel
from sublet.runtime.memory import Raw, aligned_bytes
from sublet.runtime.pieces import Pieces


@dataclass(frozen=True)
class Unprepared:
    """A backend without access to the content of weights, as the content changes between calls."""

    backend: Backend

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self.backend.name

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """Return the kernel of the backend, chosen without weights."""
        return self.backend.kernel(node, {})


class Arena:
    """The arena of all plans of a graph, used by one plan at a time: as large as the largest plan needs."""

    def __init__(self) -> None:
        self.raw: Raw = aligned_bytes(0, 64)

    def at_least(self, nbytes: int, alignment: int) -> Raw:
        """Return the memory, replaced by larger memory if smaller than `nbytes`."""
        if self.raw.nbytes < nbytes:
            self.raw = aligned_bytes(nbytes, max(alignment, 64))
        return self.raw


class Planned:
    """The executable of the calls ending at the trie node `end`.

    path_nodes  the trie nodes from the first step to `end`
    updated     the parameters updated by the call
    early       the updated parameters possibly overwritten before a command may refuse its inputs
    """

    def __init__(self, end: Moment, backends: Sequence[Backend], arena: Arena) -> None:
        path = end.path()
        self.end = end
        self.moments = frozenset(path)
        self.trace: Trace = traced([moment.step for moment in path if moment.step is not None])
        parameters = self.trace.parameters
        homes = {name: home_of(parameter).array for name, parameter in parameters.items()}
        ready = equipped(self.trace.model, backend=[Cuts(), *map(Unprepared, backends)], weights=homes)
        self.plan = plan_memory(ready.model)
        self.executable = ready.bound(self.plan)
        for name in self.trace.parameters:
            if bound_to(name) in self.executable._memory.storages:
                self.executable.bind(name, homes[name])
        self.updated = [parameters[value.name] for value in ready.model.graph.updated]
        early = written_early(ready.model.graph, self.plan)
        self.early = [parameters[value.name] for value in ready.model.graph.updated if value in early]
        self._arena = arena
        self._raw: Raw | None = None
        self.pieces: Pieces

    def resumed(self, piece: int) -> bool:
        """True if a run may continue before piece `piece` with only the values saved by the run of another plan.

        All values read after the suspension point must be saved at the point, and no saved value may be a renamed
        loop-carried value.
        """
        kept, pointers = self.trace.kept[piece - 1], self.executable._memory.pointers
        return self.trace.closed[piece - 1] and not any(value.name in pointers for value in kept.values())

    def ready(self, begun: Mapping[Parameter, Storage]) -> None:
        """Bind the executable to the present arena and to the storages of the parameters.

        `begun` are the storages before the call of the parameters updated so far in the call.
        """
        if self.plan.arena_bytes:
            raw = self._arena.at_least(self.plan.arena_bytes, self.plan.alignment)
            if raw is not self._raw:
                self.executable.bind("arena", raw)
                self._raw = raw
                self.pieces = Pieces(self.executable)
        elif self._raw is None:
            self._raw = self._arena.raw
            self.pieces = Pieces(self.executable)
        for parameter in self.trace.parameters.values():
            bring_home(parameter, begun.get(parameter, parameter._storage))


class Run:
    """A run of a plan.

    piece   the number of the next piece
    """

    def __init__(self, planned: Planned, begun: Mapping[Parameter, Storage]) -> None:
        planned.ready(begun)
        self.planned = planned
        self.piece = 0
        self._fed: set[int] = set()

    def feed(self, contents: Mapping[int, Any]) -> None:
        """Copy contents from outside, by slot, to the inputs of the plan; each input once."""
        for slot, value in self.planned.trace.outside.items():
            if slot not in self._fed and slot in contents:
                np.copyto(self.planned.pieces.array(value), contents[slot], casting="unsafe")
                self._fed.add(slot)

    def take(self, piece: int, kept: Mapping[int, Array]) -> None:
        """Continue before piece `piece`, with the values saved by the run of another plan, by slot."""
        self.piece = piece
        for slot, array in self.kept().items():
            np.copyto(array, kept[slot])

    def go_on(self) -> None:
        """Run the next piece."""
        self.planned.pieces.run(self.piece)
        self.piece += 1

    def finish(self) -> None:
        """Run the last piece, with the updates of parameters. An error restores all parameters."""
        planned = self.planned
        saved = [(one, one.home.array.copy()) for one in planned.early if one.home]
        try:
            self.go_on()
        except BaseException:
            for parameter, content in saved:
                assert parameter.home is not None
                np.copyto(parameter.home.array, content)
            raise

    def kept(self) -> dict[int, Array]:
        """Return the values saved at the latest suspension point, by slot, as arrays over the arena."""
        if not self.piece:
            return {}
        kept = self.planned.trace.kept[self.piece - 1]
        return {slot: self.planned.pieces.array(value) for slot, value in kept.items()}

    def left(self) -> dict[int, Array]:
        """Return the results by slot, as arrays over the arena."""
        return {slot: self.planned.pieces.result(value) for slot, value in self.planned.trace.left.items()}


def home_of(parameter: Parameter) -> Storage:
    """Return the bound storage of a parameter: the fixed memory used by all plans."""
    if parameter.home is None:
        assert parameter._storage is not None
        parameter.home = parameter._storage.pool.filled(parameter._kind, parameter._storage.array)
    return parameter.home


def bring_home(parameter: Parameter, held: Storage | None) -> None:
    """Move the content `held` of a parameter to the bound storage.

    The parameter may already have the content after an update in the present call; only `held` is moved.
    """
    home = home_of(parameter)
    if held is not home:
        assert held is not None
        apart(parameter)
        home = home_of(parameter)
        np.copyto(home.array, held.array)
        if parameter._storage is held:
            parameter._storage = home


def apart(parameter: Parameter, holders: int = 0) -> None:
    """Before a write to the bound storage of a parameter, copy the content for all other holders of the storage.

    `holders` is the number of references to disregard. Other holders are detected by the reference count.
    """
    home = parameter.home
    assert home is not None
    # 3: the local `home`, the argument of getrefcount, and `parameter.home`
    own = 3 + holders + (parameter._storage is home)
    if sys.getrefcount(home) > own:
        moved = home.pool.filled(parameter._kind, home.array)
        home.block, moved.block = moved.block, home.block
        home.view, moved.view = moved.view, home.view
        if parameter._storage is home:
            parameter._storage = moved
        parameter.home = moved
