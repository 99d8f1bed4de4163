"""The bytes accessed by every step of a replayed program, for each context.

A step may access different bytes in different states, as a pointer may have several targets; all targets count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.checker.actions import Action
from sublet.checker.layout import PlanLayout
from sublet.plan import Context, Region

TouchedRegions = dict[tuple[Region, bool], None]
"""Regions read (False) or written (True)."""


@dataclass
class StepAccesses:
    """The regions accessed by steps, by name and context; a step includes its sub-graphs. Empty if `is_disabled`."""

    is_disabled: bool = False
    by_step: dict[str, dict[Context, TouchedRegions]] = field(default_factory=dict)
    _open: list[tuple[TouchedRegions, int]] = field(default_factory=list)

    def begin(self, name: str, context: Context) -> None:
        """Start a step: accesses recorded until `end` belong to the step and to the enclosing steps."""
        if self.is_disabled:
            return
        touched = self.by_step.setdefault(name, {}).setdefault(context, {})
        self._open.append((touched, len(touched)))

    def end(self) -> None:
        """End a step, and add new accesses to the enclosing step, which already has the accesses of earlier replays."""
        if self.is_disabled:
            return
        touched, known = self._open.pop()
        if self._open and len(touched) > known:
            self._open[-1][0].update(touched)

    def note(self, action: Action, here: PlanLayout) -> None:
        """Record the accesses of an action, with values placed as in `here`."""
        if not self._open:
            return
        touched = self._open[-1][0]
        for value in action.reads:
            region = here.region_of(value)
            if region is not None:
                touched[region, False] = None
        for write in action.writes:
            if write.touched:
                touched[write.region, True] = None
