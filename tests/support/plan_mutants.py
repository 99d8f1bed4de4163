"""Plans changed at random: broken ones to refuse, and ever tighter ones that the checker lets pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops.op import lookup
from sublet.plan import ARENA, OPEN, POINTER, MemoryPlan, Placement, RolledLoop, VersionTransition
from sublet.plan.schedule import Schedule, ScheduleStep
from tests.support.plans import moved, with_arena

Mutation = Callable[[random.Random, MemoryPlan], MemoryPlan | None]


def mutants(rng: random.Random, plan: MemoryPlan) -> Iterator[tuple[str, MemoryPlan]]:
    """One plan for each kind of mistake a planner can make, where the plan leaves room for it.

    Where the schedule is what is broken, it is the plan's own `schedule`.
    """
    for kind, mutate in MUTATIONS.items():
        mutant = mutate(rng, plan)
        if mutant is not None and mutant != plan:
            yield kind, mutant


def _in_arena(plan: MemoryPlan) -> list[Placement]:
    return [p for p in plan.placements if p.region.storage == ARENA and p.region.nbytes]


def _shifted(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """One value some alignments further up or down, inside the arena."""
    placed = _in_arena(plan)
    if not placed:
        return None
    one = rng.choice(placed)
    offset = one.region.offset + plan.alignment * rng.choice((-4, -2, -1, 1, 2, 4))
    return moved(plan, {one.value: max(0, min(offset, plan.arena_bytes - one.region.nbytes))})


def _swapped(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    placed = _in_arena(plan)
    if len(placed) < 2:
        return None
    one, other = rng.sample(placed, 2)
    return moved(plan, {one.value: other.region.offset, other.value: one.region.offset})


def _shrunk(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    return with_arena(plan, rng.randrange(plan.arena_bytes)) if plan.arena_bytes else None


def _onto_another(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """What a range that ends early leads to: a value in bytes that another still needs."""
    placed = _in_arena(plan)
    if len(placed) < 2:
        return None
    one, other = rng.sample(placed, 2)
    return moved(plan, {one.value: other.region.offset})


def _outside_the_arena(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A value in memory of the caller: right only where the graph updates what lies there, and at the right time."""
    bound = [storage for storage in plan.storages if storage.kind != ARENA]
    fitting = [(p, s) for p in _in_arena(plan) for s in bound if s.nbytes >= p.region.nbytes and not p.copies]
    if not fitting:
        return None
    one, storage = rng.choice(fitting)
    return moved(plan, {one.value: (storage.name.removeprefix("%"), 0)})


def _off_its_base(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A value that shares bytes with another on purpose, somewhere else in the arena."""
    sharing = [p for p in _in_arena(plan) if p.how != "own"]
    if not sharing:
        return None
    one = rng.choice(sharing)
    steps = (plan.arena_bytes - one.region.nbytes) // plan.alignment
    return moved(plan, {one.value: plan.alignment * rng.randint(0, max(0, steps))})


def _one_copy_moved(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """One region of a value that takes turns among several, onto another value or another of its own."""
    turning = [i for i, p in enumerate(plan.placements) if p.copies and p.region.storage == ARENA and p.region.nbytes]
    if not turning:
        return None
    i = rng.choice(turning)
    placement, other = plan.placements[i], rng.choice(_in_arena(plan))
    offset = min(other.region.offset, plan.arena_bytes - placement.region.nbytes)
    changed = replace(placement, region=replace(placement.region, offset=offset))
    return replace(plan, placements=(*plan.placements[:i], changed, *plan.placements[i + 1 :]))


def _copies_exchanged(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """Two regions of one value in each other's copies: what a wrong order of a ring leads to."""
    groups: dict[str, list[int]] = {}
    for i, placement in enumerate(plan.placements):
        if placement.copies:
            groups.setdefault(placement.value, []).append(i)
    several = [group for group in groups.values() if len(group) > 1]
    if not several:
        return None
    i, j = rng.sample(rng.choice(several), 2)
    placements = list(plan.placements)
    placements[i] = replace(placements[i], region=plan.placements[j].region)
    placements[j] = replace(placements[j], region=plan.placements[i].region)
    return replace(plan, placements=tuple(placements))


def _copies_in_another_order(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """The copies of a loop's body follow each other in another way."""
    if not plan.rolled:
        return None
    i = rng.randrange(len(plan.rolled))
    record = plan.rolled[i]
    first = rng.randrange(record.copies)
    changed = replace(record, first=first, ring=record.copies - first)
    if record.jumps:
        j = rng.randrange(len(record.jumps))
        jump = replace(record.jumps[j], next=rng.randrange(record.copies))
        changed = replace(record, jumps=(*record.jumps[:j], jump, *record.jumps[j + 1 :]))
    return replace(plan, rolled=(*plan.rolled[:i], changed, *plan.rolled[i + 1 :]))


def _with_jumps(
    rng: random.Random,
    plan: MemoryPlan,
    change: Callable[[RolledLoop, list[VersionTransition], int], None],
    at_least: int = 1,
) -> MemoryPlan | None:
    """The plan with some of the jumps of one loop changed; `change` gets them, and the position of one of them."""
    jumping = [i for i, record in enumerate(plan.rolled) if len(record.jumps) >= at_least]
    if not jumping:
        return None
    i = rng.choice(jumping)
    record, jumps = plan.rolled[i], list(plan.rolled[i].jumps)
    change(record, jumps, rng.randrange(len(jumps)))
    return replace(plan, rolled=(*plan.rolled[:i], replace(record, jumps=tuple(jumps)), *plan.rolled[i + 1 :]))


def _jump_ambiguous(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """One end of a copy that is followed by one copy and by another."""

    def change(record: RolledLoop, jumps: list[VersionTransition], j: int) -> None:
        jumps.insert(rng.choice((0, j + 1)), replace(jumps[j], next=rng.randrange(record.copies)))

    return _with_jumps(rng, plan, change)


def _jump_elsewhere(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A jump out of another copy, or of one that is not there."""

    def change(record: RolledLoop, jumps: list[VersionTransition], j: int) -> None:
        jumps[j] = replace(jumps[j], copy=rng.randint(-1, record.copies))

    return _with_jumps(rng, plan, change)


def _jumps_exchanged(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """Two jumps with each other's target."""

    def change(record: RolledLoop, jumps: list[VersionTransition], j: int) -> None:
        k = rng.choice([k for k in range(len(jumps)) if k != j])
        jumps[j], jumps[k] = replace(jumps[j], next=jumps[k].next), replace(jumps[k], next=jumps[j].next)

    return _with_jumps(rng, plan, change, at_least=2)


def _jump_missing(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """One end of a copy that nothing follows, or all of them."""

    def change(record: RolledLoop, jumps: list[VersionTransition], j: int) -> None:
        copy = jumps[j].copy
        one = rng.random() < 0.5
        jumps[:] = [jump for k, jump in enumerate(jumps) if (k != j if one else jump.copy != copy)]

    return _with_jumps(rng, plan, change)


def _way_changed(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A jump for another way out of a loop or branch, one that may not be there, or for any way."""

    def change(record: RolledLoop, jumps: list[VersionTransition], j: int) -> None:
        ways = list(jumps[j].ways)
        if not ways:
            return
        k = rng.randrange(len(ways))
        name, way = ways[k]
        ways[k : k + 1] = rng.choice(([], [(name, way + 1)], [(name, max(0, way - 1))]))
        jumps[j] = replace(jumps[j], ways=tuple(ways))

    return _with_jumps(rng, plan, change)


def _head_elsewhere(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A pointer begins a copy of a body at another placement, or it is left to the run where."""
    heads = [(i, copy, j) for i, record in enumerate(plan.rolled) for copy, several in enumerate(record.heads)
             for j in range(len(several))]  # fmt: skip
    if not heads:
        return None
    i, copy, j = rng.choice(heads)
    record = plan.rolled[i]
    several, number = record.heads[copy], record.heads[copy][j]
    others = {OPEN, *chain.from_iterable(record.heads), rng.randrange(len(plan.placements))} - {number}
    changed = (*several[:j], rng.choice(sorted(others)), *several[j + 1 :])
    rolled = replace(record, heads=(*record.heads[:copy], changed, *record.heads[copy + 1 :]))
    return replace(plan, rolled=(*plan.rolled[:i], rolled, *plan.rolled[i + 1 :]))


def _moving(plan: MemoryPlan) -> list[int]:
    """The placements that move from round to round."""
    return [i for i, placement in enumerate(plan.placements) if placement.strides and placement.region.nbytes]


def _exchanged(plan: MemoryPlan, i: int, changed: Placement) -> MemoryPlan:
    return replace(plan, placements=(*plan.placements[:i], changed, *plan.placements[i + 1 :]))


def _stride_changed(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A slice or row that moves too far, the other way, or not at all."""
    moving = _moving(plan)
    if not moving:
        return None
    i = rng.choice(moving)
    *outer, stride = plan.placements[i].strides
    other = stride.nbytes + plan.alignment * rng.choice((-1, 1, 2))
    flipped, further = replace(stride, backwards=not stride.backwards), replace(stride, nbytes=max(0, other))
    strides = rng.choice(((*outer, flipped), (*outer, further), tuple(outer)))
    return _exchanged(plan, i, replace(plan.placements[i], strides=strides))


def _step_too_far(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A slice or row a round too early or too late."""
    moving = _moving(plan)
    if not moving:
        return None
    i = rng.choice(moving)
    placement = plan.placements[i]
    offset = max(0, placement.region.offset + rng.choice((-1, 1)) * placement.strides[-1].nbytes)
    return _exchanged(plan, i, replace(placement, region=replace(placement.region, offset=offset)))


def _into_a_step(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A value over a slice, which belongs to a sequence, or over a row that is there already."""
    moving, placed = _moving(plan), [i for i, p in enumerate(plan.placements) if p.region.nbytes and p.how != POINTER]
    if not moving:
        return None
    step = plan.placements[rng.choice(moving)]
    near = [i for i in placed if plan.placements[i].region.nbytes <= step.region.nbytes]
    late = [i for i in near if any(begin <= step.end and step.begin <= end for begin, end in plan.placements[i].live)]
    i = rng.choice(late or near)
    region = replace(step.region, nbytes=plan.placements[i].region.nbytes)
    return _exchanged(plan, i, replace(plan.placements[i], region=region, strides=step.strides))


def _over_a_choice(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """A value over one of those that a pointer may stand for, which is only right when nobody needs it any more."""
    names = {name for placement in plan.placements for name in placement.stands_for}
    chosen = [p for p in _in_arena(plan) if p.value in names]
    if not chosen:
        return None
    target = rng.choice(chosen)
    near = [p for p in _in_arena(plan) if p.region.nbytes == target.region.nbytes and p.begin >= target.begin]
    return moved(plan, {rng.choice(near).value: target.region.offset})


def _wait_dropped(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    def drop(schedule: Schedule, i: int) -> Schedule:
        step = schedule.steps[i]
        gone = rng.choice(step.waits)
        waits = tuple(wait for wait in step.waits if wait != gone)
        return _with_steps(schedule, (*schedule.steps[:i], replace(step, waits=waits), *schedule.steps[i + 1 :]))

    return _in_some_schedule(rng, plan, lambda s: [i for i, step in enumerate(s.steps) if step.waits], drop)


def _reordered(rng: random.Random, plan: MemoryPlan) -> MemoryPlan | None:
    """Two neighbouring steps of one stream in the other order, unless one waits for the other."""

    def swappable(schedule: Schedule) -> list[int]:
        pairs = zip(schedule.steps, schedule.steps[1:], strict=False)
        return [i for i, (a, b) in enumerate(pairs) if a.stream == b.stream and a.node not in b.waits]

    def swap(schedule: Schedule, i: int) -> Schedule:
        a, b = schedule.steps[i : i + 2]
        return _with_steps(schedule, (*schedule.steps[:i], b, a, *schedule.steps[i + 2 :]))

    return _in_some_schedule(rng, plan, swappable, swap)


def _in_some_schedule(
    rng: random.Random,
    plan: MemoryPlan,
    places: Callable[[Schedule], list[int]],
    change: Callable[[Schedule, int], Schedule],
) -> MemoryPlan | None:
    """The plan with one change at one of the places in its schedule or those of sub-graphs."""
    found = [(path, i) for path, schedule in _schedules(plan.schedule) for i in places(schedule)]
    if not found:
        return None
    path, i = rng.choice(found)
    return replace(plan, schedule=_changed(plan.schedule, path, lambda schedule: change(schedule, i)))


Path = tuple[tuple[str, int], ...]


def _schedules(schedule: Schedule, path: Path = ()) -> Iterator[tuple[Path, Schedule]]:
    yield path, schedule
    for name, bodies in schedule.bodies.items():
        for i, body in enumerate(bodies):
            yield from _schedules(body, (*path, (name, i)))


def _changed(schedule: Schedule, path: Path, change: Callable[[Schedule], Schedule]) -> Schedule:
    if not path:
        return change(schedule)
    (name, position), *rest = path
    bodies = tuple(
        _changed(body, tuple(rest), change) if i == position else body for i, body in enumerate(schedule.bodies[name])
    )
    return Schedule(schedule.steps, {**schedule.bodies, name: bodies})


def _with_steps(schedule: Schedule, steps: tuple[ScheduleStep, ...]) -> Schedule:
    return Schedule(steps, schedule.bodies)


JUMP_MUTATIONS: dict[str, Mutation] = {
    "jump ambiguous": _jump_ambiguous,
    "jump elsewhere": _jump_elsewhere,
    "jumps exchanged": _jumps_exchanged,
    "jump missing": _jump_missing,
    "way changed": _way_changed,
}
"""Few plans have jumps."""

MUTATIONS: dict[str, Mutation] = {
    "shifted offset": _shifted,
    "swapped offsets": _swapped,
    "shrunk arena": _shrunk,
    "onto another": _onto_another,
    "outside the arena": _outside_the_arena,
    "off its base": _off_its_base,
    "one copy moved": _one_copy_moved,
    "copies exchanged": _copies_exchanged,
    "copies reordered": _copies_in_another_order,
    **JUMP_MUTATIONS,
    "stride changed": _stride_changed,
    "step too far": _step_too_far,
    "into a step": _into_a_step,
    "over a choice": _over_a_choice,
    "dropped wait": _wait_dropped,
    "reordered steps": _reordered,
    "head elsewhere": _head_elsewhere,
}


def tighter(
    rng: random.Random, graph: Graph, plan: MemoryPlan, accepts: Callable[[MemoryPlan], bool], moves: int
) -> tuple[MemoryPlan, list[MemoryPlan]]:
    """Move values over one another at random as long as `accepts` allows it.

    Half of the moves try what a clever planner would: views in place, outputs over inputs, carries in
    one place. Returns the last accepted plan and those that were refused on the way.
    """
    refused = []
    sharing = list(_sharing(graph))
    for _ in range(moves):
        at = {p.value: p.region.offset for p in _in_arena(plan)}
        if not at:
            break
        one = rng.choice(sorted(at))
        base = ""
        offset = rng.choice(list(at.values())) + plan.alignment * rng.choice((0, 0, -1, 1))
        if sharing and rng.random() < 0.5:
            one, base, distance = rng.choice(sharing)
            if one not in at or base not in at:
                continue
            offset = at[base] + distance
        candidate = _sharing_with(moved(plan, {one: max(0, offset)}), one, base)
        if accepts(candidate):
            plan = candidate
        else:
            refused.append(candidate)
    return plan, refused


def _sharing_with(plan: MemoryPlan, one: str, base: str) -> MemoryPlan:
    """The plan in which `one` says that it shares the bytes of `base`, or has its own."""
    how = "view" if base else "own"
    placements = (replace(p, how=how, shares=base) if p.value == one else p for p in plan.placements)
    return replace(plan, placements=tuple(placements))


def _sharing(graph: Graph) -> Iterator[tuple[str, str, int]]:
    """(value, base, distance): the value could lie `distance` bytes after the base."""
    for node in graph.walk():
        for one, other, distance in _shared_by(node):
            if one is not None and other is not None:
                yield one.name, other.name, distance
                yield other.name, one.name, -distance


def _shared_by(node: Node) -> Iterator[tuple[Value | None, Value | None, int]]:
    if isinstance(node, While):
        for parameter, init, update, final in zip(node.parameters, node.inits, node.updates, node.finals, strict=True):
            yield from ((parameter, init, 0), (parameter, update, 0), (parameter, final, 0))
    elif isinstance(node, CaseOf):
        for arm in node.arms:
            yield from zip(node.outputs, arm.outputs, [0] * len(arm.outputs), strict=True)
        yield from zip(node.outputs, node.fallbacks, [0] * len(node.fallbacks), strict=False)
    else:
        op = lookup(node.op)
        for share in (*op.views(node), *op.inplace(node)):
            yield node.outputs[share.output], node.inputs[share.input], share.offset
        for share in op.parts(node):
            yield node.inputs[share.input], node.outputs[share.output], share.offset
