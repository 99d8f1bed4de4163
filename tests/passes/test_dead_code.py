"""Dead code, in nodes, loops and branches."""

from __future__ import annotations

from sublet.passes.redundant_nodes import without_dead_code as run
from tests.passes.text import becomes, stays


def test_what_leads_nowhere_goes_and_with_it_its_literals() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2], %y: f32[2]) {
          weights %w: f32[2], %two: f32[] = [2.0], %one: f32[] = [1.0]
          %a: f32[2] = nn.mul(%x, %two)
          %b: f32[2] = nn.exp(%a)
          %c: f32[2] = nn.add(%y, %one)
          return %c
        }
        """,
        """
        graph @g(%x: f32[2], %y: f32[2]) {
          weights %w: f32[2], %one: f32[] = [1.0]
          %c: f32[2] = nn.add(%y, %one)
          return %c
        }
        """,
    )


def test_what_has_effects_stays() -> None:
    stays(
        run,
        """
        graph @g(%x: f32[2]) {
          %a: f32[2] = onnx.RandomNormalLike(%x)
          return %x
        }
        """,
    )


def test_a_loop_carries_slices_and_stacks_only_what_is_needed() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2], %y: f32[2], %xs: f32[3,2], %ys: f32[3,2]) {
          weights %n: i64[] = [3]
          %p: f32[2], %q: f32[2], %r: f32[2], %s: f32[3,2], %t: f32[3,2] =
            while(%i: i64[]; %a: f32[2] = %x, %b: f32[2] = %y, %c: f32[2] = %y;
                  %u: f32[2] in %xs axis 0, %v: f32[2] in %ys axis 0) @loop body @body {
              %go: bool[] = nn.less(%i, %n)
              continue if %go
              %dead: f32[2] = nn.exp(%v)
              %d: f32[2] = nn.add(%a, %b)
              %e: f32[2] = nn.neg(%b)
              %f: f32[2] = nn.mul(%c, %u)
              next %d, %e, %f; %d axis 0, %dead axis 0
            }
          return %p, %s
        }
        """,
        """
        graph @g(%x: f32[2], %y: f32[2], %xs: f32[3,2], %ys: f32[3,2]) {
          weights %n: i64[] = [3]
          %p: f32[2], _, %s: f32[3,2] = while(%i: i64[]; %a: f32[2] = %x, %b: f32[2] = %y; ) @loop body @body {
              %go: bool[] = nn.less(%i, %n)
              continue if %go
              %d: f32[2] = nn.add(%a, %b)
              %e: f32[2] = nn.neg(%b)
              next %d, %e; %d axis 0
            }
          return %p, %s
        }
        """,
    )


def test_a_branch_gives_only_what_is_read() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2], %i: i64[]) {
          %p: f32[2], %q: f32[2] = case %i else %x, %x @choice {
            arm @a {
              %a: f32[2] = nn.exp(%x)
              %b: f32[2] = nn.neg(%x)
              yield %a, %b
            }
            arm @c {
              %c: f32[2] = nn.abs(%x)
              yield %c, %x
            }
          }
          return %q
        }
        """,
        """
        graph @g(%x: f32[2], %i: i64[]) {
          %q: f32[2] = case %i else %x @choice {
            arm @a {
              %b: f32[2] = nn.neg(%x)
              yield %b
            }
            arm @c {
              yield %x
            }
          }
          return %q
        }
        """,
    )


def test_a_loop_for_nothing_goes() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2]) {
          weights %n: i64[] = [3]
          %p: f32[2] = while(%i: i64[]; %a: f32[2] = %x; ) @loop body @body {
              %go: bool[] = nn.less(%i, %n)
              continue if %go
              %d: f32[2] = nn.exp(%a)
              next %d;
            }
          return %x
        }
        """,
        """
        graph @g(%x: f32[2]) {
          return %x
        }
        """,
    )
