"""Parts of a batch in rows: channel slices and concatenations of channels lie in the whole, and all runs stay right."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sublet
from benchmarks.train_steps import training_step
from sublet import layers, nn
from sublet.analysis.options import MIN_ROW_BYTES, Options
from sublet.analysis.residual_copies import copied_parts
from sublet.base.optional_imports import is_installed
from sublet.checker import check
from sublet.ir.model import Model
from sublet.nn.tensor import Tensor
from sublet.plan import FORMAT_VERSION, MemoryPlan, Placement, Region
from sublet.plan.file import from_json, to_json
from sublet.planning.pipeline import plan_memory

BACKENDS = ["reference", *(["torch"] if is_installed("torch") else [])]
EVERY_ROW = Options(alignment=4, in_place_from=0)


def in_rows(plan: MemoryPlan) -> list[Placement]:
    return [place for place in plan.placements if place.region.rows > 1]


def block(g: sublet.Graph, x: Tensor, rng: random.Random) -> Tensor:
    """Return a tensor computed from `x` by concatenations, slices and what may stand between them."""
    known = [x]
    for _ in range(rng.randrange(3, 9)):
        a, b = rng.choice(known), rng.choice(known)
        kind = rng.randrange(9)
        if kind < 2:
            made = nn.concat(*(rng.choice(known) for _ in range(rng.randrange(2, 4))), axis=1)
        elif kind < 4 and a.shape[1] > 1:
            begin = rng.randrange(a.shape[1] - 1)
            made = a[:, begin : rng.randrange(begin + 1, a.shape[1] + 1)]
        elif kind == 4:
            made = layers.conv(a, rng.choice([4, 8]), rng.choice([1, 3]))
        elif kind == 5:
            made = layers.batch_norm(a)
        elif kind == 6:
            made = nn.max_pool(a, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1))
        elif kind == 7:
            made = a + b if a.shape == b.shape else nn.softmax(a, axis=1)
        else:
            made = rng.choice([nn.relu, nn.tanh, nn.gelu])(a)
        known.append(made)
    return nn.concat(*known[-2:], axis=1)


def step(seed: int) -> tuple[Model, dict[str, Any]]:
    """Return a program, trained every other time, and its inputs."""
    rng = random.Random(seed)
    g = sublet.Graph("rows")
    shape = (rng.choice([2, 3, 4]), rng.choice([4, 6]), 4, 4)
    y = block(g, nn.relu(layers.conv(g.input("x", shape), shape[1], 1)), rng)
    x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    if seed % 2:
        return sublet.train_step((y * y).mean(), g.parameters, sublet.SGD(0.1)), {"x": x}
    g.output("y", y)
    return g.model(), {"x": x}


@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_of_slices_and_concatenations_run_in_rows(backend: str) -> None:
    shared = copied = 0
    for seed in range(40):
        model, inputs = step(seed)
        options = replace(EVERY_ROW, alignment=random.Random(seed).choice([1, 4, 64]))
        apart = sublet.compile(model, backend=backend, options=Options(strategy="no_reuse", share=False))
        exe = sublet.compile(model, backend=backend, options=options)
        plain = plan_memory(exe.graph, replace(options, in_rows=False))
        assert exe.arena_bytes <= plain.arena_bytes, seed
        shared += len(in_rows(exe.plan))
        copied += not in_rows(exe.plan)
        expected, left = apart(inputs), dict[str, Any]()
        for found in (sublet.run_poisoned(exe, inputs, left=left), exe(inputs)):
            for name, result in expected.items():
                np.testing.assert_allclose(found[name], result, rtol=1e-4, atol=1e-5, err_msg=f"seed {seed}")
        for name in apart.updated:
            np.testing.assert_allclose(left[name], apart.state(name), rtol=1e-3, atol=1e-4, err_msg=f"seed {seed}")
    assert shared > 100
    assert copied < 30


def moved(offset: int = 0, pitch: int = 0, rows: int = 0, **fields: int) -> Callable[[Region], Region]:
    return lambda region: replace(
        region, offset=region.offset + offset, pitch=region.pitch + pitch, rows=region.rows + rows, **fields
    )


MUTANTS: dict[str, Callable[[Region], Region]] = {
    "a row short": moved(rows=-1),
    "a row more": moved(rows=1),
    "no row": moved(rows=-1 << 40),
    "rows apart by an element more": moved(pitch=4),
    "rows apart by an element less": moved(pitch=-4),
    "begins an element later": moved(offset=4),
    "contiguous": lambda region: Region(region.storage, region.offset, region.nbytes),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_rows_are_refused(name: str) -> None:
    for seed in range(0, 12, 2):
        model, _ = step(seed)
        plan = plan_memory(model.graph, EVERY_ROW)
        for i, place in enumerate(plan.placements):
            if place.region.rows > 1:
                places = list(plan.placements)
                places[i] = replace(place, region=MUTANTS[name](place.region))
                assert check(model.graph, plan.schedule, replace(plan, placements=tuple(places))), (seed, place)


def test_operands_that_overlap_are_refused() -> None:
    g = sublet.Graph("siblings")
    x = g.input("x", (2, 4, 4, 4))
    g.output("y", nn.concat(nn.relu(x), nn.tanh(x), axis=1))
    graph = g.model().graph
    plan = plan_memory(graph, EVERY_ROW)
    one, other = in_rows(plan)
    swapped = {one.value: other.region, other.value: one.region}
    for regions in (swapped, {one.value: other.region}, {other.value: one.region}):
        places = tuple(replace(p, region=regions.get(p.value, p.region)) for p in plan.placements)
        assert check(graph, plan.schedule, replace(plan, placements=places))


def test_values_that_a_kernel_needs_contiguous_stay_out_of_rows() -> None:
    g = sublet.Graph("sorted")
    x = g.input("x", (2, 4, 8))
    whole = nn.concat(nn.relu(x), nn.tanh(x), axis=1)
    g.output("y", whole[:, 2:6].sum())
    g.output("z", whole[:, 1:3])
    graph = g.model().graph
    plan = plan_memory(graph, EVERY_ROW)
    assert {place.producer.partition("/")[0] for place in in_rows(plan)} == {"relu", "tanh"}
    whole_region = next(place.region for place in plan.placements if place.producer == "concat")
    for place in plan.placements:
        if place.producer.startswith("slice"):
            row = Region(whole_region.storage, whole_region.offset + 64, place.region.nbytes, 2, 256)
            places = tuple(replace(p, region=row) if p is place else p for p in plan.placements)
            found = check(graph, plan.schedule, replace(plan, placements=places))
            assert "bad-rows" in {finding.rule for finding in found}


def test_small_rows_are_copied() -> None:
    def plan(width: int, options: Options | None = None) -> MemoryPlan:
        g = sublet.Graph("width")
        x = g.input("x", (4, 1, width))
        g.output("y", nn.concat(nn.relu(x), nn.tanh(x), axis=1))
        return plan_memory(g.model(), options)

    assert in_rows(plan(MIN_ROW_BYTES // 4))
    assert not in_rows(plan(MIN_ROW_BYTES // 4 - 16))
    assert in_rows(plan(MIN_ROW_BYTES // 4 - 16, Options(in_place_from=0)))
    assert not in_rows(plan(MIN_ROW_BYTES // 4, Options(in_rows=False)))


def test_plans_of_older_versions_have_single_rows() -> None:
    g = sublet.Graph("old")
    g.output("y", nn.relu(g.input("x", (4, 4))))
    plan = plan_memory(g.model())
    old = to_json(plan).replace(f'"version": {FORMAT_VERSION}', '"version": 10')
    for field in ("rows", "pitch"):
        old = "\n".join(line for line in old.splitlines() if f'"{field}"' not in line)
    old = old.replace('"nbytes": 64,\n   }', '"nbytes": 64\n   }')
    assert from_json(old) == plan


@pytest.mark.parametrize("name", ["GoogLeNet", "DenseNet-121"])
def test_a_forbidden_copy_stays_only_where_a_kernel_needs_contiguous_bytes(name: str) -> None:
    """A training step of a whole network. By default a copy stays also where the arena would grow."""
    graph = training_step(name, 4).model.graph
    default, forbidden = (plan_memory(graph, Options(forbid_copies=forbid)) for forbid in (False, True))
    assert default.arena_bytes <= plan_memory(graph, Options(in_rows=False)).arena_bytes
    readers: dict[str, set[str]] = {}
    for node in graph.nodes:
        for value in node.uses:
            readers.setdefault(value.name, set()).add(node.op)
    moves = copied_parts(graph, forbidden)
    assert sum(move.nbytes for move in moves) <= sum(move.nbytes for move in copied_parts(graph, default))
    assert all("nn.conv_weight_gradient" in readers[move.destination] for move in moves)
