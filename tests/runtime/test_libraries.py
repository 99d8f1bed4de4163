"""What onnx, ONNX Runtime, NumPy and PyTorch raise reaches nobody bare: it becomes an error that says where."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import sublet
from sublet.base.errors import KernelError, ModelError, RunError
from sublet.integrations.onnx.reader.model import from_proto
from sublet.runtime.kernel import Array, Call, Operand
from tests.support.onnx.broken_models import broken
from tests.support.onnx.several_outputs import onnx_program

onnx = pytest.importorskip("onnx")
HEADER = '<ir_version: 10, opset_import: ["" : 17]>'


@pytest.mark.parametrize("first", range(0, 90, 30))
def test_broken_models_are_told_or_run(first: int) -> None:
    told = 0
    for seed in range(first, first + 30):
        rng = random.Random(seed)
        program = onnx_program(rng.randrange(100_000))
        backend = rng.choice(["auto", "reference", ["numpy", "reference"]])
        optimize = rng.choice(["none", "onnxruntime"]) if backend == "auto" else "none"
        try:
            sublet.compile(broken(rng, program.model), backend=backend, optimize=optimize)(program.feeds)
        except sublet.SubletError:
            told += 1
    assert told > 8


def test_an_operand_that_is_missing_in_a_branch() -> None:
    model = onnx.parser.parse_model(f"""{HEADER} g (bool c, float[2] x) => (y) {{
        y = If (c) <then_branch = t () => (a) {{ a = Identity (x) }}, else_branch = e () => (b) {{ b = Identity (x) }}>
    }}""")
    model.graph.node[0].attribute[0].g.node[0].input[0] = ""
    with pytest.raises(ModelError, match="Identity"):
        from_proto(model)


def test_versions_that_are_none() -> None:
    model = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (y) {{ y = Relu (x) }}")
    model.opset_import.add(domain="ai.onnx.ml", version=1 << 40)
    with pytest.raises(ModelError, match=r"'ai\.onnx\.ml' has no version 1099511627776"):
        from_proto(model)


def test_a_weight_of_no_type_that_numpy_has() -> None:
    model = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (y) <float[2] w = {{1, 2}}> {{ y = Add (x, w) }}")
    model.graph.initializer[0].data_type = 99
    with pytest.raises(sublet.SubletError):
        sublet.compile(model)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_an_attribute_that_is_not_what_the_operator_declares(backend: str) -> None:
    model = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (y) {{ y = LeakyRelu <alpha = 0.5> (x) }}")
    graph = from_proto(model).graph
    graph = replace(graph, nodes=(replace(graph.nodes[0], attrs={"alpha": b"\xff"}),))
    with pytest.raises(RunError, match="LeakyRelu"):
        sublet.compile(graph, backend=backend)(x=np.ones(2, np.float32))


def test_a_tensor_with_a_gradient_is_read_and_what_is_no_array_is_refused() -> None:
    torch = pytest.importorskip("torch")
    model = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (y) {{ y = Relu (x) }}")
    executable = sublet.compile(model)
    assert executable(x=torch.ones(2, requires_grad=True))["y"].tolist() == [1.0, 1.0]
    with pytest.raises(RunError, match="input x"):
        executable(x=[[1.0], [2.0, 3.0]])
    assert executable(x=[1.0, -1.0])["y"].tolist() == [1.0, 0.0]


@dataclass(frozen=True)
class Failing:
    """A backend whose library raises where `at` says."""

    at: str
    name: str = "failing"
    scratch: int = 0

    def kernel(self, node: Any, constants: Any) -> Any:
        return self if self.at != "kernel" else {}["no such kernel"]

    def bind(self, inputs: Sequence[Operand | None], outputs: Sequence[Operand | None], scratch: Array | None) -> Call:
        if self.at == "bind":
            raise OSError("no such library")
        return self if self.at == "merge_following" else lambda: 1 // 0

    def merge_following(self, following: Sequence[Call]) -> tuple[Call, int]:
        raise ArithmeticError("too many")

    def __call__(self) -> None:
        """Never gets there."""


@pytest.mark.parametrize(
    ("at", "error", "what"),
    [
        ("kernel", RunError, "node Relu_0, onnx.Relu: the backend failing failed to choose a kernel: KeyError"),
        ("bind", KernelError, "node Relu_0, onnx.Relu: cannot be bound by failing: OSError: no such library"),
        (
            "merge_following",
            KernelError,
            "node Relu_0, onnx.Relu, and the nodes after it cannot be merged into one call: ArithmeticError",
        ),
        ("run", KernelError, "node Relu_0, onnx.Relu: ZeroDivisionError"),
    ],
)
def test_a_backend_that_raises(at: str, error: type[Exception], what: str) -> None:
    model = onnx.parser.parse_model(f"{HEADER} g (float[2] x) => (y) {{ y = Relu (x) }}")
    with pytest.raises(error, match=what):
        sublet.compile(model, backend=Failing(at))(x=np.ones(2, np.float32))


OUTSIDE = f"""{HEADER} g (float[3] x, bool[3] keep, int64 n) => (y, z) {{
    r = Compress <axis = 0> (x, keep)
    b = Cast <to = 16> (r)
    y = Cast <to = 1> (b)
    z = Loop (n, "") <body = body (int64 i, bool go) => (bool go, row) {{ row = Less (r, r) }}>
}}"""
"""Values outside the plan: of a type that ONNX Runtime hands out to nobody, and rows of which there may be none."""


@pytest.mark.parametrize("rounds", [0, 2])
def test_values_outside_the_plan_keep_their_types(rounds: int) -> None:
    model = onnx.parser.parse_model(OUTSIDE)
    feeds = {"x": np.array([1, 2, 3], np.float32), "keep": np.array([True, False, True]), "n": np.array(rounds)}
    found = sublet.compile(model, optimize="none")(feeds)
    assert found["y"].tolist() == [1, 3]
    assert (found["z"].dtype, found["z"].shape) == (np.bool_, (rounds, 2 if rounds else 0))
