"""Values that grow in a loop, over ranges: equal to ONNX Runtime at every point, in buffers of a fixed size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.models.transformers import decode_in_one_loop, gpt_with_past
from sublet.analysis.options import Options, StorageChoice
from sublet.api.binding import CompileRequest
from sublet.api.plans import check_plan, load, save
from sublet.api.ranges import compile_ranges, judge_over_ranges, plan_ranges
from sublet.base.errors import PlanError, RunError
from sublet.base.extents import Extent, as_extent
from sublet.checker.box import check_box
from sublet.ir.dataflow import iteration_of
from sublet.runtime.ranged import RangedExecutable
from tests.fuzz_ranges import differing_shapes
from tests.runtime.test_ranged import session_of
from tests.runtime.test_ranged_control import IO, parsed, require_equal_at

TOKENS, PAST = 6, 9
DIMS = {"batch": 1, "new": 1, "past": (0, PAST)}


@pytest.fixture(scope="module")
def decoder() -> onnx.ModelProto:
    """Greedy decoding in one Loop, with a cache for keys and values in each layer."""
    return decode_in_one_loop(gpt_with_past(2, 32, 2, 50, 64), TOKENS)


def decoder_feeds(model: onnx.ModelProto, past: int) -> dict[str, Any]:
    """A first token, and caches with `past` rows."""
    rng = np.random.default_rng(past)
    caches = {each.name: rng.standard_normal((1, 2, past, 16), dtype=np.float32) for each in model.graph.input[1:]}
    return {"first": np.array([[past % 50]]), **caches}


def nodes_of(executable: RangedExecutable, op: str) -> list[Any]:
    """The nodes of an op that the executable calls."""
    return [node for call in executable._calls for node in call.nodes if node.op == op]


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("level", ["none", "auto"])
def test_a_decoder_in_one_loop_equals_onnx_runtime_for_every_past(
    decoder: onnx.ModelProto, level: str, io: StorageChoice
) -> None:
    executable = compile_ranges(decoder, DIMS, optimize=level, options=Options(io=io))
    session = session_of(decoder, rewriting=level == "auto")
    for past in (*range(PAST, -1, -1), 4, PAST):
        feeds = decoder_feeds(decoder, past)
        executable.memory.raw("arena")[:] = 0xA5
        assert np.array_equal(executable(feeds)["tokens"], session.run(None, feeds)[0])


def test_a_cache_in_a_loop_is_one_buffer_that_nothing_copies(decoder: onnx.ModelProto) -> None:
    executable = compile_ranges(decoder, DIMS)
    places = {place.value: place.region for place in executable.plan.placements}
    appends, reserves = nodes_of(executable, "cache.append_rows"), nodes_of(executable, "cache.reserve")
    assert len(appends) == len(reserves) == 4
    assert len(nodes_of(executable, "cache.matmul")) == 4
    assert not nodes_of(executable, "cache.first_rows")
    assert all(places[node.inputs[0].name] == places[node.outputs[0].name] for node in appends)
    filled = sorted(places[node.outputs[0].name].offset for node in reserves)
    assert filled == sorted(places[node.inputs[0].name].offset for node in appends)
    room = (PAST + TOKENS) * 16 * 2 * 4
    assert all(places[node.outputs[0].name].nbytes == room for node in appends)


def test_the_bytes_of_a_run_count_all_iterations(decoder: onnx.ModelProto) -> None:
    executable = compile_ranges(decoder, DIMS)
    assert list(executable.ranges) == ["past"]
    feeds = decoder_feeds(decoder, 3)
    executable.memory.raw("arena")[:] = 0xA5
    executable(feeds)
    touched = int((executable.memory.raw("arena") != 0xA5).sum())
    assert touched <= executable.bytes_at(past=3) <= executable.arena_bytes


LOOPS = {
    "tokens are a view of the first rows": "u = Loop(n, , v) < body = b (int64 i, bool ci, int64[1, p] h)"
    " => (bool co, int64[1, q] h2) { last = Gather <axis = 1> (h, minus) t = Mul(last, three) m = Mod(t, seven)"
    " h2 = Concat <axis = 1> (h, m) co = Identity(ci) } > y = Cast <to = 1> (u)",
    "rows of several lists are copied": "y = Loop(n, , x) < body = b (int64 i, bool ci, float[s, p] h)"
    " => (bool co, float[s, q] h2) { m = ReduceMax <axes = [1], keepdims = 1> (h) w = Sin(m)"
    " h2 = Concat <axis = 1> (h, w) co = Identity(ci) } >",
    "the dimension of the input grows": "y = Loop(n, , x) < body = b (int64 i, bool ci, float[p, 16] h)"
    " => (bool co, float[q, 16] h2) { h2 = Concat <axis = 0> (h, z) co = Identity(ci) } >",
    "two values grow at different rates": "g, y = Loop(n, , x, z) <"
    " body = b (int64 i, bool ci, float[p, 16] h, float[r, 16] f) => (bool co, float[q, 16] h2, float[t, 16] f2)"
    " { a = ReduceMean <axes = [0], keepdims = 1> (h) d = Tanh(a) h2 = Concat <axis = 0> (h, d)"
    " f2 = Concat <axis = 0> (f, x) co = Identity(ci) } >",
    "the number of the iteration is data": "u, y = Loop(n, , x) < body = b (int64 i, bool ci, float[p, 16] h)"
    " => (bool co, float[q, 16] h2, float[s, 16] r) { j = Cast <to = 1> (i) e = Mul(x, j)"
    " a = ReduceMean <axes = [0], keepdims = 1> (h) r = Add(e, a) h2 = Concat <axis = 0> (h, a) co = Identity(ci) } >",
    "a value grows in a nested loop": "y = Loop(n, , x) < body = o (int64 k, bool ck, float[s, 16] c)"
    " => (bool cl, float[s, 16] c2) { g = Loop(n, , c) < body = b (int64 i, bool ci, float[p, 16] h)"
    " => (bool co, float[q, 16] h2) { h2 = Concat <axis = 0> (h, z) co = Identity(ci) } >"
    " m = ReduceMean <axes = [0], keepdims = 1> (g) c2 = Add(c, m) cl = Identity(ck) } >",
}


def text_of(loop: str) -> str:
    """The text of a model with a loop of three iterations."""
    constants = (
        "n = Constant <value_int = 3> () minus = Constant <value_ints = [-1]> ()"
        " three = Constant <value_int = 3> () seven = Constant <value_int = 7> ()"
        " v = Constant <value = int64[1, 1] { 2 }> ()"
    )
    return f"g (float[s, 16] x, float[s, 16] z) => (y) {{ {constants} {loop} }}"


@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("name", LOOPS)
def test_a_growing_value_equals_onnx_runtime_at_every_point(name: str, io: StorageChoice) -> None:
    model = parsed(text_of(LOOPS[name]))
    executable = compile_ranges(model, {"s": (1, 6)}, optimize="none", options=Options(io=io))
    rng = np.random.default_rng(0)
    for s in (6, 1, 3, 6):
        feeds = {each: rng.standard_normal((s, 16), dtype=np.float32) for each in "xz"}
        require_equal_at(executable, model, feeds, rewriting=False)


def test_growing_values_need_no_other_range() -> None:
    model = parsed(text_of(LOOPS["two values grow at different rates"]))
    executable = compile_ranges(model, {"s": 4}, optimize="none")
    feeds = {each: np.full((4, 16), 0.5, np.float32) for each in "xz"}
    require_equal_at(executable, model, feeds, rewriting=False)
    assert "for one shape" in repr(executable)


@pytest.mark.parametrize("seed", range(24))
def test_generated_loops_equal_onnx_runtime(seed: int) -> None:
    assert differing_shapes(seed) == []


UNTIL = (
    "g (float[s, 16] x, int64 most, float stop) => (r) {{ yes = Constant <value = bool {{ 1 }}> ()"
    " u, r = Loop(most, yes, x) < body = b (int64 i, bool ci, float[p, 16] h) => (bool co, float[q, 16] h2, float a)"
    " {{ m = ReduceMean <axes = [0], keepdims = 1> (h) w = Exp(m) h2 = Concat <axis = 0> (h, w)"
    " a = ReduceMax <keepdims = 0> (w) co = Less(a, stop) }} > }}"
)


def test_a_loop_ends_by_its_condition_and_refuses_more_than_the_declared_iterations() -> None:
    model = parsed(UNTIL.format())
    executable = compile_ranges(model, {"s": (1, 4)}, max_trips=5, optimize="none")
    x = np.full((2, 16), 0.25, np.float32)
    for most, stop in [(5, 1e9), (0, 1e9), (3, 1e9), (9, 3.0), (1, 1e9)]:
        feeds = {"x": x, "most": np.array(most), "stop": np.array(stop, np.float32)}
        require_equal_at(executable, model, feeds, rewriting=False)
    with pytest.raises(RunError, match="runs more than the planned 5 iterations"):
        executable(x=x, most=np.array(6), stop=np.array(1e9, np.float32))


GROWS = "loop .*: %h grows with the iterations; "
REFUSED = {
    "%h2 is no Concat of %h and new rows": "h2 = Concat <axis = 0> (z, h)",
    "the rows of %.* depend on the trip count": "h2 = Concat <axis = 0> (h, z)",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_growth_is_refused_with_the_reason(reason: str) -> None:
    count = "k" if "trip" in reason else "n"
    loop = (
        f"y = Loop({count}, , x) < body = b (int64 i, bool ci, float[p, 16] h) => (bool co, float[q, 16] h2)"
        f" {{ {REFUSED[reason]} co = Identity(ci) }} >"
    )
    model = parsed(text_of(loop).replace("z) =>", "z, int64 k) =>"))
    with pytest.raises(PlanError, match=f"{GROWS}{reason}"):
        compile_ranges(model, {"s": (1, 4)}, max_trips=3)


def test_a_plan_file_of_a_growing_loop_is_proven_again(decoder: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder, path)
    executable = compile_ranges(path, DIMS, options=Options(io="bound"))
    save(executable.plan, tmp_path / "plan.json")
    plan = load(tmp_path / "plan.json")
    assert plan == executable.plan
    assert not check_plan(path, plan).findings
    again = compile_ranges(path, plan=plan)
    feeds = decoder_feeds(decoder, 5)
    assert np.array_equal(again(feeds)["tokens"], executable(feeds)["tokens"])
    _, result = judge_over_ranges(path, plan)
    assert not result.findings


def test_iterations_have_no_tiers(decoder: onnx.ModelProto) -> None:
    with pytest.raises(RunError, match=r"tiers of decode.iteration: no dimension with a range; the ranges are .past."):
        compile_ranges(decoder, DIMS, tiers={"decode.iteration": 2}, optimize="none")
    executable = compile_ranges(decoder, DIMS, tiers={"past": 3})
    feeds = decoder_feeds(decoder, 2)
    assert np.array_equal(executable(feeds)["tokens"], session_of(decoder, rewriting=True).run(None, feeds)[0])


def test_the_checker_refuses_a_place_that_moves_from_iteration_to_iteration(decoder: onnx.ModelProto) -> None:
    ranged = plan_ranges(CompileRequest(decoder, dims=DIMS), Options()).ranged
    (loop,) = [node for node in ranged.graph.walk() if iteration_of(node)]
    iteration = as_extent(iteration_of(loop))  # type: ignore[arg-type]
    places = {place.value: place for place in ranged.over.placements}
    beyond = {*loop.parameters, *loop.updates, *loop.rows, *loop.uses, loop.condition}  # type: ignore[attr-defined]
    inside = {value for node in loop.body.nodes for value in node.defs} - beyond  # type: ignore[attr-defined]
    assert any(isinstance(places[value.name].region.nbytes, Extent) for value in inside)
    for value in beyond & {each for each in ranged.graph.values() if each.name in places}:
        place = places[value.name]
        moved = replace(place, region=replace(place.region, offset=place.region.offset + 64 * iteration))
        over = replace(ranged.over, placements=tuple(moved if p is place else p for p in ranged.over.placements))
        mutant = replace(ranged, over=over)
        rules = {finding.rule for finding in check_box(mutant.box, mutant.within, mutant.at)}
        assert "iteration" in rules, value.name
