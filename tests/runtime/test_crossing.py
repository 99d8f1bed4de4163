"""Tensors that cross: what may be given for an array, at every place that takes one, of every kind of type."""

from __future__ import annotations

import builtins
import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import sublet
from sublet import Executable, Graph, Options, compile
from sublet.base import dlpack
from sublet.base.arrays import array_of, torch_over
from sublet.base.dlpack import SharedArray
from sublet.base.errors import RunError, SpecError
from sublet.base.tensor import DType
from tests.runtime.givers import DTYPES, GIVERS, OnlyDlpack, content

SHAPE = (3, 4)
seen: dict[str, int] = {}


def _looking(x: np.ndarray, *, out: np.ndarray, name: str) -> None:
    """Copies, and notes where its operands lie."""
    seen[f"from {name}"], seen[f"to {name}"] = x.ctypes.data, out.ctypes.data
    out[...] = x


sublet.command("crossing.look", _looking)


def looking(dtype: DType, weight: Any = None, io: Literal["bound", "arena"] = "bound") -> Executable:
    """y is the input x, z the weight w, t what the state s was."""
    text = f"""
    graph @crossing(%x: {dtype}[3,4], %s: {dtype}[3,4]) {{
      weights %w: {dtype}[3,4]
      %y: {dtype}[3,4] = crossing.look(%x) {{name = "x"}}
      %z: {dtype}[3,4] = crossing.look(%w) {{name = "w"}}
      %t: {dtype}[3,4] = crossing.look(%s) {{name = "s"}}
      update %s = %y
      return %y, %z, %t
    }}
    """
    given = content(dtype, SHAPE) if weight is None else weight
    return compile(sublet.parse(text), weights={"w": given}, options=Options(io=io, alignment=1))


Give = Callable[[DType, np.ndarray], tuple[Any, int]]
Crossed = tuple[np.ndarray, bool]
"""What came out, and whether it was computed from or in the memory that was given."""


def by_call(dtype: DType, right: np.ndarray, give: Give) -> Crossed:
    executable = looking(dtype)
    memory, there = give(dtype, right)
    return executable(x=memory, s=right)["y"], seen["from x"] == there


def by_bind(dtype: DType, right: np.ndarray, give: Give) -> Crossed:
    executable = looking(dtype)
    memory, there = give(dtype, right)
    executable.bind("x", memory)
    return executable(s=right)["y"], seen["from x"] == there


def by_weight(dtype: DType, right: np.ndarray, give: Give) -> Crossed:
    memory, there = give(dtype, right)
    return looking(dtype, weight=memory)(x=right, s=right)["z"], seen["from w"] == there


def by_bound_weight(dtype: DType, right: np.ndarray, give: Give) -> Crossed:
    executable = looking(dtype)
    memory, there = give(dtype, right)
    executable.bind("w", memory)
    return executable(x=right, s=right)["z"], seen["from w"] == there


def by_state(dtype: DType, right: np.ndarray, give: Give) -> Crossed:
    executable = looking(dtype)
    memory, there = give(dtype, right)
    executable.set_state("s", memory)
    return executable(x=right)["t"], seen["from s"] == there


def by_bound_state(dtype: DType, right: np.ndarray, give: Give) -> Crossed:
    executable = looking(dtype)
    memory, there = give(dtype, right)
    executable.bind("s", memory)
    return executable(x=np.zeros_like(right))["t"], seen["from s"] == there


def by_output(dtype: DType, right: np.ndarray, give: Give) -> Crossed:
    executable = looking(dtype)
    memory, there = give(dtype, np.zeros_like(right))
    executable.bind("y", memory)
    found = executable.views(x=right, s=right)["y"]
    return found.copy(), found.ctypes.data == there == seen["to x"]


def by_arena(dtype: DType, right: np.ndarray, give: Give) -> Crossed:
    executable = looking(dtype, io="arena")
    memory, there = give(dtype, content(dtype, (-(-executable.arena_bytes // right.itemsize),)))
    executable.bind("arena", memory)
    found = executable(x=right, s=right)["y"]
    return found, there <= seen["from x"] < there + executable.arena_bytes


PLACES: dict[str, tuple[Callable[[DType, np.ndarray, Give], Crossed], bool]] = {
    "call": (by_call, False),
    "bind": (by_bind, True),
    "weight": (by_weight, True),
    "bound weight": (by_bound_weight, True),
    "state": (by_state, False),
    "bound state": (by_bound_state, True),
    "output": (by_output, True),
    "arena": (by_arena, True),
}
"""How memory is given, and whether it is used where it is; else it is copied, as `Executable` documents."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("giver", GIVERS)
def test_every_type_crosses_from_everywhere_to_every_place(giver: str, place: str) -> None:
    there, stays = PLACES[place]
    for dtype in DTYPES:
        right = content(dtype, SHAPE)
        found, same = there(dtype, right, GIVERS[giver])
        assert same == stays, dtype
        assert found.dtype == right.dtype, dtype
        assert found.tobytes() == right.tobytes(), dtype


def refused(action: Callable[[], Any], words: str) -> None:
    with pytest.raises(RunError, match=words):
        action()


F32 = DType.F32
X = content(F32, SHAPE)


class Flagged:
    """A giver of DLPack whose capsule says something else than it holds."""

    def __init__(self, array: np.ndarray, **changed: int) -> None:
        self.array, self.changed = array, changed

    def __dlpack__(self, **asked: Any) -> Any:
        capsule = SharedArray(self.array).__dlpack__(**asked)
        (given,) = (lent for lent in dlpack._lent.values() if lent.array is self.array)
        for name, other in self.changed.items():
            setattr(given.managed if hasattr(given.managed, name) else given.managed.tensor, name, other)
        return capsule


@pytest.mark.parametrize(
    "memory",
    [X[::-1], X.T.copy().T, X[:, ::-1], torch.from_numpy(X.T.copy()).T, OnlyDlpack(SharedArray(X[::-1]))],
    ids=["backwards", "columns", "backwards columns", "torch columns", "backwards by DLPack"],
)
def test_strides_are_followed_where_it_is_copied_and_refused_where_it_is_used(memory: Any) -> None:
    right = array_of(memory, "it")
    assert looking(F32)(x=memory, s=memory)["y"].tolist() == right.tolist()
    assert looking(F32, weight=memory)(x=X, s=X)["z"].tolist() == right.tolist()
    for name in ("x", "s", "y", "w"):
        refused(lambda name=name: looking(F32).bind(name, memory), f"{name}: its elements are not contiguous")


def read_only(array: np.ndarray) -> np.ndarray:
    found = array.copy()
    found.flags.writeable = False
    return found


@pytest.mark.parametrize(
    "memory",
    [read_only(X), X.tobytes(), memoryview(read_only(X)), OnlyDlpack(SharedArray(read_only(X)))],
    ids=["numpy", "bytes", "memoryview", "DLPack"],
)
def test_read_only_memory_is_read_where_it_is_and_never_written(memory: Any) -> None:
    executable = looking(F32)
    executable.bind("x", memory)
    executable.bind("w", memory)
    found = executable(s=X)
    assert found["y"].tolist() == found["z"].tolist() == X.tolist()
    for name in ("y", "s"):
        refused(lambda name=name: executable.bind(name, memory), f"{name}: is read-only, but the network writes to it")
    refused(lambda: executable(x=X, s=X), "x: is bound to read-only memory")
    assert array_of(memory, "it").tobytes() == X.tobytes()


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        (np.ma.masked_array(X, X > 1), "masked"),
        (np.array([[None] * 4] * 3), "Python objects"),
        (torch.zeros(SHAPE, device="meta"), "device meta: copy it to the CPU"),
        (torch.zeros(SHAPE).to_sparse(), "make it dense"),
        (torch.zeros(SHAPE, dtype=torch.complex64).conj(), "resolve_conj"),
        (Flagged(X, device_type=2), "copy it to the CPU"),
        (Flagged(X, lanes=2), "2 lanes"),
        (Flagged(X, code=40), "code 40"),
        (Flagged(X, major=9), "version is 9"),
        (np.zeros((3, 5), np.float32), "must be f32"),
        (X.astype(">f4"), "must be f32"),
        (X.astype(np.float64), "must be f32"),
        (torch.zeros(SHAPE, dtype=torch.bfloat16), "not bfloat16"),
        (b"too few", "must be f32"),
        ("text", "U4|str"),
        (object(), "object"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_what_is_no_such_memory_is_refused_with_words(memory: Any, words: str) -> None:
    for place in (
        lambda: looking(F32)(x=memory, s=X),
        lambda: looking(F32).bind("x", memory),
        lambda: looking(F32).set_state("s", memory),
        lambda: looking(F32, weight=memory),
    ):
        refused(place, words)


def test_elements_that_share_bytes_are_bound_as_bytes() -> None:
    """An array of ml_dtypes has one element a byte: it is packed where it is copied, and cannot be used where it is."""
    numbers = content(DType.I4, SHAPE)
    packed = looking(DType.I4)(x=numbers, s=numbers)["y"]
    assert packed.tolist() == numbers.tolist()
    raw = np.array([int(a) | int(b) << 4 for a, b in numbers.reshape(-1, 2)], np.uint8)
    executable = looking(DType.I4)
    executable.bind("x", raw)
    assert executable(s=numbers)["y"].tolist() == numbers.tolist()
    assert seen["from x"] == raw.ctypes.data
    refused(lambda: executable.bind("x", numbers), "share bytes: pass 6 bytes")
    assert looking(DType.I4)(x=raw, s=raw)["y"].tolist() == numbers.tolist()


def test_memory_of_others_lives_as_long_as_it_is_used_and_no_longer() -> None:
    """By DLPack it is given back when the last array over it is gone."""
    mine = content(F32, (64,))
    gone = weakref.ref(mine)
    gc.collect()
    before = len(dlpack._lent)
    found = array_of(OnlyDlpack(SharedArray(mine)), "it")[8:]
    right = mine[8:].tolist()
    del mine
    gc.collect()
    assert gone() is not None
    assert found.tolist() == right
    del found
    gc.collect()
    assert gone() is None
    capsule = SharedArray(content(F32, (64,))).__dlpack__(max_version=(1, 0))  # which nobody takes
    del capsule
    assert len(dlpack._lent) <= before


@pytest.mark.parametrize("dtype", [*DTYPES, DType.U16, DType.F8E8M0FNU], ids=str)
def test_what_is_given_crosses_back_where_it_is(dtype: DType) -> None:
    array = content(dtype, SHAPE)
    for step, tensor in (
        (1, torch_over(array)),
        (1, torch.from_dlpack(SharedArray(array))),
        (2, torch.from_dlpack(SharedArray(array[::2]))),
    ):
        assert tensor.data_ptr() == array.ctypes.data
        back = array_of(tensor, "it")
        assert back.dtype == array.dtype
        assert back.tobytes() == array[::step].tobytes()
    assert array_of(OnlyDlpack(SharedArray(array[::-1])), "it").tobytes() == array[::-1].tobytes()


def test_what_dlpack_has_no_words_for_is_refused() -> None:
    with pytest.raises(BufferError, match="read-only"):
        SharedArray(read_only(X)).__dlpack__()
    with pytest.raises(BufferError, match="CPU"):
        SharedArray(X).__dlpack__(dl_device=(2, 0))
    uneven = np.zeros(4, [("a", "u1"), ("b", "<f4")])["b"]
    with pytest.raises(BufferError, match="strides"):
        SharedArray(uneven).__dlpack__(max_version=(1, 0))
    refused(lambda: torch_over(content(DType.I4, SHAPE)), "PyTorch has no tensor type for int4")


@pytest.mark.parametrize("giver", GIVERS)
def test_the_builder_and_the_dynamic_graph_take_them_too(giver: str) -> None:
    given, _ = GIVERS[giver](F32, X)
    flat = array_of(given, "it").view(np.float32).reshape(SHAPE) if giver in ("array", "mmap") else given
    g = Graph()
    g.output("y", g.constant(flat) + g.parameter("w", SHAPE, initial=flat))
    assert np.array_equal(compile(g)()["y"], X + X)
    d = sublet.DynamicGraph()
    tensor = d.tensor(flat)
    assert np.array_equal(tensor.numpy(), X)
    assert torch.from_dlpack(tensor + 1).tolist() == (X + 1).tolist()
    with pytest.raises(SpecError, match="masked"):
        d.tensor(np.ma.masked_array(X, X > 1))


def test_the_document_runs_from_top_to_bottom() -> None:
    text = (Path(__file__).parents[2] / "docs/crossing.md").read_text(encoding="utf-8")
    known: dict[str, Any] = {}
    for snippet in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(builtins.compile(snippet, "docs/crossing.md", "exec"), known)
    assert known["kept"] is known["views"]["y"]
    assert known["kept"].ctypes.data == known["y"].ctypes.data
