"""What a plan says that pointers stand for when a copy of a body begins is true, or refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sublet.analysis.options import Options
from sublet.checker import check, check_bytes
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.plan import OPEN, POINTER, MemoryPlan, RolledLoop
from sublet.planning.pipeline import plan_memory
from tests.support import dialect
from tests.support.plan_file_mutants import JUMPING
from tests.support.programs import program

assert dialect.OPS

ROTATION = """
graph @rotation(%a: u8[24], %b: u8[24], %c: u8[24], %seed: u8[4]) {
  %x: u8[24], %y: u8[24], %z: u8[24] = while(%i: i64[]; %p: u8[24] = %a, %q: u8[24] = %b, %r: u8[24] = %c; )
      @loop body @body {
    %go: bool[] = test.below(%i, %seed)
    continue if %go
    next %q, %r, %p;
  }
  return %x, %y, %z
}
"""


def planned(graph: Graph) -> tuple[Graph, MemoryPlan]:
    return graph, plan_memory(graph, Options(strategy="best_fit_by_size", alignment=1, in_place_from=0))


MOST = 24
"""So many changed plans of a program are looked at."""

CASES = {
    "rotation": planned(parse(ROTATION)),
    "jumps": planned(parse(JUMPING)),
    "rows": planned(program(random.Random(5), 8, recurrent=True)),
    "generated": planned(program(random.Random(57), 14)),
}


def with_head(plan: MemoryPlan, record: RolledLoop, copy: int, position: int, number: int) -> MemoryPlan:
    """The plan with one pointer at another placement when one copy begins."""
    heads = list(map(list, record.heads))
    heads[copy][position] = number
    return with_heads(plan, record, tuple(map(tuple, heads)))


def with_heads(plan: MemoryPlan, record: RolledLoop, heads: tuple[tuple[int, ...], ...]) -> MemoryPlan:
    changed = replace(record, heads=heads)
    return replace(plan, rolled=tuple(changed if one is record else one for one in plan.rolled))


def heads_of(plan: MemoryPlan) -> Iterator[tuple[RolledLoop, int, int]]:
    for record in plan.rolled:
        for copy, heads in enumerate(record.heads):
            for position in range(len(heads)):
                yield record, copy, position


def of_its_size(plan: MemoryPlan, record: RolledLoop, copy: int, position: int) -> list[int]:
    """The other placements that a pointer could be said to stand for."""
    told = record.heads[copy][position]
    size = 0 if told == OPEN else plan.placements[told].region.nbytes
    return [i for i, place in enumerate(plan.placements) if i != told and size in (0, place.region.nbytes)]


@pytest.mark.parametrize("name", CASES)
def test_every_other_placement_is_refused(name: str) -> None:
    """The claim by itself, and where that decides which bytes are read, the run in bytes as well."""
    graph, plan = CASES[name]
    mutants = [(*head, number) for head in heads_of(plan) for number in of_its_size(plan, *head)]
    assert len(mutants) > 5
    for record, copy, position, number in random.Random(1).sample(mutants, min(MOST, len(mutants))):
        mutant = with_head(plan, record, copy, position, number)
        rules = {finding.rule for finding in check(graph, mutant.schedule, mutant)}
        assert rules == {"false-heads"}, (record.loop, copy, position, number)
        told, other = record.heads[copy][position], plan.placements[number]
        place = None if told == OPEN else plan.placements[told]
        if place and other.region != place.region and not {*place.strides, *other.strides} and place.region.nbytes:
            assert check_bytes(graph, mutant.schedule, mutant)


@pytest.mark.parametrize("name", CASES)
def test_what_is_left_to_the_run_is_no_claim(name: str) -> None:
    graph, plan = CASES[name]
    for record, copy, position in list(heads_of(plan))[:3]:
        left = with_head(plan, record, copy, position, OPEN)
        assert check(graph, left.schedule, left) == ()


def test_heads_that_cannot_be_meant() -> None:
    graph, plan = CASES["rotation"]
    [record] = plan.rolled
    pointer = next(i for i, place in enumerate(plan.placements) if place.how == POINTER)
    small = next(i for i, place in enumerate(plan.placements) if place.value == "seed")
    for heads in ((), record.heads[:-1], (*record.heads, record.heads[0]), (record.heads[0][:-1], *record.heads[1:])):
        says = "\n".join(map(str, check_bytes(graph, plan.schedule, with_heads(plan, record, heads))))
        assert "must declare the bindings of 3 renamed parameters in each of 3 body versions" in says
    for number in (pointer, small, len(plan.placements)):
        mutant = with_head(plan, record, 0, 0, number)
        says = "\n".join(map(str, check_bytes(graph, mutant.schedule, mutant)))
        assert f"enters body version @0 with %p bound to placement {number}, which cannot hold it" in says
