"""A plan is pure data: who loads and runs one needs nothing of what planned it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import sublet
from sublet.base.errors import PlanError, PlanViolation
from sublet.plan import OPEN, MemoryPlan
from tests.integrations.onnx.models import parsed
from tests.runtime.loop_models import BRANCH_IN_LOOP, CARRIED, SCAN
from tests.support.plans import told_anew

SWAP = """
graph @swap(%a: f32[16], %b: f32[16]) {
  weights %limit: i64[] = [5]
  %x: f32[16], %y: f32[16] = while(%i: i64[]; %p: f32[16] = %a, %q: f32[16] = %b; ) @loop body @body {
    %go: bool[] = nn.less(%i, %limit)
    continue if %go
    next %q, %p;
  }
  return %x, %y
}
"""

BRANCH = """
graph @branch(%a: f32[16], %b: f32[16]) {
  weights %limit: i64[] = [8], %early: i64[] = [3]
  %x: f32[16], %y: f32[16] = while(%i: i64[]; %p: f32[16] = %a, %q: f32[16] = %b; ) @loop body @body {
    %go: bool[] = nn.less(%i, %limit)
    continue if %go
    %first: bool[] = nn.less(%i, %early)
    %s: f32[16], %t: f32[16] = case %first @which {
      arm @late {
        yield %p, %q
      }
      arm @soon {
        yield %q, %p
      }
    }
    next %s, %t;
  }
  return %x, %y
}
"""

ROWS = """
graph @rows(%h0: f32[16], %xs: f32[9,16]) {
  weights %limit: i64[] = [9]
  %h: f32[16], %ys: f32[9,16] = while(%i: i64[]; %p: f32[16] = %h0; %x: f32[16] in %xs axis 0) @loop body @body {
    %go: bool[] = nn.less(%i, %limit)
    continue if %go
    %y: f32[16] = nn.add(%p, %x)
    next %y; %y axis 0
  }
  return %h, %ys
}
"""
"""Slices are read, and rows written, where they lie; the parameter stands for the row of the round before."""

FRONT = """
g (float[1,2,8,8] x) => (float[1,3,8,8] y) <float[3,2,3,3] w = {WEIGHTS}> {
  [conv] a = Conv<pads = [1, 1, 1, 1]>(x, w)
  [relu] y = Relu(a)
}"""

MODELS = {
    "a swap": CARRIED["swap"].model(),
    "a branch": parsed(BRANCH_IN_LOOP),
    "slices and rows": parsed(SCAN),
    "patches": parsed(FRONT.replace("WEIGHTS", ", ".join(["0.5"] * 54))),
}
TEXTS = {"swap": SWAP, "branch": BRANCH, "rows": ROWS}

RUN = """
import json, sys
import numpy as np
import sublet

for model, plan, feeds, results in json.loads(sys.argv[1]):
    with np.load(feeds) as given:
        outputs = sublet.with_plan(model, sublet.load(plan), backend="reference")(dict(given))
    np.savez(results, **outputs)
print(*(name for name in sys.modules if name.startswith("sublet.")))
"""

PLANNERS = ("analysis", "planning", "packing")


def saved(folder: Path) -> list[Path]:
    """The programs as files."""
    for name, text in TEXTS.items():
        (folder / f"{name}.sublet").write_text(text)
    for name, model in MODELS.items():
        onnx.save(model, folder / f"{name}.onnx")
    return sorted(folder.iterdir())


def feeds_of(executable: sublet.Executable) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        name: np.array(6) if not value.spec.shape else rng.standard_normal(value.spec.shape, np.float32)
        for name, value in executable.inputs.items()
        if isinstance(value.spec, sublet.TensorSpec)
    }


def test_who_runs_a_plan_loads_no_planner(tmp_path: Path) -> None:
    jobs, expected = [], []
    for model in saved(tmp_path):
        patches = "2x2@relu" if model.stem == "patches" else None
        options = sublet.Options(in_place_from=0)
        planned = sublet.compile(model, backend="reference", options=options, patches=patches)
        feeds = feeds_of(planned)
        expected.append(planned(feeds))
        sublet.save(planned.plan, model.with_suffix(".plan"))
        np.savez(model.with_suffix(".feeds.npz"), **feeds)
        paths = (model.with_suffix(suffix) for suffix in (".plan", ".feeds.npz", ".results.npz"))
        jobs.append([str(model), *map(str, paths)])
    told = subprocess.run([sys.executable, "-c", RUN, json.dumps(jobs)], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    loaded = told.stdout.split()
    assert "sublet.runtime.program" in loaded
    assert [name for name in loaded if name.split(".")[1] in PLANNERS] == []
    for (*_, results), outputs in zip(jobs, expected, strict=True):
        with np.load(results) as found:
            assert {name: found[name].tolist() for name in found} == {n: out.tolist() for n, out in outputs.items()}


def test_the_programs_are_those_that_are_meant() -> None:
    """Pointers, jumps, and slices and rows that lie in their wholes."""
    swap, branch, rows = (
        sublet.plan_memory(sublet.parse(text), sublet.Options(in_place_from=0)) for text in TEXTS.values()
    )
    assert begins(swap) == [["a", "b"], ["b", "a"]]
    assert begins(branch) == [["a", "b"], ["b", "a"]]
    assert branch.rolled[0].jumps
    assert begins(rows) == [["h0"], ["y"]]
    assert {place.how for place in rows.placements if place.strides} == {"slice", "row"}


def begins(plan: MemoryPlan) -> list[list[str]]:
    """What the pointers of the loop stand for when each copy of its body begins."""
    [record] = plan.rolled
    return [[plan.placements[number].value for number in heads] for heads in record.heads]


def test_a_plan_in_which_only_the_run_knows_where_pointers_stand(tmp_path: Path) -> None:
    """It claims less, and runs all the same."""
    path = tmp_path / "branch.sublet"
    path.write_text(BRANCH)
    planned = sublet.compile(path, backend="reference", options=sublet.Options(in_place_from=0))
    feeds = feeds_of(planned)
    [record] = planned.plan.rolled
    open_ = replace(record, heads=tuple((OPEN,) * len(heads) for heads in record.heads))
    left_open = replace(planned.plan, rolled=(open_,))
    found = sublet.with_plan(path, left_open, backend="reference")(feeds)
    for name, expected in planned(feeds).items():
        assert np.array_equal(found[name], expected)
    assert np.array_equal(found["x"], feeds["b"]), "three swaps"


def test_a_plan_that_unrolls_a_loop_in_another_way() -> None:
    """Twice as many copies as planning makes: they are right, and so they run."""
    graph = sublet.parse(SWAP)
    planned = sublet.compile(graph, backend="reference", options=sublet.Options(in_place_from=0))
    [record] = planned.plan.rolled
    assert (record.first, record.ring) == (0, 2)
    twice = replace(record, ring=4, heads=record.heads * 2)
    placements = tuple(
        replace(place, copies=(*place.copies, *(((loop, copy + 2),) for ((loop, copy),) in place.copies)))
        for place in planned.plan.placements
    )
    other = told_anew(graph, replace(planned.plan, rolled=(twice,), placements=placements))
    assert len(other.points) > len(planned.plan.points)
    feeds = feeds_of(planned)
    found = sublet.with_plan(graph, other, backend="reference")(feeds)
    assert {name: out.tolist() for name, out in found.items()} == {n: out.tolist() for n, out in planned(feeds).items()}
    crossed = replace(twice, heads=(*record.heads, *record.heads[::-1]))
    with pytest.raises(PlanViolation, match="false-heads"):
        sublet.with_plan(graph, replace(other, rolled=(crossed,)), backend="reference")


def test_points_that_the_program_does_not_have() -> None:
    """Whoever makes an executable by hand, with nothing proven, is told what does not fit."""
    planned = sublet.compile(sublet.parse(SWAP), backend="reference")
    first, second, *others = planned.plan.points
    changed = replace(planned.plan, points=(second, first, *others))
    executable = sublet.Executable(planned.graph, changed, lambda constants: {}, {})
    with pytest.raises(PlanError, match="does not list start"):
        executable.prepare()
