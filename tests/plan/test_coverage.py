"""What lies outside of a plan: no surface claims more than was proven, and verdicts are those of brute force."""

from __future__ import annotations

import json
import random
import re
from io import StringIO
from itertools import product
from math import prod
from pathlib import Path

import pytest
from matplotlib.text import Text
from rich.console import Console

from sublet.analysis.options import Options
from sublet.base.errors import PlanError
from sublet.checker import check
from sublet.ir.text import parse
from sublet.plan import MemoryPlan
from sublet.plan.file import from_json, to_json
from sublet.plan.verdict import BudgetOutcome, verdict
from sublet.planning.pipeline import plan_memory
from sublet.viz.page import render_page
from sublet.viz.png import _build_figure, write_png
from sublet.viz.report import plan_json
from sublet.viz.summary import render_summary, render_verdict
from sublet.viz.terminal import memory_map
from sublet.viz.view_model import picture_of_plan
from tests.support.command_line import Cli

PROOF = re.compile(r"optimal|smaller|gap [0-9<]|gap\": [0-9]|0 %|^Fits|fits\": true|arena = lower", re.MULTILINE)
"""Words that claim something of the whole network."""

TEXT = """
graph @net(%x: f32[64]) {
  %a: f32[64] = onnx.MatMul(%x, %x)
  %n: outside("i64[1,?]", "its shape depends on data") = onnx.NonZero(%a)
  %s: outside("?", "no shape rule") = onnx.Foo(%n)
  %b: f32[64] = onnx.MatMul(%a, %a)
  return %b, %s
}
"""


def planned(text: str = TEXT, **options: object) -> MemoryPlan:
    return plan_memory(parse(text), Options(**options))  # type: ignore[arg-type]


def printed(what: object) -> str:
    console = Console(width=300, file=StringIO(), record=True)
    console.print(what)
    return console.export_text()


def surfaces(plan: MemoryPlan, budget: int | None) -> dict[str, str]:
    """All that is said of a plan, by where."""
    picture = picture_of_plan(plan)
    decision = None if budget is None else verdict(plan, budget)
    return {
        "terminal": printed(render_summary(plan)),
        "verdict": printed(render_verdict(decision, plan)) if decision else "",
        "map": printed(memory_map(picture, 200)),
        "json": json.dumps(plan_json(plan, None, decision)),
        "png": "\n".join(text.get_text() for text in _build_figure(picture).findobj(Text)),
    }


@pytest.mark.parametrize("budget", [None, 1, 300, 512, 1 << 40])
@pytest.mark.parametrize("io", ["arena", "bound"])
def test_no_surface_proves_anything_of_a_plan_that_does_not_count_everything(budget: int | None, io: str) -> None:
    plan = planned(io=io)
    assert plan.gap is None
    for surface, text in surfaces(plan, budget).items():
        assert not PROOF.search(text), (surface, PROOF.search(text), text)
    for surface in ("terminal", "map", "png"):
        assert "outside" in surfaces(plan, budget)[surface], surface
    assert "tensors planned; " in surfaces(plan, budget)["png"]
    assert "no packing is smaller" not in picture_of_plan(plan).proof_words
    whole = planned(
        TEXT.replace('outside("i64[1,?]", "its shape depends on data")', "i64[1,64]").replace(
            '%s: outside("?", "no shape rule")', "%s: f32[4]"
        )
    )
    said = surfaces(whole, 1 << 40)
    assert all(PROOF.search(said[surface]) for surface in said), "the words are looked for where they are used"


def test_json_and_plan_file_hold_what_is_known_of_values_outside() -> None:
    plan = planned()
    told = {value["name"]: value for value in plan_json(plan, None, verdict(plan, 1 << 20, 64))["outside"]}
    assert (told["n"]["dtype"], told["n"]["dims"], told["n"]["most_bytes"]) == ("i64", [1, None], 64 * 8)
    assert (told["s"]["dtype"], told["s"]["dims"], told["s"]["most_bytes"]) == (None, None, None)
    assert from_json(to_json(plan)) == plan


def test_what_is_the_callers_is_not_counted_against_a_budget() -> None:
    """A string that is a weight, or an input outside, has memory of its own like any weight or input that is bound."""
    text = """
    graph @net(%x: f32[4], %k: outside("str[2]", "strings have no fixed size")) {
      %y: f32[4] = onnx.Foo(%x, %k)
      return %y
    }
    """
    assert verdict(planned(text, io="arena"), 1 << 20).fits is None
    bound = planned(text, io="bound")
    assert (bound.not_counted, bound.gap, verdict(bound, 1 << 20).fits) == ((), 0.0, True)
    assert [storage.name for storage in bound.storages] == ["arena", "%y", "%x"]


def test_claims_about_values_outside_are_checked() -> None:
    plan = planned()
    raw = json.loads(to_json(plan))
    for change in ({"dims": [1, 4]}, {"dims": []}, {"dtype": "u8"}, {"type": "u8[1]"}, {"bound": True}):
        forged = {**raw, "outside": [{**raw["outside"][0], **change}, *raw["outside"][1:]]}
        found = check(parse(TEXT), plan.schedule, from_json(json.dumps(forged)))
        assert [finding.rule for finding in found] == ["outside-untold"], change
    twice = {**raw, "outside": [*raw["outside"], raw["outside"][0]]}
    assert check(parse(TEXT), plan.schedule, from_json(json.dumps(twice)))
    with pytest.raises(PlanError, match="no value outside the plan has the name 'b'; known: 'n', 's'"):
        verdict(plan, 1, {"b": 4})
    with pytest.raises(PlanError, match="must be an integer from 0"):
        verdict(plan, 1, -4)


TYPES = (
    "?",
    "f32[...]",
    "f32[?,3]",
    "i64[2,?]",
    "u4[?,?]",
    "f16[2,3]",
    "bool[?]",
    "str[2]",
    "seq(tensor(float))",
    "u4[3]",
)
BITS = {"f32": 32, "i64": 64, "u4": 4, "f16": 16, "bool": 8}


def contents(type: str, largest: int | None) -> list[int] | None:
    """The bytes of every content that a type allows with open extents up to `largest`; None when they are endless."""
    dtype, _, rest = type.partition("[")
    dims = rest.removesuffix("]").split(",")
    if dtype not in BITS or "..." in rest or ("?" in dims and largest is None):
        return None
    choices = [range(largest + 1) if dim == "?" and largest is not None else [int(dim)] for dim in dims]
    return [-(-prod(shape) * BITS[dtype] // 8) for shape in product(*choices)]


@pytest.mark.parametrize("seed", range(40))
def test_verdicts_are_those_of_brute_force(seed: int) -> None:
    """Whatever values outside hold, a plan that fits does, and one that does not never does; the rest is not known."""
    rng = random.Random(seed)
    types = [rng.choice(TYPES) for _ in range(rng.randrange(4))]
    lines = [f'  %o{i}: outside("{type}", "a test") = onnx.Foo(%x)' for i, type in enumerate(types)]
    rng.shuffle(lines)
    body = "\n".join(["  %a: f32[9] = onnx.MatMul(%x, %x)", *lines, "  %b: f32[5] = onnx.MatMul(%a, %x)"])
    outputs = ", ".join(["%b", *(f"%o{i}" for i in range(len(types)))])
    plan = planned(
        f"graph @net(%x: f32[7]) {{\n{body}\n  return {outputs}\n}}\n", strategy=rng.choice(["auto", "no_reuse"])
    )
    default = rng.choice([None, 0, 1, 3])
    largest = {f"o{i}": rng.randrange(4) for i in range(len(types)) if rng.random() < 0.3}
    given = {**largest, **({"": default} if default is not None else {})}
    possible = [contents(type, given.get(f"o{i}", default)) for i, type in enumerate(types)]
    bounded = [sizes for sizes in possible if sizes is not None]
    totals = [plan.arena_bytes + sum(sizes) for sizes in product(*bounded)]
    for budget in sorted(
        {0, plan.lower_bound_bytes - 1, plan.lower_bound_bytes, plan.arena_bytes, *totals, max(totals) - 1}
    ):
        if plan.arena_bytes > budget:
            expected = BudgetOutcome.DOES_NOT_FIT
        else:
            expected = (
                BudgetOutcome.FITS if len(bounded) == len(types) and max(totals) <= budget else BudgetOutcome.UNKNOWN
            )
        found = verdict(plan, budget, given)
        assert found.outcome is expected, (types, given, budget)
        assert found.fits is {"fits": True, "does_not_fit": False, "unknown": None}[expected]
        assert found.is_proven is (expected is BudgetOutcome.FITS or plan.lower_bound_bytes > budget)


def test_the_page_and_the_picture_name_what_they_do_not_count(tmp_path: Path) -> None:
    picture = picture_of_plan(planned())
    assert picture.outside == (("n", "i64[1,?]", "its shape depends on data"), ("s", "?", "no shape rule"))
    assert render_page(picture)
    write_png(picture, tmp_path / "plan.png")


@pytest.mark.parametrize(("budget", "status"), [("64K", 3), ("1", 1), (None, 0)])
def test_the_command_line_leaves_with_the_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, budget: str | None, status: int
) -> None:
    cli, model, plan = Cli(monkeypatch, capsys), tmp_path / "net.sublet", tmp_path / "plan.json"
    model.write_text(TEXT)
    words = ("plan", model, "--out", plan, *(("--budget", budget) if budget else ()))
    left, out, _ = cli(*words)
    assert (left, PROOF.search(out)) == (status, None)
    assert json.loads(cli(*words[:2], *words[4:], "--json")[1]).get("fits") is {3: None, 1: False, 0: None}[status]
    for command in (("show", plan), ("check", model, plan)):
        left, out, _ = cli(*command)
        assert (left, PROOF.search(out)) == (0, None)
        assert "3 of 5 tensors planned; 2 outside, not counted: n i64[1,?], s ?" in out
    assert json.loads(cli("check", model, plan, "--json")[1])["not_counted"] == ["n", "s"]
