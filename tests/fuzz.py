"""Generated programs through the whole planner, and broken plans through the checker.

For a program: every plan must satisfy the checker (`plan_memory` insists), and running it in the
plan's bytes must give what running it in separate bytes gives. For every mutant of the plan: if the
checker accepts it, running it must still be right. Plans that the checker could follow with fewer pointers
only are listed, and must be rare.

    python -m tests.fuzz --seconds 600 --seed 1
    python -m tests.fuzz --seconds 600 --seed 1 --kind steps    # training steps of the nn dialect, run by the reference
    python -m tests.fuzz --seconds 600 --seed 1 --kind onnx     # ONNX models, beside ONNX Runtime
    python -m tests.fuzz --seconds 600 --seed 1 --kind plans    # plan files, every field of every record
    python -m tests.fuzz --seconds 600 --seed 1 --kind folding  # what is folded, all operators, forms and types
    python -m tests.fuzz --seconds 600 --seed 1 --kind shapes   # ONNX models beside ONNX Runtime's runs
    python -m tests.fuzz --seconds 600 --seed 1 --kind foreign  # plans of other tools, with and without a model
    python -m tests.fuzz --count 500 --kind carries             # delay lines, rotations: no copy in any iteration
    python -m tests.fuzz --count 10000 --seed 1 --kind onnx     # so many seeds, however long that takes
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from sublet.analysis.alias_planner import AliasPlanner
from sublet.analysis.interference import build_packing_problem, build_segmented_problem
from sublet.analysis.options import Options
from sublet.checker import check_bytes
from sublet.checker.external import ForeignOutcome
from sublet.integrations.onnx.reader.constant_folding import FOLDABLE
from sublet.ir.graph import Graph
from sublet.ir.text import parse, to_text
from sublet.packing import STRATEGIES, pack
from sublet.plan import MemoryPlan
from sublet.planning.assemble_plan import assemble_plan, placement_in_one_arena
from sublet.planning.pipeline import is_without_fallback, plan_memory
from tests.checker.external.mutated import of_lifetimes, of_programs
from tests.integrations.onnx import shape_cases, unknown_models
from tests.integrations.onnx.folding import compare
from tests.support.carry_maps import check_carry_map
from tests.support.interpreter import results_match
from tests.support.onnx.planned_runs import check_onnx_apart
from tests.support.plan_file_mutants import judge_files
from tests.support.plan_mutants import mutants
from tests.support.programs import program
from tests.support.schedules import random_schedule
from tests.support.update_programs import exchanging
from tests.training.steps import check_step

RARE = 1000
"""At most one of so many plans may point less because the checker could not follow it."""

TELL_EVERY = 60
"""Seconds after which a run tells how far it is."""


@dataclass
class Tally:
    """What a fuzz run saw. `refused_right` counts mutants the checker refused that ran right all the same.

    `unfollowed` are the seeds of plans which point less because the checker could not follow: mistakes of ours.
    """

    programs: int = 0
    nodes: int = 0
    plans: int = 0
    refused: int = 0
    mutants: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    refused_right: Counter[str] = field(default_factory=Counter)
    unfollowed: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        head = f"{self.programs} programs, {self.nodes} nodes, {self.plans} plans, {self.mutants.total()} mutants"
        head += f", {self.refused} refused by ONNX Runtime" if self.refused else ""
        if self.unfollowed:
            head += f", {len(self.unfollowed)} not followed: seeds {', '.join(map(str, self.unfollowed))}"
        rows = [
            f"  {kind:<18}{count:>8} mutants {self.accepted[kind]:>8} accepted and right "
            f"{self.refused_right[kind]:>8} refused, not seen to fail"
            for kind, count in sorted(self.mutants.items())
        ]
        return "\n".join([head, *rows])


def options(rng: random.Random, strategy: str) -> Options:
    """Random ways to plan."""
    return Options(
        strategy=strategy,
        alignment=rng.choice([1, 1, 4, 8, 64]),
        io=rng.choice(["arena", "arena", "bound"]),
        weights=rng.choice(["bound", "arena"]),
        in_place_from=rng.choice([0, 0, 0, 8, 1 << 20]),
    )


def one_program(seed: int, tally: Tally, strategies: tuple[str, ...] = (*STRATEGIES, "auto")) -> None:
    """Generate, plan with every strategy, run, mutate. Raises AssertionError naming the seed."""
    rng = random.Random(seed)
    size = rng.choice([4, 8, 16, 30])
    graph = exchanging(rng, size) if seed % 10 == 6 else program(rng, size, recurrent=seed % 3 == 2)
    assert parse(to_text(graph)) == graph, f"seed {seed}: the text form does not give the graph back"
    tally.programs += 1
    tally.nodes += sum(1 for _ in graph.walk())
    for strategy in strategies:
        chosen = options(rng, strategy)
        schedule = random_schedule(rng, graph, rng.choice([1, 1, 2, 3]))
        try:
            plan = plan_memory(graph, chosen, schedule=schedule)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {chosen}: {error}") from error
        tally.plans += 1
        tally.unfollowed += [] if is_without_fallback(plan) else [seed]
        assert plan.lower_bound_bytes <= plan.arena_bytes, f"seed {seed}, {chosen}: bound above the arena"
        assert results_match(graph, plan.schedule, plan, rng, 3), f"seed {seed}, {chosen}: the planned run is wrong"
        if strategy in ("auto", "allocation_graph"):
            judge_mutants(seed, rng, graph, plan, tally)


def ended_early(rng: random.Random, graph: Graph, plan: MemoryPlan) -> MemoryPlan | None:
    """The plan a planner would make that believes one value dies before its last use."""
    layouts = AliasPlanner(graph, plan.schedule, Options(alignment=1, in_place_from=0))
    layout = layouts.best()
    ranges = layout.ranges
    inner = {
        value: pieces for value, pieces in ranges.slot_ranges.items() if pieces and pieces[-1][1] - pieces[-1][0] > 2
    }
    victims = [value for value in inner if value.nbytes and value not in graph.weights]
    if not victims:
        return None
    victim = rng.choice(victims)
    *earlier, (begin, end) = inner[victim]
    cut = (begin, rng.randrange(begin + 1, end - 1))
    ranges = replace(ranges, slot_ranges={**ranges.slot_ranges, victim: (*earlier, cut)})
    layout = layouts.assign_buffers(layout.flow, ranges, blocks=rng.random() < 0.5)
    problem = build_packing_problem(layout.arena_buffers, layout.flow, alignment=1)
    form = build_segmented_problem(
        problem, layout.arena_buffers, ranges if layout.flow.is_serial else None, alignment=1
    )
    packed = placement_in_one_arena(pack(form.problem, "best_fit_by_size"), form)
    return assemble_plan(graph, plan.schedule, layout, layouts, packed, plan.moves)


def judge_mutants(seed: int, rng: random.Random, graph: Graph, plan: MemoryPlan, tally: Tally) -> None:
    """Every mutant that the checker accepts must run right."""
    early = ended_early(rng, graph, plan)
    for kind, broken in (*mutants(rng, plan), *([("range ended early", early)] if early else ())):
        tally.mutants[kind] += 1
        accepted = not check_bytes(graph, broken.schedule, broken)
        right = results_match(graph, broken.schedule, broken, rng, 3 if accepted else 1)
        assert right or not accepted, f"seed {seed}: the checker accepts a wrong plan, mutant {kind}"
        tally.accepted[kind] += accepted
        tally.refused_right[kind] += right and not accepted


def one_step(seed: int, tally: Tally) -> None:
    """One training step: planned, run, its plans mutated. Raises AssertionError naming the seed."""
    tally.programs += 1
    for kind, accepted in check_step(seed):
        tally.mutants[kind] += 1
        tally.accepted[kind] += accepted


def one_carry_map(seed: int, tally: Tally) -> None:
    """A loop of delay lines and rotations, and its plan mutated. Raises AssertionError naming the seed."""
    carries, graph, plan = check_carry_map(seed)
    tally.programs += 1
    tally.nodes += sum(1 for _ in graph.walk())
    tally.plans += 1
    if len(carries.sources) <= 24:
        judge_mutants(seed, random.Random(seed), graph, plan, tally)


def one_folding(seed: int, tally: Tally) -> None:
    """Nodes of every row of the table of what may be folded. Raises AssertionError naming what differs."""
    for op_type, types in FOLDABLE.items():
        for dtype in sorted(types, key=str):
            tally.programs += 1
            compare(op_type, dtype, 6, seed, thorough=True)


def one_file(seed: int, tally: Tally) -> None:
    """A plan file with every field changed. Raises AssertionError naming the seed."""
    tally.programs += 1
    tally.plans += 1
    with TemporaryDirectory() as folder:
        for name, accepted in judge_files(seed, Path(folder)):
            tally.mutants[name] += 1
            tally.accepted[name] += accepted


def one_foreign(seed: int, tally: Tally) -> None:
    """A plan of another tool, and its mutants. Raises AssertionError naming the seed."""
    tally.programs += 1
    for one in (*of_programs(seed), *of_lifetimes(seed)):
        tally.mutants[one.mutation] += 1
        tally.accepted[one.mutation] += one.outcome is not ForeignOutcome.WRONG
        tally.refused_right[one.mutation] += one.right and one.outcome is ForeignOutcome.WRONG


def one_shape(seed: int, tally: Tally) -> None:
    """A model with unknown shapes and false claims, and nodes of ONNX's own cases with shapes changed."""
    tally.programs += 1 + shape_cases.check(seed, 10)
    unknown_models.check(seed)


def one_model(seed: int, tally: Tally) -> None:
    """One ONNX model, in ONNX Runtime and planned. Raises AssertionError naming the seed."""
    outcome = check_onnx_apart(seed)
    assert not outcome.wrong, outcome.wrong
    tally.programs += 1
    tally.nodes += outcome.nodes
    tally.plans += not outcome.refused
    tally.refused += bool(outcome.refused)
    tally.unfollowed += [seed] if outcome.unfollowed else []


KINDS: dict[str, Callable[[int, Tally], None]] = {
    "programs": one_program,
    "steps": one_step,
    "carries": one_carry_map,
    "folding": one_folding,
    "plans": one_file,
    "shapes": one_shape,
    "onnx": one_model,
    "foreign": one_foreign,
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, help="60, if no count is given")
    arguments.add_argument("--count", type=int, help="so many seeds, in the time that is given for them if one is")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--kind", choices=KINDS, default="programs")
    chosen = arguments.parse_args()
    one, tally = KINDS[chosen.kind], Tally()
    seconds = chosen.seconds if chosen.seconds is not None else 60 if chosen.count is None else math.inf
    begin = told = time.monotonic()
    try:
        for seed in itertools.count(chosen.seed):
            now = time.monotonic()
            if now > begin + seconds or seed - chosen.seed == chosen.count:
                break
            one(seed, tally)
            if now > told + TELL_EVERY:
                told = now
                print(f"{now - begin:.0f} s, seed {seed}: {str(tally).splitlines()[0]}", flush=True)
    finally:
        print(tally)
    assert len(tally.unfollowed) <= tally.plans / RARE, "the checker cannot follow too many plans: see their seeds"


if __name__ == "__main__":
    main()
