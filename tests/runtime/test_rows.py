"""Slices read and rows written where they lie in the whole: run, run in poison, and beside ONNX Runtime itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.base.errors import PlanError, RunError
from sublet.integrations.onnx.reader.model import from_proto
from sublet.plan import MemoryPlan, Stride
from sublet.plan.file import load, save
from sublet.planning.pipeline import plan_memory
from sublet.runtime.call_merging import MAX_BOUND_ACTIONS
from sublet.runtime.differential import compare, equal_bits
from sublet.runtime.executable import Executable
from sublet.runtime.kernel import Call
from tests.integrations.onnx.models import parsed
from tests.runtime.loop_models import feeds_for

ort = pytest.importorskip("onnxruntime")

BACKENDS = ("onnxruntime", "reference")
IN_PLACE = Options(in_place_from=0)
UNPLANNED = Options(strategy="no_reuse", share=False)
STEP = "y = Mul(x, b) an = Add(a, x)"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUBLET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def scan(
    body: str = STEP, rounds: int = 9, width: int = 16, taken: str = "", outs: str = "ys", columns: bool = False
) -> onnx.ModelProto:
    """A Scan with a carried %a, slices %x of %xs and rows; %b lies outside. `taken` are more attributes."""
    sequence = f"float[{width},{rounds}]" if columns else f"float[{rounds},{width}]"
    names, rows = outs.split(), [f"y{i}" if i else "y" for i in range(len(outs.split()))]
    stacked = ", ".join(f"float[{rounds},{width}] {name}" for name in names)
    return parsed(f"""g (float[{width}] a0, float[{width}] b, {sequence} xs) => (float[{width}] af, {stacked}) {{
      af, {", ".join(names)} = Scan <num_scan_inputs = 1, {taken}
        body = step (float[{width}] a, float[{width}] x) => (float[{width}] an,
            {", ".join(f"float[{width}] {row}" for row in rows)}) {{ {body} }}
      > (a0, xs)
    }}""")


def checked(
    model: onnx.ModelProto, backend: str, options: Options = IN_PLACE, max_trips: int | None = None, **given: Any
) -> Executable:
    """Unplanned, planned and poisoned are the same bits, and what ONNX Runtime gives."""
    planned = compile(model, backend=backend, options=options, max_trips=max_trips)
    unplanned = compile(model, backend=backend, options=UNPLANNED, max_trips=max_trips)
    several = zip(*(given[name] for name in given), strict=True) if given else [()]
    for values in several:
        check(model, planned, unplanned, dict(zip(given, values, strict=True)), exact=backend == "onnxruntime")
    return planned


def check(
    model: onnx.ModelProto, planned: Executable, unplanned: Executable, given: Mapping[str, int], *, exact: bool
) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    shapes = {entry.name: entry.shape for entry in session.get_inputs()}
    feeds = feeds_for(list(planned.inputs), shapes, **{name: np.array(value) for name, value in given.items()})
    compared = compare(unplanned, planned, feeds)
    assert compared.differences == ()
    names = [entry.name for entry in session.get_outputs()]
    for name, expected in zip(names, session.run(names, feeds), strict=True):
        if exact:
            assert equal_bits(compared.outputs[name], expected)
        else:
            np.testing.assert_allclose(compared.outputs[name], expected, rtol=1e-5, atol=1e-5)


def strides(plan: MemoryPlan) -> dict[str, tuple[Stride, ...]]:
    return {place.value: place.strides for place in plan.placements if place.strides}


CELL = "g = Softmax(a) t = Mul(g, x) an = Add(t, b) y = Identity(an)"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("body", ["an = Add(a, x) y = Identity(an)", CELL, f"{CELL} y1 = Mul(a, x)"])
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_row_that_is_carried_moves_no_byte(body: str, reverse: int, backend: str) -> None:
    """Next round finds it where it was stacked, and so does who reads what the loop leaves [an LSTM's h]."""
    outs = "ys zs" if "y1" in body else "ys"
    directions = ", ".join([str(reverse)] * len(outs.split()))
    model = scan(body, taken=f"scan_output_directions = [{directions}],", outs=outs)
    executable = checked(model, backend)
    assert executable.plan.moves == ()
    assert executable.copied_bytes == 0


def test_slices_and_rows_in_several_streams() -> None:
    body = "y = Mul(x, b) s = Add(a, x) t = Sub(x, b) an = Add(s, t)"
    executable = checked(scan(body), "reference", Options(in_place_from=0, streams=3))
    assert {p.how for p in executable.plan.placements if p.strides} == {"slice", "row"}
    assert executable.plan.moves == ()
    assert executable.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("backwards", [False, True])
def test_slices_and_rows_lie_in_their_wholes(backend: str, backwards: bool) -> None:
    taken = "scan_input_directions = [1], scan_output_directions = [1]," if backwards else ""
    planned = checked(scan(taken=taken), backend)
    assert planned.copied_bytes == 0
    assert planned.plan.moves == ()
    assert planned.plan.gap == 0
    [loop] = planned.plan.schedule.bodies
    stride = Stride(loop, 64, backwards)
    assert strides(planned.plan) == {"x": (stride,), "y": (stride,)}
    places = {place.value: place.region.offset for place in planned.plan.placements}
    assert places["y"] == places["ys"] + (8 * 64 if backwards else 0)


def test_large_ones_do_without_being_asked() -> None:
    mib = (1 << 20) // 4
    planned = checked(scan(width=mib, rounds=3), "onnxruntime", Options(forbid_copies=True))
    assert planned.copied_bytes == 0
    assert planned.arena_bytes == planned.plan.lower_bound_bytes < (2 * 3 + 2 + 1) << 20
    assert plan_memory(from_proto(scan(width=mib, rounds=3)).graph).moves == ()


def test_small_ones_are_copied_unless_copies_are_forbidden() -> None:
    graph = from_proto(scan()).graph
    assert {move.why for move in plan_memory(graph).moves} == {
        "a slice is copied: it has fewer than 262,144 bytes, and a copy costs less",
        "a row is copied: it has fewer than 262,144 bytes, and a copy costs less",
    }
    assert plan_memory(graph, Options(forbid_copies=True)).moves == ()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (scan(taken="scan_input_axes = [1],", columns=True), "its bytes along axis 1 are not contiguous"),
        (scan(width=10), "no multiple of the alignment, 64"),
        (scan("y1 = Add(a, x) y = Identity(a) an = Identity(y1)", outs="ys zs"), "%a or %ys is renamed"),
        (scan("y = Identity(b) an = Add(a, x)"), "%b is passed on, or not computed in the iteration"),
        (scan("y = Mul(x, b) an = Identity(x)"), "a loop or branch passes %x on"),
        (scan("y = Mul(x, b) y1 = Identity(y) an = Add(a, x)", outs="ys zs"), "shares other bytes"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_cannot_lie_there_is_copied_and_told(model: onnx.ModelProto, words: str, backend: str) -> None:
    planned = checked(model, backend)
    assert any(words in move.why for move in planned.plan.moves)
    assert planned.copied_bytes > 0
    with pytest.raises(PlanError, match="copies are forbidden"):
        plan_memory(planned.graph, Options(forbid_copies=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_row_is_made_of_lies_there_too(backend: str) -> None:
    """And a node that could write over a slice does not."""
    planned = checked(scan("s = Sqrt(x) t = Abs(s) u = Neg(t) y = Abs(u) an = Add(a, x)"), backend)
    assert planned.plan.moves == ()
    moving = strides(planned.plan)
    assert moving["y"] == moving["x"]
    assert planned.plan.arena_bytes <= 64 * (2 * 9 + 2 + 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_rounds_than_are_kept(backend: str) -> None:
    planned = checked(scan(rounds=MAX_BOUND_ACTIONS + 20), backend)
    assert planned.copied_bytes == 0


LOOP = """g (int64 n, float[16] a0, float[16] b0) => (float[16] af, float[16] bf, float[r,16] ys) {
  yes = Constant <value = bool {1}> ()
  af, bf, ys = Loop (n, yes, a0, b0) <
    body = step (int64 i, bool on, float[16] a, float[16] b)
        => (bool go, float[16] an, float[16] bn, float[16] y) {
      go = Identity(on)
      an = Identity(b)
      bn = Add(a, b)
      y = Sub(a, b)
    }
  >
}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_a_ring_of_copies(backend: str) -> None:
    """No round, one, some, and as many as there is room for."""
    planned = checked(parsed(LOOP), backend, max_trips=7, n=[0, 1, 2, 5, 7, 3])
    assert planned.plan.rolled
    assert planned.plan.moves == ()
    assert planned.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_overwritten_by_a_round_too_many(backend: str) -> None:
    planned = compile(parsed(LOOP), backend=backend, options=IN_PLACE, max_trips=4)
    feeds = {"a0": np.ones(16, np.float32), "b0": np.ones(16, np.float32)}
    right = planned(feeds | {"n": np.array(4)})
    with pytest.raises(RunError, match="runs more than the planned 4 iterations"):
        planned(feeds | {"n": np.array(5)})
    assert all(map(equal_bits, planned(feeds | {"n": np.array(4)}).values(), right.values()))


NESTED = """g (float[16] a0, float[5,3,16] xs) => (float[16] af, float[5,3,16] ys) {
  af, ys = Scan <num_scan_inputs = 1, scan_output_directions = [1],
    body = outer (float[16] a, float[3,16] x) => (float[16] an, float[3,16] y) {
      an, y = Scan <num_scan_inputs = 1, scan_input_directions = [1],
        body = inner (float[16] c, float[16] z) => (float[16] cn, float[16] w) {
          cn = Add(c, z)
          w = Mul(c, z)
        }
      > (a, x)
    }
  > (a0, xs)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_of_steps(backend: str) -> None:
    planned = checked(parsed(NESTED), backend)
    assert planned.plan.moves == ()
    assert planned.copied_bytes == 0
    moving = {tuple((s.nbytes, s.backwards) for s in several) for several in strides(planned.plan).values()}
    assert moving == {((192, False),), ((192, True),), ((192, False), (64, True)), ((192, True), (64, False))}


def test_a_plan_that_moves_is_saved_and_loaded(tmp_path: Path) -> None:
    plan = plan_memory(from_proto(parsed(NESTED)).graph, IN_PLACE)
    save(plan, tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == plan
    assert any(len(place.strides) == 2 for place in plan.placements)


def test_where_a_slice_lies_in_each_round() -> None:
    """Whoever watches a run finds in it what the sequence has there."""
    planned = compile(scan(taken="scan_input_directions = [1],"), backend="reference", options=IN_PLACE)
    feeds = feeds_for(list(planned.inputs), {"a0": [16], "b": [16], "xs": [9, 16]})
    [x] = [value for value in planned.graph.values() if value.name == "x"]
    seen: list[bytes] = []

    def watch(index: int, action: Call) -> Call:
        if planned.point_accesses[index].kind != "next":
            return action

        def look() -> None:
            seen.append(planned.bytes_of(x).tobytes())
            action()

        return look

    planned.run_watched(feeds, watch)
    assert seen == [row.tobytes() for row in feeds["xs"][::-1]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_sequence_sliced_twice_and_viewed(backend: str) -> None:
    model = parsed("""g (float[16] a0, float[9,16] xs) => (float[16] af, float[9,2,8] ys) {
      shape = Constant <value = int64[2] {2, 8}> ()
      af, ys = Scan <num_scan_inputs = 2, scan_input_directions = [0, 0],
        body = step (float[16] a, float[16] x, float[16] z) => (float[16] an, float[2,8] y) {
          v = Reshape(x, shape)
          w = Reshape(z, shape)
          y = Mul(v, w)
          an = Add(a, x)
        }
      > (a0, xs, xs)
    }""")
    planned = checked(model, backend)
    assert planned.plan.moves == ()
    assert len({place.region.offset for place in planned.plan.placements if place.value in "xzvw"}) == 1


@pytest.mark.parametrize("io", ["arena", "bound"])
def test_memory_of_the_caller(io: Any) -> None:
    planned = checked(scan(), "onnxruntime", Options(in_place_from=0, io=io, weights="arena"))
    assert {"x", "y"} <= set(strides(planned.plan))
    assert [move.edge.kind for move in planned.plan.moves] == ([] if io == "arena" else ["enter"])


def test_an_arm_computes_a_row() -> None:
    model = scan("""most = ReduceMax <keepdims = 0> (x) zero = CastLike(half, most) up = Less(zero, most)
      y = If (up) <
        then_branch = yes () => (float[16] p) { p = Mul(x, b) },
        else_branch = no () => (float[16] q) { q = Sub(x, b) }
      >
      an = Add(a, x)""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1.5), "half"))
    planned = checked(model, "onnxruntime")
    assert "y" in strides(planned.plan)
    assert planned.copied_bytes == 0
