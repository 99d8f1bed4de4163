"""What is computed again: where clones stand, what they read, what is refused, and that the search counts right."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from math import inf

import pytest

import sublet
from sublet import nn
from sublet.base.errors import PlanError
from sublet.ir.dataflow import results
from sublet.ir.graph import Graph
from sublet.ir.text import parse, to_text
from sublet.ops.verify import verify
from sublet.passes.live_bytes import blocks_of
from sublet.passes.pass_pipeline import simplify
from sublet.passes.recompute.remat_problem import Clones, RematProblem, remat_problem_of
from sublet.passes.recompute.remat_search import RematSearch, compiled_problem
from sublet.passes.recompute.remat_timeline import remat_timeline
from sublet.passes.recompute.rematerialize import (
    effective_pairs,
    offload_candidates,
    offloaded_values,
    with_offloads,
    with_rematerialization,
)
from sublet.passes.recompute.time_bound import least_extra_seconds
from tests.fuzz_budget import drawn

LATE = """
graph @late(%x: f32[64], %g: f32[64]) {
  %y: f32[64] = nn.exp(%x)
  %v: f32[8,8] = nn.reshape(%y) {shape = [8, 8]}
  %z: f32[64] = nn.tanh(%y)
  %s: f32[64] = nn.mul(%z, %g)
  %t: f32[8,8] = nn.mul(%v, %v)
  %u: f32[64] = nn.mul(%y, %s)
  return %s, %t, %u
}
"""


def read_by(graph: Graph, name: str) -> list[str]:
    return [value.name for value in next(node for node in graph.nodes if name in [v.name for v in node.defs]).uses]


def test_whoever_reads_later_reads_the_clone() -> None:
    graph = with_rematerialization(parse(LATE), [("y", "t"), ("v", "t")])
    verify(graph)
    assert [node.name for node in graph.nodes] == ["y", "z", "s", "y.again", "v.again", "t", "u"]
    assert read_by(graph, "z") == ["y"]
    assert read_by(graph, "v.again") == ["y.again"]
    assert (read_by(graph, "t"), read_by(graph, "u")) == (["v.again", "v.again"], ["y.again", "s"])
    assert parse(to_text(graph)) == graph


def test_no_pass_merges_a_clone() -> None:
    graph = with_rematerialization(parse(LATE), [("y", "u")])
    assert [node.name for node in simplify(graph).nodes if node.again] == ["y.again"]


def test_a_node_whose_first_reader_reads_a_clone_has_moved() -> None:
    graph = with_rematerialization(parse(LATE), [("v", "t")])
    assert [node.name for node in graph.nodes] == ["y", "z", "s", "v.again", "t", "u"]


def test_a_value_that_is_brought_back_is_read_from_there_on() -> None:
    graph = with_rematerialization(parse(LATE), [("y.offload", "t"), ("v", "t")])
    verify(graph)
    assert [node.name for node in graph.nodes] == ["y", "y.offload", "z", "s", "y.again", "v.again", "t", "u"]
    assert [node.op for node in graph.nodes if "y" in node.name][1:3] == ["nn.offload", "nn.reload"]
    assert (read_by(graph, "y.again"), read_by(graph, "v.again")) == (["y.offload"], ["y.again"])
    assert read_by(graph, "u") == ["y.again", "s"]
    assert parse(to_text(graph)) == graph
    assert [node.name for node in simplify(graph).nodes if node.again] == ["y.again", "v.again"]
    with pytest.raises(PlanError, match="no such nodes"):
        with_rematerialization(parse(LATE), [("x.offload", "t")])  # an input, which no node computes


def test_a_node_that_is_called_like_an_offload_is_itself() -> None:
    graph = parse(LATE.replace("%s", "%y.offload"))
    assert "y" not in offload_candidates(graph, 0)
    clone = next(node for node in with_rematerialization(graph, [("y.offload", "u")]).nodes if node.again)
    assert clone.op == "nn.mul"


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (("no", "t"), "no such nodes"),
        (("t", "no"), "no such nodes"),
        (("t", "y"), "comes before the node"),
        (("z", "u"), "is not read"),
    ],
)
def test_a_pair_that_a_graph_cannot_have_is_refused(pair: tuple[str, str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        with_rematerialization(parse(LATE), [pair])


def test_what_is_told_of_recomputation_is_what_is_done() -> None:
    """A pair listed twice, or a pair that changes nothing, would be counted in the words of a plan."""
    graph = parse(LATE)
    with pytest.raises(PlanError, match="listed twice"):
        with_rematerialization(graph, [("y", "u"), ("y", "u")])
    assert effective_pairs(graph, [("y", "u"), ("z", "u"), ("y", "u")]) == [("y", "u")]


def test_nothing_is_computed_again_behind_an_update_of_what_it_reads() -> None:
    graph = parse("""
    graph @updated(%x: f32[4]) {
      weights %w: f32[4]
      %y: f32[4] = nn.mul(%x, %w)
      %z: f32[4] = nn.exp(%y)
      %new: f32[4] = nn.add(%w, %z)
      %t: f32[4] = nn.mul(%y, %z)
      update %w = %new
      return %t
    }
    """)
    assert with_rematerialization(graph, [("y", "new")])
    with pytest.raises(PlanError, match="updated before the reader"):
        with_rematerialization(graph, [("y", "t")])


def test_a_clone_of_a_normalisation_does_not_read_the_running_statistics() -> None:
    drawn_graphs = (drawn(seed)[1].graph for seed in range(50))
    graph = next(each for each in drawn_graphs if "nn.batch_norm" in {node.op for node in each.nodes})
    node = next(node for node in graph.nodes if node.op == "nn.batch_norm")
    reader = next(n for n in reversed(graph.nodes) if node.outputs[0] in n.uses or node.outputs[3] in n.uses)
    changed = with_rematerialization(graph, [(node.name, reader.name)])
    verify(changed)
    (clone,) = (node for node in changed.nodes if node.again)
    scale = clone.inputs[1]
    assert clone.inputs[3:] == (scale, scale)
    assert clone.inputs[0] == node.inputs[0]
    assert changed.updates == graph.updates


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("away", [False, True])
def test_the_search_counts_what_the_graph_with_clones_needs(seed: int, away: bool) -> None:
    """Three times the same: by the compiled search, by the timeline, by live bytes of the graph with clones.

    Views are not followed to their readers one by one: what only they keep is counted a little longer.
    """
    rng, step = drawn(seed)
    graph = with_offloads(step.graph, offload_candidates(step.graph, 0)) if away else step.graph
    level = remat_problem_of(graph, {node.name: 1e-6 for node in graph.nodes}, io_bound=False, weights_bound=True)
    core = compiled_problem(level)
    for count in (0, 1, 4, 16):
        able = [j for j, last in enumerate(level.latest) if last > j and level.renewed[j]]
        chosen = [rng.choice(able) for _ in range(count if able else 0)]
        clones = frozenset((j, r) for j in chosen if (r := rng.randint(j + 1, level.latest[j])) not in level.away)
        told = remat_timeline(level, clones)
        changed = with_rematerialization(step.graph, effective_pairs(step.graph, level.named_pairs(clones)))
        extra = dict(zip((node.name for node in graph.nodes), level.blocks.extra, strict=True))
        counted = blocks_of(changed, changed.nodes, results(changed), extra)
        for value in offloaded_values(changed):
            counted.nbytes[counted.block_of[value]] = 0
        peak = max(counted.curve(range(len(changed.nodes))), default=0)
        assert told.peak >= peak if any(level.views) else told.peak == peak
        assert core.figures(sorted(clones)) == (told.peak, round(told.seconds * 1e9))


def test_a_larger_budget_never_takes_longer() -> None:
    graph = drawn(1)[1].graph
    rng = random.Random(0)
    seconds = {node.name: rng.choice((1e-6, 5e-6, 2e-5)) for node in graph.nodes}
    search = RematSearch(remat_problem_of(graph, seconds, io_bound=False, weights_bound=True), effort=200)
    plain = search.solutions[0].peak
    found = [search.solve(plain * percent // 100) for percent in (60, 70, 80, 90, 100)]
    met = [each.seconds for each in found if each is not None]
    assert len(met) >= 2
    assert met == sorted(met, reverse=True)


CLOSED = """
graph @closed(%x: f32[64], %s: f32[64]) {
  %y: f32[64] = nn.mul(%x, %s)
  %a: f32[64] = nn.tanh(%y)
  %b: f32[64] = nn.exp(%a)
  %c: f32[64] = nn.mul(%a, %b)
  %d: f32[64] = nn.mul(%c, %b)
  %s_new: f32[64] = nn.add(%s, %d)
  %z: f32[64] = nn.mul(%d, %y)
  update %s = %s_new
  return %z
}
"""


def test_a_clone_stands_before_an_update_of_what_it_reads_where_the_reader_comes_later() -> None:
    graph = parse(CLOSED)
    level = remat_problem_of(graph, {node.name: 1e-6 for node in graph.nodes}, io_bound=True, weights_bound=True)
    y, update, z = (level.names.index(name) for name in ("y", "s_new", "z"))
    assert level.latest[y] == update < z
    search = RematSearch(level)
    found = search.solve(search.solutions[0].peak - 1)
    assert found is not None
    assert found.clones == {(y, update)}


@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_is_found_takes_less_time_than_the_bound(seed: int) -> None:
    """Where every node runs where it stands, which the bound is about."""
    rng, step = drawn(seed)
    seconds = {node.name: rng.choice((1e-6, 5e-6, 2e-5)) for node in step.graph.nodes}
    level = remat_problem_of(step.graph, seconds, io_bound=False, weights_bound=True)
    search = RematSearch(level, effort=100)
    plain = search.solutions[0]
    for percent in (90, 70, 50):
        found = search.solve(plain.peak * percent // 100)
        if found is None:
            continue
        if stand(level, found.clones):
            bound = least_extra_seconds(level, found.peak)
            assert bound is not None
            assert bound <= found.seconds - plain.seconds + 1e-8


def small(rng: random.Random) -> Graph:
    """Few nodes, many of which may write over what they alone read; what nobody reads is an output, and some others."""
    g = sublet.Graph("small")
    values, unread = [g.input("x", (8, 8))], set[int]()
    scales = [g.parameter(name, (8,)) for name in ("scale", "bias")]
    for _ in range(6):
        i = len(values) - 1 if rng.random() < 0.6 else rng.randrange(len(values))
        j = rng.randrange(len(values))
        match rng.choice(("relu", "exp", "views", "layer_norm", "mul", "concat")):
            case "mul" if values[i].shape == values[j].shape:
                made = values[i] * values[j]
                unread.discard(j)
            case "concat":
                made = nn.concat([values[i], values[j]], axis=0)
                unread.discard(j)
            case "layer_norm":
                made = nn.layer_norm(values[i], *scales)[0]
            case "exp":
                made = nn.exp(values[i])
            case "views":
                made = nn.exp(values[i].reshape(-1)).reshape(*values[i].shape)
            case _:
                made = nn.relu(values[i])
        unread.discard(i)
        unread.add(len(values))
        values.append(made)
    for i in range(1, len(values)):
        if i in unread or rng.random() < 0.3:
            g.output(f"y{i}", values[i])
    return g.model().graph


def mirrored(rng: random.Random) -> Graph:
    """A chain that is read again from its end, as by a backward pass; some of it by two, and some of it skips ahead."""
    g = sublet.Graph("mirrored")
    chain = [g.input("x", (8, 8))]
    for _ in range(rng.choice((3, 4))):
        made = rng.choice((nn.relu, nn.exp, nn.tanh))(chain[-1])
        chain.append(made * rng.choice(chain) if rng.random() < 0.3 else made)
    back = nn.exp(chain[-1]) if rng.random() < 0.5 else chain[-1]
    for value in reversed(chain[1:]):
        back = back * value if rng.random() < 0.7 else nn.concat([back * value, value], axis=0)[:8]
    g.output("y", back)
    return g.model().graph


@pytest.mark.parametrize("seed", [*range(6), 57, 59])
@pytest.mark.parametrize("drawn_graph", [small, mirrored])
def test_no_set_of_clones_takes_less_time_than_the_bound(
    drawn_graph: Callable[[random.Random], Graph], seed: int
) -> None:
    """All sets of up to four clones of few nodes; of those that leave every node where it stands, the least for each
    budget."""
    rng = random.Random(seed)
    graph = drawn_graph(rng)
    seconds = {node.name: rng.choice((1e-6, 2e-6, 5e-6)) for node in graph.nodes}
    level = remat_problem_of(graph, seconds, io_bound=rng.random() < 0.5, weights_bound=True)
    able = [(j, min(last, len(level.names) - 1)) for j, last in enumerate(level.latest) if level.renewed[j]]
    pairs = [(j, r) for j, last in able for r in range(j + 1, last + 1)]
    every = [frozenset(chosen) for count in range(5) for chosen in combinations(pairs, count)]
    core = compiled_problem(level)
    least: dict[int, float] = {}
    for clones in every:
        peak, nanoseconds = core.figures(sorted(clones))
        if nanoseconds < least.get(peak, inf) and stand(level, clones):
            least[peak] = nanoseconds
    plain = core.figures([])[1]
    best = inf
    for peak in sorted(least):
        best = min(best, least[peak])
        bound = least_extra_seconds(level, peak)
        assert bound is not None
        assert bound <= (best - plain) * 1e-9 + 1e-12


@pytest.mark.parametrize(
    ("late", "returned", "seconds"),
    [
        ("b", "", 1 + 2),  # nothing but the activation reads z: both are computed again
        ("z", "", 1),  # z is there for a late reader
        ("b", "z", 1),  # z is there to the end
    ],
)
def test_what_a_node_alone_reads_is_computed_again_with_it(late: str, returned: str, seconds: float) -> None:
    g = sublet.Graph("chain")
    z = nn.tanh(g.input("x", (64,)))
    b = nn.relu(z)
    wide = nn.exp(g.parameter("w", (256,))).mean()
    g.output("d", b * {"b": b, "z": z}[late] + wide)
    if returned:
        g.output("z", z)
    graph = g.model().graph
    took = {"nn.relu": 1.0, "nn.tanh": 2.0}
    level = remat_problem_of(
        graph, {n.name: took.get(n.op, 0.0) for n in graph.nodes}, io_bound=True, weights_bound=True
    )
    bound = least_extra_seconds(level, remat_timeline(level, frozenset()).peak - 256)
    assert bound == pytest.approx(seconds)


@pytest.mark.parametrize(("less", "seconds"), [(256, 1), (512, 1 + 4)])
def test_a_smaller_value_is_kept_or_computed_again(less: int, seconds: float) -> None:
    """Of what is joined one half may be kept, which saves the other."""
    g = sublet.Graph("joined")
    x = g.input("x", (64,))
    joined = nn.concat([x, nn.tanh(x)], axis=0)
    wide = nn.exp(g.parameter("w", (256,))).mean()
    g.output("d", joined * joined + wide)
    graph = g.model().graph
    took = {"nn.concat": 1.0, "nn.tanh": 4.0}
    level = remat_problem_of(
        graph, {n.name: took.get(n.op, 0.0) for n in graph.nodes}, io_bound=True, weights_bound=True
    )
    bound = least_extra_seconds(level, remat_timeline(level, frozenset()).peak - less)
    assert bound == pytest.approx(seconds)


def stand(level: RematProblem, clones: Clones) -> bool:
    """Whether every node runs where it stands."""
    ran = remat_timeline(level, clones)
    return {j for j, r in zip(ran.nodes, ran.slots, strict=True) if j == r} == {*range(len(level.names))}


def test_an_interrupt_keeps_what_was_found() -> None:
    graph = drawn(1)[1].graph
    level = remat_problem_of(graph, {node.name: 1e-6 for node in graph.nodes}, io_bound=False, weights_bound=True)
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        if asked == 30:
            raise KeyboardInterrupt
        return False

    search = RematSearch(level, effort=10**9, should_stop=stopped)
    budget = search.solutions[0].peak * 19 // 20
    first = search.solve(budget)
    assert search.interrupted
    assert search.is_over()
    assert search.solve(budget) == first
