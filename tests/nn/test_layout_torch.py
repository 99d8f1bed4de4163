"""Commands that move elements against PyTorch's; where the results lie; what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import nn
from sublet.base.errors import SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ir.graph import Graph, Node, Value
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.ops.nn.layout import slice_attrs, slice_axis
from sublet.ops.op import Share
from tests.nn.against import agrees, shown

torch = pytest.importorskip("torch")
F = torch.nn.functional


def spread(x: Any) -> Any:
    """A zero after every element."""
    return torch.stack((x, 0 * x), 1).view(-1)


CASES: list[tuple[str, tuple[str, ...], dict[str, Any], Callable[..., Any]]] = [
    ("transpose", ("f64[8,5,16]",), {"axes": (1, 2, 0)}, lambda x: x.permute(1, 2, 0)),
    ("transpose", ("f64[70,90]",), {"axes": (1, 0)}, lambda x: x.T),
    ("slice", ("f64[8,9]",), {"starts": (1, 2), "ends": (7, 9), "steps": (1, 1)}, lambda x: x[1:7, 2:]),
    ("slice", ("f64[8,9]",), {"starts": (1, 2), "ends": (8, 9), "steps": (2, 3)}, lambda x: x[1::2, 2::3]),
    ("slice", ("f64[8,9]",), {"starts": (3, 0), "ends": (3, 9), "steps": (1, 1)}, lambda x: x[3:3]),
    ("concat", ("f64[3,4]", "f64[3,7]", "f64[3,1]"), {"axis": 1}, lambda *xs: torch.cat(xs, 1)),
    ("concat", ("f64[3,4]", "f64[5,4]"), {"axis": -2}, lambda *xs: torch.cat(xs, 0)),
    ("split", ("f64[4,9]",), {"axis": 1, "sizes": (2, 3, 4)}, lambda x: x.split([2, 3, 4], 1)),
    ("pad", ("f64[4,5]",), {"pads": (1, 0, 3, 4), "value": 0.5}, lambda x: F.pad(x, (0, 4, 1, 3), value=0.5)),
    ("pad", ("f64[5]",), {"pads": (1, 2), "between": (1,)}, lambda x: F.pad(spread(x), (1, 1))),
    ("flip", ("f64[3,4,5]",), {"axes": (0, 2)}, lambda x: x.flip(0, 2)),
    ("tile", ("f64[3,1,5]",), {"repeats": (2, 4, 1)}, lambda x: x.tile(2, 4, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "attrs", "function"), CASES, ids=shown)
def test_is_pytorchs(name: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: Any) -> None:
    agrees(name, inputs, attrs, function, fast=False)


def made(op: str, *shapes: tuple[int, ...], **attrs: Any) -> Node:
    emit = Emitter.from_graph(Graph("g", (), (), ()))
    inputs = [Value(f"x{i}", TensorSpec(DType.F32, shape)) for i, shape in enumerate(shapes)]
    emit.all_outputs(op, *inputs, **attrs)
    return emit.nodes[-1]


@pytest.mark.parametrize(
    ("shape", "starts", "ends", "offset"),
    [
        ((6, 4), (2, 0), (5, 4), 32),
        ((6, 4), (2, 1), (3, 3), 36),
        ((6, 4), (2, 1), (4, 3), None),
        ((1, 6, 4), (0, 1, 0), (1, 2, 4), 16),
        ((3, 6, 4), (1, 1, 0), (2, 3, 4), 112),
        ((3, 6, 4), (0, 0, 0), (3, 1, 4), None),
        ((3, 6, 4), (0, 0, 0), (3, 6, 4), 0),
        ((3, 6), (1, 0), (1, 6), None),
    ],
)
def test_a_contiguous_slice_is_a_view(shape: Any, starts: Any, ends: Any, offset: int | None) -> None:
    node = made("nn.slice", shape, starts=starts, ends=ends, steps=(1,) * len(shape))
    assert lookup(node.op).views(node) == (() if offset is None else (Share(0, 0, offset),))


def test_a_step_over_one_element_does_not_matter_and_over_several_does() -> None:
    one = made("nn.slice", (6, 4), starts=(2, 0), ends=(4, 4), steps=(2, 1))
    two = made("nn.slice", (6, 4), starts=(1, 0), ends=(4, 4), steps=(2, 1))
    assert lookup(one.op).views(one) == (Share(0, 0, 32),)
    assert lookup(two.op).views(two) == ()


def test_what_lies_in_one_piece_is_a_view_or_a_part() -> None:
    split = made("nn.split", (1, 6, 2), axis=1, sizes=(4, 2))
    assert lookup(split.op).views(split) == (Share(0, 0, 0), Share(1, 0, 32))
    across = made("nn.split", (3, 6), axis=1, sizes=(4, 2))
    assert lookup(across.op).views(across) == ()
    concat = made("nn.concat", (1, 4, 2), (1, 2, 2), axis=1)
    assert lookup(concat.op).parts(concat) == (Share(0, 0, 0), Share(0, 1, 32))
    pad = made("nn.pad", (4, 2), pads=(1, 0, 3, 0))
    assert lookup(pad.op).parts(pad) == (Share(0, 0, 8),)
    around = made("nn.pad", (4, 2), pads=(1, 1, 3, 0))
    assert lookup(around.op).parts(around) == ()
    moved = made("nn.transpose", (4, 1, 2), axes=(1, 0, 2))
    assert lookup(moved.op).views(moved) == (Share(0, 0, 0),)
    turned = made("nn.transpose", (4, 1, 2), axes=(2, 1, 0))
    assert lookup(turned.op).views(turned) == ()


def test_padding_of_a_value_that_was_written_in_its_place() -> None:
    """The kernel fills the margins and leaves what lies between them."""
    node = made("nn.pad", (2, 3), pads=(1, 0, 2, 0), value=9.0)
    y = np.full((5, 3), -1, np.float32)
    y[1:3] = np.arange(6).reshape(2, 3)
    kernel = TorchBackend().kernel(node, {})
    assert kernel is not None
    kernel.bind([y[1:3]], [y], None)()
    assert y.tolist() == [[9, 9, 9], [0, 1, 2], [3, 4, 5], [9, 9, 9], [9, 9, 9]]


@pytest.mark.parametrize(("rows", "steps"), [(2, (2, 1)), (4, (2, 1)), (4, (3, 1)), (4, (1, 5))])
def test_the_gradient_of_a_slice_with_a_step_is_pytorchs(rows: int, steps: tuple[int, int]) -> None:
    """Where the step leaves one row, its gradient lies in its place inside the padded result."""
    random = np.random.default_rng(0)
    content, weight = random.normal(size=(rows, 16)), random.normal(size=(16, 8))
    cut = np.s_[1 :: steps[0], 8 :: steps[1]]
    g = sublet.Graph("sliced")
    x = g.input("x", (rows, 16), "f64")
    y = nn.tanh(x)[cut]
    loss = (y @ g.constant(weight[: y.shape[1]], "f64")).sum() + nn.tanh((x * x).sum())
    g.output("dx", sublet.gradients(loss, [x])[0])
    t = torch.tensor(content, requires_grad=True)
    (torch.tanh(t)[cut] @ torch.tensor(weight[: y.shape[1]])).sum().add(torch.tanh((t * t).sum())).backward()
    parts = 0
    for alignment in (1, 2, 4, 8, 16, 32, 64):
        executable = sublet.compile(g, options=sublet.Options(alignment=alignment))
        parts += any(placement.how == "part" for placement in executable.plan.placements)
        np.testing.assert_allclose(executable(x=content)["dx"], t.grad.numpy(), rtol=1e-12, atol=1e-12)
    assert parts or y.shape[0] > 1, "nothing lay in its place"


def test_concatenation_copies_only_what_does_not_lie_in_its_place() -> None:
    node = made("nn.concat", (2, 3), (1, 3), axis=0)
    y, other = np.full((3, 3), -1, np.float32), np.full((1, 3), 5, np.float32)
    y[:2] = 4
    kernel = TorchBackend().kernel(node, {})
    assert kernel is not None
    kernel.bind([y[:2], other], [y], None)()
    assert y.tolist() == [[4] * 3, [4] * 3, [5] * 3]


def test_bounds_count_as_python_does() -> None:
    assert slice_attrs((5, 6), (-3,), (99,), axes=(1,)) == {"starts": (0, 3), "ends": (5, 6), "steps": (1, 1)}
    assert slice_attrs((5,), (4,), (2,), (2,)) == {"starts": (4,), "ends": (4,), "steps": (2,)}
    assert slice_attrs((), (), ()) == {"starts": (), "ends": (), "steps": ()}
    with pytest.raises(SpecError, match=r"nn\.flip reverses"):
        slice_attrs((5,), (4,), (0,), (-1,))
    emit = Emitter.from_graph(Graph("g", (), (), ()))
    x = Value("x", TensorSpec(DType.F32, (4, 6)))
    assert slice_axis(emit, x, -1, 2, 5).spec == TensorSpec(DType.F32, (4, 3))


def test_flip_allocates_nothing() -> None:
    node = made("nn.flip", (512, 256), axes=(0, 1))
    x, y = (np.zeros((512, 256), np.float32) for _ in range(2))
    kernel = TorchBackend().kernel(node, {})
    assert kernel is not None
    call = kernel.bind([x], [y], None)
    call()
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes / 8


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "message"),
    [
        ("nn.transpose", [(2, 3)], {"axes": (0, 0)}, "each of 2 axes once"),
        ("nn.slice", [(2, 3)], {"starts": (0,), "ends": (1,), "steps": (1,)}, "2 integers, one for each axis"),
        ("nn.slice", [(2,)], {"starts": (0,), "ends": (3,), "steps": (1,)}, r"f32\[2\] has no elements 0 to 3"),
        ("nn.slice", [(2,)], {"starts": (-1,), "ends": (2,), "steps": (1,)}, "none below 0"),
        ("nn.concat", [(2, 3), (3, 2)], {"axis": 0}, "may only differ along axis 0"),
        ("nn.concat", [(2, 3)], {"axis": 2}, "axis 2 is out of range"),
        ("nn.split", [(4,)], {"axis": 0, "sizes": (1, 2)}, "add up to 3"),
        ("nn.pad", [(4,)], {"pads": (1,)}, "2 integers"),
        ("nn.pad", [(4,)], {"pads": (-1, 0)}, r"use nn\.slice to remove"),
        ("nn.flip", [(4,)], {"axes": (1,)}, "axis 1 is out of range"),
        ("nn.tile", [(4,)], {"repeats": (0,)}, "none below 1"),
    ],
)
def test_what_makes_no_sense_is_refused(op: str, shapes: Any, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        made(op, *shapes, **attrs)
