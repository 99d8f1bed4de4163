"""How much of a network a plan covers: what is proven of it is proven of no more.

Every surface that tells of an arena, its bound or its gap asks here first, and names what is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from sublet.base.bytesize import human
from sublet.base.printable import listed, printable
from sublet.ir.recipe import AS_IS
from sublet.plan import POINTER, MemoryPlan, Outside

NAMED = 3
"""Values outside that one line names."""


def planned_values(plan: MemoryPlan) -> tuple[str, ...]:
    """The values that have bytes in an arena, or stand for such."""
    pointers = (place for place in plan.placements if place.how == POINTER)
    return tuple(dict.fromkeys(place.value for place in (*plan.in_arenas, *pointers)))


def coverage(plan: MemoryPlan) -> str:
    """In words how many values are planned and which are not; "" when nothing is left out."""
    if not plan.not_counted:
        return ""
    planned = len(planned_values(plan))
    whole = planned + len(plan.not_counted)
    return (
        f"{planned} of {whole} tensors planned; {len(plan.not_counted)} outside, not counted: {named(plan.not_counted)}"
    )


def checked_words(plan: MemoryPlan) -> str:
    """What a plan that the checker accepts was accepted for."""
    size = human(plan.arena_bytes)
    words = coverage(plan) or f"{len(planned_values(plan))} tensors"
    told = f"{words}, in an arena of {size}" if not plan.not_counted else f"an arena of {size}; {words}"
    return f"{told}; assumed: {assumptions(plan)}" if plan.assumed else told


def named(outside: Iterable[Outside], most: int = NAMED) -> str:
    """The first of them by name and type, and how many more there are."""
    return listed([printable(f"{value.value} {value.type}") for value in outside], most)


def assumptions(plan: MemoryPlan) -> str:
    """Return in words the types that the caller, the file or ONNX Runtime told and nobody computed; "" for none."""
    texts = [f"{name} is {spec}" for name, spec in plan.recipe.assumed]
    whose = "the file declares" if plan.recipe.optimize == AS_IS else "ONNX Runtime infers"
    texts += [f"{name} is {spec} as {whose}" for name, spec in plan.recipe.declared]
    return printable(listed(texts, NAMED))
