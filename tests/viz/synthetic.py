"""Memory plans made by hand and by a seeded generator, with the shape of a real network's plan."""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from random import Random

from sublet.plan import ARENA, RUN, MemoryPlan, Peak, Placement, PlanPoint, Region, Storage, UnplannedValue
from sublet.plan.schedule import Schedule, ScheduleStep
from sublet.viz.view_model import picture_of_plan

OPS = ("Conv", "Relu", "MatMul", "Add", "Softmax", "Resize", "Concat", "Mul")


def plan_of(
    placements: list[Placement],
    points: tuple[str, ...],
    *,
    lower_bound: int | None = None,
    peak: Peak | None = None,
    graph: str = "net",
    storages: tuple[Storage, ...] = (),
    outside: tuple[UnplannedValue, ...] = (),
) -> MemoryPlan:
    """A plan of these placements; the arena ends where the highest of them ends."""
    own = [place for place in placements if place.region.storage == ARENA]
    arena = max((place.region.end for place in own), default=0)
    saved = {how: sum(p.region.nbytes for p in own if p.how in how) for how in (("view", "part"), ("inplace", "carry"))}
    return MemoryPlan(
        graph=graph,
        fingerprint="0" * 64,
        schedule=Schedule(tuple(ScheduleStep(name) for name in points)),
        alignment=64,
        strategy="first_fit_size",
        arena_bytes=arena,
        lower_bound_bytes=arena if lower_bound is None else lower_bound,
        bound="peak",
        total_bytes=sum(place.region.nbytes for place in own),
        view_bytes=saved["view", "part"],
        inplace_bytes=saved["inplace", "carry"],
        storages=(Storage(ARENA, "arena", arena), *storages),
        placements=tuple(placements),
        outside=outside,
        peak=peak or Peak(0, arena, ()),
        points=tuple(PlanPoint(RUN, name) for name in points),
    )


def small_plan() -> MemoryPlan:
    """Seven values: `y` is a view of `x`, `z` overwrites it, `late` takes the bytes of `a`."""
    kib = 1024
    placements = [
        _place("image", "f32[1,3,8,8]", 3 * kib, 2 * kib, [(0, 2)], 0, producer=""),
        _place("x", "f32[1,4,16,16]", 0, 3 * kib, [(1, 3)], 1, producer="conv1"),
        _place("y", "f32[1,1024]", 0, 3 * kib, [(2, 4)], 1, "view", "x", "flatten"),
        _place("z", "f32[1,1024]", 0, 3 * kib, [(4, 6)], 1, "inplace", "y", "relu"),
        _place("a", "f32[256]", 3 * kib, kib, [(3, 5)], 2, producer="pool"),
        _place("late", "f16[1024]", 3 * kib, 2 * kib, [(5, 7)], 3, producer="gemm"),
        _place("twice", "i64[128]", 5 * kib, kib, [(1, 2), (5, 6)], 4, producer="shape"),
        Placement("w", "f32[64]", Region("w", 0, 256), ((0, 7),), -1),
    ]
    points = ("start", "conv1", "flatten", "pool", "relu", "gemm", "softmax")
    return plan_of(
        placements,
        points,
        peak=Peak(1, 6 * kib, ("image", "x", "twice")),
        storages=(Storage("w", "weight", 256),),
    )


def _place(
    value: str,
    spec: str,
    offset: int,
    nbytes: int,
    live: list[tuple[int, int]],
    buffer: int,
    how: str = "own",
    shares: str = "",
    producer: str = "",
) -> Placement:
    return Placement(value, spec, Region(ARENA, offset, nbytes), tuple(live), buffer, how, shares, producer)


def network_plan(buffers: int, seed: int = 0, scale: int = 64) -> MemoryPlan:
    """A plan of about 1.4 values a buffer: chains of views and in-place outputs, skips, a few reloads."""
    random = Random(seed)
    points = tuple(
        f"/layer{point * 6 // buffers}/block{point % 7}/{OPS[point * 5 % 8]}_{point}" for point in range(buffers)
    )
    placements: list[Placement] = []
    busy: list[tuple[int, int, int]] = []  # (offset, end address, end of life)
    for buffer in range(buffers):
        chain = _chain(random, buffer, len(points))
        nbytes = scale * max(1, int(random.lognormvariate(5 - buffer / buffers, 0.8)))
        end = max(until for _, until, _ in chain)
        busy = [taken for taken in busy if taken[2] > buffer]
        offset = _first_fit(busy, nbytes)
        insort(busy, (offset, offset + nbytes, end))
        before = ""
        for position, (begin, until, how) in enumerate(chain):
            name = f"{points[begin]}_output_{position}" if position == 0 else f"{points[begin]}_{buffer}_{how}"
            live = [(begin, until)]
            placements.append(
                _place(name, f"f32[1,{nbytes // 4}]", offset, nbytes, live, buffer, how, before, points[begin])
            )
            before = name
    plan = plan_of(placements, points, graph="synthetic network", storages=(Storage("w", "weight", 97 << 20),))
    return with_peak(plan)


def _chain(random: Random, begin: int, last: int) -> list[tuple[int, int, str]]:
    chain = []
    how = "own"
    while True:
        far = random.random() < 0.06
        until = min(last, begin + 1 + (random.randint(8, 90) if far else random.randint(1, 4)))
        chain.append((begin, until, how))
        if random.random() > 0.3 or until >= last:
            return chain
        how = random.choice(("view", "inplace"))
        begin = until if how == "inplace" else random.randint(begin + 1, until) if until > begin + 1 else until
        begin = min(begin, last - 1)


def _first_fit(busy: list[tuple[int, int, int]], nbytes: int) -> int:
    at = 0
    for offset, end, _ in busy:
        if offset - at >= nbytes:
            return at
        at = max(at, end)
    return at


def with_peak(plan: MemoryPlan) -> MemoryPlan:
    """The same plan with the peak of its own live bytes, which is its lower bound too."""
    curve = picture_of_plan(plan).curve
    point, nbytes = max(curve, key=lambda step: (step[1], -step[0]))
    values = tuple(place.value for place in plan.placements if place.begin <= point < place.end)
    return replace(plan, peak=Peak(point, nbytes, values), lower_bound_bytes=nbytes)
