"""Small graphs that would cost a careless planner much memory or time."""

from __future__ import annotations

from sublet.compile import plan_memory
from sublet.ir.text import parse


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
