"""The plan of a call: compiled from its trace, and run piece by piece in memory that all plans share."""

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
    """A backend that is not shown what weights contain: it changes between two calls."""

    backend: Backend

    @property
    def name(self) -> str:
        return self.backend.name

    def kernel(self, node: Node, constants: Mapping[Value, Array]) -> Kernel | None:
        """The backend's."""
        return self.backend.kernel(node, {})


class Arena:
    """Memory that all plans of a graph run in, one after another: as much as the largest needs."""

    def __init__(self) -> None:
        self.raw: Raw = aligned_bytes(0, 64)

    def at_least(self, nbytes: int, alignment: int) -> Raw:
        """The memory, and more of it where that is too little."""
        if self.raw.nbytes < nbytes:
            self.raw = aligned_bytes(nbytes, max(alignment, 64))
        return self.raw


class Planned:
    """The calls that end at `end` of the trie, as an executable.

    moments   the way to there
    updated   the parameters that the call updates
    early     those of them that may be written over before a command refuses what it is given
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
        """Whether a run can go on from the cut before a piece that another plan's run came to, with what that kept."""
        kept, pointers = self.trace.kept[piece - 1], self.executable._memory.pointers
        return self.trace.closed[piece - 1] and not any(value.name in pointers for value in kept.values())

    def ready(self, begun: Mapping[Parameter, Storage]) -> None:
        """Bound to the memory as it is now. `begun` is what the parameters held at first that the call has updated."""
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
    """One run of a plan.

    piece   the number of the piece that comes next
    """

    def __init__(self, planned: Planned, begun: Mapping[Parameter, Storage]) -> None:
        planned.ready(begun)
        self.planned = planned
        self.piece = 0
        self._fed: set[int] = set()

    def feed(self, contents: Mapping[int, Any]) -> None:
        """Put what comes from outside, by number, into its place."""
        for slot, value in self.planned.trace.outside.items():
            if slot not in self._fed and slot in contents:
                np.copyto(self.planned.pieces.array(value), contents[slot], casting="unsafe")
                self._fed.add(slot)

    def take(self, piece: int, kept: Mapping[int, Array]) -> None:
        """Go on from a cut that another run came to, with what it kept there."""
        self.piece = piece
        for slot, array in self.kept().items():
            np.copyto(array, kept[slot])

    def go_on(self) -> None:
        """Run the next piece."""
        self.planned.pieces.run(self.piece)
        self.piece += 1

    def finish(self) -> None:
        """Run the last piece, which writes to the parameters; all of them are as before when it fails."""
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
        """What the latest cut keeps, where it lies."""
        if not self.piece:
            return {}
        kept = self.planned.trace.kept[self.piece - 1]
        return {slot: self.planned.pieces.array(value) for slot, value in kept.items()}

    def left(self) -> dict[int, Array]:
        """The results, where they lie."""
        return {slot: self.planned.pieces.result(value) for slot, value in self.planned.trace.left.items()}


def home_of(parameter: Parameter) -> Storage:
    """Where plans have a parameter: memory that stays the same."""
    if parameter.home is None:
        assert parameter._storage is not None
        parameter.home = parameter._storage.pool.filled(parameter._kind, parameter._storage.array)
    return parameter.home


def bring_home(parameter: Parameter, held: Storage | None) -> None:
    """Let what a parameter holds lie at its home. It may show what a call has updated it to: that is not held yet."""
    home = home_of(parameter)
    if held is not home:
        assert held is not None
        apart(parameter)
        home = home_of(parameter)
        np.copyto(home.array, held.array)
        if parameter._storage is held:
            parameter._storage = home


def apart(parameter: Parameter, holders: int = 0) -> None:
    """Before the home of a parameter is written to: who else holds what lies there gets a copy, but for `holders`."""
    home = parameter.home
    assert home is not None
    own = 3 + holders + (parameter._storage is home)  # this name, the argument, and the parameter's
    if sys.getrefcount(home) > own:
        moved = home.pool.filled(parameter._kind, home.array)
        home.block, moved.block = moved.block, home.block
        home.view, moved.view = moved.view, home.view
        if parameter._storage is home:
            parameter._storage = moved
        parameter.home = moved
