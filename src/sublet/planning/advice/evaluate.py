"""Evaluation of candidates: plans each change, within a time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic

from sublet.base.errors import SubletError
from sublet.plan import MemoryPlan
from sublet.plan.advice import Advice, Advised
from sublet.planning.advice.candidates import AdviceCandidate
from sublet.planning.pipeline import plan_memory

MAX_SECONDS = 120.0
"""Seconds of an evaluation. Afterwards no candidate starts."""

OnCandidate = Callable[[AdviceCandidate, tuple[Advice, ...]], None]


def evaluate_candidates(
    plan: MemoryPlan, ideas: Iterable[AdviceCandidate], seconds: float = MAX_SECONDS, trying: OnCandidate | None = None
) -> Advised:
    """Plan each candidate and return the advice, the smallest arena first.

    Candidates that cannot be planned are listed with the reason. No candidate starts after `seconds`. An interrupt ends
    the evaluation and keeps the advice found until then. `trying` is called with each next candidate and the advice
    found until then.
    """
    advice: list[Advice] = []
    failed: list[str] = []
    reason, end = "", monotonic() + seconds
    try:
        for idea in ideas:
            if monotonic() > end:
                reason = f"the time limit of {seconds:g} seconds is over"
                break
            if trying is not None:
                trying(idea, tuple(advice))
            try:
                advice += _evaluate_candidate(plan, idea)
            except SubletError as error:
                failed.append(f"{idea.what}: {error}")
    except KeyboardInterrupt:
        reason = "interrupted"
    return Advised(tuple(sorted(advice, key=lambda each: each.arena_bytes)), tuple(failed), reason)


def _evaluate_candidate(plan: MemoryPlan, idea: AdviceCandidate) -> list[Advice]:
    """Return the advice from planning a candidate; empty if the plan is unchanged.

    Raises KeyboardInterrupt if the search was interrupted.
    """
    changed = plan_memory(*idea.make())
    if changed.stopped == "interrupt":
        raise KeyboardInterrupt
    if changed == plan:
        return []
    saved, outside = plan.arena_bytes - changed.arena_bytes, changed.bound_bytes - plan.bound_bytes
    unplanned = len(changed.outside) - len(plan.outside)
    return [Advice(idea.kind, idea.what, idea.how, changed.arena_bytes, saved, outside, unplanned)]
