"""What a run gives: tensors of any library over the same memory, views that say until when, outputs to keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sublet import Executable, Graph, Options, compile, nn
from sublet.base.dlpack import SharedArray
from sublet.base.errors import RunError
from sublet.runtime.differential import compare
from tests.runtime.givers import DTYPES, TORCH, content
from tests.runtime.test_crossing import looking

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def network(io: Any = "bound") -> Executable:
    g = Graph()
    y = nn.relu(g.input("x", (3, 4)))
    g.output("y", y)
    g.output("z", nn.neg(y))
    return compile(g, options=Options(io=io))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_outputs_are_given_as_tensors_of_pytorch(dtype: Any) -> None:
    x = content(dtype, (3, 4))
    one = looking(dtype)
    right = one(x=x, s=x)["y"]
    assert one.outputs_as("torch") is one
    for found in (one(x=x)["y"], one.views(x=x)["y"], one.measured(x=x)["y"], one.state("s")):
        assert isinstance(found, torch.Tensor)
        assert found.dtype == TORCH[dtype]
        assert found.view(torch.uint8).numpy().tobytes() == right.tobytes()
    view = one.views(x=x)["y"]
    assert view.data_ptr() == one.bytes_of(one.outputs["y"]).ctypes.data
    copy = one(x=x)["y"]
    assert copy.data_ptr() != view.data_ptr()


def test_outputs_are_given_to_any_library_with_dlpack() -> None:
    one = network()
    view = one.outputs_as("dlpack").views(x=X)["y"]
    assert isinstance(view, SharedArray)
    assert np.from_dlpack(view).ctypes.data == one.bytes_of(one.outputs["y"]).ctypes.data
    assert np.asarray(view).tolist() == np.maximum(X, 0).tolist()
    assert repr(view) == "<Shared f32[3, 4]>"
    mine = one.outputs_as(torch.from_dlpack).views(x=X)["y"]
    assert mine.data_ptr() == one.bytes_of(one.outputs["y"]).ctypes.data
    assert isinstance(one.outputs_as("numpy")(x=X)["y"], np.ndarray)
    with pytest.raises(RunError, match="cannot be returned as 'jax': pass 'numpy', 'torch', 'dlpack', or a function"):
        one.outputs_as("jax")
    assert compare(one, one.outputs_as("torch"), {"x": X}).differences == ()


def test_a_view_reshaped_in_place_changes_no_later_view() -> None:
    one = network("arena")
    one.views(x=X)["y"].shape = (12,)
    found = one.views(x=X + 1)["y"]
    assert found.shape == (3, 4)
    assert found.tolist() == np.maximum(X + 1, 0).tolist()


def test_a_view_says_until_when_it_is_good() -> None:
    one = network("arena")
    views = one.views(x=X)
    assert views.good
    assert "valid until the next run" in repr(views)
    assert list(views) == ["y", "z"]
    assert len(views) == 2
    y = views["y"]
    one(x=X + 1)
    assert not views.good
    assert "no longer valid" in repr(views)
    with pytest.raises(RunError, match="the view of 'y' was valid until the next run of <Executable"):
        views["y"]
    assert y.ctypes.data
    views = one.views(x=X)
    with pytest.raises(RunError):
        one(x="nothing")
    assert not views.good


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_a_held_output_stays_and_nothing_is_copied(form: str) -> None:
    one = network().outputs_as(form)
    held = []
    for turn in range(4):
        views = one.views(x=X + turn)
        address = one.bytes_of(one.outputs["y"]).ctypes.data
        kept = views.hold("y")
        assert (kept.ctypes.data if form == "numpy" else kept.data_ptr()) == address
        assert one.bytes_of(one.outputs["y"]).ctypes.data != address
        assert views["y"] is views.hold("y") is kept
        held.append(kept)
    one(x=X - 100)
    assert views["y"] is kept
    with pytest.raises(RunError, match="was valid until"):
        views["z"]
    for turn, kept in enumerate(held):
        assert kept.tolist() == np.maximum(X + turn, 0).tolist()
    program = one._program
    one.hold("y")
    assert one._program is program


def test_memory_of_the_callers_can_be_held_too() -> None:
    one = network()
    mine = np.zeros((3, 4), np.float32)
    one.bind("y", mine)
    kept = one.views(x=X).hold("y")
    assert kept.ctypes.data == mine.ctypes.data
    one(x=X * 0)
    assert mine.tolist() == np.maximum(X, 0).tolist()


def test_what_cannot_be_held_is_told() -> None:
    with pytest.raises(RunError, match="has no content: run first"):
        network().hold("y")
    with pytest.raises(RunError, match="there is no output 'w'; there are 'y', 'z'"):
        network().hold("w")
    one = network("arena")
    with pytest.raises(RunError, match="no memory of its own: plan with io='bound'"):
        one.views(x=X).hold("y")
    one = network()
    one(x=X)
    one.bind("z", np.zeros((3, 4), np.float32))
    with pytest.raises(RunError, match="has no content"):
        one.hold("z")
