"""Gradients of recurrent networks written as loops, beside PyTorch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sublet.ir.graph import Graph, While
from sublet.ir.text import parse
from sublet.passes.autodiff import gradients
from sublet.passes.pass_pipeline import simplify
from sublet.passes.reordering import with_lower_peak
from sublet.planning.pipeline import plan_memory
from tests.passes.differences import run, value_of

torch = pytest.importorskip("torch")

STEPS, BATCH, WIDTH = 7, 3, 16
CUT = "{{starts = [0, {0}], ends = [3, {1}], steps = [1, 1]}}"
PARTS = "\n".join(
    f"%{name}0: T = nn.slice(%gates) {CUT.format(i * WIDTH, (i + 1) * WIDTH)}" for i, name in enumerate("ifgo")
)
LSTM = parse(
    f"""
graph @lstm(%xs: f64[7,3,16], %h0: T, %c0: T, %w: f64[64,16], %u: f64[64,16], %b: f64[64]) {{
  weights %n: i64[] = [7]
  %h: T, %c: T, %hs: f64[7,3,16] = while(%k: i64[]; %hp: T = %h0, %cp: T = %c0; %x: T in %xs axis 0) @loop body @body {{
    %go: bool[] = nn.less(%k, %n)
    continue if %go
    %xw: f64[3,64] = nn.linear(%x, %w, %b)
    %hu: f64[3,64] = nn.linear(%hp, %u)
    %gates: f64[3,64] = nn.add(%xw, %hu)
    {PARTS}
    %i: T = nn.sigmoid(%i0)
    %f: T = nn.sigmoid(%f0)
    %g: T = nn.tanh(%g0)
    %o: T = nn.sigmoid(%o0)
    %kept: T = nn.mul(%f, %cp)
    %new: T = nn.mul(%i, %g)
    %cn: T = nn.add(%kept, %new)
    %t: T = nn.tanh(%cn)
    %hn: T = nn.mul(%o, %t)
    next %hn, %cn; %hn axis 0
  }}
  return %hs, %h, %c
}}""".replace(": T", ": f64[3,16]")
)
NAMES = ("xs", "h0", "c0", "w", "u", "b")


def feeds() -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {name: random.uniform(-0.5, 0.5, value_of(LSTM, name).spec.shape) for name in NAMES}  # type: ignore[union-attr]


def by_torch(given: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The first gradients of the sum of all results, and those of the sum of the squares of these."""
    t = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}
    h, c, rows = t["h0"], t["c0"], []
    for x in t["xs"]:
        i, f, g, o = (x @ t["w"].T + t["b"] + h @ t["u"].T).split(WIDTH, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        rows.append(h)
    loss = torch.stack(rows).sum() + h.sum() + c.sum()
    first = torch.autograd.grad(loss, list(t.values()), create_graph=True)
    second = torch.autograd.grad(sum(grad.sum() for grad in first), list(t.values()))
    return [grad.detach().numpy() for grad in first], [grad.numpy() for grad in second]


def differentiated() -> Graph:
    graph = simplify(LSTM)
    of = [value_of(graph, name) for name in ("hs", "h", "c")]
    return with_lower_peak(simplify(gradients(graph, of, [value_of(graph, name) for name in NAMES])[0]))


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_an_lstm_is_differentiated_twice(backend: str) -> None:
    given = feeds()
    first, second = by_torch(given)
    graph = differentiated()
    found = run(graph, given, backend=(backend,) if backend == "reference" else (backend, "reference"))[3:]
    for name, expected, actual in zip(NAMES, first, found, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-11, err_msg=name)
    count = len(graph.outputs)
    again, _ = gradients(graph, graph.outputs[3:], [value_of(graph, name) for name in NAMES])
    found = run(again, given, backend=(backend,) if backend == "reference" else (backend, "reference"))[count:]
    for name, expected, actual in zip(NAMES, second, found, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-10, err_msg=name)


def test_the_tape_of_an_lstm_is_what_its_backward_needs() -> None:
    """Four gates, the cell and its hyperbolic tangent; the hidden state is read from what is stacked anyway."""
    graph = differentiated()
    loop = next(node for node in graph.nodes if isinstance(node, While))
    stacked = [value for value in loop.stacked_outputs if value is not None]
    assert [str(value.spec) for value in stacked] == ["f64[7,3,16]"] * 7
    assert plan_memory(graph).arena_bytes > 0
