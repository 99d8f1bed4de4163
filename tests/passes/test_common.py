"""Common sub-expressions."""

from __future__ import annotations

import numpy as np

import sublet
from sublet import parse
from sublet.passes.redundant_nodes import without_common_subexpressions as run
from tests.passes.text import becomes, stays

SQUARE = """
graph @g(%x: f32[1], %y: f32[1]) {
  %a: f32[1] = nn.add(%x, %y)
  %b: f32[1] = nn.add(%y, %x)
  %c: f32[1] = nn.mul(%a, %b)
  return %c
}
"""


def test_the_square_of_a_sum_is_two_nodes_in_128_bytes() -> None:
    changed = run(parse(SQUARE))
    assert [node.op for node in changed.nodes] == ["nn.add", "nn.mul"]
    assert sublet.plan_memory(changed).arena_bytes <= 128
    found = sublet.compile(changed, backend="reference")(x=np.float32([10]), y=np.float32([8]))
    assert found["c"] == (10 + 8) ** 2


def test_equal_nodes_in_a_sub_graph_and_around_it() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2], %i: bool[]) {
          %a: f32[2] = nn.exp(%x)
          %q: f32[2] = case %i @choice {
            arm @a {
              %b: f32[2] = nn.exp(%x)
              %c: f32[2] = nn.neg(%b)
              yield %c
            }
            arm @b {
              %d: f32[2] = nn.abs(%x)
              yield %d
            }
          }
          %e: f32[2] = nn.abs(%x)
          %f: f32[2] = nn.add(%q, %a)
          %g: f32[2] = nn.add(%e, %f)
          return %g
        }
        """,
        """
        graph @g(%x: f32[2], %i: bool[]) {
          %a: f32[2] = nn.exp(%x)
          %q: f32[2] = case %i @choice {
            arm @a {
              %c: f32[2] = nn.neg(%a)
              yield %c
            }
            arm @b {
              %d: f32[2] = nn.abs(%x)
              yield %d
            }
          }
          %e: f32[2] = nn.abs(%x)
          %f: f32[2] = nn.add(%q, %a)
          %g: f32[2] = nn.add(%e, %f)
          return %g
        }
        """,
    )


def test_an_output_keeps_its_name() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2]) {
          %a: f32[2] = nn.exp(%x)
          %b: f32[2] = nn.exp(%x)
          %c: f32[2] = nn.neg(%a)
          return %b, %c
        }
        """,
        """
        graph @g(%x: f32[2]) {
          %b: f32[2] = nn.exp(%x) @a
          %c: f32[2] = nn.neg(%b)
          return %b, %c
        }
        """,
    )


def test_two_outputs_stay_two() -> None:
    stays(
        run,
        """
        graph @g(%x: f32[2]) {
          %a: f32[2] = nn.exp(%x)
          %b: f32[2] = nn.exp(%x)
          return %a, %b
        }
        """,
    )


def test_other_attributes_and_random_numbers_are_not_common() -> None:
    stays(
        run,
        """
        graph @g(%x: f32[2,2]) {
          %a: f32[2] = nn.sum(%x) {axes = [0], keepdims = 0}
          %b: f32[2] = nn.sum(%x) {axes = [1], keepdims = 0}
          %c: f32[2,2] = onnx.RandomNormalLike(%x)
          %d: f32[2,2] = onnx.RandomNormalLike(%x)
          return %a, %b, %c, %d
        }
        """,
    )
