"""Executables over ranges: equal to ONNX Runtime at every shape, in one poisoned arena."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sublet
from sublet.analysis.options import Options, StorageChoice
from sublet.api.ranges import Tiers, compile_ranges
from sublet.base.boxes import Range
from sublet.base.errors import PlanError, RunError
from sublet.runtime.ranged import MOST_POINTS, RangedExecutable
from sublet.runtime.ranged_session import RangedSession
from tests.support.onnx.ranged_programs import RANGES, ranged_program

ort = pytest.importorskip("onnxruntime")
FROM_ZERO = (Range("a", 0, 5), RANGES[1])


def session_of(model: onnx.ModelProto, *, rewriting: bool = True) -> Any:
    """ONNX Runtime's own session over a model, rewritten first or as in the file.

    The rewriting may change results: ONNX Runtime 1.31 fuses a Pad of zeros into a MaxPool, which pads with -inf.
    """
    options = ort.SessionOptions()
    if not rewriting:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def points_of(ranges: tuple[Range, ...], count: int, seed: int) -> list[dict[str, int]]:
    """The smallest and the largest point, and random points."""
    rng = random.Random(seed)
    ends = [{each.name: each.low for each in ranges}, {each.name: each.high for each in ranges}]
    return ends + [{each.name: rng.randint(each.low, each.high) for each in ranges} for _ in range(count - 2)]


def differing_points(
    model: onnx.ModelProto, ranges: tuple[Range, ...], count: int, seed: int, tiers: Tiers | None = None
) -> list[dict[str, int]] | None:
    """The points with another result than ONNX Runtime's; None for a program with a value of unknown size."""
    level, options = "none" if seed % 2 else "auto", Options(io="bound" if seed % 3 == 0 else "arena")
    try:
        session = session_of(model, rewriting=level == "auto")
    except Exception:  # ONNX Runtime 1.31 fails to inline some branches
        level, session = "none", session_of(model, rewriting=False)
    try:
        dims = {each.name: each for each in ranges}
        executable = compile_ranges(model, dims, tiers=tiers, optimize=level, options=options)
    except PlanError as refusal:
        if "is unknown" in str(refusal):
            return None
        raise
    different, rng = [], np.random.default_rng(seed)
    for point in points_of(ranges, count, seed):
        feeds = {name: rng.standard_normal((point["a"], point["b"], 4), dtype=np.float32) for name in ("x", "y")}
        try:
            wanted = session.run(None, feeds)
        except Exception:  # a shape that the model does not take
            continue
        executable.memory.raw("arena")[:] = 0xA5
        found = executable({name: feeds[name] for name in executable.inputs})
        for name, array in zip((each.name for each in session.get_outputs()), wanted, strict=True):
            if not np.array_equal(found[name], array, equal_nan=True):
                different.append(point)
    return different


@pytest.mark.parametrize("seed", range(24))
def test_generated_programs_equal_onnx_runtime_at_every_point(seed: int) -> None:
    assert differing_points(ranged_program(seed), RANGES, 5, seed) in ([], None)


@pytest.mark.parametrize("seed", range(100, 112))
def test_ranges_from_zero_equal_onnx_runtime(seed: int) -> None:
    assert differing_points(ranged_program(seed, ranges=FROM_ZERO), FROM_ZERO, 5, seed) in ([], None)


@pytest.mark.parametrize("seed", range(200, 224))
def test_generated_loops_and_branches_equal_onnx_runtime_at_every_point(seed: int) -> None:
    assert differing_points(ranged_program(seed, control=True), RANGES, 5, seed) in ([], None)


def two_dimensions() -> onnx.ModelProto:
    """A model of two inputs with a shared and a fixed dimension."""
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "s", 4]),
        helper.make_tensor_value_info("bias", TensorProto.FLOAT, ["s", 4]),
    ]
    nodes = [
        helper.make_node("Add", ["x", "bias"], ["u"]),
        helper.make_node("Softmax", ["u"], ["v"], axis=1),
        helper.make_node("Concat", ["u", "v"], ["y"], axis=1),
    ]
    graph = helper.make_graph(nodes, "two", infos, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def served() -> RangedExecutable:
    """The executable of the model of two inputs."""
    return compile_ranges(two_dimensions(), {"n": (1, 4), "s": "2..64"})


def feeds_at(n: int, s: int) -> dict[str, Any]:
    """Inputs of one shape."""
    rng = np.random.default_rng(n * s)
    return {
        "x": rng.standard_normal((n, s, 4), dtype=np.float32),
        "bias": rng.standard_normal((s, 4), dtype=np.float32),
    }


WRONG = [
    ({"x": (5, 8, 4), "bias": (8, 4)}, "x, axis 0: is 5; n ranges from 1 to 4"),
    ({"x": (1, 65, 4), "bias": (65, 4)}, "x, axis 1: is 65; s ranges from 2 to 64"),
    ({"x": (1, 8, 4), "bias": (9, 4)}, "bias, axis 0: is 9, but x, axis 1, is 8; both are s"),
    ({"x": (1, 8, 5), "bias": (8, 4)}, "x, axis 2: is 5, but 4 in the plan"),
    ({"x": (8, 4), "bias": (8, 4)}, "x: must be f32"),
    ({"x": (1, 8, 4)}, "missing: 'bias'"),
]


@pytest.mark.parametrize(("shapes", "message"), WRONG)
def test_a_wrong_shape_is_one_error_and_writes_nothing(
    served: RangedExecutable, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    served(feeds_at(2, 7))
    before = served.memory.raw("arena").copy()
    with pytest.raises(RunError, match=message):
        served({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    assert np.array_equal(served.memory.raw("arena"), before)


def test_a_wrong_type_writes_nothing(served: RangedExecutable) -> None:
    served(feeds_at(2, 7))
    before = served.memory.raw("arena").copy()
    with pytest.raises(RunError, match="must be f32"):
        served(x=feeds_at(2, 7)["x"], bias=np.zeros((7, 4)))
    assert np.array_equal(served.memory.raw("arena"), before)


def test_an_input_that_is_a_constant_of_the_plan_is_named() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x, float rate) => (float[n] y) { y = Mul(x, rate) }'
    )
    run = compile_ranges(model, {"n": (1, 4)}, const={"rate": 2})
    x = np.ones(3, np.float32)
    assert np.array_equal(run(x=x)["y"], x * 2)
    with pytest.raises(RunError, match="input rate: planned as the constant 2"):
        run(x=x, rate=np.float32(3))


def test_the_latest_points_stay_bound_and_no_more(served: RangedExecutable) -> None:
    for s in range(2, 64):
        served(feeds_at(1, s))
    assert served.bound_points == MOST_POINTS
    assert 0 < served.binding_bytes < 1 << 20


def test_the_arena_of_all_points_is_the_arena_of_the_largest(served: RangedExecutable) -> None:
    largest = sublet.compile(two_dimensions(), dims={"n": 4, "s": 64})
    assert served.arena_bytes == largest.arena_bytes
    assert served.bytes_at(n=4, s=64) == served.arena_bytes
    assert served.bytes_at(n=1, s=2) < served.arena_bytes // 8
    with pytest.raises(RunError, match="expected one for each of"):
        served.bytes_at(n=1)


def test_threads_run_one_after_another(served: RangedExecutable) -> None:
    session = session_of(two_dimensions())

    def is_right(number: int) -> bool:
        feeds = feeds_at(1 + number % 4, 2 + number % 50)
        return np.array_equal(served(feeds)["y"], session.run(None, feeds)[0])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(is_right, range(120)))


def test_models_with_loops_state_or_unknown_sizes_are_refused() -> None:
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "data", infos, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(PlanError, match="the size of %y is unknown"):
        compile_ranges(model, {"n": (1, 4)})
    with pytest.raises(sublet.SubletError, match="no dimension has the name q"):
        compile_ranges(two_dimensions(), {"n": (1, 4), "s": 4, "q": (1, 2)})


INDEPENDENT = [
    ("float[s, 4] a, float[t, 4] b", "y = Add(a, b)", "extents s and t .* one extent, pass --dim t=s$"),
    (
        "float[s, 4] a, float[t, 4] b",
        "u = Shape(b) y = Expand(a, u)",
        "node Expand.*extents s and t .* one extent, pass --dim t=s$",
    ),
    ("float[s, 4, 4] a, float[t, 4, 4] b", "y = MatMul(a, b)", "extents s and t .* one extent, pass --dim t=s$"),
    ("float[s, 4] a, float[t, 4] b", "c = Concat <axis = 0> (a, a) y = Mul(c, b)", r"extents 2\*s and t .* ranges$"),
]


@pytest.mark.parametrize(("inputs", "nodes", "message"), INDEPENDENT)
def test_operands_of_independent_extents_are_refused_with_both_extents(inputs: str, nodes: str, message: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    with pytest.raises(PlanError, match=message):
        compile_ranges(model, {"s": (1, 4), "t": (1, 8)})
    with pytest.raises(PlanError, match=r"2\*s and s") if "Concat" in nodes else nullcontext():
        compile_ranges(model, {"s": (1, 4), "t": "s"})


def decoder() -> onnx.ModelProto:
    """A model whose cache grows by the new rows, and whose mean is carried."""
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "new", 4]),
        helper.make_tensor_value_info("past", TensorProto.FLOAT, ["n", "old", 4]),
        helper.make_tensor_value_info("h", TensorProto.FLOAT, ["n", 1, 4]),
    ]
    nodes = [
        helper.make_node("Add", ["x", "h"], ["u"]),
        helper.make_node("Concat", ["past", "u"], ["present"], axis=1),
        helper.make_node("ReduceMean", ["present"], ["hn"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["u", "hn"], ["y"]),
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in ("y", "present", "hn")]
    graph = helper.make_graph(nodes, "decoder", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


DECODER_DIMS = {"n": (1, 3), "new": (1, 4), "old": (0, 12)}
DECODER_STATE = {"past": "present", "h": "hn"}
IO: tuple[StorageChoice, ...] = ("arena", "bound")


def compile_decoder(io: StorageChoice) -> RangedExecutable:
    """The executable of the decoder, with its state."""
    return compile_ranges(decoder(), DECODER_DIMS, state=DECODER_STATE, options=Options(io=io))


def test_sessions_with_bound_outputs_share_spare_memory() -> None:
    executable = compile_decoder("bound")
    sessions = [executable.session() for _ in range(5)]
    memory = {id(block) for session in sessions for block in session._memory.values()}
    for _ in range(3):
        for session in sessions:
            session(x=np.ones((2, 2, 4), np.float32))
    now = {id(block) for session in sessions for block in session._memory.values()}
    spares = {id(block) for blocks in executable._spares.values() for block in blocks}
    assert len(memory) == len(now) == 10
    assert len(spares) == 2
    assert now | spares >= memory
    assert len(now | spares) == 12


def test_a_failed_call_gives_its_spare_memory_back() -> None:
    executable = compile_decoder("bound")
    session = executable.session()
    session(x=np.ones((1, 2, 4), np.float32))
    before = session.state("past")
    with pytest.raises(RunError):
        session(x=np.ones((1, 9, 4), np.float32))
    assert [len(raws) for raws in executable._spares.values()] == [1, 1]
    assert np.array_equal(session.state("past"), before)


def test_two_states_of_one_output_are_copied() -> None:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "a", "b")]
    nodes = [helper.make_node("Sum", ["x", "a", "b"], ["y"])]
    graph = helper.make_graph(nodes, "sums", infos, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    state, bound = {"a": "y", "b": "y"}, Options(io="bound")
    session = compile_ranges(model, {"n": (1, 4)}, state=state, options=bound).session()
    for total in (1, 3, 7):
        session(x=np.ones((3, 2), np.float32))
        assert all(np.all(session.state(name) == total) for name in "ab")


def delay_line(swapped: bool) -> onnx.ModelProto:
    """A model whose outputs are its inputs, to be states of each other; y is the sum of x and h1."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "h1", "h2")]
    names = ("y", "h1", "h2") if swapped else ("y", "h1")
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in names]
    graph = helper.make_graph([helper.make_node("Sum", ["x", "h1", "h2"], ["y"])], "delay", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("io", IO)
def test_states_that_are_inputs_take_the_old_content(io: StorageChoice) -> None:
    options = Options(io=io)
    swap = compile_ranges(delay_line(True), {"n": (1, 4)}, state={"h1": "h2", "h2": "h1"}, options=options).session()
    delay = compile_ranges(delay_line(False), {"n": (1, 4)}, state={"h1": "y", "h2": "h1"}, options=options).session()
    x, old = np.ones((3, 2), np.float32), {"h1": 1.0, "h2": 2.0}
    for session in (swap, delay):
        for name, number in old.items():
            session.set_state(name, np.full((3, 2), number, np.float32))
    swap(x=x)
    delay(x=x)
    assert [swap.state(name)[0, 0] for name in old] == [2, 1]
    assert [delay.state(name)[0, 0] for name in old] == [4, 1]


def test_threads_share_a_session_and_its_spare() -> None:
    executable = compile_decoder("bound")
    shared, others = executable.session(), [executable.session() for _ in range(3)]
    x = np.ones((1, 1, 4), np.float32)

    def run(session: RangedSession) -> None:
        for _ in range(6):
            session(x=x)

    sessions = [shared, shared, *others]
    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(run, sessions))
    assert shared.state("past").shape == (1, 12, 4)
    alone = compile_decoder("bound").session()
    for _ in range(6):
        alone(x=x)
    assert all(np.array_equal(each.state("past"), alone.state("past")) for each in others)
    assert [len(raws) for raws in executable._spares.values()] == [1, 1]


def test_bound_outputs_are_new_arrays_and_inputs_are_read_in_place() -> None:
    executable = compile_ranges(two_dimensions(), {"n": (1, 4), "s": "2..64"}, options=Options(io="bound"))
    assert executable.arena_bytes < compile_ranges(two_dimensions(), {"n": (1, 4), "s": "2..64"}).arena_bytes
    feeds = feeds_at(2, 7)
    first = executable(feeds)["y"]
    kept = first.copy()
    executable(feeds_at(2, 7) | {"x": np.zeros((2, 7, 4), np.float32)})
    assert np.array_equal(first, kept)
    # In any memory: not aligned, not contiguous, read-only, of another library.
    unaligned = np.zeros(2 * 7 * 16 + 1, np.uint8)[1:].view(np.float32).reshape(2, 7, 4)
    unaligned[...] = feeds["x"]
    strided = np.repeat(feeds["x"], 2, axis=2)[:, :, ::2]
    fixed = feeds["x"].copy()
    fixed.flags.writeable = False
    for x in (unaligned, strided, fixed, feeds["x"].tolist()):
        assert np.array_equal(executable(x=x, bias=feeds["bias"])["y"], kept)


def test_the_latest_shapes_are_known_without_matching(served: RangedExecutable) -> None:
    class Odd:
        """An array whose shape is a list."""

        def __init__(self, array: np.ndarray) -> None:
            self.array, self.shape = array, list(array.shape)

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            return self.array

    feeds = feeds_at(2, 7)
    wanted = served(feeds)["y"]
    assert np.array_equal(served({name: Odd(array) for name, array in feeds.items()})["y"], wanted)
    assert np.array_equal(served({name: array.tolist() for name, array in feeds.items()})["y"], wanted)
    for n in range(1, 5):
        for s in range(2, 20):
            served(feeds_at(n, s))
    assert len(served._numbers_of_shapes) == len(served._points) == 32
    with pytest.raises(RunError, match="unknown: 'z'"):
        served({**feeds, "z": feeds["x"]})


def test_an_output_that_is_an_input_is_copied() -> None:
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])]
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Relu", ["x"], ["y"])]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in ("x", "same", "y")]
    graph = helper.make_graph(nodes, "through", infos, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = compile_ranges(model, {"n": (1, 4)}, options=Options(io="bound"))
    x = np.full((3, 2), -1, np.float32)
    found = executable(x=x)
    assert all(not np.may_share_memory(each, x) for each in found.values())
    assert all(np.array_equal(found[name], x) for name in found.keys() - {"y"})
    assert not found["y"].any()


@pytest.mark.parametrize("io", IO)
def test_sessions_carry_a_growing_state_like_a_loop_by_hand(io: StorageChoice) -> None:
    executable, alone = compile_decoder(io), session_of(decoder())
    rng = np.random.default_rng(0)
    sessions = [(executable.session(), rows, np.zeros((rows, 0, 4), np.float32)) for rows in (1, 3)]
    carried = {rows: (past, np.zeros((rows, 1, 4), np.float32)) for _, rows, past in sessions}
    for new in (3, 1, 4, 1):
        for session, rows, _ in sessions:
            x = rng.standard_normal((rows, new, 4), dtype=np.float32)
            past, h = carried[rows]
            wanted, present, hn = alone.run(None, {"x": x, "past": past, "h": h})
            carried[rows] = present, hn
            found = session(x=x)
            assert found.keys() == {"y"}
            assert np.array_equal(found["y"], wanted)
            assert np.array_equal(session.state("past"), present)
    assert sessions[0][0].nbytes == 3 * 16 * 16 + 3 * 16


@pytest.mark.parametrize("io", IO)
def test_a_call_beyond_the_capacity_leaves_the_state_as_it_was(io: StorageChoice) -> None:
    session = compile_decoder(io).session()
    for _ in range(4):
        session(x=np.ones((1, 4, 4), np.float32))
    before = session.state("past"), session.state("h")
    with pytest.raises(RunError, match="past, axis 1: is 16; old ranges from 0 to 12"):
        session(x=np.ones((1, 1, 4), np.float32))
    with pytest.raises(RunError, match="h, axis 0: is 2, but past, axis 0, is 1; both are n"):
        session(x=np.ones((1, 1, 4), np.float32), past=before[0][:, :4], h=np.ones((2, 1, 4), np.float32))
    assert all(np.array_equal(session.state(name), old) for name, old in zip(("past", "h"), before, strict=True))
    session.reset()
    assert session(x=np.ones((2, 1, 4), np.float32))["y"].shape == (2, 1, 4)


@pytest.mark.parametrize("io", IO)
def test_a_state_is_set_and_read(io: StorageChoice) -> None:
    executable = compile_decoder(io)
    session, past = executable.session(), np.ones((1, 2, 4), np.float32)
    with pytest.raises(RunError, match="no content yet"):
        session.state("past")
    session.set_state("past", past)
    session(x=np.zeros((1, 1, 4), np.float32))
    assert np.array_equal(session.state("past")[:, :2], past)
    with pytest.raises(RunError, match="old ranges from 0 to 12"):
        session.set_state("past", np.ones((1, 13, 4), np.float32))


@pytest.mark.parametrize("state", [{"past": "nowhere"}, {"nowhere": "hn"}, {"x": "nowhere"}])
def test_a_state_of_unknown_names_is_refused(state: dict[str, str]) -> None:
    with pytest.raises(RunError, match="the inputs are"):
        compile_ranges(decoder(), DECODER_DIMS, state=state)


def test_an_executable_without_state_has_no_sessions(served: RangedExecutable) -> None:
    with pytest.raises(RunError, match="pass state="):
        served.session()


def test_elements_of_half_a_byte_are_refused() -> None:
    infos = [helper.make_tensor_value_info("x", TensorProto.INT4, ["n", 8])]
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [0, 8])
    graph = helper.make_graph(nodes, "packed", infos, [helper.make_empty_tensor_value_info("y")], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(RunError, match="several elements in a byte"):
        compile_ranges(model, {"n": (1, 4)}, optimize="none")


def test_arguments_of_wrong_types_are_one_error(served: RangedExecutable) -> None:
    for wrong in ("3", 2.0, None):
        with pytest.raises(RunError, match="is no whole number"):
            served.prepare(n=wrong, s=4)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="x: is no array"):
        served(x=[[1.0], [1.0, 2.0]], bias=np.zeros((7, 4), np.float32))


def test_a_state_larger_than_its_output_has_room() -> None:
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [axis, 2]) for name, axis in (("x", "n"), ("p", "k"))
    ]
    bounds = [helper.make_tensor(name, TensorProto.INT64, [1], [number]) for name, number in (("b", 0), ("e", 3))]
    nodes = [helper.make_node("Concat", ["p", "x"], ["c"], axis=0), helper.make_node("Slice", ["c", "b", "e"], ["q"])]
    results = [helper.make_empty_tensor_value_info("q")]
    graph = helper.make_graph(nodes, "window", infos, results, bounds)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = compile_ranges(model, {"n": (1, 4), "k": (0, 20)}, state={"p": "q"}).session()
    session.set_state("p", np.ones((20, 2), np.float32))
    session(x=np.zeros((1, 2), np.float32))
    assert session.state("p").shape == (3, 2)
