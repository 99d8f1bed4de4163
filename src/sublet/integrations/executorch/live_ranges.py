"""Live ranges of tensors on one clock over a program and all inner modules.

    node 3      time 3
    cond        time 4             reads the predicate
      true      times 5 to 9
      false     times 10 to 12
      after     time 13            defines the branch results
    node 5      time 14

A tensor of the outer module read by a branch is live during the reads of the branch; a tensor returned by a branch is
live until the last read of the result. A loop keeps the outer tensors read by the body, and the results, live during
the whole loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sublet.base.errors import PlanError
from sublet.base.ranges import Ranges, merge
from sublet.integrations.executorch.graph_program import (
    ControlFlow,
    ControlKind,
    GraphModule,
    PlannedModule,
    Spec,
    control_of,
)


@dataclass(frozen=True)
class BranchResult:
    """A result of a branch, and the tensor returned by each arm for the result."""

    result: Spec
    returned_tensors: tuple[Spec | None, ...]


@dataclass
class ProgramClock:
    """The live range of each tensor by direct uses, without uses through placeholders and storage bases.

    pieces    half-open ranges of time
    readers   (argument, placeholder): the argument is live whenever the placeholder is live
    outcomes  results of branches, innermost first
    bound     placeholders bound to outer tensors, without bytes
    order     the modules in clock order, each with the prefix of the module's node names
    """

    known: Mapping[GraphModule, PlannedModule]
    pieces: dict[Spec, list[tuple[int, int]]] = field(default_factory=dict)
    readers: list[tuple[Spec, Spec]] = field(default_factory=list)
    outcomes: list[BranchResult] = field(default_factory=list)
    bound: set[Spec] = field(default_factory=set)
    order: list[tuple[str, PlannedModule]] = field(default_factory=list)
    now: int = 0

    def run_module(self, module: GraphModule, name: str = "") -> None:
        """Advance the clock over a module and all inner modules.

        Raises PlanError for an inner module planned by another algorithm.
        """
        if module not in self.known:
            raise PlanError(
                "ExecuTorch: another algorithm planned a module that control flow runs: pass only Sublet's algorithm "
                "to MemoryPlanningAlgorithmSuite"
            )
        planned = self.known[module]
        self.order.append((name, planned))
        begins, ends, controls = [], [], {}
        for i, node in enumerate(planned.nodes):
            begins.append(self.now)
            self.now += 1
            control = control_of(module, node)
            if control is not None:
                controls[i] = control
                self._run_inner_modules(control, name)
                self.now += 1
            ends.append(self.now)
        for spec, (first, last) in planned.node_ranges.items():
            begin = begins[first]
            if first in controls and controls[first].runs is ControlKind.ONE_OF and spec in controls[first].results:
                begin = ends[first] - 1
            end = ends[last]
            if last in controls and controls[last].runs is ControlKind.ONE_OF and spec not in controls[last].results:
                end = begins[last] + 1
            self.pieces.setdefault(spec, []).append((begin, end))

    def _run_inner_modules(self, control: ControlFlow, name: str) -> None:
        """Advance the clock over the modules run by a control-flow node."""
        returned = []
        for inner in control.inner:
            self.run_module(inner.module, f"{name}{inner.name}.")
            planned = self.known[inner.module]
            for argument, placeholder in zip(inner.arguments, planned.placeholders, strict=True):
                if argument is not None and placeholder is not None:
                    self.readers.append((argument, placeholder))
                    self.bound.add(placeholder)
            returned.append(planned.returned_tensors)
        if control.runs is ControlKind.ONE_OF:
            for result, *returned_tensors in zip(control.results, *returned, strict=True):
                if result is not None:
                    self.outcomes.append(BranchResult(result, tuple(returned_tensors)))


def live_ranges_of(clock: ProgramClock, readers: Iterable[tuple[Spec, Spec]]) -> dict[Spec, Ranges]:
    """Return the live range of each tensor, including uses by tensors bound to the tensor.

    `readers` are added to the clock's (argument, placeholder) pairs. The computation is a fixpoint.
    """
    pieces = {spec: merge(ranges) for spec, ranges in clock.pieces.items()}
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
