"""The part of a network covered by a plan: all proofs about the plan hold for the covered part only.

Every output with an arena, a bound or a gap calls this module first, and names the values left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from sublet.base.bytesize import human
from sublet.base.escape import abbreviated_list, printable
from sublet.ir.recipe import AS_IS
from sublet.plan import POINTER, MemoryPlan, UnplannedValue

NAMED = 3
"""Values named in one line of text; more values are counted only."""


def planned_values(plan: MemoryPlan) -> tuple[str, ...]:
    """Return the values with bytes in an arena, and the renamed values bound to such values."""
    pointers = (place for place in plan.placements if place.how == POINTER)
    return tuple(dict.fromkeys(place.value for place in (*plan.in_arenas, *pointers)))


def coverage(plan: MemoryPlan) -> str:
    """Return a sentence with the number of planned values and the first values left out; "" for complete coverage."""
    if not plan.not_counted:
        return ""
    planned = len(planned_values(plan))
    whole = planned + len(plan.not_counted)
    outside = f"{len(plan.not_counted)} outside, not counted: {first_names(plan.not_counted)}"
    return f"{planned} of {whole} tensors planned; {outside}"


def checked_summary(plan: MemoryPlan) -> str:
    """Return a sentence with the values, the arena and the assumptions covered by a successful check."""
    size = human(plan.arena_bytes)
    words = coverage(plan) or f"{len(planned_values(plan))} tensors"
    summary = f"{words}, in an arena of {size}" if not plan.not_counted else f"an arena of {size}; {words}"
    return f"{summary}; assumed: {assumptions(plan)}" if plan.assumed_types else summary


def first_names(outside: Iterable[UnplannedValue], most: int = NAMED) -> str:
    """Return the first values by name and type, and the number of values left out."""
    return abbreviated_list([printable(f"{value.value} {value.type}") for value in outside], most)


def assumptions(plan: MemoryPlan) -> str:
    """Return in words the types declared by the caller, the file or ONNX Runtime; "" for none.

    Sublet did not compute these types.
    """
    texts = [f"{name} is {spec}" for name, spec in plan.recipe.assumed]
    whose = "the file declares" if plan.recipe.optimize == AS_IS else "ONNX Runtime infers"
    texts += [f"{name} is {spec}, as {whose}" for name, spec in plan.recipe.declared]
    return printable(abbreviated_list(texts, NAMED))
