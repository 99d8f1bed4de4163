"""The NumPy backend gives the reference's bits, in place where the facts allow it, without large temporaries."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

from sublet import compile, parse, run_poisoned
from sublet.base.tensor import NUMPY, DType, TensorSpec
from sublet.ir.graph import Graph
from sublet.runtime.differential import equal_bits

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3.5, 65504.0]


def content(spec: TensorSpec, seed: int) -> np.ndarray:
    """Numbers of every kind: special floats, the whole range of small integers, valid flags."""
    rng, dtype = np.random.default_rng(seed), NUMPY[spec.dtype]
    if dtype.kind == "b":
        return rng.random(spec.shape) < 0.5
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -100, 100, spec.shape).astype(dtype)
    with np.errstate(all="ignore"):
        array = (rng.standard_normal(spec.shape) * 3).astype(dtype)
        flat = array.reshape(-1)
        places = rng.integers(0, max(1, flat.size), min(flat.size // 4, 16))
        flat[places] = np.resize(np.array(SPECIAL), len(places)).astype(dtype)
    return array


def net(op: str, result: str, *inputs: str, attrs: str = "", weights: str = "") -> Graph:
    declared = ", ".join(f"%x{i}: {spec}" for i, spec in enumerate(inputs))
    names = [f"%x{i}" for i in range(len(inputs))] + re.findall(r"%w\d", weights)
    constants = f"weights {weights} " if weights else ""
    return parse(
        f"graph @net({declared}) {{ {constants}%y: {result} = onnx.{op}({', '.join(names)}) {attrs} return %y }}"
    )


def checked(graph: Graph, feeds: dict[str, np.ndarray]) -> None:
    """Equal to the reference, also in poison; and NumPy computed it."""
    mine, right = compile(graph, backend=["numpy", "reference"]), compile(graph, backend="reference")
    assert mine.nodes_of_backends == {"numpy": 1}
    expected = right(feeds)["y"]
    for found in (mine(feeds), run_poisoned(mine, feeds)):
        assert equal_bits(found["y"], expected)


def case(op: str, result: str, *inputs: str, **how: str) -> None:
    graph = net(op, result, *inputs, **how)
    specs = [value.spec for value in graph.inputs]
    for seed in range(2):
        arrays = [content(spec, 10 * seed + i) for i, spec in enumerate(specs) if isinstance(spec, TensorSpec)]
        checked(graph, {f"x{i}": array for i, array in enumerate(arrays)})


FLOATS = ("f16", "f32", "f64")
NUMBERS = (*FLOATS, "i8", "i32", "i64", "u8", "u32")


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Max", "Min"])
def test_arithmetic(op: str, dtype: str) -> None:
    for a, b in (("[3,70]", "[3,70]"), ("[3,70]", "[70]"), ("[3,1]", "[1,70]"), ("[]", "[3,70]")):
        case(op, f"{dtype}[3,70]", f"{dtype}{a}", f"{dtype}{b}")


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions(dtype: str) -> None:
    for op in ("Neg", "Abs", "Sqrt", "Exp", "Log", "Tanh", "Relu"):
        case(op, f"{dtype}[3,70]", f"{dtype}[3,70]")
    case("Div", f"{dtype}[3,70]", f"{dtype}[3,70]", f"{dtype}[70]")
    case("Max", f"{dtype}[3,70]", f"{dtype}[3,70]", f"{dtype}[70]", f"{dtype}[3,70]")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_comparisons_and_choices(dtype: str) -> None:
    for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
        case(op, "bool[3,70]", f"{dtype}[3,70]", f"{dtype}[70]")
    case("Where", f"{dtype}[3,70]", "bool[3,70]", f"{dtype}[3,70]", f"{dtype}[3,70]")
    case("Where", f"{dtype}[3,70]", "bool[70]", f"{dtype}[3,70]", f"{dtype}[]")
    case("Where", f"{dtype}[3,70]", "bool[3,1]", f"{dtype}[70]", f"{dtype}[3,70]")


def test_logic() -> None:
    for op in ("And", "Or"):
        case(op, "bool[3,70]", "bool[3,70]", "bool[70]")
    case("Not", "bool[3,70]", "bool[3,70]")


TO = {"f16": 10, "f32": 1, "f64": 11, "i8": 3, "i32": 6, "i64": 7, "u8": 2, "u32": 12}


@pytest.mark.parametrize("source", NUMBERS)
def test_casts(source: str) -> None:
    for target, number in TO.items():
        if target != source:  # or it is a view
            case("Cast", f"{target}[3,70]", f"{source}[3,70]", attrs=f"{{to = {number}}}")


def test_moves() -> None:
    case("Transpose", "f32[7,5,3]", "f32[3,5,7]")
    case("Transpose", "i8[5,3,7]", "i8[3,5,7]", attrs="{perm = [1, 0, 2]}")
    case("Concat", "f32[3,9]", "f32[3,4]", "f32[3,5]", attrs="{axis = -1}")
    four = "%w0: i64[1] = [60], %w1: i64[1] = [-40], %w2: i64[1] = [1], %w3: i64[1] = [-20]"
    case("Slice", "f32[3,2]", "f32[3,70]", weights=four)
    case("Slice", "f32[3,69]", "f32[3,70]", weights="%w0: i64[1] = [1], %w1: i64[1] = [9999], %w2: i64[1] = [-1]")
    for axis, result in ((0, "f32[2,2,70]"), (1, "f32[3,2,2]"), (-1, "f32[3,2,2]")):
        graph = net("Gather", result, "f32[3,70]", "i64[2,2]", attrs=f"{{axis = {axis}}}")
        checked(graph, {"x0": content(TensorSpec(DType.F32, (3, 70)), 1), "x1": np.array([[0, -1], [2, -3]])})


@pytest.mark.parametrize("dtype", NUMBERS)
def test_reductions(dtype: str) -> None:
    ops = ("ReduceSum", "ReduceMean") if dtype in ("f32", "f64") else ("ReduceSum",)
    for op in ops:
        for shape, result, axis in (("[3,300,5]", "[3,1,5]", 1), ("[3,300]", "[3,1]", -1), ("[3,300]", "[1,300]", 0)):
            case(op, f"{dtype}{result}", f"{dtype}{shape}", weights=f"%w0: i64[1] = [{axis}]")
        case(op, f"{dtype}[]", f"{dtype}[3,300]", attrs="{keepdims = 0}")
        case(op, f"{dtype}[5]", f"{dtype}[3,300,5]", attrs="{keepdims = 0}", weights="%w0: i64[2] = [0, 1]")


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_products(dtype: str) -> None:
    shapes = [
        ("[5,70]", "[70,9]", "[5,9]"),
        ("[70]", "[70,9]", "[9]"),
        ("[5,70]", "[70]", "[5]"),
        ("[70]", "[70]", "[]"),
    ]
    shapes += [("[4,5,70]", "[70,9]", "[4,5,9]"), ("[4,5,70]", "[4,70,9]", "[4,5,9]"), ("[1,70]", "[70,1]", "[1,1]")]
    for a, b, result in shapes:
        rng = np.random.default_rng(0)
        graph = net("MatMul", f"{dtype}{result}", f"{dtype}{a}", f"{dtype}{b}")
        made = {v.name: (10 * rng.standard_normal(v.spec.shape)).astype(NUMPY[v.spec.dtype]) for v in graph.inputs}  # type: ignore[union-attr]
        checked(graph, made)


@pytest.mark.parametrize(
    "graph",
    [
        net("Div", "i32[4]", "i32[4]", "i32[4]"),
        net("Add", "bf16[4]", "bf16[4]", "bf16[4]"),
        net("Add", "f64[4]", "f32[4]", "f32[4]"),
        net("Add", "f32[5,4]", "f32[4]", "f32[4]"),
        net("Add", "f32[4]", "f32[4]", "f32[4]", attrs="{axis = 0, broadcast = 1}"),
        net("Transpose", "f32[3,5]", "f32[3,5]"),
        net("Slice", "f32[2]", "f32[4]", "i64[1]", "i64[1]"),
        net("Concat", "f32[8]", "f32[4]", "f32[3]", attrs="{axis = 0}"),
        net("ReduceSum", "f32[4]", "f32[4,4]", "i64[1]"),
        net("ReduceSum", "f32[1]", "f32[4]", attrs="{axes = [3]}"),
        net("Gather", "f32[2]", "f32[4]", "i32[2]"),
    ],
    ids=lambda graph: str(graph.nodes[0].op),
)
def test_what_it_leaves_to_others(graph: Graph) -> None:
    assert "numpy" not in compile(graph, backend=["numpy", "reference"]).nodes_of_backends


def test_an_index_out_of_range_is_an_error() -> None:
    executable = compile(net("Gather", "f32[2]", "f32[4]", "i64[2]"), backend="numpy")
    with pytest.raises(Exception, match=r"node y, onnx.Gather .*out of range for an axis of 4"):
        executable(x0=np.ones(4, np.float32), x1=np.array([0, 4]))


BIG = "[1024,1024]"
LARGE: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("Add", (f"f32{BIG}", "f32[1024]"), {}),
    ("Where", (f"bool{BIG}", f"f32{BIG}", "f32[]"), {}),
    ("Where", (f"bool{BIG}", "f32[]", f"f32{BIG}"), {}),
    ("Cast", (f"i32{BIG}",), {"attrs": "{to = 1}"}),
    ("Relu", (f"f32{BIG}",), {}),
    ("Transpose", (f"f32{BIG}",), {}),
    ("MatMul", (f"f32{BIG}", f"f32{BIG}"), {}),
]


@pytest.mark.parametrize(("op", "inputs", "how"), LARGE, ids=[entry[0] for entry in LARGE])
def test_nothing_large_is_allocated(op: str, inputs: tuple[str, ...], how: dict[str, Any]) -> None:
    executable = compile(net(op, f"f32{BIG}", *inputs, **how), backend="numpy")
    arrays = {name: content(value.spec, 1) for name, value in executable.inputs.items()}  # type: ignore[arg-type]
    executable.views(arrays)
    tracemalloc.start()
    try:
        executable.views(arrays)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400_000, "the output has 4 MiB"
