"""The fixpoint state of a loop in the replay."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.base.errors import Finding
from sublet.checker.state import State
from sublet.ir.graph import While
from sublet.plan import Context


@dataclass
class Run:
    """The fixpoint state of a loop: by body version the entry state, the exit state, and the findings.

    node      the loop
    within    the body versions of the enclosing loops
    entries   the entry state of each version
    exits     the state after the exit edge of each version
    findings  the findings of the last run of each version, with the fixpoint states of nested loops in their places
    """

    node: While
    within: Context = ()
    heads: dict[int, State] = field(default_factory=dict)
    left: dict[int, State] = field(default_factory=dict)
    wrong: dict[int, list[Finding | Run]] = field(default_factory=dict)
