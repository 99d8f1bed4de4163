"""What depends on no input runs when it is needed, in the planned order too."""

from __future__ import annotations

import pytest

from sublet.analysis.options import Options
from sublet.ir.text import parse
from sublet.passes.sinking import input_independent_nodes, with_late_invariants
from sublet.plan.schedule import serial_schedule
from sublet.planning.pipeline import plan_memory
from tests.passes.programs import program

CHAIN = """
graph @g(%x: f32[64]) {
  weights %v: i8[64], %w: i8[64], %s: f32[]
  %fv: f32[64] = onnx.DequantizeLinear(%v, %s) @fv
  %fw: f32[64] = onnx.DequantizeLinear(%w, %s) @fw
  %tw: f32[64] = onnx.Tanh(%fw) @tw
  %a: f32[64] = onnx.Mul(%x, %fv) @a
  %b: f32[64] = onnx.Softmax(%a) @b
  %c: f32[64] = onnx.Mul(%b, %tw) @c
  return %c
}
"""


def names(text: str) -> list[str]:
    return [node.name for node in with_late_invariants(parse(text)).nodes]


def test_chains_of_constants_run_right_before_their_first_reader() -> None:
    assert names(CHAIN) == ["fv", "a", "b", "fw", "tw", "c"]
    early = plan_memory(parse(CHAIN), schedule=serial_schedule(parse(CHAIN)))
    assert (early.arena_bytes, plan_memory(parse(CHAIN)).arena_bytes) == (768, 512)


def test_a_chain_that_is_large_inside_stays_where_it_is_small_to_keep() -> None:
    text = """
    graph @g(%x: f32[64]) {
      weights %w: i8[1024]
      %f: f32[1024] = onnx.Cast(%w) {to = 1} @f
      %m: f32[1] = onnx.ReduceMean(%f) @m
      %a: f32[64] = onnx.Softmax(%x) @a
      %b: f32[64] = onnx.Add(%a, %x) @b
      %c: f32[64] = onnx.Sum(%a, %b, %x, %m) @c
      return %c
    }
    """
    assert names(text)[0] == "f"


def test_a_weight_that_runs_change_is_no_constant() -> None:
    text = CHAIN.replace("  return %c", "  update %s = %n\n  return %c")
    text = text.replace("  %a:", "  %n: f32[] = onnx.Neg(%s) @n\n  %a:")
    assert input_independent_nodes(parse(text)) == frozenset()


@pytest.mark.parametrize("seed", range(15))
def test_every_program_keeps_its_nodes_and_is_proven(seed: int) -> None:
    graph = program(seed, 25)
    moved = with_late_invariants(graph)
    assert sorted(node.name for node in moved.walk()) == sorted(node.name for node in graph.walk())
    assert with_late_invariants(moved) == moved
    given = plan_memory(graph)
    assert {value.name for value in graph.values()} >= {place.value for place in given.placements}
    assert plan_memory(graph, Options(order="less")).arena_bytes <= given.arena_bytes
