"""The pipeline: names, what breaks a graph, and NNC's cases."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import sublet
from sublet import parse
from sublet.base.errors import GraphError, SubletError
from sublet.ir.graph import Graph
from sublet.passes.pass_pipeline import PASSES, Pass, run_passes, simplify
from tests.passes.programs import same

GRAPH = "graph @g(%x: f32[2]) { %a: f32[2] = nn.exp(%x) %b: f32[2] = nn.neg(%a) return %b }"


def test_an_unknown_pass_is_told_with_those_there_are() -> None:
    with pytest.raises(SubletError, match="no pass 'csee'; there are dead-code, fold, needless, common"):
        run_passes(parse(GRAPH), ["csee"])


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    broken = Pass("breaking", lambda graph: replace(graph, nodes=graph.nodes[1:]), "nothing")
    with pytest.raises(GraphError, match="after the pass breaking"):
        run_passes(parse(GRAPH), ["common", broken])


def test_every_pass_says_what_it_ensures_and_takes_an_empty_graph() -> None:
    empty = Graph("empty", (), (), ())
    for name, each in PASSES.items():
        assert each.ensures
        assert each.requires
        assert run_passes(empty, [name]) == empty


def test_an_illegal_graph_is_refused_before_any_pass() -> None:
    graph = parse(GRAPH)
    with pytest.raises(GraphError):
        simplify(replace(graph, nodes=graph.nodes[1:]))


def test_passes_do_not_depend_on_hashing() -> None:
    """The same passes in processes of other hash seeds write the same text."""
    script = (
        "from tests.passes.programs import program; from sublet import to_text; "
        "from sublet.passes.pass_pipeline import simplify; "
        "print(''.join(to_text(simplify(program(seed, 40))) for seed in range(6)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


BRANCH = """
graph @g(%x: f32[1], %y: f32[1], %i: i64[]) {
  %a: f32[1] = nn.copy(%x)
  %r: f32[1], %unread: f32[1] = case %i else %x, %y @choice {
    arm @one {
      %b: f32[1] = nn.add(%a, %y)
      %c: f32[1] = nn.add(%x, %y)
      %d: f32[1] = nn.mul(%b, %c)
      %e: f32[1] = nn.exp(%d)
      yield %d, %e
    }
    arm @two {
      %f: f32[1] = nn.sub(%a, %y)
      %g: f32[1] = nn.sub(%x, %y)
      %h: f32[1] = nn.mul(%f, %g)
      yield %h, %g
    }
  }
  %s: f32[1] = nn.neg(%r)
  return %s
}
"""


def test_a_branch_in_no_more_than_320_bytes() -> None:
    graph = parse(BRANCH)
    changed = simplify(graph)
    assert [node.op for node in changed.walk()] == ["case", "nn.add", "nn.mul", "nn.sub", "nn.mul", "nn.neg"]
    assert sublet.plan_memory(changed).arena_bytes <= 320
    same(graph, changed, tolerance=1e-6, largest=1)


LOOP = """
graph @g(%x: f32[1], %y: f32[1]) {
  weights %n: i64[] = [5]
  %r: f32[1], %unread: f32[1] = while(%i: i64[]; %p: f32[1] = %x, %q: f32[1] = %y; ) @loop body @body {
    %go: bool[] = nn.less(%i, %n)
    continue if %go
    %a: f32[1] = nn.mul(%p, %y)
    %b: f32[1] = nn.mul(%y, %p)
    %c: f32[1] = nn.add(%a, %b)
    %d: f32[1] = nn.add(%q, %a)
    next %c, %d;
  }
  return %r
}
"""


def test_a_loop_in_no_more_than_256_bytes() -> None:
    graph = parse(LOOP)
    changed = simplify(graph)
    assert [node.op for node in changed.walk()] == ["while", "nn.less", "nn.mul", "nn.add"]
    assert sublet.plan_memory(changed).arena_bytes <= 320
    same(graph, changed, tolerance=1e-6, largest=1)
