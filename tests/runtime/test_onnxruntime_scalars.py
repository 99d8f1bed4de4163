"""Comparisons of single elements, computed in Python, give what ONNX Runtime gives; and only they are."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from sublet.api.compiling import compile
from sublet.integrations.onnx.kernels.backend import FUNCTIONS, OnnxRuntime
from tests.integrations.onnx.models import parsed
from tests.runtime.test_onnxruntime import of_its_own, one_node, same_bits

pytest.importorskip("onnxruntime")

LOGIC = ("And", "Or", "Xor")
VALUES: dict[str, list[Any]] = {
    "f4": [0.0, -0.0, 1.5, float("nan"), float("inf"), 16777216.0],
    "f8": [0.1, 0.2 + 0.1, 0.3, float("nan")],
    "i8": [0, -1, 2**63 - 1, -(2**63)],
    "i4": [0, -1, 2**31 - 1],
    "?": [False, True],
}


@pytest.mark.parametrize("op", FUNCTIONS)
def test_single_elements(op: str) -> None:
    types = ["?"] if op in (*LOGIC, "Not") else [kind for kind in VALUES if kind != "?"]
    for kind in types:
        names = ["a"] if op == "Not" else ["a", "b"]
        model = one_node(op, dict.fromkeys(names, (kind, ())))
        backend = OnnxRuntime({"": 21}, threads=1)
        executable = compile(model, backend=backend)
        for values in product(VALUES[kind], repeat=len(names)):
            feeds = {name: np.array(value, kind) for name, value in zip(names, values, strict=True)}
            assert same_bits(executable(feeds), of_its_own(model, feeds))
        assert not backend._sessions


@pytest.mark.parametrize(("kind", "shape"), [("f4", (1,)), ("f4", (3,)), ("f2", ()), ("u1", ())])
def test_others_go_to_a_session(kind: str, shape: tuple[int, ...]) -> None:
    model = one_node("Greater", {"a": (kind, shape), "b": (kind, shape)})
    backend = OnnxRuntime({"": 21}, threads=1)
    executable = compile(model, backend=[backend, "reference"])
    found = executable(a=np.full(shape, 3, kind), b=np.full(shape, 2, kind))
    assert found["y0"].all()
    assert found["y0"].shape == shape


def test_among_other_nodes_they_are_part_of_the_session() -> None:
    model = parsed(
        """g (float a, float b) => (bool y) {
          s = Sin(a) c = Less(s, b) d = Not(c) e = Greater(a, s) y = And(d, e)
        }"""
    )
    executable = compile(model, backend="onnxruntime")
    feeds = {"a": np.array(2, np.float32), "b": np.array(0.5, np.float32)}
    assert same_bits(executable(feeds), of_its_own(model, feeds))
    assert len(executable._program.calls) == 1
