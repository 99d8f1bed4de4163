"""Advice: every figure is that of a plan which anybody can make by hand."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import sublet
from sublet import Options
from sublet.base.errors import ProblemError
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.model import Model
from sublet.packing import MemoryRegion
from sublet.plan.verdict import Advised
from sublet.planning.advice import AdviceCandidate, evaluate_candidates, list_candidates
from tests.runtime.networks import inception
from tests.support.command_line import Cli

QUICK = Options(strategy="best_fit_by_size")
RESIDUAL = """
graph @net(%x: f32[64]) {
  weights %s: f32[], %w: i8[256]
  %f: f32[256] = onnx.DequantizeLinear(%w, %s) @f
  %a: f32[256] = onnx.Grow(%x) @a
  %b: f32[256] = onnx.Relu(%a) @b
  %c: f32[16] = onnx.Small(%b) @c
  %d: f32[16] = onnx.Small(%a) @d
  %e: f32[16] = onnx.Dot(%c, %d, %f) @e
  return %e
}
"""


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("COLUMNS", "200")
    return Cli(monkeypatch, capsys)


def advised(text: str, options: Options = QUICK) -> tuple[int, Advised]:
    model = Model(sublet.parse(text))
    plan = sublet.plan_memory(model, options)
    return plan.arena_bytes, evaluate_candidates(plan, list_candidates(model, options, plan, None, ()))


def arena(text: str, options: Options = QUICK) -> int:
    return sublet.plan_memory(sublet.parse(text), options).arena_bytes


def test_what_ifs_are_plans_of_the_changed_text() -> None:
    before, found = advised(RESIDUAL)
    figures = {each.what: each.arena_bytes for each in found.advice}
    (over,) = (each for each in found.advice if "written over %a" in each.what)
    by_hand = RESIDUAL.replace("onnx.Small(%a)", "onnx.Small(%b)")
    assert (over.kind, over.arena_bytes) == ("what-if", arena(by_hand))
    assert over.saved_bytes == before - over.arena_bytes > 0
    assert "d must not read it" in over.how
    (half,) = (each for each in found.advice if "in f16" in each.what)
    name = re.findall(r"%\w+", half.what)[0]
    assert half.arena_bytes == arena(RESIDUAL.replace(f"{name}: f32", f"{name}: f16"))
    (stored,) = (each for each in found.advice if "stored" in each.what)
    by_hand = re.sub(r"  %f: f32.*\n", "", RESIDUAL).replace("%s: f32[], %w: i8[256]", "%f: f32[256]")
    assert (stored.arena_bytes, stored.outside_bytes) == (arena(by_hand), 3 * 256 - 4)
    assert found.failed == ()
    assert figures[next(iter(figures))] == min(figures.values())


def test_options_are_plans_of_the_command_line(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "inception.onnx"
    path.write_bytes(inception(modules=1, size=6).SerializeToString())
    words = ("plan", path, "--strategy", "best_fit_by_size", "--weights", "arena", "--json")
    content = json.loads(cli(*words, "--advise")[1])
    options = [each for each in content["advice"] if each["kind"] == "option"]
    assert {word for each in options for word in each["how"].split() if word.startswith("--")} == {
        *("--order", "--optimize", "--io", "--weights", "--align"),
    }
    for each in options:
        changed = list(words)
        for name, value in zip(each["how"].split()[::2], each["how"].split()[1::2], strict=True):
            changed = [*changed[:4], *changed[6:]] if name == "--weights" else changed
            changed += [name, value]
        by_hand = json.loads(cli(*changed)[1])
        assert each["arena_bytes"] == by_hand["arena_bytes"], each
        assert each["saved_bytes"] == content["arena_bytes"] - by_hand["arena_bytes"]
        assert each["outside_bytes"] == by_hand["bound_bytes"] - content["bound_bytes"]
    assert content["advice"] == sorted(content["advice"], key=lambda each: each["arena_bytes"])


def test_advice_in_words_and_in_the_page(cli: Cli, tmp_path: Path) -> None:
    path, page = tmp_path / "net.sublet", tmp_path / "plan.html"
    path.write_text(RESIDUAL)
    status, out, err = cli("plan", path, "--advise")
    assert (status, err) == (0, "")
    assert "What would lower the arena" in out
    assert "written over %a" in out
    assert "No help: " in out
    content = json.loads(cli("plan", path, "--advise", "--html", page, "--json")[1])
    block = re.search(r'<script type="text/plain" id="model">([^<]*)</script>', page.read_text())
    assert block is not None
    raw = zlib.decompress(b64decode(block[1]))
    drawn = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    told = {(each["what"], each["arena_bytes"]) for each in content["advice"]}
    assert drawn["advice"]["helping"]
    assert {(what, nbytes) for _, what, _, nbytes, *_ in drawn["advice"]["helping"]} <= told
    assert set(drawn["advice"]["vain"]) <= {word for each in content["advice"] for word in (each["how"], each["what"])}
    assert "advice" not in json.loads(cli("plan", path, "--json")[1])
    assert cli("plan", path, "--advise", "--region", "a=1MiB")[0] == 2


def test_an_interrupt_keeps_what_was_found() -> None:
    model = Model(sublet.parse(RESIDUAL))
    plan = sublet.plan_memory(model, QUICK)

    def interrupted() -> Iterator[AdviceCandidate]:
        yield AdviceCandidate("option", "inputs outside", "--io bound", lambda: (model, replace(QUICK, io="bound")))
        raise KeyboardInterrupt

    found = evaluate_candidates(plan, interrupted())
    assert ([each.how for each in found.advice], found.stopped) == (["--io bound"], "interrupted")
    late = evaluate_candidates(plan, list_candidates(model, QUICK, plan, None, ()), seconds=-1.0)
    assert (late.advice, late.stopped) == ((), "the time limit of -1 seconds is over")


def test_what_cannot_be_planned_is_told() -> None:
    model = Model(sublet.parse(RESIDUAL))
    plan = sublet.plan_memory(model, QUICK)

    def refused() -> tuple[Model, Options]:
        raise ProblemError("it cannot be")

    found = evaluate_candidates(plan, [AdviceCandidate("option", "magic", "--magic", refused)])
    assert found.failed == ("magic: it cannot be",)


def test_loops_and_programs_of_the_nn_dialect_are_advised_on() -> None:
    g = sublet.Graph()
    x = g.input("x", (8, 8))
    loss = sublet.nn.exp(sublet.nn.relu(sublet.layers.dense(x, 8))).mean()
    step = sublet.train_step(loss, g.parameters, sublet.SGD(0.1))
    plan = sublet.plan_memory(step, QUICK)
    found = evaluate_candidates(plan, list_candidates(step, QUICK, plan, None, ()))
    assert any(each.how == "--io bound" for each in found.advice)


def test_advice_in_python() -> None:
    pytest.importorskip("onnxruntime")
    model = inception(modules=1, size=6)
    found = sublet.advise(model, QUICK, optimize="onnxruntime")
    hows = {each.how for each in found.advice}
    assert {"--io bound", "--optimize none"} <= hows
    by_hand = sublet.plan_memory(from_proto(model).graph, QUICK).arena_bytes
    assert next(each.arena_bytes for each in found.advice if each.how == "--optimize none") == by_hand
    graph = sublet.advise(sublet.parse(RESIDUAL), QUICK)
    assert "--io bound" in {each.how for each in graph.advice}
    with pytest.raises(ProblemError, match="single arena"):
        sublet.advise(sublet.parse(RESIDUAL), Options(regions=(MemoryRegion("a", 1 << 20),)))


def test_an_arena_without_values_that_were_in_it_is_no_help() -> None:
    model = Model(sublet.parse(RESIDUAL))
    hidden = re.sub(r"%a: f32\[256\]", '%a: outside("f32[?]", "nobody knows")', RESIDUAL)
    plan = sublet.plan_memory(model, QUICK)
    found = evaluate_candidates(
        plan, [AdviceCandidate("option", "hidden", "--hide", lambda: (Model(sublet.parse(hidden)), QUICK))]
    )
    assert [(each.unplanned, each.saved_bytes > 0) for each in found.advice] == [(1, True)]
    assert (found.helpful, len(found.unhelpful)) == ((), 1)
