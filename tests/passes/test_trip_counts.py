"""Declared maxima of rounds: what a loop stacks is planned, and gives the rows that were made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.api.model_files import bound_trip_counts, read_model
from sublet.base.errors import ModelError, RunError
from sublet.base.tensor import TensorSpec, Unplannable
from sublet.integrations.onnx.reader.model import from_proto
from sublet.plan import bound_storage_name
from sublet.planning.pipeline import plan_memory
from tests.integrations.onnx.models import parsed

MODEL = """g (int64 m, bool go, float[2] x) => (float[2] last, float[n,2] all{outputs}) {{
  last, all = Loop (m, go, x) <
    body = round (int64 i, bool on, float[2] state) => (bool on_next, float[2] state_next, float[2] row) {{
      row = Add(state, x)
      state_next = Neg(row)
      on_next = Identity(on)
    }}
  >
  {after}
}}"""
X = np.array([1.0, 2.0], np.float32)


def model(outputs: str = "", after: str = "") -> onnx.ModelProto:
    return parsed(MODEL.format(outputs=outputs, after=after))


def expected(rounds: int) -> np.ndarray[Any, Any]:
    rows, state = [], X
    for _ in range(rounds):
        rows.append(state + X)
        state = -rows[-1]
    return np.array(rows, np.float32).reshape(rounds, 2)


@pytest.mark.parametrize("backend", ["reference", "onnxruntime"])
def test_a_run_gives_the_rows_that_were_made(backend: str) -> None:
    pytest.importorskip(backend if backend != "reference" else "numpy")
    executable = compile(model(), max_trips=4, backend=backend)
    assert executable.plan.outside == ()
    for rounds in (0, 1, 4, 2):
        given = {"m": np.int64(rounds), "go": np.bool_(True), "x": X}
        np.testing.assert_array_equal(executable(given)["all"], expected(rounds))
        np.testing.assert_array_equal(executable.views(given)["all"], expected(rounds))


def test_a_run_beyond_the_maximum_ends_and_overwrites_nothing() -> None:
    executable = compile(model(), max_trips=3, backend="reference", options=Options(io="bound"))
    whole = np.full((8, 2), 77, np.float32)  # three rows, and what must not be touched
    storage = next(s for s in executable.plan.storages if s.name == bound_storage_name("all"))
    assert storage.nbytes == 24
    executable.bind("all", whole[:3])
    given = {"m": np.int64(4), "go": np.bool_(True), "x": X}
    with pytest.raises(RunError, match=r"runs more than the planned 3 iterations.*--max-trips"):
        executable(given)
    np.testing.assert_array_equal(whole[:3], expected(3))
    assert (whole[3:] == 77).all()
    np.testing.assert_array_equal(executable({**given, "m": np.int64(3)})["all"], expected(3))


def test_without_a_maximum_the_stacked_output_alone_is_outside() -> None:
    executable = compile(model(), backend="reference", optimize="none")
    assert [(o.value, o.reason) for o in executable.plan.outside] == [
        ("all", "the trip count of 'Loop_0' depends on data")
    ]
    found = executable({"m": np.int64(9), "go": np.bool_(True), "x": X})
    np.testing.assert_array_equal(found["all"], expected(9))


def test_rows_from_the_far_end(tmp_path: Path) -> None:
    text = """graph @far(%n: i64[], %x: f32[2]) {
      %f: f32[2], %all: f32[2,5] = while(%i: i64[]; %p: f32[2] = %x; ) @up body @body {
        %c: bool[] = onnx.Less(%i, %n)
        continue if %c
        %q: f32[2] = onnx.Add(%p, %x)
        next %q; %q axis 1 reversed
      }
      return %f, %all
    }"""
    path = tmp_path / "far.sublet"
    path.write_text(text)
    executable = compile(read_model(path), backend="reference")
    found = executable({"n": np.int64(3), "x": X})["all"]
    np.testing.assert_array_equal(found, np.stack([4 * X, 3 * X, 2 * X], axis=1))


def test_an_output_that_a_node_reads_stays_outside_and_says_why() -> None:
    imported = from_proto(model(", float total", "total = ReduceSum <keepdims = 0> (all)"))
    declared = bound_trip_counts(imported, 4)
    value = next(value for value in declared.graph.outputs if value.name == "all")
    assert isinstance(value.spec, Unplannable)
    assert "node 'ReduceSum_1' reads the output, and would see unwritten rows" in value.spec.reason
    assert [o.value for o in plan_memory(declared.graph).outside][:1] == ["all"]


@pytest.mark.parametrize("declared", [{"Loop_0": 4}, {"all": 4}, {"last": 4}, {"": 9, "all": 4}, 4])
def test_a_loop_is_named_by_itself_or_by_an_output(declared: int | Mapping[str, int]) -> None:
    found = bound_trip_counts(from_proto(model()), declared)
    spec = found.graph.outputs[1].spec
    assert isinstance(spec, TensorSpec)
    assert spec.shape == (4, 2)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"lop": 4}, "there is no loop 'lop' outside of branches and bodies; there are 'Loop_0'"),
        (-1, "must be an integer of at least 0, not -1"),
        ({"Loop_0": True}, "of loop 'Loop_0' must be an integer"),
    ],
)
def test_a_declaration_that_makes_no_sense(declared: int | Mapping[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        bound_trip_counts(from_proto(model()), declared)


def test_a_known_trip_count_needs_no_maximum() -> None:
    constants = "{\n m = Constant <value = int64 {2}> () go = Constant <value = bool {1}> ()\n"
    text = MODEL.format(outputs="", after="").replace("(int64 m, bool go, ", "(").replace("{\n", constants, 1)
    plain = from_proto(parsed(text))
    assert bound_trip_counts(plain, 9).graph == plain.graph
