"""What a replay knows of the rounds of a loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from sublet.base.errors import Finding
from sublet.checker.state import State
from sublet.ir.graph import While
from sublet.plan import Context


@dataclass
class Run:
    """What is known of one run of a loop: at the head of each copy of its body, and after it from there."""

    node: While
    within: Context = ()
    heads: dict[int, State] = field(default_factory=dict)
    left: dict[int, State] = field(default_factory=dict)
    wrong: dict[int, list[Finding | Run]] = field(default_factory=dict)
