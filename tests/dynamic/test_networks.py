"""The networks of `examples/`, and the graph and plan of what their jit functions record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

import sublet
from sublet import layers, nn
from sublet.base.errors import SpecError
from sublet.viz.page import write_html
from sublet.viz.view_model import picture_of_plan
from tests.support.command_line import Cli

ROOT = Path(__file__).parent.parent.parent

# An example, how long it trains here, and what must have been learned.
NETWORKS: dict[str, tuple[int, Callable[[Any], bool]]] = {
    "lstm_language_model": (3, lambda loss: loss < 2.4),
    "transformer": (2, lambda accuracy: accuracy > 0.9),
    "gan": (2, lambda radii: 0.6 < np.median(radii) < 1.4),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_and_its_recording_is_printed_planned_checked_saved_and_drawn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    epochs, has_learned = NETWORKS[name]
    example = run_path(str(ROOT / f"examples/{name}.py"))
    assert has_learned(example["main"](epochs=epochs))
    step = example["step"]
    assert step.recorded_calls <= 2, step.explain()
    (call,) = step.calls
    graph, plan = step.graph, step.plan
    assert (graph, plan) == (call.graph, call.plan)
    assert plan.arena_bytes == step.arena_bytes
    text = sublet.to_text(graph)
    assert sublet.parse(text) == graph
    assert " update %" in text
    assert sublet.check(graph, plan.schedule, plan) == ()
    assert sublet.summary(step).weights == sum(one.size for one in example["d"].weights.values())
    sublet.save(plan, tmp_path / "step.json")
    (tmp_path / "step.sublet").write_text(text, encoding="utf-8")
    assert sublet.load(tmp_path / "step.json") == plan
    command_line = Cli(monkeypatch, capsys)
    assert command_line("check", tmp_path / "step.sublet", tmp_path / "step.json")[0] == 0
    write_html(picture_of_plan(plan), tmp_path / "step.html")
    assert b"<html" in (tmp_path / "step.html").read_bytes()
    assert command_line("show", tmp_path / "step.json", "--html", tmp_path / "show.html")[0] == 0


def test_the_graph_of_each_signature_and_path() -> None:
    d = sublet.DynamicGraph()

    @d.jit
    def step(x: Any, rate: float) -> Any:
        y = layers.dense(x, 3, name="net").sum()
        return y * rate if y > 0 else -y

    assert step.calls == ()
    with pytest.raises(SpecError, match="no recorded call yet: call it once"):
        _ = step.graph
    rows = {n: np.ones((n, 2), np.float32) for n in (2, 5)}
    for n in (2, 2, 5, 2):
        step(rows[n], 0.5)
    step(-rows[2], 0.5)
    expected = [((2, 2), True), ((2, 2), False), ((5, 2), True)]
    assert [call.signature[0].shape for call in step.calls] == [shape for shape, _ in expected]
    assert len({sublet.to_text(call.graph) for call in step.calls}) == 3
    assert "%net/linear: f32[2,3] = nn.linear(%input0, %net/weight, %net/bias)" in sublet.to_text(step.graph)
    planned = step.planned
    for call in step.calls:
        assert sublet.check(call.graph, call.plan.schedule, call.plan) == ()
    assert step.planned == planned, "a plan is made once"
    replayed = step.replayed
    assert float(step(rows[5], 0.5)) == pytest.approx(abs(float(step.eagerly(rows[5], 0.5))), rel=1e-6)
    assert step.replayed == replayed + 1
    assert step.calls[0].signature[0].shape == (5, 2)

    @d.jit
    def inside(x: Any) -> Any:
        return step.graph

    with pytest.raises(SpecError, match="inside a jit function"):
        inside(rows[2])
    d.close()
    with pytest.raises(SpecError, match="closed"):
        _ = step.calls and step.graph


def test_arrays_are_taken_where_tensors_are() -> None:
    """By jit functions, modules in modules, updates, seeds, loops, branches and indices, in both graphs."""
    content = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    d = sublet.DynamicGraph()
    w = d.parameter("w", (3, 2), initial=1.0)
    d.update(w, content)
    np.testing.assert_array_equal(w.numpy(), content)
    (by_w,) = sublet.gradients(w * 2, [w], content)
    np.testing.assert_array_equal(by_w.numpy(), 2 * content)
    step = d.jit(lambda x, scale=1: nn.concat([x, content], axis=0) @ np.ones((2, 1), np.float32) * scale)
    for factor in range(3):
        found = step(content + factor, scale=np.float32(2)).numpy()
        np.testing.assert_array_equal(found[:3, 0], 2 * (content + factor).sum(1))
    assert step.replayed == 2
    g = sublet.Graph()
    for graph in (d, g):
        x = graph.constant(content)
        with graph.while_({"total": np.zeros(2, np.float32)}, over={"x": content}) as loop:
            loop.next(total=loop["total"] + loop["x"])
            loop.stack(ones=np.ones(2, np.float32))
        with graph.case_of(loop["total"].sum() > 0) as case:
            with case.arm():
                case.give(x)
            with case.arm():
                case.give(content + 1)
        results = [loop["total"], loop["ones"], case[0], x[np.array([2, 0])], x[[1]]]
        if graph is g:
            for i, one in enumerate(results):
                g.output(f"y{i}", one)
            results = list(sublet.compile(g)().values())
        wanted = [content.sum(0), np.ones((3, 2)), content + 1, content[[2, 0]], content[[1]]]
        for one, expected in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(one), expected)
    with pytest.raises(SpecError, match=r"convert the array with d.tensor or g.constant"):
        layers.dense(content, 3)
