"""A part of ONNX's own backend tests, run and run again in a poisoned arena; `make conformance` runs them all."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from typing import Any

import numpy as np
import onnx

from sublet.integrations.onnx.onnx_backend import run_model
from tests.conformance import EXPECTED, Report, names, run_case, same

SPECIAL = re.compile("if|loop|scan|sequence|optional|string|bfloat16|float8|int4|int2|linear_att|affine_grid|range_")
"""Control flow, values outside the plan, and types NumPy lacks: all of these run."""

SLOW = ("test_lppool_3d_default", "test_MaxPool2d_stride_padding_dilation", "test_MaxPool1d_stride_padding_dilation")
"""A third of the time of all: the reference implementation pools element by element."""

STRIDE = 6


def reports() -> dict[str, Report]:
    """Every special case, every other model that is not large, and every sixth of the other operators."""
    small = [(category, name) for category, name in names() if "Real" not in category]
    nodes = [(category, name) for category, name in small if "Node" in category and not SPECIAL.search(name)]
    skipped = {*SLOW, *(name for i, (_, name) in enumerate(nodes) if i % STRIDE)}
    return {name: run_case(category, name) for category, name in small if name not in skipped}


def test_every_case_passes_but_those_that_say_why_not() -> None:
    """Also in a poisoned arena of exactly the planned size; and values lie outside only for a reason."""
    every = reports()
    failed = {name: report.failure for name, report in every.items() if report.failure}
    assert {name: why for name, why in failed.items() if name not in EXPECTED} == {}
    passed = [report for report in every.values() if not report.failure]
    assert len(passed) > 550
    assert {report.name: report.poisoned for report in passed if report.poisoned} == {}
    control = [report for report in passed if report.control]
    assert len(control) >= 30
    planned = {report.name for report in control if not report.outside}
    assert {"test_if", "test_scan9_sum", "test_scan9_multi_state", "test_linear_attention_delta_expanded"} <= planned
    outside = [spec for report in every.values() for spec in report.outside.values()]
    assert outside
    assert [spec for spec in outside if not spec.reason] == []
    assert sum(not report.outside for report in every.values()) > 400


def test_a_case_that_cannot_be_compared_by_onnx_is_right() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = import_module("onnx.backend.test.case.node").collect_testcases("Loop")
    case: Any = next(case for case in found if case.name == "test_loop16_seq_none")
    inputs, expected = case.data_sets[0]
    results = run_model(case.model, [_array(x) for x in inputs], backend="reference")
    assert same(results[0], [_array(x) for x in expected[0]], content=True)


def _array(content: Any) -> Any:
    return onnx.numpy_helper.to_array(content) if isinstance(content, onnx.TensorProto) else content


def test_same_compares_to_the_bit() -> None:
    one = np.array([1.0, np.nan], np.float32)
    assert same([one, None], [one.copy(), None], content=True)
    assert not same(one, np.array([1.0, -np.nan], np.float32), content=True)
    assert not same(one, one.astype(np.float64), content=False)
    assert same(np.array(["a"], object), np.array(["a"], object), content=True)
