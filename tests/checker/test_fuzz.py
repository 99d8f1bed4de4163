"""The checker against runs in real bytes: what it accepts runs right, on random programs and plans."""

from __future__ import annotations

import random
from collections import Counter

from sublet.analysis.options import Options
from sublet.checker import check_bytes
from sublet.ir.graph import Graph
from sublet.ir.text import to_text
from sublet.ops.verify import verify
from sublet.plan import MemoryPlan
from sublet.plan.schedule import Schedule, serial_schedule
from sublet.planning.pipeline import plan_memory
from tests.support.interpreter import results_match
from tests.support.plan_mutants import JUMP_MUTATIONS, MUTATIONS, mutants, tighter
from tests.support.plans import own_bytes
from tests.support.programs import program
from tests.support.schedules import random_schedule

SEEDS = range(40)


def case(seed: int) -> tuple[random.Random, Graph, MemoryPlan]:
    """A program and a plan that shares nothing, in one stream or several."""
    rng = random.Random(seed)
    graph = program(rng, rng.randint(1, 30), unit=rng.choice((1, 4)))
    streams = rng.randint(1, 3)
    schedule = serial_schedule(graph) if streams == 1 else random_schedule(rng, graph, streams)
    return rng, graph, own_bytes(graph, rng.choice((1, 4, 8)), bound=seed % 2 == 0, schedule=schedule)


def violations(graph: Graph, schedule: Schedule, plan: MemoryPlan) -> str:
    return "\n".join(map(str, check_bytes(graph, schedule, plan)))


def test_programs_are_legal_and_the_same_for_the_same_seed() -> None:
    for seed in SEEDS:
        verify(case(seed)[1])
        assert to_text(case(seed)[1]) == to_text(case(seed)[1])


def test_programs_have_everything() -> None:
    texts = [to_text(case(seed)[1]) for seed in SEEDS]
    for word in ("while(", "case ", "else ", "continue if", "concat", "outside(", "axis 0", "reversed", "[0]"):
        assert sum(word in text for text in texts) >= 3, word


def test_no_false_alarm_where_nothing_is_shared() -> None:
    for seed in SEEDS:
        rng, graph, plan = case(seed)
        assert violations(graph, plan.schedule, plan) == "", seed
        assert results_match(graph, plan.schedule, plan, rng), seed


def test_what_the_checker_accepts_runs_right() -> None:
    """Plans as tight as the checker lets random moves make them, and mutants of these."""
    refused, seen = Counter[str](), Counter[str]()
    for seed in SEEDS[:24]:
        rng, graph, plan = case(seed)
        schedule = plan.schedule
        tight, _ = tighter(rng, graph, plan, lambda tried: not check_bytes(graph, schedule, tried), 40)  # noqa: B023
        assert results_match(graph, schedule, tight, rng), seed
        unrolled = plan_memory(graph, Options(alignment=1, in_place_from=0))
        for kind, mutant in (*mutants(rng, tight), *mutants(rng, unrolled)):
            if violations(graph, mutant.schedule, mutant):
                refused[kind] += 1
                seen.update([] if results_match(graph, mutant.schedule, mutant, rng, 2) else [kind])
            else:
                assert results_match(graph, mutant.schedule, mutant, rng), (seed, kind)
    assert set(MUTATIONS) - set(JUMP_MUTATIONS) <= set(seen), (refused, seen)
    assert seen.total() > refused.total() / 2, (refused, seen)
