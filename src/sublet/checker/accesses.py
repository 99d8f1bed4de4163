"""Which bytes every step of a replayed program touches, in each copy of the bodies around it.

A step may touch other bytes in other states, since a pointer may stand for several values; all of them count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.checker.actions import Action
from sublet.checker.layout import Layout
from sublet.plan import Context, Region

Touched = dict[tuple[Region, bool], None]
"""Regions that are read (False) or written (True)."""


@dataclass
class Accesses:
    """What the steps touch, by name and copy; a step with sub-graphs touches what these do. Nothing if `unasked`."""

    unasked: bool = False
    of_step: dict[str, dict[Context, Touched]] = field(default_factory=dict)
    _open: list[tuple[Touched, int]] = field(default_factory=list)

    def begin(self, name: str, context: Context) -> None:
        """A step is replayed: what is noted until `end` is touched by it, and by the steps around."""
        if self.unasked:
            return
        touched = self.of_step.setdefault(name, {}).setdefault(context, {})
        self._open.append((touched, len(touched)))

    def end(self) -> None:
        """The replay of a step has ended. What it touched in a replay before is known to the steps around."""
        if self.unasked:
            return
        touched, known = self._open.pop()
        if self._open and len(touched) > known:
            self._open[-1][0].update(touched)

    def note(self, action: Action, here: Layout) -> None:
        """An action is performed where values lie as in `here`."""
        if not self._open:
            return
        touched = self._open[-1][0]
        for value in action.reads:
            region = here.region(value)
            if region is not None:
                touched[region, False] = None
        for write in action.writes:
            if write.touched:
                touched[write.region, True] = None
