"""What loops and branches move all the same, and plans that forbid it."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.compiling import compile
from sublet.errors import PlanError
from sublet.ir.text import parse
from sublet.planning import Options, plan_memory

LOOP = """
graph @loop(%x: f32[16], %y: f32[16], %xs: f32[8,16], %n: i64[]) {{
  %f: f32[16], %g: f32[16]{stacked} = while(%i: i64[]; %p: f32[16] = %x, %q: f32[16] = %y; {slices}) @turn body @body {{
    %c: bool[] = onnx.Less(%i, %n)
    continue if %c
    %s: f32[16] = onnx.Softmax(%p)
    next %q, %s;{rows}
  }}
  return %f, %g{returned}
}}
"""
PLAIN = parse(LOOP.format(stacked="", slices="", rows="", returned=""))
SLICED = LOOP.format(
    stacked=", %all: f32[8,16]", slices="%part: f32[16] in %xs axis 0", rows=" %part axis 0", returned=", %all"
)
FORBID = Options(forbid_copies=True)


def test_a_plan_that_moves_nothing_is_not_refused() -> None:
    assert plan_memory(PLAIN, FORBID).moves == ()


def test_slices_and_rows_are_moves() -> None:
    moves = plan_memory(parse(SLICED)).moves
    assert [(m.edge, m.source, m.destination, m.nbytes) for m in moves] == [
        ("fetch turn", "xs", "part", 64),
        ("next turn", "part", "all", 64),
    ]
    with pytest.raises(PlanError) as refused:
        plan_memory(parse(SLICED), FORBID)
    assert "fetch turn: 64 bytes from %xs to %part: a slice is copied out of its sequence" in str(refused.value)
    assert "next turn: 64 bytes from %part to %all: a row is copied into its stacked output" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "edge", "why"),
    [
        (Options(forbid_copies=True, share=False), "next turn", "sharing is switched off"),
        (Options(forbid_copies=True, io="bound"), "next turn", "lies in memory of the caller"),
    ],
)
def test_a_refusal_names_edge_values_bytes_and_why(options: Options, edge: str, why: str) -> None:
    with pytest.raises(PlanError, match=rf"{edge}: 64 bytes from %\w+ to %\w+: .*{why}"):
        plan_memory(PLAIN, options)


def test_a_choice_that_no_ring_can_follow_is_copied_and_says_so() -> None:
    """Which of the two values is %p in the next round depends on choices of all rounds before."""
    text = """
    graph @chosen(%x: f32[16], %y: f32[16], %n: i64[], %z: bool[]) {
      %f: f32[16], %g: f32[16] = while(%i: i64[]; %p: f32[16] = %x, %q: f32[16] = %y; ) @turn body @body {
        %c: bool[] = onnx.Less(%i, %n)
        continue if %c
        %a: f32[16], %b: f32[16] = case %z @either {
          arm @no { yield %p, %q }
          arm @yes { yield %q, %p }
        }
        next %a, %b;
      }
      return %f, %g
    }
    """
    with pytest.raises(PlanError, match=r"next turn: 64 bytes from %a to %p: no ring of at most 64 copies"):
        plan_memory(parse(text), FORBID)


def test_the_bytes_of_a_plan_are_those_of_a_run() -> None:
    """Fetch and next are passed once a round."""
    executable = compile(parse(SLICED), backend="reference")
    x = np.ones(16, np.float32)
    for rounds in (0, 1, 5, 8):
        executable({"x": x, "y": x, "xs": np.ones((8, 16), np.float32), "n": np.int64(rounds)})
        assert executable.copied_bytes == rounds * sum(move.nbytes for move in executable.plan.moves)
