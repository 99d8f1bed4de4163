"""Constant folding, of nodes, branches and loops."""

from __future__ import annotations

import pytest

import sublet
from sublet import parse
from sublet.passes.constant_folding import with_folded_constants as run
from sublet.passes.pass_pipeline import simplify
from tests.passes.programs import same
from tests.passes.text import becomes, stays


def test_what_is_known_is_computed_once() -> None:
    becomes(
        run,
        """
        graph @g(%x: f32[2]) {
          weights %two: f32[] = [2.0], %three: f32[1] = [3.0]
          %six: f32[1] = nn.mul(%two, %three)
          %less: f32[1] = nn.neg(%six)
          %y: f32[2] = nn.mul(%x, %less)
          return %y
        }
        """,
        """
        graph @g(%x: f32[2]) {
          weights %two: f32[] = [2.0], %three: f32[1] = [3.0],
            %const.f32.6.0: f32[1] = [6.0], %const.f32.-6.0: f32[1] = [-6.0]
          %y: f32[2] = nn.mul(%x, %const.f32.-6.0)
          return %y
        }
        """,
    )


@pytest.mark.parametrize(
    "text",
    [
        # The result is an output, which keeps its name.
        "graph @g() { weights %w: f32[] = [2.0] %y: f32[] = nn.neg(%w) return %y }",
        # The content of a weight without elements is the caller's, and large results are not kept.
        "graph @g(%x: f32[]) { weights %w: f32[] %y: f32[] = nn.neg(%w) %z: f32[] = nn.add(%x, %y) return %z }",
        """graph @g(%x: f32[]) { weights %w: f32[] = [1.0]
        %y: f32[100] = nn.broadcast_to(%w) {shape = [100]} %z: f32[100] = nn.add(%x, %y) return %z }""",
    ],
)
def test_what_stays(text: str) -> None:
    stays(run, text)


BRANCH = """
graph @g(%x: f64[3,4]) {{
  weights %i: i64[] = [{index}]
  %y: f64[3,4], %z: f64[3,4] = case %i else %x, %x @choice {{
    arm @a {{
      %a: f64[3,4] = nn.exp(%x)
      yield %a, %x
    }}
    arm @b {{
      %b: f64[3,4] = nn.neg(%x)
      yield %b, %b
    }}
  }}
  %s: f64[3,4] = nn.sub(%y, %z)
  return %s
}}
"""


@pytest.mark.parametrize(
    ("index", "expected"), [("0", ["nn.exp", "nn.sub"]), ("1", ["nn.neg", "nn.sub"]), ("-1", ["nn.sub"])]
)
def test_a_branch_whose_index_is_known_is_its_arm(index: str, expected: list[str]) -> None:
    graph = parse(BRANCH.format(index=index))
    changed = simplify(graph)
    assert [node.op for node in changed.walk()] == expected
    same(graph, changed)


def test_an_index_that_names_no_arm_stays_an_error() -> None:
    stays(run, BRANCH.format(index="2"))


LOOP = """
graph @g(%x: f64[3,4], %k: f64[3,4]) {{
  weights %limit: i64[] = [{limit}]
  %y: f64[3,4], %z: f64[3,4] = while(%i: i64[]; %p: f64[3,4] = %x, %q: f64[3,4] = %k; ) @loop body @body {{
    %go: bool[] = nn.less(%i, %limit)
    continue if %go
    %r: f64[3,4] = nn.add(%p, %q)
    next %r, %q;
  }}
  %s: f64[3,4] = nn.sub(%y, %z)
  return %s
}}
"""


def test_a_loop_that_makes_no_round_is_gone() -> None:
    graph = parse(LOOP.format(limit=0))
    changed = simplify(graph)
    assert [node.op for node in changed.walk()] == ["nn.sub"]
    same(graph, changed)


def test_what_a_loop_never_changes_is_not_carried() -> None:
    graph = parse(LOOP.format(limit=3))
    changed = simplify(graph)
    loop = changed.nodes[0]
    assert len(loop.uses) == 1
    assert len(loop.outputs) == 1
    same(graph, changed)
    assert sublet.plan_memory(changed).arena_bytes <= sublet.plan_memory(graph).arena_bytes
