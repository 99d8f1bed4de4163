"""Updated values that take over each other's content get each other's memory: planned, told and proven."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest

from sublet.analysis.options import Options
from sublet.checker import check, check_bytes
from sublet.ir.graph import Graph
from sublet.ir.text import parse, to_text
from sublet.ops.verify import verify
from sublet.plan import MemoryPlan, Region, bound_storage_name
from sublet.plan.file import from_json, to_json
from sublet.planning.pipeline import plan_memory
from tests.analysis.test_updates import placed, region, rules, updating
from tests.support.interpreter import results_match
from tests.support.plans import own_bytes
from tests.support.update_programs import exchanging

SWAP = updating("", "%w = %v, %v = %w")
FORBID = Options(forbid_copies=True)


def permuting(order: tuple[int, ...]) -> Graph:
    """A graph of weights that are permuted, and one that is updated where it lies."""
    weights = ", ".join(f"%w{i}: f32[16]" for i in range(len(order)))
    updates = ", ".join(f"%w{i} = %w{j}" for i, j in enumerate(order))
    return parse(
        f"""graph @net(%x: f32[16]) {{
          weights {weights}, %u: f32[16]
          %y: f32[16] = onnx.Sub(%w0, %x)
          %n: f32[16] = onnx.Add(%u, %w1)
          update {updates}, %u = %n
          return %y
        }}"""
    )


def test_a_swap_of_two_weights_moves_nothing() -> None:
    plan = plan_memory(SWAP, FORBID)
    assert (plan.moves, plan.exchanged) == ((), (("w", "v"),))
    assert plan.arena_bytes == plan.lower_bound_bytes
    assert (region(plan, "w"), region(plan, "v")) == (Region("%w", 0, 64), Region("%v", 0, 64))
    assert check(SWAP, plan.schedule, plan) == ()
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_every_permutation_of_up_to_five_weights_moves_nothing(count: int) -> None:
    for order in permutations(range(count)):
        plan = plan_memory(permuting(order), Options(strategy="best_fit_by_size", forbid_copies=True))
        assert plan.arena_bytes == plan.lower_bound_bytes
        assert sum(map(len, plan.exchanged)) == sum(i != j for i, j in enumerate(order))


@pytest.mark.parametrize(
    ("nodes", "updates", "returned", "places"),
    [
        ("%n: f32[16] = onnx.Sub(%w, %x)", "%w = %v, %v = %n", "%n", {"n": "%w"}),  # a delay line
        ("%n: f32[16] = onnx.Neg(%x) %o: f32[16] = onnx.Softmax(%n)", "%w = %v, %v = %o", "", {"o": "%w"}),
        ("%y: f32[16] = onnx.Reshape(%w, %shape)", "%w = %v, %v = %y", "", {"y": "%w"}),  # a view
    ],
)
def test_what_follows_is_made_in_memory_that_is_free(
    nodes: str, updates: str, returned: str, places: dict[str, str]
) -> None:
    text = to_text(updating("", "%w = %v")).replace("%v: f32[16]", "%v: f32[16], %shape: i64[1] = [16]")
    head, _, _ = text.partition("  update")
    graph = parse(f"{head}{nodes}\n update {updates}\n return {returned}\n}}")
    plan = plan_memory(graph, FORBID)
    assert plan.exchanged == (("w", "v"),)
    for value, storage in places.items():
        assert region(plan, value) == Region(storage, 0, 64)


def test_what_cannot_be_made_there_is_told_as_an_update_of_its_target() -> None:
    plan = plan_memory(updating("%n: f32[16] = onnx.Neg(%x) %o: f32[16] = onnx.Add(%n, %w)", "%w = %v, %v = %n", "%o"))
    assert [(str(m.edge), m.source, m.destination, m.nbytes) for m in plan.moves] == [("update", "n", "v", 64)]
    assert plan.exchanged == (("w", "v"),)


def test_one_content_goes_to_one_memory_and_is_copied_to_the_others() -> None:
    plan = plan_memory(updating("", "%w = %v, %v = %w, %x = %v"), Options(io="bound", strategy="first_fit"))
    assert plan.exchanged == (("w", "v"),)
    assert [(m.source, m.destination) for m in plan.moves] == [("v", "x")]


def test_memory_that_is_back_only_after_many_runs_is_not_exchanged() -> None:
    """Kernels are bound once for each turn: of cycles of 2, 3 and 5 the dearer ones are exchanged."""
    plan = plan_memory(permuting((1, 2, 3, 4, 0, 6, 7, 5, 9, 8)))
    assert sorted(map(len, plan.exchanged)) == [5]
    assert sum(move.nbytes for move in plan.moves) == 5 * 64
    long = plan_memory(permuting((*range(1, 9), 0)))
    assert (long.exchanged, sum(move.nbytes for move in long.moves)) == ((), 9 * 64)


@pytest.mark.parametrize("options", [Options(weights="arena"), Options(strategy="no_reuse", share=False)])
def test_only_memory_of_their_own_is_exchanged(options: Options) -> None:
    plan = plan_memory(SWAP, options)
    assert plan.exchanged == ()
    assert sum(move.nbytes for move in plan.moves) == 128


def test_memory_of_another_spec_is_not_exchanged() -> None:
    """The bytes are those of the other weight, seen as another shape."""
    graph = parse(
        """graph @net(%x: f32[16]) {
          weights %w: f32[4,4], %v: f32[16], %flat: i64[1] = [16], %square: i64[2] = [4, 4]
          %a: f32[16] = onnx.Reshape(%w, %flat)
          %b: f32[4,4] = onnx.Reshape(%v, %square)
          %y: f32[16] = onnx.Add(%v, %x)
          update %w = %b, %v = %a
          return %y
        }"""
    )
    plan = plan_memory(graph)
    assert (plan.exchanged, sum(move.nbytes for move in plan.moves)) == ((), 64)


ROTATION = permuting((1, 2, 0))
TYPES = parse(
    """graph @types(%x: f32[16]) {
      weights %w: f32[16], %v: f32[16], %i: i32[16], %j: i32[16], %k: f32[16]
      update %w = %v, %v = %w, %i = %j, %j = %i
      return %x
    }"""
)


@pytest.mark.parametrize(
    ("graph", "exchanged", "rule"),
    [
        (SWAP, (), "false-moves"),
        (SWAP, (("w", "v"), ("v", "w")), "false-exchange"),
        (SWAP, (("w", "v", "w"),), "false-exchange"),
        (SWAP, (("w",), ("v",)), "false-exchange"),
        (SWAP, ((),), "false-exchange"),
        (SWAP, (("w", "nobody"),), "false-exchange"),
        (SWAP, (("w", "x"),), "false-exchange"),
        (SWAP, (("%w", "%v"),), "false-exchange"),
        (ROTATION, (("w0", "w2", "w1"),), "false-moves"),
        (ROTATION, (("w0", "w1"),), "false-moves"),
        (ROTATION, (("w0", "w1", "w2", "u"),), "false-moves"),
        (ROTATION, (("w0", "w1"), ("w2", "u")), "false-moves"),
        (TYPES, (("w", "v"),), "false-moves"),
        (TYPES, (("w", "v", "k"), ("i", "j")), "false-exchange"),  # no run updates %k
        (TYPES, (("w", "i"), ("v", "j")), "false-exchange"),
        (permuting((*range(1, 65), 0)), (tuple(f"w{i}" for i in range(65)),), "false-exchange"),
    ],
)
def test_false_exchanges_are_refused(graph: Graph, exchanged: tuple[tuple[str, ...], ...], rule: str) -> None:
    plan = plan_memory(graph)
    assert rules(graph, plan) == set()
    assert rule in rules(graph, replace(plan, exchanged=exchanged))


def test_memory_in_the_arena_is_not_exchanged() -> None:
    plan = plan_memory(SWAP, Options(weights="arena"))
    assert "false-exchange" in rules(SWAP, replace(plan, exchanged=(("w", "v"),)))


@pytest.mark.parametrize(
    ("value", "storage", "rule"),
    [("n", "w", "clobbered"), ("n", "v", "clobbered"), ("o", "v", "clobbered"), ("o", "w", "output-lost")],
)
def test_the_replay_follows_what_an_exchange_brings(value: str, storage: str, rule: str) -> None:
    """%w is read after %n is made, %v becomes %w, and %n is copied to memory of %w, which %v gets."""
    graph = updating("%n: f32[16] = onnx.Neg(%x) %o: f32[16] = onnx.Add(%n, %w)", "%w = %v, %v = %n", "%o")
    plan = plan_memory(graph)
    wrong = placed(plan, value, Region(bound_storage_name(storage), 0, 64))
    assert rule in {finding.rule for finding in check_bytes(graph, plan.schedule, wrong)}


@pytest.mark.parametrize("seed", range(12))
def test_generated_exchanges(seed: int) -> None:
    rng = random.Random(seed)
    graph = exchanging(rng, rng.choice((2, 6, 12)))
    verify(graph)
    chosen = Options(
        strategy="first_fit", alignment=rng.choice((1, 8)), io=rng.choice(("arena", "bound")), in_place_from=0
    )
    plan = plan_memory(graph, chosen)
    assert results_match(graph, plan.schedule, plan, rng, 3)
    for mutant in _mutants(rng, graph, plan):
        if not check(graph, plan.schedule, mutant):
            assert results_match(graph, plan.schedule, mutant, rng, 3)


def _mutants(rng: random.Random, graph: Graph, plan: MemoryPlan) -> Iterator[MemoryPlan]:
    """Other cycles, and plans in bytes of their own with cycles that nobody asked for."""
    names = [value.name for value in graph.updated_values]
    for _ in range(6):
        cycle = tuple(rng.sample(names, min(len(names), rng.randint(1, 4))))
        yield replace(plan, exchanged=rng.choice([(), (cycle,), (*plan.exchanged, cycle), plan.exchanged[1:]]))
    own = own_bytes(graph, bound=True)
    assert not check_bytes(graph, own.schedule, own)
    for exchanged in (plan.exchanged, (cycle,)):
        if not check_bytes(graph, own.schedule, replace(own, exchanged=exchanged)):
            assert results_match(graph, own.schedule, replace(own, exchanged=exchanged), rng, 3)


def test_exchanges_are_generated() -> None:
    plans = [
        plan_memory(exchanging(random.Random(seed), 4), Options(strategy="first_fit", io="bound")) for seed in range(40)
    ]
    lengths = {len(cycle) for plan in plans for cycle in plan.exchanged}
    assert lengths == {2, 3, 4, 5}
    assert sum(bool(plan.exchanged) for plan in plans) > 20
