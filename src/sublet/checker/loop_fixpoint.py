"""The fixpoint state of a loop in the replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.base.errors import Finding
from sublet.checker.state import AbstractState
from sublet.ir.graph import While
from sublet.plan import Context


@dataclass
class LoopFixpoint:
    """The fixpoint state of a loop: by body version the entry state, the exit state, and the findings.

    node      the loop
    within    the body versions of the enclosing loops
    entries   the entry state of each version
    exits     the state after the exit edge of each version
    findings  the findings of the last run of each version, with the fixpoint states of nested loops in their places
    """

    node: While
    within: Context = ()
    entries: dict[int, AbstractState] = field(default_factory=dict)
    exits: dict[int, AbstractState] = field(default_factory=dict)
    findings: dict[int, list[Finding | LoopFixpoint]] = field(default_factory=dict)
