"""Random carry maps: a loop of delay lines, rotations and taps, to be planned without a copy in any iteration.

`carry_map(random.Random(seed))` is the same map for the same seed. Every map can be planned without a copy in an
iteration, given enough body versions: modulo variable expansion renames every carry. `least_versions` finds the fewest
by a search over all places of every new value; `carried_bytes_to_copy` is what must be copied where a plan may list
only so many versions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from sublet.analysis.carry_renaming import MAX_RING_POINTS
from sublet.analysis.loop_versions import MAX_BODY_VERSIONS
from sublet.analysis.options import Options
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.graph import Graph, Node, Value, While
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import is_without_fallback, plan_memory
from tests.support import dialect
from tests.support.interpreter import results_match
from tests.support.schedules import random_schedule

assert dialect.OPS

COUNTER = TensorSpec(DType.I64)
FLAG = TensorSpec(DType.BOOL)

NEW = -1
"""In a carry map: the parameter takes a value computed in the iteration; NEW - 1 takes a second one, and so on."""


@dataclass(frozen=True)
class CarryMap:
    """Where each parameter comes from: another parameter by its number, or a value computed in the iteration.

    `inplace` says for each computed value whether its op may write over its first operand.
    """

    sources: tuple[int, ...]
    inplace: tuple[bool, ...]
    graph: Graph

    def chain(self, parameter: int) -> list[int]:
        """The parameters from this one back to a computed value, or around a rotation."""
        chain = [parameter]
        while (source := self.sources[chain[-1]]) >= 0 and source not in chain:
            chain.append(source)
        return chain

    def periods(self) -> list[tuple[int, int, bool]]:
        """For each parameter the iterations until its binding repeats, those before, and whether more places help.

        A rotation repeats as it is. A delay line repeats as often as it has places: its rows and one more.
        """
        found: list[tuple[int, int, int]] = []
        for parameter in range(len(self.sources)):
            *_, last = chain = self.chain(parameter)
            source = self.sources[last]
            rotation = len(chain) - chain.index(source) if source >= 0 else 0
            found.append((rotation, len(chain) - rotation, source))
        deepest = {source: max(delay for _, delay, other in found if other == source) for _, _, source in found}
        return [(rotation or deepest[source] + 1, delay, not rotation) for rotation, delay, source in found]

    def carries_to_copy(self, most: int) -> int:
        """The fewest carries that must be copied in each iteration, with at most so many body versions."""
        known = self.periods()
        return min(
            sum(delay > most - all_of or (own > all_of if grows else all_of % own != 0) for own, delay, grows in known)
            for all_of in range(1, most + 1)
        )


def carry_map(rng: random.Random, longest: int = 64) -> CarryMap:
    """Some delay lines and rotations of at most `longest` carries together, with taps, in one loop."""
    sources: list[int] = []
    lines = 0
    while not sources or (rng.random() < 0.5 and len(sources) < longest):
        room = longest - len(sources)
        length = min(room, rng.choice((1, 2, 3, rng.randint(1, 9), rng.randint(1, longest))))
        begin = len(sources)
        if rng.random() < 0.6:
            lines += 1
            sources += [*range(begin + 1, begin + length), NEW - rng.randrange(lines)]
        else:
            order = [*range(begin, begin + min(length, 12))]
            rng.shuffle(order)
            sources += order
    if rng.random() < 0.2 and len(sources) < longest:
        sources.append(rng.randrange(len(sources)))  # a second reader of one carry
    shuffled = [*range(len(sources))]
    rng.shuffle(shuffled)
    place = {old: new for new, old in enumerate(shuffled)}
    of = tuple(place[sources[old]] if sources[old] >= 0 else sources[old] for old in shuffled)
    used = sorted({-source for source in of if source < 0})
    of = tuple(source if source >= 0 else -1 - used.index(-source) for source in of)
    inplace = tuple(rng.random() < 0.5 for _ in used)
    return CarryMap(of, inplace, _graph(rng, of, inplace))


def _graph(rng: random.Random, sources: tuple[int, ...], inplace: tuple[bool, ...]) -> Graph:
    """The loop of a carry map. Its carries begin as inputs, or as weights, some as the same one."""
    spec = TensorSpec(DType.U8, (rng.choice((4, 8, 16)),))
    count = len(sources)
    inputs = [Value(f"x{i}", spec) for i in range(max(1, count - rng.choice((0, 0, 1))))]
    weights = tuple(Value(f"w{i}", spec) for i in range(rng.choice((0, 0, 2))))
    inits = [rng.choice(weights) if weights and rng.random() < 0.2 else inputs[i % len(inputs)] for i in range(count)]
    counter, data = Value("i", COUNTER), Value("n", spec)
    parameters = [Value(f"p{i}", spec) for i in range(count)]
    flag = Value("go", FLAG)
    trips = {"rounds": rng.choice((0, 1, 2, count, 3 * count))} if rng.random() < 0.5 else {"most": 2 * count + 3}
    body = [Node("below", "test.below", (counter, data), (flag,), trips)]
    fresh = [Value(f"y{i}", spec) for i in range(len(inplace))]
    for i, (value, over) in enumerate(zip(fresh, inplace, strict=True)):
        taps = [rng.choice(parameters) for _ in range(rng.choice((1, 1, 2, 3)))]
        ends = [p for p, source in zip(parameters, sources, strict=True) if parameters.index(p) not in sources]
        first = rng.choice(ends or parameters)  # a carry that no other takes: the old end of a delay line
        body.append(Node(f"step{i}", "test.add" if over else "test.matmul", (first, *taps), (value,)))
    updates = [parameters[source] if source >= 0 else fresh[-1 - source] for source in sources]
    finals = [Value(f"f{i}", spec) if rng.random() < 0.9 else None for i in range(count)]
    loop = While(
        "loop", "while", tuple(inits), tuple(finals),
        body=Graph("body", (counter, *parameters), tuple(body), tuple(updates)),
        condition=flag, check=1, carried=count,
    )  # fmt: skip
    known = [final for final in finals if final is not None]
    read = rng.sample(known, min(len(known), rng.choice((1, 2, 3, len(known)))))
    reader = Node("reader", "test.matmul", (*read, inputs[0]), (Value("out", spec),))
    outputs = (Value("out", spec), *rng.sample(known, min(len(known), rng.choice((0, 0, 1, 2)))))
    return Graph("carries", (*inputs, data), (loop, reader), outputs, weights)


def least_versions(sources: tuple[int, ...]) -> int:
    """The fewest body versions that bind every carry without a copy, in any places.

    A state binds each parameter to a place. A computed value goes to any place that no next binding needs. Body
    versions are a path of states that returns to one of its own states.
    """
    begin = tuple(range(len(sources)))
    ahead = {**_distances(begin, sources), begin: 0}
    rounds = {state: _distances(state, sources).get(state, 0) for state in ahead}
    return min(distance + rounds[state] for state, distance in ahead.items() if rounds[state])


def _distances(begin: tuple[int, ...], sources: tuple[int, ...]) -> dict[tuple[int, ...], int]:
    """How many iterations lead from one state to each other state, and back to the state itself."""
    found: dict[tuple[int, ...], int] = {}
    todo, distance = [begin], 0
    while todo:
        distance += 1
        todo = [state for before in todo for state in _following(before, sources)]
        todo = [state for state in dict.fromkeys(todo) if state not in found]
        found.update(dict.fromkeys(todo, distance))
    return found


def _following(state: tuple[int, ...], sources: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every state after one more iteration."""
    fresh = sorted({source for source in sources if source < 0})
    kept = {state[source] for source in sources if source >= 0}
    free = [place for place in range(len(sources) + len(fresh)) if place not in kept]
    for places in permutations(free, len(fresh)):
        new = dict(zip(fresh, places, strict=True))
        yield tuple(state[source] if source >= 0 else new[source] for source in sources)


def check_carry_map(seed: int, longest: int = 64, tries: int = 2) -> tuple[CarryMap, Graph, MemoryPlan]:
    """Plan and run a random carry map in one to three streams; return the map and the plan.

    Raises AssertionError naming the seed if an iteration copies a row that need not be copied, if a run of the loop
    copies a carry more than once, or if a run goes wrong.
    """
    rng = random.Random(seed)
    carries = carry_map(rng, longest)
    graph, count = carries.graph, len(carries.sources)
    options = Options(
        strategy="best_fit_by_size",
        alignment=rng.choice((1, 4)),
        io=rng.choice(("arena", "arena", "arena", "bound")),
        weights=rng.choice(("arena", "bound")),
    )
    schedule = random_schedule(rng, graph, rng.choice((1, 1, 2, 3)))
    plan = plan_memory(graph, options, schedule=schedule)
    by_edge: dict[str, int] = {}
    for move in plan.moves:
        by_edge[move.edge.kind] = by_edge.get(move.edge.kind, 0) + 1
    body = next(node for node in graph.nodes if isinstance(node, While)).body
    versions = min(MAX_BODY_VERSIONS, int(0.9 * MAX_RING_POINTS / (len(body.nodes) + 3 + count // 4)))
    least = carries.carries_to_copy(versions)
    what = f"seed {seed}: {carries.sources}, {options.io}, copies {by_edge}"
    assert by_edge.pop("next", 0) <= least, f"{what}, at most {least} need be copied in an iteration"
    assert by_edge.pop("enter", 0) + by_edge.pop("exit", 0) <= count, what
    assert not by_edge, what
    if len(carries.sources) <= 3:
        assert least == 0 or least_versions(carries.sources) > versions, what
    assert is_without_fallback(plan), f"{what}: the checker could not follow"
    assert results_match(graph, plan.schedule, plan, rng, tries), f"{what}: the planned run is wrong"
    return carries, graph, plan
