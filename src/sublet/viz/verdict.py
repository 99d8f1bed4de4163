"""The verdict on a budget as text: fits, does not fit (with the proof), or unknown (with the missing facts)."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sublet.base.bytesize import human
from sublet.base.escape import printable
from sublet.plan import MemoryPlan
from sublet.plan.coverage import assumptions, first_names
from sublet.plan.verdict import EVERY, BudgetOutcome, Verdict
from sublet.viz.buffer_table import buffer_table


def render_verdict(verdict: Verdict, plan: MemoryPlan) -> RenderableType:
    """Return a sentence on the verdict, and a table of the tensors in the proof, if any."""
    budget = human(verdict.budget)
    if verdict.outcome is BudgetOutcome.FITS:
        return _describe_fit(verdict, plan)
    if verdict.outcome is BudgetOutcome.UNKNOWN:
        return Text(
            f"Unknown whether the plan fits the budget of {budget}: {_describe_uncounted(verdict, plan)}", "yellow"
        )
    if not verdict.is_settled:
        over = human(plan.arena_bytes - verdict.budget)
        head = f"This plan does not fit the budget of {budget}: {over} too much"
        tail = f"A smaller plan is not excluded: the lower bound is {human(verdict.least)}"
        return Text(f"{head}{_describe_conditions(verdict, plan)}. {tail}.", "red")
    head = f"Cannot fit the budget of {budget} in this order{_describe_conditions(verdict, plan)}"
    if not verdict.proof:
        return Text(f"{head}: the search refuted every arena below {human(verdict.least)}.", "red")
    total = human(sum(live.nbytes for live in verdict.proof))
    heading = Text(f"{head}: these must not overlap and take {total} with their padding:", "red")
    return Group(heading, buffer_table(verdict.proof, plan))


def _describe_fit(verdict: Verdict, plan: MemoryPlan) -> Text:
    assert verdict.most is not None
    spare = human(verdict.budget - verdict.most)
    whose = "its" if len(plan.not_counted) == 1 else "their"
    outside = f", with {_count_uncounted(plan)} outside at {whose} largest" if plan.not_counted else ""
    conditions = _describe_conditions(verdict, plan)
    head = f"Fits the budget of {human(verdict.budget)}{conditions}"
    updated_bytes = _updated_bytes_outside(plan)
    updated_words = f" {human(updated_bytes)} updated and kept by each run lie outside the arena, and do not count."
    words = f"{head}: {spare} to spare{outside}.{updated_words if updated_bytes else ''}"
    return Text(words, "yellow" if conditions or outside or updated_bytes else "green")


def _updated_bytes_outside(plan: MemoryPlan) -> int:
    """Return the bytes outside of all arenas that must be memory: states, and trained weights."""
    arenas = {arena.name for arena in plan.arenas}
    kept = {place.value: place.region for place in plan.placements if place.value in plan.updated}
    return sum(region.nbytes for region in kept.values() if region.storage not in arenas)


def _describe_conditions(verdict: Verdict, plan: MemoryPlan) -> str:
    """Return the assumptions of the verdict, as text."""
    conditions = [assumptions(plan)] if plan.assumed_types else []
    if verdict.outcome is BudgetOutcome.FITS and plan.not_counted:
        for name, extent in verdict.largest:
            every = "of any other value outside" if len(verdict.largest) > 1 else "of a value outside"
            whose = every if name == EVERY else f"of {printable(name)}"
            conditions.append(f"no open extent {whose} is above {extent:,}")
    return f" if {', and '.join(conditions)}" if conditions else ""


def _describe_uncounted(verdict: Verdict, plan: MemoryPlan) -> str:
    """Return a text on the uncounted values, and on possible remedies."""
    arena = f"the planned part takes {human(plan.arena_bytes)}"
    if verdict.most is not None:
        more = human(verdict.most - plan.arena_bytes)
        outside = f"{_count_uncounted(plan)} outside at most {more} more"
        return f"{arena}, and {outside}. Declare smaller bounds, or raise the budget."
    names = first_names(plan.not_counted)
    how = "Declare shapes with --assume NAME=SHAPE, or the largest extents with --max-dim."
    return f"{arena}, and {_count_uncounted(plan)} outside not counted: {names}. {how}"


def _count_uncounted(plan: MemoryPlan) -> str:
    count = len(plan.not_counted)
    return f"{count} value{'s' if count != 1 else ''}"
