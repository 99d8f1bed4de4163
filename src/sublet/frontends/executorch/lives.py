"""One clock over a program and all that it runs inside, and when the bytes of each tensor are needed.

    node 3      time 3
    cond        time 4             its predicate is read
      true      times 5 to 9
      false     times 10 to 12
      after     time 13            what came out of either branch has its name from here on
    node 5      time 14

What a branch reads of the module around it is needed as long as the branch reads it; what it gives back, as long as
anybody reads it then. A body that runs again needs all of that as long as it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sublet.base.errors import PlanError
from sublet.base.ranges import Ranges, merge
from sublet.frontends.executorch.modules import Control, GraphModule, Known, Runs, Spec, control_of


@dataclass(frozen=True)
class Outcome:
    """A tensor that comes out of a branch, and for each branch what it gives back for it."""

    made: Spec
    given: tuple[Spec | None, ...]


@dataclass
class Clock:
    """When each tensor is needed, without what others are needed for.

    pieces    half-open ranges of time
    readers   (argument, placeholder): whenever the placeholder is needed, the argument is
    outcomes  of branches, the innermost first
    bound     placeholders that stand for tensors around them, and so have no bytes of their own
    order     the modules, as the clock comes to them, each with what its nodes' names begin with
    """

    known: Mapping[GraphModule, Known]
    pieces: dict[Spec, list[tuple[int, int]]] = field(default_factory=dict)
    readers: list[tuple[Spec, Spec]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    bound: set[Spec] = field(default_factory=set)
    order: list[tuple[str, Known]] = field(default_factory=list)
    now: int = 0

    def run(self, module: GraphModule, name: str = "") -> None:
        """Let the clock run through a module. Raises PlanError for one that another algorithm has planned."""
        if module not in self.known:
            raise PlanError(
                "ExecuTorch: a module that control flow runs was planned by another algorithm: give Sublet's to "
                "MemoryPlanningAlgorithmSuite, alone"
            )
        known = self.known[module]
        self.order.append((name, known))
        begins, ends, controls = [], [], {}
        for i, node in enumerate(known.nodes):
            begins.append(self.now)
            self.now += 1
            control = control_of(module, node)
            if control is not None:
                controls[i] = control
                self._inside(control, name)
                self.now += 1
            ends.append(self.now)
        for spec, (first, last) in known.lives.items():
            begin = begins[first]
            if first in controls and controls[first].runs is Runs.ONE_OF and spec in controls[first].made:
                begin = ends[first] - 1
            end = ends[last]
            if last in controls and controls[last].runs is Runs.ONE_OF and spec not in controls[last].made:
                end = begins[last] + 1
            self.pieces.setdefault(spec, []).append((begin, end))

    def _inside(self, control: Control, name: str) -> None:
        given = []
        for inner in control.inner:
            self.run(inner.module, f"{name}{inner.name}.")
            known = self.known[inner.module]
            for argument, placeholder in zip(inner.arguments, known.placeholders, strict=True):
                if argument is not None and placeholder is not None:
                    self.readers.append((argument, placeholder))
                    self.bound.add(placeholder)
            given.append(known.returned)
        if control.runs is Runs.ONE_OF:
            for made, *each in zip(control.made, *given, strict=True):
                if made is not None:
                    self.outcomes.append(Outcome(made, tuple(each)))


def needed(clock: Clock, readers: Iterable[tuple[Spec, Spec]]) -> dict[Spec, Ranges]:
    """When each tensor is needed, also because another is for which it stands; `readers` come to those of the clock."""
    pieces = {spec: merge(several) for spec, several in clock.pieces.items()}
    edges = [*clock.readers, *readers]
    changed = True
    while changed:
        changed = False
        for argument, reader in edges:
            if argument in pieces and reader in pieces:
                more = merge((*pieces[argument], *pieces[reader]))
                changed = changed or more != pieces[argument]
                pieces[argument] = more
    return pieces
