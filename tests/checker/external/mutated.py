"""Foreign plans changed at random: none that is judged right may run wrong, and none that is right be refused.

A plan of a program is run by `tests.support.interpreter` in the bytes that it tells. A plan with lifetimes is
laid out byte by byte and step by step. Neither knows the checker, or the packing's validation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sublet.analysis.alias_planner import AliasPlanner
from sublet.analysis.interference import build_packing_problem
from sublet.analysis.options import Options
from sublet.checker.external import (
    ForeignOutcome,
    ForeignPlan,
    ForeignVerdict,
    PlacedTensor,
    judge_by_lifetimes,
    judge_by_replay,
)
from sublet.ir.dataflow import assignments
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.packing import pack
from sublet.packing.strategies import STRATEGIES
from sublet.plan.schedule import serial_schedule
from sublet.planning.assemble_plan import assemble_plan, placement_in_one_arena
from tests.support.interpreter import results_match
from tests.support.plans import plan_at
from tests.support.programs import program

Mutation = Callable[[random.Random, ForeignPlan], ForeignPlan | None]


@dataclass(frozen=True)
class Judged:
    """One mutant: what was done, what was said of it, and whether it runs right."""

    mutation: str
    outcome: ForeignOutcome
    right: bool


def of_programs(seed: int, size: int = 16) -> Iterator[Judged]:
    """A plan of a random program, with loops and branches, as it is and changed. Raises AssertionError."""
    rng = random.Random(seed)
    graph = program(rng, rng.choice([4, 8, size]), recurrent=seed % 3 == 2)
    foreign = placed_program(rng, graph)
    whole = judge_by_replay(Model(graph), foreign)
    assert not whole.findings, f"seed {seed}: a right plan is refused: {whole.findings[0]}"
    yield Judged("none", whole.outcome, runs_right(rng, graph, foreign))
    for kind, mutant in _mutants(rng, foreign, {**OFFSETS, **NAMES}):
        found = judge_by_replay(Model(graph), mutant)
        right = runs_right(rng, graph, mutant)
        assert right or found.findings, f"seed {seed}: judged {found.outcome}, and runs wrong: {kind}"
        yield Judged(kind, found.outcome, right)


def of_lifetimes(seed: int) -> Iterator[Judged]:
    """A packing with lifetimes, as it is and changed. Raises AssertionError."""
    rng = random.Random(seed)
    foreign = placed_lives(rng)
    for kind, mutant in (("none", foreign), *_mutants(rng, foreign, {**OFFSETS, **LIVES})):
        found = judge_by_lifetimes(mutant)
        right = _apart(mutant)
        assert right is not bool(found.findings), f"seed {seed}: judged {found.outcome}, is right: {right}: {kind}"
        yield Judged(kind, found.outcome, right)


def placed_program(rng: random.Random, graph: Graph) -> ForeignPlan:
    """What a tool without pointers may plan: every value has bytes, control flow copies."""
    options = Options(alignment=rng.choice([1, 4, 8]), in_place_from=1 << 40, share=rng.random() < 0.7)
    schedule = serial_schedule(graph)
    layouts = AliasPlanner(graph, schedule, options)
    copied = frozenset(to for node in graph.walk() for to, _ in assignments(node))
    layout = layouts.best(copied)
    problem = build_packing_problem(layout.arena_buffers, layout.flow, alignment=options.alignment)
    report = pack(problem, rng.choice(sorted(STRATEGIES)))
    plan = assemble_plan(graph, schedule, layout, layouts, placement_in_one_arena(report), ())
    tensors = [
        PlacedTensor(place.value, place.region.offset, "sram") for place in plan.in_arenas if place.region.nbytes
    ]
    rng.shuffle(tensors)
    told = {"sram": plan.arena_bytes} if rng.random() < 0.5 else {}
    return ForeignPlan(tuple(tensors), "a tool", told, options.alignment)


def placed_lives(rng: random.Random) -> ForeignPlan:
    """Tensors at random offsets, tight, none over another."""
    tensors: list[PlacedTensor] = []
    for i in range(rng.randrange(1, 12)):
        begin = rng.randrange(10)
        lives = [(begin, begin + rng.randrange(1, 5))]
        if rng.random() < 0.3:
            lives.append((lives[0][1] + rng.randrange(1, 4), lives[0][1] + 6))
        one = PlacedTensor(f"t{i}", 0, rng.choice(["a", "a", "b"]), rng.randrange(0, 20), tuple(lives))
        while not _apart(ForeignPlan((*tensors, one))):
            one = replace(one, offset=one.offset + 1)
        tensors.append(one)
    return ForeignPlan(tuple(tensors), "a tool")


def _mutants(
    rng: random.Random, plan: ForeignPlan, mutations: dict[str, Mutation]
) -> Iterator[tuple[str, ForeignPlan]]:
    for kind, mutate in mutations.items():
        mutant = mutate(rng, plan) if plan.tensors else None
        if mutant is not None and mutant != plan:
            yield kind, mutant


def _changed(plan: ForeignPlan, i: int, **fields: object) -> ForeignPlan:
    changed = replace(plan.tensors[i], **fields)  # type: ignore[arg-type]
    return replace(plan, tensors=(*plan.tensors[:i], changed, *plan.tensors[i + 1 :]))


def _any(rng: random.Random, plan: ForeignPlan) -> int:
    return rng.randrange(len(plan.tensors))


def _shifted(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    i = _any(rng, plan)
    by = (plan.alignment or 1) * rng.choice((-3, -2, -1, 1, 2, 3)) + rng.choice((0, 0, 0, 1))
    return _changed(plan, i, offset=plan.tensors[i].offset + by)


def _swapped(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    i, j = _any(rng, plan), _any(rng, plan)
    once = _changed(plan, i, offset=plan.tensors[j].offset)
    return _changed(once, j, offset=plan.tensors[i].offset) if i != j else once


def _onto(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    return _changed(plan, _any(rng, plan), offset=plan.tensors[_any(rng, plan)].offset)


def _anywhere(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    several = plan
    for _ in range(3):
        several = _changed(several, _any(rng, plan), offset=rng.randrange(64) * (plan.alignment or 1))
    return several


def _dropped(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    i = _any(rng, plan)
    told = (*plan.left_out, plan.tensors[i].name) if rng.random() < 0.5 else plan.left_out
    return replace(plan, tensors=(*plan.tensors[:i], *plan.tensors[i + 1 :]), left_out=told)


def _renamed(rng: random.Random, plan: ForeignPlan) -> ForeignPlan | None:
    return _changed(plan, _any(rng, plan), name="nobody's") if len(plan.tensors) > 1 else None


def _exchanged(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    i, j = _any(rng, plan), _any(rng, plan)
    return _swapped(random.Random(0), _dropped(rng, plan)) if i == j and len(plan.tensors) > 1 else _swapped(rng, plan)


def _sized(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    i = _any(rng, plan)
    return _changed(plan, i, nbytes=rng.choice((0, 1, 3, 8, 200)))


def _narrow(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    ends = [tensor.offset + (tensor.nbytes or 8) for tensor in plan.tensors]
    return replace(plan, regions={plan.tensors[0].region: rng.randrange(max(1, max(ends)))})


def _moved_away(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    return _changed(plan, _any(rng, plan), region="dram")


def _aligned(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    return replace(plan, alignment=rng.choice((None, 2, 16)))


def _lives_longer(rng: random.Random, plan: ForeignPlan) -> ForeignPlan:
    i = _any(rng, plan)
    begin = rng.randrange(12)
    return _changed(plan, i, lifetimes=((begin, begin + rng.randrange(1, 6)),))


def _shares(rng: random.Random, plan: ForeignPlan) -> ForeignPlan | None:
    i, j = _any(rng, plan), _any(rng, plan)
    return None if i == j else _changed(plan, i, shares=plan.tensors[j].name)


OFFSETS: dict[str, Mutation] = {
    "shifted": _shifted,
    "swapped": _swapped,
    "onto another": _onto,
    "anywhere": _anywhere,
    "dropped": _dropped,
    "another region": _moved_away,
    "narrower region": _narrow,
    "other alignment": _aligned,
    "other size": _sized,
}
NAMES: dict[str, Mutation] = {"renamed": _renamed, "dropped and swapped": _exchanged}
LIVES: dict[str, Mutation] = {"other lives": _lives_longer, "shares": _shares}


def runs_right(rng: random.Random, graph: Graph, plan: ForeignPlan, tries: int = 3) -> bool:
    """Whether the program runs right in these bytes: what was left out has bytes of its own beyond all others."""
    values = {value.name: value for value in graph.values() if value.plannable}
    known = {tensor.name: tensor for tensor in plan.tensors if tensor.name in values}
    starts: dict[str, int] = {}
    end = 0
    for region in plan.region_names:
        starts[region] = end
        end += plan.region_bytes(region, {n: max(values[n].nbytes, t.nbytes or 0) for n, t in known.items()})
    places: dict[str, int | tuple[str, int]] = {}
    for name, tensor in known.items():
        nbytes, size = values[name].nbytes, end
        following = [start for start in starts.values() if start > starts[tensor.region]]
        size = min(following, default=end) - starts[tensor.region]
        too_far = not 0 <= tensor.offset <= size - nbytes
        askew = tensor.offset % (plan.alignment or _width(str(values[name].spec)))
        small = tensor.nbytes is not None and tensor.nbytes < nbytes
        if nbytes and (too_far or askew or small):
            return False
        places[name] = starts[tensor.region] + tensor.offset if nbytes else 0
    kinds = {value.name: "output" for value in graph.outputs}
    kinds |= {value.name: "input" for value in graph.inputs} | {value.name: "weight" for value in graph.weights}
    bound = {name: kind for name, kind in kinds.items() if name in values and name not in places}
    for name, value in values.items():
        if name in bound:
            places[name] = (name, 0)
        elif name not in places:
            places[name] = end
            end += value.nbytes
    return results_match(graph, serial_schedule(graph), plan_at(graph, places, end, 1, bound), rng, tries)


def _width(spec: str) -> int:
    bits = "".join(letter for letter in spec.partition("[")[0].lstrip("bf") if letter.isdigit())
    return max(1, int(bits or 8) // 8)


def _apart(plan: ForeignPlan) -> bool:
    """Byte by byte and step by step: nobody's bytes are another's, but where a tensor shares them on purpose."""
    roots: dict[str, str] = {}
    shared = {tensor.name: tensor.shares for tensor in plan.tensors}
    for name in shared:
        root = name
        while shared.get(root):
            root = shared[root]
        roots[name] = root
    taken: dict[tuple[str, int, int], str] = {}
    for tensor in plan.tensors:
        size = plan.regions.get(tensor.region)
        beyond = size is not None and tensor.nbytes and tensor.offset + tensor.nbytes > size
        if tensor.offset < 0 or beyond or tensor.offset % (plan.alignment or 1):
            return False
        for begin, end in tensor.lifetimes:
            for step in range(begin, end):
                for byte in range(tensor.offset, tensor.offset + (tensor.nbytes or 0)):
                    if taken.setdefault((tensor.region, byte, step), roots[tensor.name]) != roots[tensor.name]:
                        return False
    return True


def judgement_of(found: ForeignVerdict) -> tuple[str, ...]:
    """The rules that are broken."""
    return tuple(finding.rule for finding in found.findings)
