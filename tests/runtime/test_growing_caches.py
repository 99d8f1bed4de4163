"""Caches of plain decoders, present = Concat(past, new): rows are appended in the memory of the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sublet
from benchmarks.models.builder import Builder
from benchmarks.models.transformers import gpt_with_past
from sublet.analysis.options import Options
from sublet.api.ranges import compile_ranges
from sublet.base.errors import KernelError, RunError
from sublet.runtime.ranged import RangedExecutable
from tests.support.command_line import Cli

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

REFUSED_POINTS = pytest.mark.filterwarnings("ignore:.*a run is refused at some extents")
DIMS = {"batch": (1, 3), "new": (1, 16), "past": (0, 48)}
BOUND = Options(io="bound")
LENGTHS = (5, 1, 1, 16, 1, 9, 1)
WIDTH, HEADS, SIZE = 24, 4, 8


def attention(form: str, groups: int = HEADS) -> onnx.ModelProto:
    """One layer of attention without a mask, with caches in the layout and with the readers named by `form`.

    plain  [batch, heads, rows, size];  sdpa  the same, keys transposed through three axes, as torch exports attention
    rows   [batch, rows, heads, size];  transposed  keys as [batch, heads, size, rows]
    apart  products with the past and the new rows apart, after the new keys are appended
    """
    b = Builder(form)
    x = b.input("x", ("batch", "new", WIDTH))
    shape = {"rows": ("batch", "past", groups, SIZE)}.get(form, ("batch", groups, "past", SIZE))
    of_keys = ("batch", groups, SIZE, "past") if form == "transposed" else shape
    past = b.input("past_key", of_keys), b.input("past_value", shape)

    def heads_of(count: int, *perm: int) -> str:
        part = b.op("Reshape", b.op("MatMul", x, b.random_weight(WIDTH, count * SIZE)), b.ints(0, 0, count, SIZE))
        return b.op("Transpose", part, perm=perm) if perm else part

    query = heads_of(HEADS, 0, 2, 1, 3)
    if form == "transposed":
        key, value = heads_of(groups, 0, 2, 3, 1), heads_of(groups, 0, 2, 1, 3)
    else:
        key, value = (heads_of(groups, *(() if form == "rows" else (0, 2, 1, 3))) for _ in range(2))
    axis = 1 if form == "rows" else 2
    presents = [
        b.op("Concat", past[0], key, axis=3 if form == "transposed" else axis),
        b.op("Concat", past[1], value, axis=axis),
    ]
    keys, values = (_repeated(b, present, groups) for present in presents)
    if form == "rows":
        keys, values = (b.op("Transpose", each, perm=[0, 2, 1, 3]) for each in (keys, values))
    if form == "sdpa":
        extents = [b.op("Slice", b.op("Shape", keys), b.ints(i), b.ints(i + 1)) for i in range(4)]
        flat = b.op("Reshape", keys, b.op("Concat", b.ints(-1), *extents[2:], axis=0))
        flat = b.op("Transpose", flat, perm=[0, 2, 1])
        keys = b.op("Reshape", flat, b.op("Concat", *extents[:2], extents[3], extents[2], axis=0))
    elif form != "transposed":
        keys = b.op("Transpose", keys, perm=[0, 1, 3, 2])
    scores = b.op("MatMul", query, keys)
    if form == "apart":
        parts = [b.op("MatMul", query, b.op("Transpose", each, perm=[0, 1, 3, 2])) for each in (past[0], key)]
        scores = b.op("Add", scores, b.op("Concat", *parts, axis=3))
    mixed = b.op("MatMul", b.op("Softmax", b.op("Mul", scores, b.filled(0.4)), axis=-1), values)
    y = b.op("Reshape", b.op("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(0, 0, HEADS * SIZE))
    return b.model(y=y, present_key=presents[0], present_value=presents[1])


def _repeated(b: Builder, cache: str, groups: int) -> str:
    """The cache with each head repeated for the heads of its group."""
    if groups == HEADS:
        return cache
    many = b.op("Expand", b.op("Unsqueeze", cache, b.ints(2)), b.ints(1, 1, HEADS // groups, 1, 1))
    shape = b.op("Slice", b.op("Shape", cache), b.ints(2), b.ints(4))
    batch = b.op("Slice", b.op("Shape", cache), b.ints(0), b.ints(1))
    return b.op("Reshape", many, b.op("Concat", batch, b.ints(HEADS), shape, axis=0))


class ByHand:
    """ONNX Runtime's own session, with the presents of a step as the pasts of the next step."""

    def __init__(self, model: onnx.ModelProto, state: dict[str, str], batch: int) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self.session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.state, sizes = state, {"batch": batch, "past": 0}
        shapes = {each.name: each.shape for each in self.session.get_inputs() if each.name in state}
        self.caches = {n: np.zeros([sizes.get(e, e) for e in s], np.float32) for n, s in shapes.items()}

    def __call__(self, **feeds: Any) -> dict[str, np.ndarray]:
        names = [each.name for each in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(names, {**feeds, **self.caches}), strict=True))
        self.caches = {name: found[result] for name, result in self.state.items()}
        return {name: array for name, array in found.items() if name not in self.state.values()}


def steps(executable: RangedExecutable, seed: int, batch: int, lengths: tuple[int, ...] = LENGTHS) -> Iterator[Any]:
    """Random new inputs for each step."""
    rng = np.random.default_rng(seed)
    for new in lengths:
        if "input_ids" in executable.inputs:
            yield {"input_ids": rng.integers(0, 100, (batch, new))}
        else:
            yield {"x": rng.standard_normal((batch, new, WIDTH), dtype=np.float32)}


def compare(executable: RangedExecutable, model: onnx.ModelProto, seed: int = 0) -> None:
    """Compare sessions by turns with ONNX Runtime, in a poisoned arena; only new rows may change in a cache."""
    state = executable.state_pairs
    rng = np.random.default_rng(seed)
    pairs = [(executable.session(), ByHand(model, state, batch), batch) for batch in (1, 3, 2)]
    feeds = [list(steps(executable, seed + batch, batch, tuple(rng.permutation(LENGTHS)))) for *_, batch in pairs]
    for (session, *_), first in zip(pairs, feeds, strict=True):
        for block in session._memory.values():
            block.raw[:] = 0xFF  # NaN beyond the rows
        assert len(first) == len(LENGTHS)
    for number in range(len(LENGTHS)):
        for (session, by_hand, _), each in zip(pairs, feeds, strict=True):
            executable.memory.raw("arena")[:] = 0xA5
            before = {name: block.raw.copy() for name, block in session._memory.items()}
            wanted, found = by_hand(**each[number]), session(**each[number])
            for name, array in wanted.items():
                assert np.allclose(found[name], array, rtol=1e-5, atol=1e-5)
            for name, cache in by_hand.caches.items():
                assert np.allclose(session.state(name), cache, rtol=1e-5, atol=1e-5)
                changed = np.count_nonzero(before[name].view(np.uint32) != session._memory[name].raw.view(np.uint32))
                new = next(iter(each[number].values())).shape[1]
                assert 0 < changed <= cache.size // cache.shape[executable.windows[name].axis] * new


FORMS = [("plain", 4), ("plain", 2), ("sdpa", 4), ("sdpa", 1), ("rows", 4), ("transposed", 4), ("apart", 4)]


@pytest.mark.parametrize("level", ["auto", "none"])
@pytest.mark.parametrize(("form", "groups"), FORMS)
def test_caches_of_every_layout_grow_in_place(form: str, groups: int, level: Any) -> None:
    model = attention(form, groups)
    executable = compile_ranges(model, DIMS, state="auto", optimize=level, options=BOUND)
    assert executable.in_place == {"past_key": "present_key", "past_value": "present_value"}
    assert executable.why_not_in_place == {}
    assert list(executable.inputs) == ["x", "past_key", "past_value"]
    compare(executable, model)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """A decoder with two layers and a causal mask."""
    proto: onnx.ModelProto = gpt_with_past(layers=2, width=32, heads=4, vocabulary=100, positions=64)
    return proto


@pytest.fixture(scope="module")
def decoder(model: onnx.ModelProto) -> RangedExecutable:
    """The executable of the decoder with bound caches."""
    return compile_ranges(model, DIMS, state="auto", options=BOUND)


def test_a_decoder_moves_no_byte_of_its_caches(decoder: RangedExecutable, model: onnx.ModelProto) -> None:
    assert len(decoder.in_place) == 4
    compare(decoder, model, seed=7)
    assert not any(decoder._spares.values())
    names = set(decoder.state_pairs.values()) | set(decoder.state_pairs)
    arenas = {storage.name for storage in decoder.plan.arenas}
    assert not [each for each in decoder.plan.placements if each.value in names and each.region.storage in arenas]
    rows = DIMS["new"][1] + DIMS["past"][1]
    assert decoder.session().nbytes == 4 * (DIMS["batch"][1] * 32 * rows * 4)


def test_tiers_share_the_caches(model: onnx.ModelProto) -> None:
    tiered = compile_ranges(model, DIMS, state="auto", options=BOUND, tiers={"past": (7, 30), "new": (4,)})
    assert len(tiered.tiers) > 2
    compare(tiered, model)


def test_a_call_beyond_the_capacity_is_one_error_and_writes_nothing(decoder: RangedExecutable) -> None:
    session = decoder.session()
    for feeds in steps(decoder, 0, 2, (16, 16, 16, 1)):
        session(**feeds)
    before = {name: block.raw.copy() for name, block in session._memory.items()}
    (feeds,) = steps(decoder, 1, 2, (1,))
    with pytest.raises(RunError, match="past ranges from 0 to 48"):
        session(**feeds)
    assert all(np.array_equal(block.raw, before[name]) for name, block in session._memory.items())


def test_a_failed_call_leaves_the_state(decoder: RangedExecutable, model: onnx.ModelProto) -> None:
    session, by_hand = decoder.session(), ByHand(model, decoder.state_pairs, 1)
    first, second = steps(decoder, 0, 1, (5, 3))
    session(**first), by_hand(**first)
    failing, calls = decoder._program_at(decoder._numbers_of(second, session._shapes)), 0

    class Failing:
        """A call that fails, in place of a call of the program."""

        def __init__(self, kept: Any) -> None:
            self.move = kept.move

        def __call__(self) -> None:
            raise KernelError("stopped")

    while calls < len(failing.calls):  # after every call of the program
        context = failing.calls[calls]
        kept = context.call
        context.call = Failing(kept)
        with pytest.raises(KernelError, match="stopped"):
            session(**second)
        context.call = kept
        assert np.allclose(session.state("past_1_value"), by_hand.caches["past_1_value"], atol=1e-5)
        calls += 1
    assert np.allclose(session(**second)["logits"], by_hand(**second)["logits"], atol=1e-5)
    given = np.ones((1, 4, 2, 8), np.float32)
    wrong = {"input_ids": np.full((1, 1), 1000), "past_0_key": given}
    session.set_state("past_0_value", given)
    for name in ("past_1_key", "past_1_value"):
        session.set_state(name, given)
    with pytest.raises(KernelError, match="out of data bounds"):
        session(**wrong)
    with pytest.raises(RunError, match="'past_0_key' is uncertain"):
        session.state("past_0_key")
    assert np.array_equal(session.state("past_0_value"), given)


def test_one_program_moves_from_token_to_token(decoder: RangedExecutable, model: onnx.ModelProto) -> None:
    session, by_hand = decoder.session(), ByHand(model, decoder.state_pairs, 1)
    calls: list[list[Any]] = []
    elements: list[Any] = []
    for feeds in steps(decoder, 5, 1, (6, 1, 1, 9, 1, 1)):  # products of few rows are compiled, of more rows NumPy's
        assert np.allclose(session(**feeds)["logits"], by_hand(**feeds)["logits"], atol=1e-5)
        (program,) = decoder._points.values()
        calls.append([context.call for context in program.calls])
        now = [*program.shapes, *program.addresses]
        assert all(one is other or one != other for one, other in zip(elements, now, strict=False))
        elements = now
    assert all(one is other for later in calls[1:] for one, other in zip(calls[0], later, strict=True))


def test_states_are_set_and_reset(decoder: RangedExecutable, model: onnx.ModelProto) -> None:
    session, other = decoder.session(), decoder.session()
    first, second = steps(decoder, 0, 2, (6, 2))
    wanted = [session(**first)["logits"], session(**second)["logits"]]
    session.reset()
    assert np.array_equal(session(**first)["logits"], wanted[0])
    for name in decoder.state_pairs:
        other.set_state(name, session.state(name))
        assert other.state(name).flags.c_contiguous
    assert np.array_equal(other(**second)["logits"], wanted[1])
    with pytest.raises(RunError, match="axis 1: is 5, but 4 in the plan"):
        other.set_state("past_0_key", np.zeros((2, 5, 3, 8), np.float32))


def test_a_call_without_session_leaves_the_arrays_of_the_caller(
    decoder: RangedExecutable, model: onnx.ModelProto
) -> None:
    by_hand, caches = ByHand(model, decoder.state_pairs, 2), {}
    for feeds in steps(decoder, 3, 2):
        given = caches or by_hand.caches
        before = {name: array.copy() for name, array in given.items()}
        found = decoder({**feeds, **given})
        assert np.allclose(found["logits"], by_hand(**feeds)["logits"], atol=1e-5)
        assert all(np.array_equal(array, before[name]) for name, array in given.items())
        caches = {name: found[result] for name, result in decoder.state_pairs.items()}
        assert all(np.allclose(array, by_hand.caches[name], atol=1e-5) for name, array in caches.items())


def test_a_plan_file_keeps_the_caches_in_place(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = tmp_path / "decoder.onnx", tmp_path / "plan.json"
    onnx.save(model, path)
    cli, dims = Cli(monkeypatch, capsys), ("--dim", "batch=1..3", "--dim", "new=1..16", "--dim", "past=0..48")
    assert cli("plan", path, *dims, "--state", "auto", "--io", "bound", "--out", plan)[0] == 0
    status, said, _ = cli("check", path, plan)
    assert (status, said.startswith("valid")) == (0, True)
    read = compile_ranges(path, plan=sublet.load(plan))
    assert len(read.in_place) == 4
    compare(read, model)


def one_cache(readers: Any, dtype: int = 1, past: Any = "past", swapped: bool = False) -> onnx.ModelProto:
    """A model that appends rows to a cache; `readers` makes the nodes that read the present, named p."""
    helper = onnx.helper
    infos = [
        helper.make_tensor_value_info("x", dtype, ["batch", "new", 4]),
        helper.make_tensor_value_info("c", dtype, ["batch", past, 4]),
    ]
    nodes = [
        helper.make_node("Concat", ["x", "c"] if swapped else ["c", "x"], ["p"], axis=1),
        *readers(helper.make_node),
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in ("y", "p")]
    graph = helper.make_graph(nodes, "cache", infos, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def products(node: Any) -> list[Any]:
    return [node("Transpose", ["p"], ["t"], perm=[0, 2, 1]), node("MatMul", ["x", "t"], ["y"])]


REFUSED = [
    (one_cache(lambda node: [node("Relu", ["p"], ["y"])]), "Relu, needs the rows without gaps"),
    (one_cache(lambda node: [node("Concat", ["p", "p"], ["y"], axis=1)]), "Concat, needs the rows without gaps"),
    (
        one_cache(lambda node: [node("Transpose", ["p"], ["y"], perm=[0, 2, 1])]),
        "a view or a shape of the cache is an output too",
    ),
    (one_cache(lambda node: [node("Shape", ["p"], ["y"])]), "a view or a shape of the cache is an output too"),
    (
        one_cache(lambda node: [node("MatMul", ["p", "t"], ["y"]), *products(node)[:1]][::-1]),
        "MatMul, needs the rows without gaps",
    ),
    (one_cache(products, swapped=True), "%p is no Concat of %c and new rows"),
    (one_cache(products, dtype=10), "%p is f16; kernels take strides in f32 and f64"),
    (one_cache(products, past=3), "%c has a fixed number of rows"),
]


@pytest.mark.parametrize(("model", "reason"), REFUSED)
def test_other_caches_are_copied_and_the_reason_is_told(model: onnx.ModelProto, reason: str) -> None:
    dims = {name: DIMS[name] for name in ("batch", "new", "past") if name != "past" or "fixed" not in reason}
    executable = compile_ranges(model, dims, state={"c": "p"}, options=BOUND, optimize="none")
    assert not executable.in_place
    assert reason in executable.why_not_in_place["c"]
    if "fixed" in reason:
        return
    dtype = np.float16 if "f16" in reason else np.float32
    session, own = executable.session(), ort.InferenceSession(model.SerializeToString())
    cache, rng = np.zeros((2, 0, 4), dtype), np.random.default_rng(0)
    for new in (3, 1, 2):
        x = rng.standard_normal((2, new, 4)).astype(dtype)
        y, cache = own.run(["y", "p"], {"x": x, "c": cache})
        assert np.array_equal(session(x=x)["y"], y)


MISFITS = [  # an input q, the readers, the extents of q at a call, and the reason
    (
        ["batch", "new", "total"],
        [("MatMul", ["q", "p"], ["y"], {})],
        (2, 3, 9),
        "new + past and total, which may differ",
    ),
    (
        ["batch", "new", "depth"],
        [("Transpose", ["p"], ["t"], {"perm": [0, 2, 1]}), ("MatMul", ["q", "t"], ["y"], {})],
        (2, 3, 7),
        "4 and depth, which may differ",
    ),
    ([4], [("MatMul", ["p", "q"], ["y"], {})], None, "MatMul, needs the rows without gaps"),
]


@REFUSED_POINTS
@pytest.mark.parametrize(("shape", "readers", "extents", "reason"), MISFITS)
def test_operands_that_may_not_fit_are_left_to_onnx_runtime(
    shape: Any, readers: Any, extents: Any, reason: str
) -> None:
    model = one_cache(lambda node: [node(op, reads, makes, **attrs) for op, reads, makes, attrs in readers])
    model.graph.input.append(onnx.helper.make_tensor_value_info("q", 1, shape))
    dims = {**DIMS, **{name: (1, 80) for name in shape if isinstance(name, str) and name not in DIMS}}
    executable = compile_ranges(model, dims, state={"c": "p"}, options=BOUND, optimize="none")
    assert reason in executable.why_not_in_place["c"]
    session, x = executable.session(), np.ones((2, 3, 4), np.float32)
    if extents is None:
        assert np.array_equal(session(x=x, q=np.ones(4, np.float32))["y"], np.full((2, 3), 4))
        return
    with pytest.raises(KernelError, match="dimension mismatch"):
        session(x=x, q=np.ones(extents, np.float32))


@REFUSED_POINTS
def test_new_rows_of_another_batch_are_left_to_onnx_runtime() -> None:
    model = one_cache(lambda node: [node("Transpose", ["p"], ["t"], perm=[0, 2, 1]), node("MatMul", ["q", "t"], ["y"])])
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "other"
    model.graph.input.append(onnx.helper.make_tensor_value_info("q", 1, ["batch", "new", 4]))
    executable = compile_ranges(model, {**DIMS, "other": (1, 3)}, state={"c": "p"}, options=BOUND, optimize="none")
    assert "other and batch, which may differ" in executable.why_not_in_place["c"]
    one, three = np.ones((1, 3, 4), np.float32), np.ones((3, 3, 4), np.float32)
    with pytest.raises(KernelError, match="mismatched dimensions"):
        executable.session()(x=one, q=three, c=three)


def test_repeated_elements_of_a_matrix_are_left_to_onnx_runtime() -> None:
    b = Builder("repeated")
    x, q = b.input("x", ("batch", 2, 1, "new")), b.input("q", ("batch", 2, "new", 5))
    present = b.op("Concat", b.input("c", ("batch", 2, 1, "past")), x, axis=3)
    model = b.model(y=b.op("MatMul", q, b.op("Expand", present, b.ints(1, 1, 5, 1))), p=present)
    executable = compile_ranges(model, DIMS, state={"c": "p"}, options=BOUND, optimize="none")
    assert "needs the rows without gaps" in executable.why_not_in_place["c"]
    feeds = {"x": np.ones((1, 2, 1, 3), np.float32), "q": np.ones((1, 2, 3, 5), np.float32)}
    assert np.array_equal(executable.session()(**feeds)["y"], np.full((1, 2, 3, 3), 5))


def test_caches_in_the_arena_are_copied_and_the_reason_is_told(model: onnx.ModelProto) -> None:
    executable = compile_ranges(model, DIMS, state="auto")
    assert not executable.in_place
    assert set(executable.why_not_in_place) == set(executable.state_pairs)
    assert "io='bound'" in executable.why_not_in_place["past_0_key"]
