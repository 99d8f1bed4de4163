"""A front computed in patches gives what the whole gives: every grid, padding, stride, residuals, both dialects."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import sublet
from benchmarks.models.builder import Builder
from sublet import Options, parse
from sublet.api.sources import model_of_plan, read_source
from sublet.base.errors import PlanError
from sublet.checker import judge
from sublet.cli.app import app
from sublet.ops.slice_maps import shape_of
from sublet.ops.verify import verify
from sublet.passes.patching import front_up_to, with_patched_front, with_patches
from sublet.planning.budget.cost_model import count_products
from sublet.planning.budget.patches import choose_patches
from sublet.runtime.differential import watch_steps
from sublet.runtime.poison import run_poisoned
from tests.passes.programs import same

WHOLE = ("transposed", "padded", "gated")


def computed_whole(b: Builder, x: str, kind: str) -> str:
    """A map without areas, behind which a front begins; or a product with gates that each patch reads whole."""
    if kind == "transposed":
        return b.op("Transpose", x, perm=[0, 1, 3, 2])
    if kind == "padded":
        return b.op("Pad", x, b.ints(0, 0, 1, 2, 0, 0, 2, 1))
    gates = b.conv(b.op("GlobalAveragePool", "image"), b.channels[x], 1)
    return b.op("Mul", x, b.op("Sigmoid", gates))


def convolutions(seed: int) -> tuple[onnx.ModelProto, str]:
    """A random front of convolutions, poolings and residuals before a classifier, and its last node."""
    b, rng = Builder("front", seed), random.Random(seed)
    extent = rng.choice((13, 16, 19))
    x = b.op("Relu", b.conv(b.input("image", (1, 3, extent, extent + rng.choice((0, 3)))), 4, 3, rng.choice((1, 2))))
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(("conv", "depthwise", "residual", "max", "average", "dilated", "norm", *WHOLE))
        if kind == "conv":
            x = b.conv(x, rng.choice((3, 4)), rng.choice((1, 3, 5)), rng.choice((1, 1, 2)))
        elif kind == "depthwise":
            x = b.conv(x, b.channels[x], 3, 1, group=b.channels[x])
        elif kind == "residual":
            x = b.op("Add", x, b.conv(b.op("Sigmoid", b.conv(x, 6, 1)), b.channels[x], 3))
        elif kind == "dilated":
            weights = b.random_weight(b.channels[x], b.channels[x], 3, 2)
            pads = [rng.randint(0, 2) for _ in range(4)]
            x = b.op("Conv", x, weights, kernel_shape=[3, 2], pads=pads, dilations=[1, 2])
        elif kind == "norm":
            x = b.op("Clip", b.batch_norm(x), b.filled(0.0), b.filled(6.0))
        elif kind in WHOLE:
            x = computed_whole(b, x, kind)
        else:
            x = b.pool("MaxPool" if kind == "max" else "AveragePool", x, 3, rng.choice((1, 2)), 1)
    x = b.conv(x, 4, 3)
    last = b.nodes[-1].name
    return b.model(out=b.op("Tanh", x), probabilities=b.classifier(x, 5)), last


@pytest.mark.parametrize("seed", range(12))
def test_patches_compute_what_the_whole_computes(seed: int) -> None:
    """As near as sums in another order are, in poisoned memory too."""
    proto, last = convolutions(seed)
    model, rng = read_source(proto), random.Random(seed)
    front = front_up_to(model.graph, last)
    assert not isinstance(front, str)
    assert isinstance(front.result.spec, sublet.TensorSpec)
    height, width = front.result.spec.shape[2:]
    grid = f"{rng.randint(2, min(3, height))}x{rng.randint(1, min(2, width))}"
    changed = with_patches(model, f"{grid}@{last}")
    verify(changed.graph)
    whole, pieces = (sublet.compile(each, backend="onnxruntime") for each in (model, changed))
    compared(whole, pieces)


@pytest.mark.parametrize("kind", WHOLE)
def test_a_front_begins_behind_a_node_without_areas(kind: str) -> None:
    b = Builder("begin")
    x = computed_whole(b, b.op("Relu", b.conv(b.input("image", (1, 3, 32, 32)), 16, 3)), kind)
    x = b.pool("MaxPool", b.op("Relu", b.conv(x, 16, 3)), 2, 2)
    model = read_source(b.model(probabilities=b.classifier(b.conv(x, 8, 3), 4)))
    front = front_up_to(model.graph, x.removesuffix("_out"))
    assert not isinstance(front, str)
    operators = [node.op.removeprefix("onnx.") for node in front.nodes]
    assert operators == [*(["Conv", "Relu", "Mul"] if kind == "gated" else []), "Conv", "Relu", "MaxPool"]
    changed = with_patches(model, f"3x2@{front.nodes[-1].name}")
    verify(changed.graph)
    compared(*(sublet.compile(each, backend="onnxruntime") for each in (model, changed)))


def compared(whole: sublet.Executable, pieces: sublet.Executable) -> None:
    """Compare two executables over one image, the second in poisoned memory too."""
    (image,) = whole.graph.inputs
    assert isinstance(image.spec, sublet.TensorSpec)
    x = {image.name: np.random.default_rng(0).standard_normal(image.spec.shape).astype(np.float32)}
    expected, found, poisoned = whole(x), pieces(x), run_poisoned(pieces, x)
    by_node = pieces.run_watched(x, watch_steps, serial=True)  # by one thread, as the poisoned run
    for name, content in expected.items():
        np.testing.assert_allclose(found[name], content, rtol=1e-5, atol=1e-6)
        assert np.array_equal(poisoned[name], by_node[name])


def blocks_of_channels() -> onnx.ModelProto:
    """A network that ONNX Runtime rewrites into blocks of channels: residuals, pooling, branches joined."""
    b = Builder("blocks")
    x = b.op("Relu", b.conv(b.input("image", (1, 3, 34, 37)), 32, 3, 2))
    x = b.op("Relu", b.op("Add", b.conv(b.op("Relu", b.conv(x, 64, 1)), 32, 3), x))
    x = b.pool("MaxPool", b.concat([b.conv(x, 16, 1), b.conv(x, 16, 3)]), 3, 2, 1)
    return b.model(probabilities=b.classifier(b.op("Sigmoid", b.conv(x, 16, 3)), 5))


@pytest.mark.parametrize("level", ["onnxruntime-basic", "onnxruntime-extended", "onnxruntime"])
def test_rewritten_graphs_have_patches_too(level: str) -> None:
    """Fused convolutions with an addend, and maps in blocks of channels, cut inside the front and joined behind."""
    model = read_source(blocks_of_channels(), optimize=level)
    assert any(level == "onnxruntime" and "nchwc" in node.op for node in model.graph.nodes) == (level == "onnxruntime")
    found = {node.name: front_up_to(model.graph, node.name) for node in model.graph.nodes}
    fronts = [name for name, front in found.items() if not isinstance(front, str) and min(front.extents) > 2]
    assert len(fronts) > 3
    whole, cut = sublet.compile(model, backend="onnxruntime"), list[int]()
    for name in fronts[1::2]:
        changed = with_patches(model, f"3x2@{name}")
        cut += [len(shape_of(node.inputs[0])) for node in changed.graph.nodes if node.op == "onnx.Slice"]
        verify(changed.graph)
        compared(whole, sublet.compile(changed, backend="onnxruntime"))
    assert (5 in cut) == (level == "onnxruntime")


def test_slices_before_operator_set_10_have_attributes() -> None:
    proto, last = convolutions(1)
    proto.opset_import[0].version = 9
    for node in proto.graph.node:
        assert node.op_type != "Clip"
    model = read_source(proto)
    changed = with_patches(model, f"2x2@{last}")
    assert any(node.op == "onnx.Slice" and node.attrs for node in changed.graph.nodes)
    compared(*(sublet.compile(each, backend="onnxruntime") for each in (model, changed)))


def test_patches_that_keep_more_than_they_save_are_declined_in_a_run() -> None:
    """`plan` counts the arena alone; a run counts the bytes kept for each kernel as well."""
    model = read_source(blocks_of_channels())
    planned, for_run = (choose_patches(model, Options(), "auto", for_run=each) for each in (False, True))
    assert planned.patches
    assert planned.bytes_after < planned.bytes_before
    assert not for_run.patches
    assert for_run.model.graph == model.graph
    assert for_run.declined is not None
    assert for_run.declined.kept_bytes > for_run.bytes_before - for_run.declined.bytes_after
    assert "cost more bytes than they save" in for_run.words
    executable = sublet.compile(blocks_of_channels(), patches="auto", optimize="none")
    assert not executable.plan.recipe.changed
    assert executable.remark == for_run.words


def test_a_loop_behind_the_front_stays_whole() -> None:
    proto = onnx.parser.parse_model(FRONT_AND_LOOP)
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3), dtype=np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = read_source(proto)
    assert any(node.subgraphs for node in model.graph.nodes)
    for for_run in (False, True):
        chosen = choose_patches(model, Options(), "auto", for_run=for_run)
        assert chosen.bytes_after <= chosen.bytes_before
    compared(*(sublet.compile(proto, backend="onnxruntime", patches=patches) for patches in (None, "auto")))


FRONT_AND_LOOP = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1,3,32,32] x) => (y) <int64 n = {3}, bool yes = {1}>
{
  c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
  r = Relu (c)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  y = Loop (n, yes, p) <body = step (int64 i, bool on, float[1,8,8,8] a) => (bool stay, float[1,8,8,8] b) {
    stay = Identity (on)
    b = Tanh (a)
  }>
}"""


def test_operators_without_areas_are_refused() -> None:
    graph = parse("graph @g(%x: f32[1,4,4,1]) {\n  %y: f32[1,4,4,1] = tflite.RELU(%x)\n  return %y\n}")
    with pytest.raises(PlanError, match=r"tflite.RELU are not supported here.* Convert the model to ONNX"):
        choose_patches(read_source(graph), Options(), "auto")


CONV = 'dilations = [], groups = 1, layout = "nchw"'
NN = """
    graph @g(%x: f32[1,2,9,8]) {
      weights %w: f32[4,2,3,3], %v: f32[2,4,3,3], %s: f32[4]
      %a: f32[1,4,5,4] = nn.conv(%x, %w) {strides = [2, 2], pads = [1, 1, 1, 1], CONV} @a
      %n: f32[1,4,5,4] = nn.batch_norm_inference(%a, %s, %s, %s, %s) {epsilon = 1e-05, axis = 1} @n
      %b: f32[1,4,5,4] = nn.relu(%n) @b
      %c: f32[1,2,5,4] = nn.conv(%b, %v) {strides = [], pads = [1, 1, 1, 1], CONV} @c
      %d: f32[] = nn.sum(%c) {axes = [], keepdims = 0} @d
      return %c, %d
    }
    """.replace("CONV", CONV)


def test_the_nn_dialect_has_patches_too() -> None:
    graph = parse(NN)
    for text in ("2x2@c", "5x1@b"):
        changed = with_patched_front(graph, text)
        verify(changed)
        same(graph, changed, runs=1, tolerance=1e-6)


BRANCHES = """
    graph @g(%x: f32[1,2,8,9]) {
      weights %w: f32[3,2,3,3], %m: f32[1,5,1,1]
      %a: f32[1,3,8,9] = nn.conv(%x, %w) {strides = [], pads = [1, 1, 1, 1], CONV} @a
      %b: f32[1,5,8,9] = nn.concat(%a, %x) {axis = 1} @b
      %c: f32[1,5,8,9] = nn.softmax(%b) {axis = 1} @c
      %d: f32[1,5,8,9] = nn.pow(%c, %m) @d
      %e: f32[1,5,4,4] = nn.max_pool(%d) {kernel = [2, 2], strides = [], pads = [], dilations = [], ceil = 0, LAYOUT} @e
      %f: f32[1,5,1,4] = nn.max(%e) {axes = [2], keepdims = 1} @f
      %g: f32[1,5,4,4] = nn.mul(%e, %f) @g
      return %g
    }
    """.replace("CONV", CONV).replace("LAYOUT", 'layout = "nchw"')


def test_branches_and_what_computes_along_channels_is_in_patches_too() -> None:
    graph = parse(BRANCHES)
    for text in ("3x2@d", "2x4@e"):
        changed = with_patched_front(graph, text)
        verify(changed)
        same(graph, changed, runs=1, tolerance=1e-6)
    for last, why in (("f", "'f' reads more than the area"), ("g", "'g' reads a map of other extents")):
        with pytest.raises(PlanError, match=why):
            with_patched_front(graph, f"2x2@{last}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("4x4", "write ROWSxCOLUMNS@NODE"),
        ("1x1@c", "write ROWSxCOLUMNS@NODE"),
        ("2x2@e", "no node"),
        ("2x2@d", "'d' must have one output with four axes"),
        ("6x1@c", "only"),
        ("99999x1@c", "write"),
    ],
)
def test_patches_that_cannot_be_are_refused(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        with_patched_front(parse(NN), text)


def test_what_is_read_behind_the_front_is_no_inner_map() -> None:
    graph = parse(NN.replace("return %c, %d", "return %c, %d, %b"))
    with pytest.raises(PlanError, match="read outside the front"):
        with_patched_front(graph, "2x2@c")


def test_a_plan_in_patches_is_checked_from_the_file(tmp_path: Path) -> None:
    """The recipe tells the patches; what chooses them keeps to its bound on operations and to real plans."""
    b = Builder("narrow")
    x = b.op("Relu", b.conv(b.input("image", (1, 3, 32, 32)), 24, 3))
    x = b.conv(b.op("Relu", b.conv(x, 24, 3, 2, group=24)), 8, 3, 2)
    onnx.save(b.model(probabilities=b.classifier(x, 4)), tmp_path / "m.onnx")
    model = read_source(tmp_path / "m.onnx")
    found = choose_patches(model, Options(), "auto")
    assert found.patches
    made = sublet.plan_memory(found.model)
    assert made.arena_bytes == found.bytes_after < 0.7 * found.bytes_before
    assert sum(map(count_products, found.model.graph.nodes)) <= 1.15 * sum(map(count_products, model.graph.nodes))
    again = model_of_plan(tmp_path / "m.onnx", made)
    assert again.graph == found.model.graph
    assert not judge(again.graph, made.schedule, made).findings
    executable = sublet.compile(tmp_path / "m.onnx", patches=found.patches, optimize="none")
    assert executable.plan.recipe.changed == f"patches {found.patches}"
    assert executable.plan.arena_bytes <= found.bytes_after + 4096


def test_patches_that_save_nothing_are_an_answer(tmp_path: Path) -> None:
    """In one sentence of the answer, not beside it: of the text, of the JSON object, and of the executable."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[1,1,4,4] x) => (z) { z = Conv<pads = [1,1,1,1]>(x, w) }"""
    )
    weights = np.zeros((8, 1, 3, 3), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(proto, path := tmp_path / "net.onnx")
    words = "Patches save nothing for this model: no patches with a smaller arena were found."
    done = CliRunner().invoke(app, ["plan", str(path), "--patches", "auto"])
    assert done.exit_code == 0
    assert words in " ".join(done.stdout.split())
    done = CliRunner().invoke(app, ["plan", str(path), "--patches", "auto", "--json"])
    assert json.loads(done.stdout)["remark"] == words
    assert sublet.compile(path, patches="auto", optimize="none").remark == words
    name = read_source(path).graph.nodes[-1].name
    chosen = choose_patches(read_source(path), Options(), f"2x2@{name}")
    assert chosen.bytes_after >= chosen.bytes_before
    assert chosen.words.endswith(": these patches save nothing.")
    done = CliRunner().invoke(app, ["plan", str(path), "--patches", f"2x2@{name}"])
    assert "these patches save nothing" in " ".join(done.stdout.split())
