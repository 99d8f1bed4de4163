"""What loops and branches move all the same, and plans that forbid it."""

from __future__ import annotations

import numpy as np
import pytest

from sublet.analysis.options import Options
from sublet.analysis.residual_copies import possible_bindings
from sublet.api.compiling import compile
from sublet.base.errors import PlanError
from sublet.ir.graph import CaseOf, Value, While
from sublet.ir.text import parse
from sublet.planning.pipeline import plan_memory

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
    assert [(str(m.edge), m.source, m.destination, m.nbytes) for m in moves] == [
        ("fetch turn", "xs", "part", 64),
        ("next turn", "part", "all", 64),
    ]
    with pytest.raises(PlanError) as refused:
        plan_memory(parse(SLICED), FORBID)
    assert "next turn: 64 bytes from %part to %all: a row is copied: %part is passed on, or not" in str(refused.value)
    assert "fetch turn" not in str(refused.value)  # where copies are forbidden, a small slice lies in its sequence too


@pytest.mark.parametrize(
    ("options", "edge", "why"),
    [
        (Options(forbid_copies=True, share=False), "next turn", "sharing is off"),
        (Options(forbid_copies=True, io="bound"), "exit turn", "lies in the caller's memory"),
    ],
)
def test_a_refusal_names_edge_values_bytes_and_why(options: Options, edge: str, why: str) -> None:
    with pytest.raises(PlanError, match=rf"{edge}: 64 bytes from %\w+ to %\w+: .*{why}"):
        plan_memory(PLAIN, options)


def test_choices_with_too_many_jumps_are_copied_and_say_so() -> None:
    """Swaps and rotations of five values by choice bring about 120 orders."""
    five = [f"%p{i}" for i in range(5)]
    inits = ", ".join(f"{name}: f32[16] = %x{i}" for i, name in enumerate(five))
    swapped = ", ".join([five[1], five[0], *five[2:]])
    text = f"""
    graph @chosen({", ".join(f"%x{i}: f32[16]" for i in range(5))}, %n: i64[], %z: bool[]) {{
      {", ".join(f"%f{i}: f32[16]" for i in range(5))} = while(%i: i64[]; {inits}; ) @turn body @body {{
        %c: bool[] = onnx.Less(%i, %n)
        continue if %c
        {", ".join(f"%a{i}: f32[16]" for i in range(5))} = case %z @either {{
          arm @rotate {{ yield {", ".join([*five[1:], five[0]])} }}
          arm @swap {{ yield {swapped} }}
        }}
        next {", ".join(f"%a{i}" for i in range(5))};
      }}
      return {", ".join(f"%f{i}" for i in range(5))}
    }}
    """
    with pytest.raises(PlanError, match=r"64 bytes from %a0 to %p0: renaming needs more than 64 body versions"):
        plan_memory(parse(text), FORBID)


def test_the_bytes_of_a_plan_are_those_of_a_run() -> None:
    """Fetch and next are passed once a round."""
    executable = compile(parse(SLICED), backend="reference")
    x = np.ones(16, np.float32)
    for rounds in (0, 1, 5, 8):
        executable({"x": x, "y": x, "xs": np.ones((8, 16), np.float32), "n": np.int64(rounds)})
        assert executable.copied_bytes == rounds * sum(move.nbytes for move in executable.plan.moves)


DELAYED_CHOICE = """
graph @g(%flag: bool[], %x: f32[16], %n: i64[]) {
  %chosen: f32[16] = case %flag @choice {
    arm @no {
      yield %x
    }
    arm @yes {
      %made: f32[16] = onnx.Exp(%x)
      yield %made
    }
  }
  %first: f32[16] = onnx.Exp(%x)
  _, %last: f32[16] = while(%i: i64[]; %p: f32[16] = %first, %q: f32[16] = %first; ) @turn body @body {
    %c: bool[] = onnx.Less(%i, %n)
    continue if %c
    next %chosen, %p;
  }
  return %last
}
"""


def test_a_copy_names_what_is_assigned_where_that_stands_for_one_of_several() -> None:
    moves = plan_memory(parse(DELAYED_CHOICE), Options(io="bound")).moves
    assert {(str(m.edge), m.source, m.destination) for m in moves} == {("exit turn", "q", "last")}


class Counted(frozenset[Value]):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, value: object) -> bool:
        self.asked += 1
        return super().__contains__(value)


def test_what_a_chain_of_choices_stands_for_is_found_in_steps_as_many_as_links() -> None:
    """Thousands of branches, each of which hands on what the one before chose or one of two values."""
    links = 3000
    lines, now = [], "%x"
    for i in range(links):
        lines.append(f"%a{i}: f32[16] = case %c @if{i} {{\n  arm @keep{i} {{ yield {now} }}")
        lines.append(f"  arm @other{i} {{ yield %y{i % 2} }}\n}}")
        now = f"%a{i}"
    header = "graph @chain(%x: f32[16], %y0: f32[16], %y1: f32[16], %c: bool[]) {"
    graph = parse("\n".join([header, *lines, f"return {now}", "}"]))
    pointers = Counted(value for node in graph.walk() if isinstance(node, CaseOf) for value in node.defs)
    found = possible_bindings(graph, pointers)
    names = {pointer.name: set(several) for pointer, several in found.items()}
    assert names["a0"] == {"x", "y0"}
    assert all(several == {"x", "y0", "y1"} for name, several in names.items() if name != "a0")
    assert pointers.asked <= 4 * links


def test_what_pointers_that_are_handed_on_stand_for() -> None:
    node = next(node for node in PLAIN.walk() if isinstance(node, While))
    found = possible_bindings(PLAIN, frozenset((*node.defs, *node.parameters)))
    names = {pointer.name: set(several) for pointer, several in found.items()}
    assert names["p"] == names["f"] == {"x", "y", "s"}
    assert names["q"] == names["g"] == {"y", "s"}
