"""Small graphs that would cost a careless planner much memory or time."""

from __future__ import annotations

import pytest

from sublet.base.errors import GraphError
from sublet.ir.text import parse
from sublet.ops.verify import MAX_LOOPS
from sublet.planning.pipeline import plan_memory


def test_a_value_doubled_forty_times() -> None:
    lines = ["graph @doubling(%x0: u8[1]) {"]
    for i in range(1, 41):
        lines.append(f"  %x{i}: u8[{2**i}] = onnx.Concat(%x{i - 1}, %x{i - 1}) {{axis = 0}}")
    lines += ["  return %x40", "}"]
    plan = plan_memory(parse("\n".join(lines)))
    assert plan.lower_bound_bytes <= plan.arena_bytes < 3 * 2**40


def test_a_cache_that_grows_a_thousand_times() -> None:
    lines = ["graph @growing(%x: f32[16], %c0: f32[16]) {"]
    for i in range(1, 1001):
        lines.append(f"  %c{i}: f32[{16 * (i + 1)}] = onnx.Concat(%c{i - 1}, %x) {{axis = 0}}")
    lines += ["  return %c1000", "}"]
    assert plan_memory(parse("\n".join(lines))).outside == ()


def test_deep_nesting() -> None:
    depth = 40
    lines = ["graph @deep(%x: f32[4], %flag: bool[]) {"]
    for i in range(depth):
        lines.append(f"  %y{i}: f32[4] = case %flag {{ arm @a{i} {{")
    lines.append("  %z: f32[4] = onnx.Relu(%x)")
    inner = "%z"
    for i in reversed(range(depth)):
        lines.append(f"  yield {inner} }} }}")
        inner = f"%y{i}"
    lines += [f"  return {inner}", "}"]
    assert plan_memory(parse("\n".join(lines))).arena_bytes <= 64 * 3


def loops(depth: int) -> str:
    """Loops in loops, each of one carried value."""
    lines = ["graph @loops(%x: f32[4], %go: bool[]) {"]
    for i in range(depth):
        start = "%x" if i == 0 else f"%p{i - 1}"
        lines.append(f"  %y{i}: f32[4] = while(%i{i}: i64[]; %p{i}: f32[4] = {start}; ) body @b{i} {{ continue if %go")
    for i in reversed(range(depth)):
        update = f"%p{i}" if i == depth - 1 else f"%y{i + 1}"
        lines.append(f"  next {update}; }}")
    return "\n".join([*lines, "  return %y0", "}"])


def test_loops_nest_as_deep_as_allowed_and_no_deeper() -> None:
    assert plan_memory(parse(loops(MAX_LOOPS))).outside == ()
    with pytest.raises(GraphError, match="loops nest more than"):
        plan_memory(parse(loops(MAX_LOOPS + 1)))
