"""No kernel ends the process for want of an output; see `omitted_outputs`, which runs as a child."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime")

from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.kernels.backend import OnnxRuntime
from sublet.ir.graph import Node, Value
from tests.runtime.omitted_outputs import examples

schemas = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")

WHOLE_DECODERS = {("com.microsoft", name) for name in ("BeamSearch", "Sampling", "WhisperBeamSearch")}
"""Loops over networks that are attributes; a front-end that planned them would have to plan those."""


def test_every_operator_of_several_outputs_runs_without_some_of_them() -> None:
    """In the newest version, in every subset of up to three outputs; `make conformance` goes through all."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.runtime.omitted_outputs", "--few"], capture_output=True, text=True, timeout=300
    )
    lines = child.stdout.splitlines()
    assert [line for line in lines if line.startswith(("WRONG", "REFUSED"))] == []
    assert child.returncode == 0, (lines[-1:], child.stderr[-500:])
    assert sum(line.endswith("asked for") for line in lines) > 250


def test_every_operator_with_optional_outputs_is_among_them() -> None:
    kernels = schemas.get_all_opkernel_def()
    here = {(kernel.domain, kernel.op_name) for kernel in kernels if kernel.provider == "CPUExecutionProvider"}
    optional = {
        (schema.domain, schema.name)
        for schema in schemas.get_all_operator_schema()
        if any("Optional" in str(output.option) for output in schema.outputs)
    }
    assert (optional & here) - WHOLE_DECODERS <= {(example.domain, example.op) for example in examples()}


def test_a_node_without_such_an_output_is_left_to_other_backends() -> None:
    whole, half = (Value(name, TensorSpec(DType.F32, shape)) for name, shape in (("x", (2, 4)), ("y", (2, 2))))
    backend = OnnxRuntime({"": 11})
    split = Node("n", "onnx.Split", (whole,), (half, None), {"axis": 1})
    assert backend.kernel(split, {}) is None
    both = Node("m", "onnx.Split", (whole,), (half, Value("z", half.spec)), {"axis": 1})
    assert backend.kernel(both, {}) is not None
