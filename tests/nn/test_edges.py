"""What no example shows, for all commands at once: wrong specs and attributes, other types, extents of 0 and 1, one
value at several inputs, and a PyTorch that was set up otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest

from sublet import parse
from sublet.base.errors import GraphError, SpecError, SubletError, TextError
from sublet.base.optional_imports import is_installed, require
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.torch.kernels.backend import TorchBackend
from sublet.ir.graph import Graph, Node, Value
from sublet.ops.emitter import Emitter
from sublet.ops.nn import COMMANDS
from sublet.ops.nn.command import Command, Required
from sublet.ops.verify import verify
from sublet.passes.autodiff import backward, is_differentiable
from tests.nn.against import agrees
from tests.nn.examples import EXAMPLES, FORM, Case, Example, case_of, spec_of_text, told
from tests.nn.test_registry import BACKENDS, agree_and_survive, close, computed, differentiated

NAMES = list(COMMANDS)
NUMBERS = (0, 1, 2, 3, -1, -2, 7, 1 << 31, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 70, 0.0, 0.5, -1.5, 1e300)
TEXTS = ("", "f32", "bool", "nhwc", "bilinear", "x", b"x", None, float("nan"), float("inf"), ((1,),), ("a",), (0.5,))
TUPLES = ((), (0,), (1,), (-1,), (2, 3), (0, 1), (1, 2, 3), (1, 1, 1, 1), (0, 1, 2, 3), (1 << 62, 1 << 62), [1, 2])
STEPS = (
    ("relu x0",),
    ("add x0 x1",),
    ("add x0 s0",),
    ("clamp x0 low=1",),
    ("x\N{SUPERSCRIPT TWO}",),
    ("neg x" + "9" * 5000,),
)
ODD = (*NUMBERS, *TEXTS, *TUPLES, *STEPS)
SHAPES = ((), (0,), (1,), (3,), (2, 3), (1, 1), (0, 3), (2, 3, 4), (2, 4, 5, 6), (1 << 40, 0), (1 << 54,), (2, 8))


def odd_uses(record: Command, random: Random, count: int) -> Iterator[tuple[list[TensorSpec | None], dict[str, Any]]]:
    """Specs and attributes that are mostly wrong: those of an example with some replaced, and some out of the blue."""
    most = min(record.inputs[1], max(9, record.inputs[0]))
    for _ in range(count):
        example = random.choice(EXAMPLES[record.name])
        specs = [None if text == "_" else spec_of_text(text) for text in example.inputs]
        if random.random() < 0.3:
            specs = [_spec(random) for _ in range(random.randint(record.inputs[0], most))]
        complete = record.complete_attributes(example.attrs)
        yield (
            [_spec(random) if random.random() < 0.15 else spec for spec in specs],
            {key: random.choice(ODD) if random.random() < 0.3 else complete[key] for key in complete},
        )


def _spec(random: Random) -> TensorSpec | None:
    dtype = random.choice([DType.F32, DType.F64, DType.I64, *DType])
    spec = None
    while spec is None and random.random() < 0.9:
        try:
            spec = TensorSpec(dtype, random.choice(SHAPES))
        except SubletError:  # too large for this type
            dtype = DType.U8
    return spec


@pytest.mark.parametrize("name", NAMES)
def test_whatever_it_is_given_it_takes_or_refuses_with_an_error_that_says_so(name: str) -> None:
    record = COMMANDS[name]
    for specs, attrs in odd_uses(record, Random(name), 150):
        try:
            found = record.op.infer(specs, attrs) if record.op.infer else ()
        except SpecError:
            continue
        assert record.outputs[0] <= len(found) <= record.outputs[1]


@pytest.mark.parametrize(
    "call",
    [
        'nn.fill() {shape = [9000000000000000000, 9000000000000000000], dtype = "f32", value = 1.0}',
        'nn.fill() {shape = [2, 3], dtype = "f32", value = [1]}',
        "nn.tile(%x) {repeats = [4611686018427387904, 4611686018427387904]}",
        "nn.tile(%x) {repeats = 2}",
        'nn.transpose(%x) {axes = ["a", 1]}',
        "nn.softmax(%x) {axis = 0.5}",
        "nn.softmax(%x) {axis = 99999999999999999999}",
        "nn.sum(%x) {axes = [0], keepdims = 2}",
        "nn.relu(%x) {slope = 1.0}",
        "nn.conv(%x, %x) {}",
    ],
)
def test_the_text_form_of_nonsense_has_findings(call: str) -> None:
    text = "graph @g(%x: f32[2,3]) {\n  %y: f32[2,3] = " + call + "\n  return %y\n}\n"
    with pytest.raises((GraphError, TextError), match=r"nn\.|<text>:2"):
        verify(parse(text))


SINGLES = {
    name: [example for example in EXAMPLES[name] if any(text.startswith("f32") for text in example.inputs)]
    for name in NAMES
    if name != "cast"
}
RATE = 2
"""The input of optimisers that is f32 whatever the weights are."""


def retyped(record: Command, example: Example, dtype: str) -> Case | None:
    """The example with f32 inputs of another type; None where the command does not take them."""
    keeps = {RATE} if record.name in ("sgd", "adam", "adamw", "lamb", "rmsprop") else set()
    inputs = [text if i in keeps else text.replace("f32[", f"{dtype}[") for i, text in enumerate(example.inputs)]
    try:
        return case_of(record, Example(tuple(inputs), example.attrs))
    except SpecError:
        return None


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", [name for name, examples in SINGLES.items() if examples])
def test_halves_are_what_f32_gives_rounded(name: str, dtype: str) -> None:
    for example in SINGLES[name]:
        with told(example):
            halves_are_rounded(COMMANDS[name], example, dtype)


def halves_are_rounded(record: Command, example: Example, dtype: str) -> None:
    case = retyped(record, example, dtype)
    assert case is not None, "every command for f32 is one for halves"
    single = case_of(record, example)
    given = {name: case.arrays[name].astype(array.dtype) for name, array in single.arrays.items()}
    exact = computed(single.graph, given)
    for backend in BACKENDS:
        if backend.kernel(case.graph.nodes[0], {}) is None:
            continue
        agree_and_survive(record, case, backend)
        found = computed(case.graph, {name: array.copy() for name, array in case.arrays.items()}, backend)
        for output, wide in zip(case.graph.outputs, single.graph.outputs, strict=True):
            close(found[output.name], exact[wide.name].astype(found[output.name].dtype), output)


INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")


@pytest.mark.parametrize("name", NAMES)
def test_integers_and_bools_are_computed_alike_where_they_are_taken(name: str) -> None:
    record = COMMANDS[name]
    for example in EXAMPLES[record.name]:
        for dtype in INTEGERS:
            domain = "" if dtype == "bool" else " 1:4"
            inputs = [re.sub(r"^[fiu]\d+(\[[\d,]*\]).*", rf"{dtype}\1{domain}", text) for text in example.inputs]
            attrs = {**example.attrs, **({"dtype": dtype} if "dtype" in example.attrs else {})}
            try:
                case = case_of(record, Example(tuple(inputs), attrs))
            except SpecError:
                continue
            with suppress(IndexError):  # indices were retyped too
                for backend in BACKENDS:
                    if backend.kernel(case.graph.nodes[0], {}) is not None:
                        agree_and_survive(record, case, backend)


def _resized(example: Example, extents: tuple[int, ...], new: int) -> Example:
    """The example with these extents replaced, and its indices so that they are inside of whatever is left."""

    def text_of(text: str) -> str:
        match = FORM.fullmatch(text)
        if match is None:
            return text
        shape = ",".join(str(new if int(n) in extents else int(n)) for n in match["shape"].split(",") if n)
        range_ = match["range"] or ""
        if match["dtype"].startswith("i") and match["low"] in ("0", "-1"):
            range_ = " 0:1"
        return f"{match['dtype']}[{shape}]{range_}"

    def attr_of(value: Any) -> Any:
        return tuple(new if n in extents else n for n in value)

    named = {key: attr_of(value) for key, value in example.attrs.items() if key in ("shape", "sizes", "size", "ends")}
    return Example(tuple(map(text_of, example.inputs)), {**example.attrs, **named})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("new", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_extents_of_none_and_one(name: str, new: int) -> None:
    """Kernels agree, and gradients have the specs they should have."""
    record = COMMANDS[name]
    for example in EXAMPLES[record.name]:
        shapes = [spec_of_text(text).shape for text in example.inputs if text != "_"]
        extents = tuple(dict.fromkeys(extent for shape in shapes for extent in shape))
        for some in (*((extent,) for extent in extents), extents):
            try:
                case = case_of(record, _resized(example, some, new))
                first = computed(case.graph, {key: array.copy() for key, array in case.arrays.items()})
            except (SpecError, IndexError):  # no index is inside of nothing
                continue
            assert set(first) >= {value.name for value in case.graph.outputs}
            for backend in BACKENDS:
                if backend.kernel(case.graph.nodes[0], {}) is not None:
                    agree_and_survive(record, case, backend)
            if record.gradient is not None and any(map(is_differentiable, case.graph.inputs)):
                graph, arrays, wrt, grads = differentiated(case)
                assert [value.spec for value in wrt] == [grad.spec for grad in grads]
                with suppress(IndexError):
                    computed(graph, arrays, BACKENDS[-1])


@pytest.mark.parametrize("name", NAMES)
def test_one_value_at_two_inputs_survives_in_place(name: str) -> None:
    record = COMMANDS[name]
    squares = [
        Example(tuple(re.sub(r"\[[\d,]*\]", f"[{shape}]", text) for text in example.inputs), example.attrs)
        for example in EXAMPLES[record.name]
        for shape in ("3", "4,4", "1,4", "1,1,1")
    ]
    for example in (*EXAMPLES[record.name], *squares):
        try:
            case = case_of(record, example)
            computed(case.graph, {key: array.copy() for key, array in case.arrays.items()})
        except (SpecError, IndexError):
            continue
        (node,) = case.graph.nodes
        for i, j in combinations(range(len(node.inputs)), 2):
            same, other = node.inputs[i], node.inputs[j]
            if same is None or other is None or same.spec != other.spec or not is_differentiable(same):
                continue
            inputs = tuple(same if k == j else value for k, value in enumerate(node.inputs))
            twice = Node(node.name, node.op, inputs, node.outputs, node.attrs)
            given = tuple(value for value in case.graph.inputs if value in inputs)
            graph = Graph("twice", given, (twice,), case.graph.outputs, case.graph.weights)
            arrays = {value.name: case.arrays[value.name] for value in given}
            arrays[same.name] = np.abs(arrays[same.name]) % 1
            for backend in BACKENDS:
                if backend.kernel(twice, {}) is not None:
                    agree_and_survive(record, Case(graph, arrays), backend)


@pytest.mark.skipif(not is_installed("torch"), reason="needs PyTorch")
@pytest.mark.parametrize("name", NAMES)
def test_kernels_do_not_depend_on_how_pytorch_is_set(name: str) -> None:
    torch, record = require("torch", extra="torch"), COMMANDS[name]
    case = case_of(record, EXAMPLES[record.name][-1])
    if TorchBackend().kernel(case.graph.nodes[0], {}) is None:
        pytest.skip("the reference computes it")
    expected = computed(case.graph, {key: array.copy() for key, array in case.arrays.items()}, TorchBackend())
    before = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    torch.set_default_dtype(torch.float16)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.device("meta"), torch.autocast("cpu", dtype=torch.bfloat16), torch.enable_grad():
            found = computed(case.graph, {key: array.copy() for key, array in case.arrays.items()}, TorchBackend())
    finally:
        torch.set_default_dtype(before[0])
        torch.use_deterministic_algorithms(before[1])
    for value in case.graph.outputs:
        np.testing.assert_array_equal(found[value.name], expected[value.name])


def test_required_attributes_have_a_kind() -> None:
    for record in COMMANDS.values():
        for value in record.attrs.values():
            assert isinstance(value, Required | int | float | str | tuple)


@pytest.mark.skipif(not is_installed("torch"), reason="needs PyTorch")
@pytest.mark.parametrize(
    ("name", "inputs", "attrs", "function"),
    [
        ("pow", ("f64[3] 0:0", "f64[3] 0:0"), {}, "pow"),
        ("pow", ("f64[3] 0:0", "f64[3] 1:3"), {}, "pow"),
        ("pow", ("f64[3] 1:2", "f64[3] 0:0"), {}, "pow"),
        ("norm", ("f64[3] 0:0",), {}, "norm"),
        ("prod", ("f64[3] 0:0",), {}, "prod"),
        ("abs", ("f64[3] 0:0",), {}, "abs"),
        ("relu", ("f64[3] 0:0",), {}, "relu"),
        ("sum_to", ("f64[2,3]",), {"shape": (2, 3)}, "clone"),
    ],
)
def test_gradients_at_zero_are_pytorchs(
    name: str, inputs: tuple[str, ...], attrs: dict[str, Any], function: str
) -> None:
    agrees(name, inputs, attrs, getattr(require("torch", extra="torch"), function))


def test_the_gradient_of_a_power_by_a_literal_is_one_power() -> None:
    exponent = Value("two", TensorSpec(DType.F64), (2.0,))
    x = Value("x", TensorSpec(DType.F64, (3,)))
    emit = Emitter.from_graph(Graph("power", (x,), (), (), (exponent,)))
    y = emit("nn.pow", x, exponent)
    seed = Value("seed", y.spec)
    backward(emit, tuple(emit.nodes), {y: seed}, [x])
    assert [node.op for node in emit.nodes] == ["nn.pow", "nn.mul", "nn.mul"]
