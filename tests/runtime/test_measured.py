"""Extents that depend on data, bounded by a range: equal to ONNX Runtime up to the range, one error beyond."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sublet
from sublet.analysis.options import Options, StorageChoice
from sublet.api.binding import CompileRequest
from sublet.api.plans import check_plan, load, save
from sublet.api.ranges import compile_ranges, plan_ranges
from sublet.base.errors import ModelError, PlanError, PlanViolation, RunError
from sublet.checker.box import check_box
from sublet.runtime.kernel import Array
from sublet.runtime.ranged import RangedExecutable
from tests.runtime.test_ranged import session_of
from tests.support.onnx.measured_programs import MOST_ROWS, WIDTH, measured_program

POINTS = 12


def parsed(inputs: str, nodes: str, outputs: str = "float y") -> onnx.ModelProto:
    """The model of a text."""
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    )


def wrong_runs(seed: int, points: int = POINTS) -> tuple[list[str], int]:
    """The runs of a generated program that differ from ONNX Runtime's, and the number of runs beyond a range.

    Nothing for a program that is refused with the advice of narrower ranges.
    """
    model, program = measured_program(seed)
    declared = program.declared
    level, rng = ("auto", "none")[seed % 2], np.random.default_rng(seed)
    measuring = onnx.ModelProto.FromString(model.SerializeToString())
    names = [each.name for each in model.graph.output]
    known = {value for value, _ in declared.values()} - set(names)
    measuring.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, sorted(known)))
    session, wrong, beyond = session_of(measuring, rewriting=level == "auto"), [], 0
    most = int(rng.integers(3, 90))
    dims: dict[str, Any] = {"n": (1, MOST_ROWS), **dict.fromkeys(declared, (0, most)), **program.equal}
    options = Options(io="bound" if seed % 3 == 0 else "arena")
    try:
        executable = compile_ranges(model, dims, optimize=level, options=options)
    except (PlanError, PlanViolation) as refusal:
        if "use narrower ranges" in str(refusal):
            return [], 0
        raise
    for point in range(points):
        x = rng.standard_normal((int(rng.integers(1, MOST_ROWS + 1)), WIDTH), dtype=np.float32) - (point % 4) / 2
        wanted = dict(zip((each.name for each in session.get_outputs()), session.run(None, {"x": x}), strict=True))
        extents = [
            int(wanted[value].item() if axis is None else wanted[value].shape[axis])
            for name, (value, axis) in declared.items()
            if name in executable.measured
        ]
        executable.memory.raw("arena")[:] = 0xA5
        try:
            found = executable(x=x)
        except RunError as error:
            beyond += 1
            if max(extents, default=0) <= most or "ranges from 0 to" not in str(error):
                wrong.append(f"point {point}: {error}")
            continue
        if max(extents, default=0) > most:
            wrong.append(f"point {point}: {extents} run within {most}")
        wrong += [
            f"point {point}: {name}"
            for name in names
            if not np.allclose(found[name], wanted[name], rtol=1e-5, atol=1e-6, equal_nan=True)
        ]
    return wrong, beyond


@pytest.mark.parametrize("seed", range(24))
def test_generated_programs_equal_onnx_runtime_up_to_the_range(seed: int) -> None:
    assert wrong_runs(seed)[0] == []


CHOSEN = "r = Relu(x) found = NonZero(r) t = Transpose(found) g = GatherND(r, t) y = Exp(g)"


@pytest.fixture(scope="module")
def chosen() -> RangedExecutable:
    """The exponentials of the positive elements, at most 9."""
    return compile_ranges(parsed("float[n, 4] x", CHOSEN), {"n": (1, 4), "found:1": (2, 9)})


def positive(count: int, rows: int = 4) -> Array:
    """An input of [rows, 4] with `count` positive elements."""
    x = np.full((rows, 4), -1.0, np.float32)
    x.ravel()[:count] = np.arange(1, count + 1)
    return x


def test_the_arena_has_room_for_the_declared_extent_and_no_more(chosen: RangedExecutable) -> None:
    assert [(each.value, each.type) for each in chosen.plan.outside] == [("found", "i64[2,9]")]
    more = compile_ranges(parsed("float[n, 4] x", CHOSEN), {"n": (1, 4), "found:1": (2, 16)})
    assert chosen.arena_bytes < more.arena_bytes
    assert chosen.bytes_at(**{"n": 1, "found:1": 2}) < chosen.bytes_at(n=1)


@pytest.mark.parametrize("count", [2, 9])
def test_an_extent_within_the_range_runs(chosen: RangedExecutable, count: int) -> None:
    x = positive(count)
    assert chosen(x=x)["y"].tolist() == pytest.approx(np.exp(np.arange(1, count + 1, dtype=np.float32)).tolist())


@pytest.mark.parametrize("count", [0, 1, 10, 16])
def test_an_extent_outside_the_range_is_one_error(chosen: RangedExecutable, count: int) -> None:
    with pytest.raises(RunError, match=f"^found, axis 1: is {count}; found:1 ranges from 2 to 9"):
        chosen(x=positive(count))
    assert chosen(x=positive(3))["y"].shape == (3,)


def test_an_error_leaves_the_state_of_a_session() -> None:
    nodes = "found = NonZero(x) k = Shape<start = 1>(found) m = Cast<to = 1>(k) hn = Add(h, m)"
    model = parsed("float[4] x, float[1] h", nodes, "float hn")
    session = compile_ranges(model, {"found:1": (0, 2)}, state={"h": "hn"}).session()
    session(x=np.float32([1, 0, 0, 0]))
    with pytest.raises(RunError, match="ranges from 0 to 2"):
        session(x=np.ones(4, np.float32))
    assert session.state("h").tolist() == [1]
    session(x=np.float32([1, 0, 2, 0]))
    assert session.state("h").tolist() == [3]


@pytest.mark.parametrize("level", ["auto", "none"])
def test_equal_extents_are_required_to_be_equal(level: str) -> None:
    nodes = "a = NonZero(x) b = NonZero(z) c = Add(a, b) y = Cast<to = 1>(c)"
    model = parsed("float[6] x, float[6] z", nodes)
    executable = compile_ranges(model, {"a:1": (0, 6), "b:1": "a:1"}, optimize=level)
    x, z = np.float32([1, 0, 2, 0, 0, 0]), np.float32([0, 0, 0, 0, 3, 4])
    assert executable(x=x, z=z)["y"].tolist() == [[4, 7]]
    with pytest.raises(RunError, match=r"^b, axis 1: is 1, but a, axis 1, is 2; both are a:1"):
        executable(x=x, z=z - np.float32([0, 0, 0, 0, 0, 4]))


def test_an_extent_may_equal_the_dimension_of_an_input() -> None:
    nodes = "a = NonZero(x) f = Cast<to = 1>(a) y = Add(f, z)"
    executable = compile_ranges(parsed("float[6] x, float[1, n] z", nodes), {"n": (0, 6), "a:1": "n"})
    assert executable(x=np.float32([0, 5, 5, 0, 0, 0]), z=np.ones((1, 2), np.float32))["y"].tolist() == [[2, 3]]
    with pytest.raises(RunError, match=r"^a, axis 1: is 2, but an input, is 1; both are n"):
        executable(x=np.float32([0, 5, 5, 0, 0, 0]), z=np.ones((1, 1), np.float32))


def test_an_element_that_is_an_extent_needs_nothing_outside_the_plan() -> None:
    nodes = (
        "s = ReduceSum<keepdims = 0>(x) count = Cast<to = 7>(s) zero = Constant<value_int = 0>() "
        "one = Constant<value_int = 1>() numbers = Range(zero, count, one) y = Cast<to = 1>(numbers)"
    )
    executable = compile_ranges(parsed("float[2] x", nodes), {"count": "0..50"})
    assert not executable.plan.outside
    assert not executable.ranges
    assert str(executable.measured["count"]) == "count=0..50"
    for number in (50, 0, 7):
        assert executable(x=np.float32([number, 0]))["y"].tolist() == list(range(number))
    with pytest.raises(RunError, match=r"^count: is 51; count ranges from 0 to 50"):
        executable(x=np.float32([50, 1]))


WRONG = [
    ({"n": (1, 4)}, "size of %found is unknown.* Declare the largest extent, N: --dim found:1=0..N$"),
    ({"n": (1, 4), "q:1": (0, 9)}, "no dimension has the name q:1; open dimensions of inputs: n; .* 'found:1'"),
    ({"n": (1, 4), "r:0": (0, 9)}, "writes r, which is f32.*: no extent depends on data"),
    ({"n": (1, 4), "found:0": (0, 9)}, "expected a range for each of 'found:1'"),
    ({"n": (1, 4), "found:1": 9}, "no dimension has the name found:1.* needs a range of two ends"),
    ({"n": (1, 4), "found:1": (0, 9), "found": (0, 8)}, "a range for each of 'found:1', got 'found:1', 'found'"),
]


@pytest.mark.parametrize(("dims", "message"), WRONG)
def test_wrong_declarations_are_one_error(dims: dict[str, Any], message: str) -> None:
    with pytest.raises((ModelError, PlanError), match=message):
        compile_ranges(parsed("float[n, 4] x", CHOSEN), dims)


def test_compile_names_the_function_that_takes_ranges() -> None:
    with pytest.raises(ModelError, match=r"n=\(1, 4\): an extent is a whole number .*; `sublet.compile_ranges` takes"):
        sublet.compile(parsed("float[n, 4] x", CHOSEN), dims={"n": (1, 4)})  # type: ignore[dict-item]


def test_a_loop_that_grows_by_a_measured_number_of_rows_is_refused() -> None:
    steps = "on = Identity(go) l = Concat<axis = 0>(h, a)"
    body = f"b (int64 i, bool go, float[p, 4] h) => (bool on, float[q, 4] l) {{ {steps} }}"
    nodes = (
        "three = Constant<value_int = 3>() yes = Constant<value = bool {1}>() a = Compress<axis = 0>(z, c) "
        f"y = Loop<body = {body}>(three, yes, x)"
    )
    model = parsed("float[n, 4] x, float[m, 4] z, bool[n] c", nodes, "float[r, 4] y")
    with pytest.raises(PlanError, match="a loop grows by rows whose number depends on data: a:0"):
        compile_ranges(model, {"n": (1, 8), "m": (1, 8), "a:0": (0, 8)}, optimize="none")


def test_an_extent_of_a_branch_is_refused() -> None:
    arms = ["a () => (float p) { p = Relu(x) }", "b () => (float q) { f = NonZero(x) q = Cast<to = 1>(f) }"]
    nodes = f"y = If<then_branch = {arms[0]}, else_branch = {arms[1]}>(c)"
    with pytest.raises(ModelError, match="y:1 is a result of a loop or branch"):
        compile_ranges(parsed("float[4] x, bool c", nodes), {"y:1": (0, 3)}, optimize="none")


def test_an_extent_in_a_branch_is_refused() -> None:
    arms = [f"{name} () => (float {name}y) {{ {name}f = NonZero(x) {name}y = Cast<to = 1>({name}f) }}" for name in "ab"]
    start = "s = ReduceSum<keepdims = 0>(x) c = Cast<to = 9>(s)"
    nodes = f"{start} y = If<then_branch = {arms[0]}, else_branch = {arms[1]}>(c)"
    with pytest.raises(ModelError, match=r"'bf'.* is in a loop or branch: no range can bound 'bf:1' there"):
        compile_ranges(parsed("float[4] x", nodes), {"bf:1": (0, 4)}, optimize="none")


def test_tiers_of_a_measured_extent_are_refused() -> None:
    with pytest.raises(RunError, match="tiers of found:1: each run measures"):
        compile_ranges(parsed("float[n, 4] x", CHOSEN), {"n": (1, 4), "found:1": (0, 9)}, tiers={"found:1": 4})
    executable = compile_ranges(parsed("float[n, 4] x", CHOSEN), {"n": (1, 99), "found:1": (0, 9)}, tiers={"n": 2})
    assert len(executable.tiers) == 2
    for rows, count in ((1, 3), (4, 9), (2, 0)):
        assert executable(x=positive(count, rows))["y"].shape == (count,)


def test_a_plan_with_measured_extents_is_saved_checked_and_run(tmp_path: Path) -> None:
    model, path = parsed("float[n, 4] x", CHOSEN), tmp_path / "chosen.plan.json"
    request = CompileRequest(model, dims={"n": (1, 4), "found:1": (2, 9)})
    save(plan_ranges(request, Options()).ranged.worst, path)
    assert not check_plan(model, load(path)).findings
    assert compile_ranges(model, plan=load(path))(x=positive(5))["y"].shape == (5,)


def test_a_program_for_single_shapes_measures_nothing() -> None:
    text = """graph @g(%x: i64[]) {
  %n: i64[] = extent.measure(%x) {content = "n"} @m
  return %n
}"""
    with pytest.raises(RunError, match="run with `compile_ranges`"):
        sublet.compile(sublet.parse(text))(x=np.array(3))


BEFORE = (
    "u = Relu(x) found = NonZero(x) t = Transpose(found) g = GatherND(x, t) one = Constant<value_ints = [1]>() "
    "c = Unsqueeze(g, one) shape = Constant<value_ints = [1, 16]>() w = ConstantOfShape<value = float[1] {2.0}>(shape) "
    "v = Mul(c, w) y = Concat<axis = 0>(v, u)"
)


@pytest.mark.parametrize("level", ["auto", "none"])
def test_a_place_that_depends_on_an_extent_is_not_written_before_its_measurement(level: str) -> None:
    model = parsed("float[n, 16] x", BEFORE)
    executable = compile_ranges(model, {"n": (1, 64), "found:1": (0, 16)}, optimize=level)
    session = session_of(model, rewriting=level == "auto")
    for rows, count in ((4, 3), (1, 0), (3, 12), (64, 16)):
        x = np.zeros((rows, 16), np.float32)
        x.ravel()[:count] = np.arange(count) - 2.5
        executable.memory.raw("arena")[:] = 0xA5
        assert np.array_equal(executable(x=x)["y"], session.run(None, {"x": x})[0])


def test_the_checker_refuses_a_place_that_moves_at_the_measurement() -> None:
    model = parsed("float[n, 16] x", BEFORE)
    dims = {"n": (1, 64), "found:1": (0, 16)}
    ranged = plan_ranges(CompileRequest(model, dims=dims, optimize="none"), Options()).ranged
    extent = next(each for each in ranged.ranges if each.name == "found:1").extent
    assert not check_box(ranged.box, ranged.within, ranged.at)
    for name, is_early in (("u", True), ("x", True), ("t", False)):
        place = next(each for each in ranged.over.placements if each.value == name)
        moved = replace(place, region=replace(place.region, offset=place.region.offset + 64 * extent))
        places = tuple(moved if each is place else each for each in ranged.over.placements)
        mutant = replace(ranged, over=replace(ranged.over, placements=places))
        rules = {finding.rule for finding in check_box(mutant.box, mutant.within, mutant.at)}
        assert ("measurement" in rules) == is_early, name


def test_a_rewriting_that_reads_another_copy_of_the_extent_is_not_taken() -> None:
    """ONNX Runtime joins two equal casts, and reads the one that is not declared."""
    nodes = (
        "s = ReduceSum<keepdims = 0>(x) count = Cast<to = 7>(s) again = Cast<to = 7>(s) z = Constant<value_int = 0>() "
        "o = Constant<value_int = 1>() a = Range(z, count, o) f = Cast<to = 1>(again) b = Cast<to = 1>(a) y = Add(b, f)"
    )
    executable = compile_ranges(parsed("float[2] x", nodes), {"count": (0, 9)})
    assert executable(x=np.float32([2, 1]))["y"].tolist() == [3, 4, 5]


FALLING = (
    "all = Constant<value_int = 800>() rest = Sub(all, count) zero = Constant<value_ints = [0]>() "
    "r = Unsqueeze(rest, zero) w = Constant<value_ints = [16]>() shape = Concat<axis = 0>(r, w) "
    "y = ConstantOfShape<value = float[1] {2.0}>(shape)"
)


@pytest.mark.parametrize("io", ["arena", "bound"])
def test_an_extent_that_falls_as_the_measured_one_grows_has_room(io: StorageChoice) -> None:
    executable = compile_ranges(parsed("int64 count", FALLING), {"count": (0, 800)}, options=Options(io=io))
    for count in (2, 800, 0):
        assert executable(count=np.array(count))["y"].shape == (800 - count, 16)
    if io == "arena":
        assert executable.bytes_at() == executable.bytes_at(count=0) == executable.arena_bytes


def test_an_error_after_an_update_in_place_leaves_an_uncertain_state() -> None:
    nodes = (
        "m = ReduceSum<keepdims = 0>(x) hn = Add(h, m) t = ReduceSum<keepdims = 0>(hn) q = Mul(x, t) found = NonZero(q)"
    )
    model = parsed("float[4] x, float[64] h", f"{nodes} y = Cast<to = 1>(found)", "float[64] hn, float[1, r] y")
    executable = compile_ranges(model, {"found:1": (0, 2)}, state={"h": "hn"}, options=Options(io="bound"))
    session = executable.session()
    session(x=np.float32([1, 0, 0, 0]))
    with pytest.raises(RunError, match=r"^found, axis 1: is 4"):
        session(x=np.ones(4, np.float32))
    with pytest.raises(RunError, match="the content of 'h' is uncertain"):
        session.state("h")
    session.reset()
    session(x=np.float32([1, 0, 0, 0]))
    assert session.state("h")[0] == 1


def test_an_input_may_be_an_extent() -> None:
    nodes = (
        "zero = Constant<value_int = 0>() one = Constant<value_int = 1>() r = Range(zero, k, one) y = Cast<to = 1>(r)"
    )
    executable = compile_ranges(parsed("int64 k", nodes), {"k": (0, 8)})
    for number in (3, 0, 8):
        assert executable(k=np.array(number))["y"].tolist() == list(range(number))
    with pytest.raises(RunError, match=r"^k: is 9; k ranges from 0 to 8"):
        executable(k=np.array(9))


def test_extents_that_follow_from_the_input_need_no_range() -> None:
    nodes = "v, i, place = Unique(x) y = Cast<to = 1>(place) top, at = TopK<axis = 1>(x, k) z = Exp(top)"
    model = parsed("float[n, 4] x, int64[1] k", nodes, "float y, float z")
    executable = compile_ranges(model, {"n": (1, 4), "v:0": (0, 16), "i:0": "v:0", "k": (1, 4)}, optimize="none")
    x = np.float32([[1, 2, 2, 4], [2, 1, 0, 4]])
    found = executable(x=x, k=np.array([3]))
    assert found["y"].shape == (8,)
    assert found["z"].shape == (2, 3)


def test_the_path_of_a_plan_file_is_refused_with_the_function_that_reads_it() -> None:
    model = parsed("float[n, 4] x", CHOSEN)
    for compiling in (sublet.compile, compile_ranges):
        with pytest.raises(PlanError, match=r"expected a MemoryPlan; read a plan file with `sublet.load`"):
            compiling(model, plan="plan.json")  # type: ignore[operator]
