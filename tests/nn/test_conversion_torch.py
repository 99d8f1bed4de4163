"""Fills, casts, copies and orders of axes against PyTorch's; what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from sublet.base.tensor import NUMPY, DType
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ops import lookup
from sublet.ops.nn import COMMANDS
from sublet.ops.op import Share
from sublet.runtime.backends.reference import ReferenceBackend
from tests.nn.against import agrees, refused, shown
from tests.nn.examples import Example, case_of
from tests.nn.test_registry import computed

torch = pytest.importorskip("torch")
TYPES = ("bool", "u8", "i8", "i16", "i32", "i64", "u16", "u32", "u64", "f16", "bf16", "f32", "f64")

CASES: list[tuple[str, tuple[str, ...], dict[str, Any], Callable[..., Any]]] = [
    ("copy", ("f64[40,50]",), {}, torch.clone),
    ("to_nhwc", ("f64[2,3,8,9]",), {}, lambda x: x.permute(0, 2, 3, 1)),
    ("to_nchw", ("f64[2,8,9,3]",), {}, lambda x: x.permute(0, 3, 1, 2)),
    ("to_nhwc", ("f64[2,70,90]",), {}, lambda x: x.permute(0, 2, 1)),
    ("to_nchw", ("f64[1,90,70]",), {}, lambda x: x.permute(0, 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "attrs", "function"), CASES, ids=shown)
def test_is_pytorchs(name: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: Any) -> None:
    agrees(name, inputs, attrs, function)


@pytest.mark.parametrize(("source", "target"), list(product(TYPES, TYPES)))
def test_every_type_becomes_every_other(source: str, target: str) -> None:
    case = case_of(COMMANDS["cast"], Example((f"{source}[64]",), {"dtype": target}))
    (y,) = case.graph.outputs
    x = (np.arange(64) % 7 + (0.75 if source[0] in "fb" else 0)).astype(NUMPY[DType.parse(source)])
    expected = x.astype(NUMPY[DType.parse(target)])
    for backend in (TorchBackend(), ReferenceBackend()):
        found = computed(case.graph, {"x0": x}, backend)[y.name]
        assert found.tobytes() == expected.tobytes()


def test_a_cast_to_the_same_type_is_a_view_and_a_copy_is_none() -> None:
    (same,) = case_of(COMMANDS["cast"], Example(("f32[4]",), {"dtype": "f32"})).graph.nodes
    assert lookup(same.op).views(same) == (Share(0, 0),)
    (other,) = case_of(COMMANDS["cast"], Example(("f32[4]",), {"dtype": "i32"})).graph.nodes
    assert lookup(other.op).views(other) == ()
    assert lookup(other.op).inplace(other) == (Share(0, 0),)
    (copy,) = case_of(COMMANDS["copy"], Example(("f32[4]",))).graph.nodes
    assert lookup(copy.op).views(copy) == lookup(copy.op).inplace(copy) == ()


@pytest.mark.parametrize("dtype", TYPES)
def test_fill_and_iota_give_every_type(dtype: str) -> None:
    filled = case_of(COMMANDS["fill"], Example((), {"shape": (5,), "dtype": dtype, "value": 1}))
    counted = case_of(COMMANDS["iota"], Example((), {"count": 5, "dtype": dtype})) if dtype != "bool" else filled
    for backend in (TorchBackend(), ReferenceBackend()):
        (y,), (z,) = filled.graph.outputs, counted.graph.outputs
        assert computed(filled.graph, {}, backend)[y.name].astype(int).tolist() == [1] * 5
        if dtype != "bool":
            assert computed(counted.graph, {}, backend)[z.name].astype(int).tolist() == [0, 1, 2, 3, 4]


def test_undefined_writes_nothing() -> None:
    case = case_of(COMMANDS["undefined"], Example((), {"shape": (2, 3), "dtype": "f32"}))
    (y,) = case.graph.outputs
    assert (computed(case.graph, {}, TorchBackend())[y.name] == 77).all()


@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "message"),
    [
        ("fill", (), {"shape": (2,), "dtype": "float", "value": 0.0}, "dtype = 'float' must be one of"),
        ("fill", (), {"shape": (2,), "dtype": "u8", "value": -1}, "-1.0 is no u8.* 0 to 255"),
        ("fill", (), {"shape": (2,), "dtype": "i32", "value": 0.5}, "0.5 is no i32"),
        ("fill", (), {"shape": (2, -1), "dtype": "f32", "value": 0.5}, "none below 0"),
        ("fill", (), {"shape": 2, "dtype": "f32", "value": 0.5}, "must be a list"),
        ("undefined", (), {"shape": (2,), "dtype": "i4"}, "dtype = 'i4'"),
        ("iota", (), {"count": -1}, "at least 0"),
        ("iota", (), {"count": 2, "dtype": "bool"}, "dtype = 'bool'"),
        ("cast", ("f32[2]",), {"dtype": "x"}, "dtype = 'x'"),
        ("to_nhwc", ("f32[2,3]",), {}, r"\[N, C, \*spatial\]"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, inputs: Any, attrs: dict[str, Any], message: str) -> None:
    refused(name, inputs, attrs, message)
