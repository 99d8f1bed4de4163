"""The plan of a loop whose values take turns, for tests of those who show plans."""

from __future__ import annotations

from sublet.ir.text import parse
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import plan_memory

DELAY = """
graph @delay(%x: f32[1024], %y: f32[1024], %n: i64[]) {
  %f: f32[1024], %g: f32[1024], %all: f32[8,1024] = while(%i: i64[]; %p: f32[1024] = %x, %q: f32[1024] = %y; ) @turn
    body @body {
    %c: bool[] = onnx.Less(%i, %n)
    continue if %c
    %r: f32[1024] = onnx.Softmax(%p)
    %s: f32[1024] = onnx.MatMul(%r, %q)
    next %q, %s; %s axis 0
  }
  return %f, %all
}
"""
"""Each round finds what the two rounds before it made; the rows are stacked."""


def delay_plan() -> MemoryPlan:
    """Two rounds, then a ring of two: `s` lives in two places in turn, `p`, `q`, `f` and `g` are pointers."""
    return plan_memory(parse(DELAY))
