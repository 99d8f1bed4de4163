"""How the graph that a plan is for comes from its model: recorded in the plan, so that `sublet check` can redo it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GIVEN: Literal["given"] = "given"
LESS: Literal["less"] = "less"
LEAST: Literal["least"] = "least"
"""An order that is asked for; the recipe of the plan that comes of it says "less"."""
OWN: Literal["own"] = "own"
AS_IS: Literal["none"] = "none"
ORDERS = {
    GIVEN: "in its own order",
    LESS: "in an order chosen for less memory",
    OWN: "in an order of the caller's",
}


PATCHES = "patches "
"""Before the patches in what was done to the nodes; it stands last there."""

OFFLOADED = ".offload"
"""What a node is called, after its value, that brings the value to slow memory."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What was done to the model as it is in its file before it was planned.

    optimize   who rewrote it: "none", or a level of ONNX Runtime's optimiser (see `frontends.onnx.optimized`)
    by         what else the rewriting depends on, as text: the version of ONNX Runtime and the processor
    changed    what Sublet's own passes did to the nodes: "" for nothing, "simplify" or "less_memory"; behind it
               "patches 4x4@NODE" for a front computed in patches (`passes/patching`)
    order      "given": the model's own, "less": another one that needs less memory, "own": a schedule of the caller's
    split      (node, kind of rows, pieces): what is done in pieces (`passes/splitting`), before anything is again
    again      (node, reader): what is computed once more, and right before which node (`passes/recompute`); for a node
               called after a value, with `OFFLOADED` at its end, that value is brought back from slow memory instead
    scratch    (node, bytes): memory that kernels asked for, which is part of the planned graph
    assumed    values whose shape the caller told, with their types: the plan holds where they are true
    declared   values whose type only the file tells, as for operators without a rule: as much of a condition
    """

    optimize: str = AS_IS
    by: str = ""
    changed: str = ""
    order: str = GIVEN
    split: tuple[tuple[str, str, int], ...] = ()
    again: tuple[tuple[str, str], ...] = ()
    scratch: tuple[tuple[str, int], ...] = ()
    assumed: tuple[tuple[str, str], ...] = ()
    declared: tuple[tuple[str, str], ...] = ()

    @property
    def conditions(self) -> tuple[tuple[str, str], ...]:
        """The values whose type nobody computed, with these types: the plan holds where they are true."""
        return (*self.assumed, *self.declared)

    @property
    def words(self) -> str:
        """Which graph it is, for people."""
        graph = "as in the file" if self.optimize == AS_IS else f"after ONNX Runtime's optimiser ({self.optimize})"
        if self.changed:
            graph += f", changed by {self.changed}"
        if self.split:
            graph += f", with {len(self.split)} nodes done in pieces, or earlier"
        if self.again:
            back = sum(name.endswith(OFFLOADED) for name, _ in self.again)
            more = len(self.again) - back
            done = [f"{more} nodes computed once more, or later"] if more else []
            done += [f"{back} values brought back from slow memory"] if back else []
            graph += f", with {' and '.join(done)} to save memory"
        if self.scratch:
            graph += f", with scratch memory that the kernels of {len(self.scratch)} nodes ask for"
        return f"{graph}, {ORDERS.get(self.order, self.order)}"


PLAIN = Recipe()
"""Of a model that is planned as it is in its file."""
