"""Tries changes by planning each, as long as there is time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from sublet.base.errors import SubletError
from sublet.plan import MemoryPlan
from sublet.plan.advised import Advice, Advised
from sublet.planning.advice.ideas import Idea
from sublet.planning.pipeline import plan_memory

SECONDS = 120.0
"""After so long no other change is begun."""

Trying = Callable[[Idea, tuple[Advice, ...]], None]


def tried(plan: MemoryPlan, ideas: Iterable[Idea], seconds: float = SECONDS, trying: Trying | None = None) -> Advised:
    """What each idea gives, the best first. An interrupt ends it, and what was found is kept.

    What cannot be planned is listed with the reason. `trying` is told which idea comes next, and what was found so far.
    """
    found: list[Advice] = []
    failed: list[str] = []
    reason, end = "", monotonic() + seconds
    try:
        for idea in ideas:
            if monotonic() > end:
                reason = f"{seconds:g} seconds are over"
                break
            if trying is not None:
                trying(idea, tuple(found))
            try:
                found += _measured(plan, idea)
            except SubletError as error:
                failed.append(f"{idea.what}: {error}")
    except KeyboardInterrupt:
        reason = "interrupted"
    return Advised(tuple(sorted(found, key=lambda each: each.arena_bytes)), tuple(failed), reason)


def _measured(plan: MemoryPlan, idea: Idea) -> list[Advice]:
    """The advice that planning an idea gives; none where the plan is the very same.

    Raises KeyboardInterrupt when the search was interrupted.
    """
    changed = plan_memory(*idea.make())
    if changed.stopped == "interrupt":
        raise KeyboardInterrupt
    if changed == plan:
        return []
    saved, outside = plan.arena_bytes - changed.arena_bytes, changed.bound_bytes - plan.bound_bytes
    unplanned = len(changed.outside) - len(plan.outside)
    return [Advice(idea.kind, idea.what, idea.how, changed.arena_bytes, saved, outside, unplanned)]
