"""A front computed in patches gives what the whole gives: every grid, padding, stride, residuals, both dialects."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest

import sublet
from benchmarks.models.builder import Builder
from sublet import Options, parse
from sublet.api.sources import model_of_plan, read_source
from sublet.base.errors import PlanError
from sublet.checker import judge
from sublet.ops.verify import verify
from sublet.passes.patching.patch_based import front_up_to, with_patched_front
from sublet.planning.budget.cost_model import count_products
from sublet.planning.budget.patches import choose_patches, with_patches
from sublet.runtime.poison import run_poisoned
from tests.passes.programs import same


def convolutions(seed: int) -> tuple[onnx.ModelProto, str]:
    """A random front of convolutions, poolings and residuals before a classifier, and its last node."""
    b, rng = Builder("front", seed), random.Random(seed)
    extent = rng.choice((13, 16, 19))
    x = b.op("Relu", b.conv(b.input("image", (1, 3, extent, extent + rng.choice((0, 3)))), 4, 3, rng.choice((1, 2))))
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(("conv", "depthwise", "residual", "max", "average", "dilated", "norm"))
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
        else:
            x = b.pool("MaxPool" if kind == "max" else "AveragePool", x, 3, rng.choice((1, 2)), 1)
    last = b.nodes[-1].name
    return b.model(out=b.op("Tanh", x), probabilities=b.classifier(x, 5)), last


@pytest.mark.parametrize("seed", range(4))
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
    assert isinstance(model.graph.inputs[0].spec, sublet.TensorSpec)
    x = np.random.default_rng(seed).standard_normal(model.graph.inputs[0].spec.shape).astype(np.float32)
    expected, found = whole({"image": x}), pieces({"image": x})
    for name, content in expected.items():
        np.testing.assert_allclose(found[name], content, rtol=1e-5, atol=1e-6)
    poisoned = run_poisoned(pieces, {"image": x})
    assert all(np.array_equal(poisoned[name], found[name]) for name in found)


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
    for last, why in (("f", "'f' reads more than the area"), ("g", "'f' reads more than the area")):
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
    with pytest.raises(PlanError, match="read behind the front"):
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
