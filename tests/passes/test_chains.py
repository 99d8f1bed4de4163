"""Chains of element-wise commands."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import sublet
from sublet import parse
from sublet.passes.fusion import MIN_CHAIN_BYTES, with_chains
from sublet.passes.pass_pipeline import simplify
from tests.passes.text import becomes, stays

run = partial(with_chains, smallest=1)


def test_a_chain_and_its_steps() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2,3], %b: f32[3]) {
          %a: f32[2,3] = nn.mul(%x, %b)
          %c: bool[2,3] = nn.less(%a, %x)
          %d: f32[2,3] = nn.where(%c, %a, %x)
          %e: f32[2,3] = nn.clamp(%d) {low = 0.0, high = 6.0}
          return %e
        }
        """,
        """
        graph @g(%x: f32[2,3], %b: f32[3]) {
          %e: f32[2,3] = nn.chain(%x, %b)
            {steps = ["mul x0 x1", "less s0 x0", "where s1 s0 x0", "clamp s2 low=0.0 high=6.0"]}
          return %e
        }
        """,
    )


@pytest.mark.parametrize(
    "lines",
    [
        # %a has another reader.
        "%a: f32[4] = nn.exp(%x) %b: f32[4] = nn.neg(%a) %c: f32[] = nn.sum(%a) {axes = [], keepdims = 0}",
        # %a is smaller than the result.
        "%a: f32[] = nn.exp(%s) %b: f32[4] = nn.mul(%a, %x) %c: f32[4] = nn.sum_to(%b) {shape = [4]}",
        # %x and %y would be kept over the sum instead of their product.
        """%p: f32[4] = nn.add(%x, %s) %q: f32[4] = nn.sub(%y, %s) %c: f32[] = nn.sum(%p) {axes = [], keepdims = 0}
        %r: f32[] = nn.sum(%q) {axes = [], keepdims = 0}
        %a: f32[4] = nn.mul(%p, %q) %d: f32[] = nn.mean(%y) {axes = [], keepdims = 0} %b: f32[4] = nn.neg(%a)""",
    ],
)
def test_what_does_not_become_a_chain(lines: str) -> None:
    stays(run, f"graph @g(%x: f32[4], %y: f32[4], %s: f32[]) {{ {lines} return %b, %c }}")


def test_only_large_tensors_in_the_pipeline() -> None:
    def changed(count: int) -> list[str]:
        text = f"""graph @g(%x: f32[{count}]) {{
          %a: f32[{count}] = nn.exp(%x) %b: f32[{count}] = nn.neg(%a) return %b }}"""
        return [node.op for node in simplify(parse(text)).nodes]

    assert changed(MIN_CHAIN_BYTES // 4) == ["nn.chain"]
    assert changed(MIN_CHAIN_BYTES // 4 - 1) == ["nn.exp", "nn.neg"]


LARGE = """
graph @g(%x: f32[700,1001], %b: f32[1001], %c: f32[700,1]) {
  weights %half: f32[] = [0.5]
  %1: f32[700,1001] = nn.mul(%x, %half)
  %2: f32[700,1001] = nn.add(%1, %b)
  %3: f32[700,1001] = nn.sin(%x)
  %4: f32[700,1001] = nn.sub(%2, %3)
  %5: bool[700,1001] = nn.greater(%4, %c)
  %6: f32[700,1001] = nn.where(%5, %4, %half)
  %7: f32[700,1001] = nn.square(%6)
  return %7
}
"""


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_many_blocks_with_broadcast_operands(backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    graph = parse(LARGE)
    changed = run(graph)
    assert [node.op for node in changed.nodes] == ["nn.chain"]
    random = np.random.default_rng(0)
    inputs = {v.name: random.normal(size=v.spec.shape).astype(np.float32) for v in graph.inputs}
    expected = sublet.compile(graph, backend="reference")(inputs)["7"]
    executable = sublet.compile(changed, backend=backend)
    np.testing.assert_allclose(executable(inputs)["7"], expected, rtol=1e-5, atol=1e-6)
    if backend == "torch":
        assert executable.plan.arena_bytes < sublet.compile(graph, backend=backend).plan.arena_bytes
