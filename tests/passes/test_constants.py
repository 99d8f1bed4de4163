"""Constants are filled in where they are needed first."""

from __future__ import annotations

import sublet
from sublet import parse
from sublet.passes.sinking import with_late_constants as run
from sublet.plan.schedule import serial_schedule
from tests.passes.text import becomes, stays

ZEROS = '= nn.fill() {shape = [2], dtype = "f32", value = 0.0}'


def test_zeros_are_filled_in_right_before_their_first_reader() -> None:
    becomes(
        run,
        f"""
        graph @g(%x: f32[2]) {{
          %z: f32[2] {ZEROS}
          %a: f32[2] = nn.exp(%x)
          %b: f32[2] = nn.add(%z, %a)
          return %b
        }}
        """,
        f"""
        graph @g(%x: f32[2]) {{
          %a: f32[2] = nn.exp(%x)
          %z: f32[2] {ZEROS}
          %b: f32[2] = nn.add(%z, %a)
          return %b
        }}
        """,
    )


def test_they_go_into_the_arm_that_needs_them_but_not_into_a_loop() -> None:
    becomes(
        run,
        f"""
        graph @g(%x: f32[2], %i: bool[]) {{
          weights %n: i64[] = [3]
          %z: f32[2] {ZEROS}
          %y: f32[2] {ZEROS}
          %q: f32[2] = case %i @choice {{
            arm @a {{
              %a: f32[2] = nn.exp(%x)
              %b: f32[2] = nn.add(%a, %z)
              yield %b
            }}
            arm @b {{
              yield %x
            }}
          }}
          %r: f32[2] = while(%k: i64[]; %p: f32[2] = %q; ) @loop body @body {{
            %go: bool[] = nn.less(%k, %n)
            continue if %go
            %c: f32[2] = nn.add(%p, %y)
            next %c;
          }}
          return %r
        }}
        """,
        f"""
        graph @g(%x: f32[2], %i: bool[]) {{
          weights %n: i64[] = [3]
          %q: f32[2] = case %i @choice {{
            arm @a {{
              %a: f32[2] = nn.exp(%x)
              %z: f32[2] {ZEROS}
              %b: f32[2] = nn.add(%a, %z)
              yield %b
            }}
            arm @b {{
              yield %x
            }}
          }}
          %y: f32[2] {ZEROS}
          %r: f32[2] = while(%k: i64[]; %p: f32[2] = %q; ) @loop body @body {{
            %go: bool[] = nn.less(%k, %n)
            continue if %go
            %c: f32[2] = nn.add(%p, %y)
            next %c;
          }}
          return %r
        }}
        """,
    )


def test_equal_ones_that_live_together_are_one_unless_somebody_may_write_over_them() -> None:
    """A product of matrices writes over nothing, a sum may."""
    text = """
        graph @g(%x: f32[2,2]) {{
          %a: f32[2,2] = nn.fill() {{shape = [2, 2], dtype = "f32", value = 1.0}}
          %b: f32[2,2] = nn.fill() {{shape = [2, 2], dtype = "f32", value = 1.0}}
          %c: f32[2,2] = nn.{op}(%a, %x){flags}
          %d: f32[2,2] = nn.{op}(%b, %c){flags}
          %e: f32[2,2] = nn.{op}(%a, %d){flags}
          return %e
        }}
        """
    product = run(parse(text.format(op="matmul", flags=" {transpose_a = 0, transpose_b = 0}")))
    assert [node.op for node in product.nodes].count("nn.fill") == 1
    assert run(product) == product
    total = run(parse(text.format(op="add", flags="")))
    assert [node.op for node in total.nodes].count("nn.fill") == 2


def test_the_condition_of_a_loop_is_there_at_the_check() -> None:
    stays(
        run,
        """
        graph @g(%x: f32[2]) {
          %r: f32[2] = while(%k: i64[]; %p: f32[2] = %x; ) @loop body @body {
            %go: bool[] = nn.fill() {shape = [], dtype = "bool", value = 0.0}
            continue if %go
            %c: f32[2] = nn.neg(%p)
            next %c;
          }
          return %r
        }
        """,
    )


def test_late_zeros_need_less_memory() -> None:
    graph = parse("""
        graph @g(%x: f32[64,64]) {
          %z: f32[64,64] = nn.fill() {shape = [64, 64], dtype = "f32", value = 0.0}
          %a: f32[64,64] = nn.matmul(%x, %x) {transpose_a = 0, transpose_b = 0}
          %b: f32[64,64] = nn.matmul(%a, %a) {transpose_a = 0, transpose_b = 0}
          %c: f32[] = nn.sum(%b) {axes = [], keepdims = 0}
          %d: f32[64,64] = nn.add(%z, %c)
          return %d
        }
        """)
    before = sublet.plan_memory(
        graph, schedule=serial_schedule(graph)
    )  # in its own order they are filled in late anyway
    after = sublet.plan_memory(run(graph))
    assert after.lower_bound_bytes <= before.lower_bound_bytes - 64 * 64 * 4
