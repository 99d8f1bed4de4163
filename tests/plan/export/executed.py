"""A C program that writes and compares the tensors of a plan through the pointers of its header, in the plan's order.

A tensor gets a pattern of its own when it is born, which must be there when it dies or is overwritten in place. A loop
is left after each of the rounds that the plan tells apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sublet.plan import MemoryPlan, Placement
from sublet.plan.export.table import identifiers
from sublet.plan.statistics import multiview_values

CHECKS = """
static int failures = 0;
static void fill(uint8_t *at, size_t n, uint8_t pattern) { memset(at, pattern, n); }
static void check(const uint8_t *at, size_t n, uint8_t pattern, const char *name)
{
    size_t i;
    for (i = 0; i < n; ++i) { if (at[i] != pattern) { printf("%s destroyed at %zu\\n", name, i); ++failures; return; } }
}
static void expect(size_t is, size_t should, const char *name)
{
    if (is != should) { printf("%s is at %zu, not %zu\\n", name, is, should); ++failures; }
}
"""
WRITING = ("own", "inplace")
"""Tensors with an own pattern; others are views or parts of such."""


def program(plan: MemoryPlan, header: str) -> str:
    """Its source: it ends with 1, and names the tensors, where one is destroyed or lies elsewhere than in the plan."""
    prefix = header.removesuffix("_memory.h")
    pointers = _pointers(plan, prefix)
    lines = [f'#include "{header}"', "#include <stdio.h>", "#include <string.h>", CHECKS, "int main(void) {"]
    for place, pointer in pointers.items():
        lines.append(f'  expect((size_t)({pointer} - {prefix}_arena), {place.region.offset}u, "{prefix}");')
    for path in paths(plan):
        lines += _along(path, pointers)
    return "\n".join([*lines, "  return failures != 0;", "}"])


def paths(plan: MemoryPlan) -> Iterator[Sequence[int]]:
    """The points in order; with a loop, once for every copy of its check, which each have an exit of their own."""
    kinds = [point.kind for point in plan.points]
    exits = [at for at, kind in enumerate(kinds) if kind == "exit"]
    if not exits:
        yield range(len(kinds))
    checks = [at for at, kind in enumerate(kinds) if kind == "check"]
    assert len(exits) == len(checks)
    for check, left in zip(checks, exits, strict=True):
        yield [*range(check + 1), left, *range(exits[-1] + 1, len(kinds))]


def _pointers(plan: MemoryPlan, prefix: str) -> Mapping[Placement, str]:
    names = identifiers(place.value for place in plan.in_arenas)
    several = multiview_values(plan)
    found: dict[Placement, str] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    for place in plan.in_arenas:
        seen = places.setdefault(place.value, [])
        at = (place.region.storage, place.region.offset)
        if at not in seen:
            seen.append(at)
        which = f"_{seen.index(at)}" if place.value in several else ""
        found[place] = f"(uint8_t *){prefix}_{names[place.value]}_ptr{which}()"
    return found


def _along(path: Sequence[int], pointers: Mapping[Placement, str]) -> Iterator[str]:
    """Fills and checks; a buffer holds the tensor that was written into it last."""
    held: dict[int, tuple[Placement, int]] = {}
    pattern = 0
    for point in (*path, -1):
        alive = [place for place in pointers if any(begin <= point < end for begin, end in place.live)]
        for buffer in held.keys() - {place.buffer for place in alive}:
            yield _check(*held.pop(buffer), pointers)
        for place in alive:
            holder = held.get(place.buffer)
            begins = any(begin == point for begin, _ in place.live)
            if place.how in WRITING and begins and (holder is None or holder[0].value != place.value):
                if holder is not None:
                    yield _check(*holder, pointers)
                pattern = pattern % 251 + 1
                held[place.buffer] = (place, pattern)
                yield f"  fill({pointers[place]}, {place.region.nbytes}u, {pattern}u);"


def _check(place: Placement, pattern: int, pointers: Mapping[Placement, str]) -> str:
    return f'  check({pointers[place]}, {place.region.nbytes}u, {pattern}u, "{place.value}");'
