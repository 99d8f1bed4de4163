"""Generated training steps and programs at random budgets: every answer is held to what it says.

What fits must run in its plan, in poisoned memory too, and leave the same bits as the plain program: outputs, gradients
and state; with nodes in pieces, but for rounding. What is "impossible" must be so by a search over all orders and
recomputations, where that is small enough.

    python -m tests.fuzz_budget --count 300 --first 0
    python -m tests.fuzz_budget --count 300 --loops       # loops, stored in every way, beside the plain tape
    python -m tests.fuzz_budget --count 300 --pieces      # nodes at random in pieces, beside the program unsplit
    python -m tests.fuzz_budget --count 300 --twice       # budgets of steps that compute values again already
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

import sublet
from sublet import layers, nn
from sublet.analysis.options import Options
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ir.text import parse, to_text
from sublet.nn.tensor import Tensor
from sublet.ops.verify import verify
from sublet.packing import MemoryRegion
from sublet.passes.redundant_nodes import without_common_subexpressions
from sublet.passes.rewriting import count_readers
from sublet.passes.splitting.split_nodes import added_lookup_gradient, split_nodes
from sublet.passes.splitting.split_rules import BATCH, EARLY, MOMENTUM, ONTO, RESULT, split_rule_for
from sublet.passes.splitting.weight_updates import accumulable_terms
from sublet.planning.budget.result import SearchOutcome
from sublet.planning.budget.search import BudgetSearch
from tests.passes.checkpointed import check_seed
from tests.training.steps import UNPLANNED, Step, runs_right, training_step, written_program

EFFORT = 60

RATES = (10**8, 10**10, 10**12)
"""Bytes a second of the slow memory that some have."""
ROUNDING = 1e-4
"""Of the largest element: sums of f32 in another order."""

NEARLY_NONE = 1e-6
"""What is left of a sum that is none, as the gradient of a bias before a normalisation."""


def network(rng: random.Random, seed: int) -> Step:
    """A step of a random convolutional network: normalisation, dropout, branches that meet again, shared weights."""
    with_images = rng.random() < 0.7
    g = sublet.Graph(f"net{seed}")
    shape = (2, 3, 8, 8) if with_images else (6, 12)
    x, labels = g.input("x", shape), g.input("labels", (shape[0],), "i64")
    y = x
    shared = g.parameter("shared", (12, 12), initial=layers.normal(0.3))
    for _ in range(rng.randint(2, 6)):
        y = (_image_layer if with_images else _row_layer)(rng, y, shared)
    logits = layers.dense(y.mean(2, 3) if with_images else y, 4)
    loss = nn.softmax_cross_entropy(logits, labels)[0].mean()
    if rng.random() < 0.5:
        g.output("logits", logits)
    numbers = np.random.default_rng(seed)
    feeds = {"x": numbers.normal(size=shape).astype("float32"), "labels": numbers.integers(0, 4, shape[0])}
    return _taken(rng, loss, feeds)


def recurrent(rng: random.Random, seed: int) -> Step:
    """A step of a random recurrent network, its rounds written one after another: all read the same weights."""
    g = sublet.Graph(f"recurrent{seed}")
    rounds, batch, width, units = rng.randint(2, 5), rng.randint(1, 3), rng.randint(1, 4), rng.randint(2, 6)
    gates = rng.choice((1, 4))
    xs = g.input("xs", (rounds, batch, width))
    w = g.parameter("w", (gates * units, width), initial=layers.normal(0.3))
    u = g.parameter("u", (gates * units, units), initial=layers.normal(0.3))
    h = c = g.constant(np.zeros((batch, units)), "f32")
    for t in range(rounds):
        y = nn.linear(xs[t], w) + nn.linear(h, u)
        h, c = nn.lstm_cell(y, c)[:2] if gates == 4 else (nn.tanh(y), c)
    if rng.random() < 0.3:
        h = nn.linear(h, u).reshape(batch, gates, units).mean(1)
    feeds = {"xs": np.random.default_rng(seed).normal(size=(rounds, batch, width)).astype("float32")}
    return _taken(rng, nn.square(h).mean(), feeds)


def _taken(rng: random.Random, loss: Tensor, feeds: dict[str, Any]) -> Step:
    """The step that a random optimiser takes."""
    momentum = rng.choice((0.5, 0.9))
    optimizer = rng.choice((sublet.SGD(0.05, momentum=momentum), sublet.Adam(0.01), sublet.SGD(0.1)))
    model = sublet.train_step(loss, loss.graph.parameters, optimizer)
    return Step(model.graph, {name: each.array() for name, each in model.weights.items()}, feeds)


def _image_layer(rng: random.Random, y: Tensor, shared: Tensor) -> Tensor:
    kind = rng.randrange(5)
    if kind == 0:
        return layers.dropout(nn.relu(layers.batch_norm(layers.conv(y, 4, 3, bias=False))), 0.3)
    if kind == 1:
        return nn.concat([y, nn.relu(layers.conv(y, 2, 3))], axis=1)
    if kind == 2:
        same = layers.conv(nn.relu(y), y.shape[1], 3)
        return y + same
    if kind == 3:
        return nn.gelu(layers.batch_norm(layers.conv(y, 6, 1, bias=False)))
    return nn.tanh(y) * nn.sigmoid(layers.conv(y, y.shape[1], 1))


def _row_layer(rng: random.Random, y: Tensor, shared: Tensor) -> Tensor:
    kind = rng.randrange(4)
    if kind == 0:
        return layers.dropout(nn.gelu(layers.dense(y, 12)), 0.25)
    if kind == 1:
        return nn.tanh(y @ shared)
    if kind == 2:
        return y + layers.dense(layers.layer_norm(y), 12)
    return (y.reshape(6, 3, 4).transpose(0, 2, 1).reshape(6, 12) * 0.5) + nn.square(y)


def drawn(seed: int) -> tuple[random.Random, Step]:
    """The step of a seed."""
    rng = random.Random(seed)
    kind = rng.random()
    make = network if kind < 0.5 else recurrent if kind < 0.65 else training_step if kind < 0.85 else written_program
    return rng, make(rng, seed)


def check_budgets(seed: int, count: int = 3, *, twice: bool = False) -> Counter[str]:
    """Some budgets of one step; how often each answer was given. Raises AssertionError that names the seed.

    With `twice`, the step computes values again already, for a first budget.
    """
    rng, step = drawn(seed)
    options = Options(io=rng.choice(("arena", "bound")), weights=rng.choice(("arena", "bound")))
    if rng.random() < 0.4:
        options = replace(
            options, regions=(MemoryRegion("near", 1 << 50), MemoryRegion("far", 1 << 50, rate=rng.choice(RATES)))
        )
    if twice:
        first = BudgetSearch(Model(step.graph), options, effort=EFFORT)
        step = replace(
            step, graph=first.best_within(int(first.plain.nbytes * rng.uniform(0.5, 0.95))).program.model.graph
        )
    budgets = BudgetSearch(Model(step.graph), options, effort=EFFORT)
    plain = budgets.plain.nbytes
    where = f"seed {seed}, {options}"
    assert budgets.floor.nbytes <= plain, f"{where}: the floor is above a plan"
    unplanned = step.compiled(UNPLANNED)
    told: Counter[str] = Counter()
    for _ in range(count):
        budget = int(plain * rng.uniform(0.3, 1.0))
        answer = budgets.best_within(budget)
        told[answer.outcome.value] += 1
        if answer.outcome is not SearchOutcome.FITS:
            assert answer.outcome is not SearchOutcome.IMPOSSIBLE or budget < budgets.floor.nbytes
            continue
        assert answer.program.nbytes <= budget, f"{where}: it does not fit"
        if answer.program.split_count:
            told["in pieces"] += 1
            runs_alike(where, step, unplanned, answer.program.model.graph, options)
            continue
        assert budgets.floor.nbytes <= answer.program.nbytes, f"{where}: it is below what is said to be needed"
        if answer.program.model.recipe.again:
            told["computed again"] += answer.program.recompute_count > 0
            told["brought back"] += answer.program.reload_count > 0
            _runs_the_same(where, step, unplanned, answer.program.model, options)
    return told


def _runs_the_same(where: str, step: Step, unplanned: Any, model: Model, options: Options) -> None:
    graph = model.graph
    assert parse(to_text(graph)) == graph, f"{where}: another graph in text form"
    kept = without_common_subexpressions(graph)
    assert len([n for n in kept.nodes if n.again]) == len([n for n in graph.nodes if n.again]), f"{where}: merged"
    changed = replace(step, graph=graph)
    assert runs_right(step, unplanned, changed.compiled(options)), f"{where}: computed again, something else comes out"


def check_twice(seed: int) -> Counter[str]:
    """Budgets of a step that computes values again already. Raises AssertionError that names the seed."""
    return Counter({f"{what}, of a step with clones": count for what, count in check_budgets(seed, twice=True).items()})


def check_pieces(seed: int) -> Counter[str]:
    """One step with nodes at random in pieces, at random. Raises AssertionError that names the seed."""
    rng, step = drawn(seed)
    count = rng.choice((2, 2, 3, 4))
    read = count_readers(step.graph)
    updates = {source for _, source in step.graph.updates}
    chosen: dict[str, tuple[str, int]] = {}
    chains = accumulable_terms(step.graph)
    for node in step.graph.nodes:
        kinds = [(kind, count) for kind in (BATCH, RESULT) if split_rule_for(node, kind, count) is not None]
        looked_up = added_lookup_gradient(step.graph, node, read)
        if looked_up is not None and rng.random() < 0.5:
            chosen.pop(looked_up.name, None)
            kinds = [(ONTO, 1)]
        kinds += [(EARLY, 1)] if updates.intersection(node.defs) else []
        kinds += [(MOMENTUM, 1)] if node.name in chains else []
        if kinds and rng.random() < 0.8:
            chosen[node.name] = rng.choice(kinds)
            if chosen[node.name] == (MOMENTUM, 1):
                first = chains[node.name][0].name
                if chosen.get(first, (BATCH, 1))[0] != BATCH:  # onto a momentum it has no rows of the result
                    del chosen[first]
    if chosen:
        splits = tuple((name, *what) for name, what in chosen.items())
        options = Options(io=rng.choice(("arena", "bound")), weights=rng.choice(("arena", "bound")))
        made = split_nodes(step.graph, splits).graph
        runs_alike(f"seed {seed}, {splits}", step, step.compiled(UNPLANNED), made, options)
    return Counter({"nodes in pieces": len(chosen)})


def runs_alike(where: str, step: Step, unplanned: Any, graph: Graph, options: Options) -> None:
    """What a program in pieces gives, but for sums that are rounded in another order; in its plan, the same bits."""
    verify(graph)
    assert parse(to_text(graph)) == graph, f"{where}: another graph in text form"
    changed = replace(step, graph=graph)
    assert runs_right(changed, changed.compiled(UNPLANNED), changed.compiled(options)), f"{where}: planned, it differs"
    planned = changed.compiled(options)
    for name in unplanned.updated:
        unplanned.set_state(name, planned.state(name))
    found, wanted = planned(step.inputs), unplanned(step.inputs)
    pairs = [(name, found[name], wanted[name]) for name in wanted]
    told = [name for name in unplanned.updated if name not in _normalised(step.graph)]
    pairs += [(name, planned.state(name), unplanned.state(name)) for name in told]
    for name, one, other in pairs:
        first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
        largest = np.abs(second[np.isfinite(second)]).max(initial=1e-9)
        close = np.isclose(first, second, rtol=ROUNDING, atol=ROUNDING * largest + NEARLY_NONE, equal_nan=True)
        assert close.all(), f"{where}: {name} is another by {np.abs(first - second).max()} of {largest}"


def _normalised(graph: Graph) -> set[str]:
    """The weights that move by a gradient over its own size: what is left of a sum that is none makes a step too."""
    made = {value: node for node in graph.nodes for value in node.outputs[:1] if value is not None}
    by = {target: made[source].op for target, source in graph.updates if source in made}
    return {target.name for target, op in by.items() if op in ("nn.adam", "nn.adamw", "nn.lamb", "nn.rmsprop")}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--count", type=int, default=300)
    asked.add_argument("--first", type=int, default=0)
    asked.add_argument("--loops", action="store_true")
    asked.add_argument("--pieces", action="store_true", help="only nodes at random in pieces")
    asked.add_argument("--twice", action="store_true", help="only budgets of steps with clones")
    chosen = asked.parse_args()
    told: Counter[str] = Counter()
    done = 0
    try:
        for seed in range(chosen.first, chosen.first + chosen.count):
            if chosen.loops:
                told += Counter({"cut": int(check_seed(seed))})
            elif chosen.twice:
                told += check_twice(seed)
            else:
                told += check_pieces(seed)
                told += check_budgets(seed) if not chosen.pieces else Counter()
            done += 1
    finally:
        print(f"{done} steps: " + ", ".join(f"{count} {what}" for what, count in sorted(told.items())))


if __name__ == "__main__":
    main()
