"""Budgets: what fits, what provably does not, and the proof."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from sublet.analysis.options import Options
from sublet.ir.text import parse
from sublet.plan.verdict import BudgetOutcome, buffers_at_peak, verdict
from sublet.planning.pipeline import plan_memory
from sublet.viz.summary import render_verdict

TEXT = """
graph @net(%x: f32[64]) {
  %a: f32[32] = onnx.MatMul(%x, %x)
  %b: f32[16] = onnx.MatMul(%a, %x)
  %c: f32[8] = onnx.MatMul(%a, %b)
  return %c
}
"""


def test_the_proof_is_the_smallest_set_that_exceeds_the_budget() -> None:
    plan = plan_memory(parse(TEXT), Options(alignment=4))
    assert plan.arena_bytes == plan.lower_bound_bytes == 4 * (64 + 32 + 16)
    assert verdict(plan, 448).fits
    refused = verdict(plan, 447)
    assert [(live.nbytes, live.values) for live in refused.proof] == [(256, ("x",)), (128, ("a",)), (64, ("b",))]
    assert [live.values for live in verdict(plan, 300).proof] == [("x",), ("a",)]
    assert [live.values for live in verdict(plan, 255).proof] == [("x",)]


def test_between_bound_and_arena_nothing_is_proven() -> None:
    plan = plan_memory(parse(TEXT), Options(strategy="no_reuse", alignment=4))
    assert plan.lower_bound_bytes < plan.arena_bytes
    between = verdict(plan, plan.lower_bound_bytes)
    assert (between.fits, between.outcome, between.is_proven, between.proof) == (
        False,
        BudgetOutcome.DOES_NOT_FIT,
        False,
        (),
    )
    console = Console(width=200, file=StringIO(), record=True)
    console.print(render_verdict(between, plan))
    words = console.export_text()
    assert words.startswith("This plan does not fit the budget of")
    assert "A smaller plan is not excluded" in words


def test_an_antichain_proves_the_need_of_streams() -> None:
    text = """
    graph @wide(%x: f32[4]) {
      %a: f32[64] = onnx.Expand(%x, %x)
      %a1: f32[1] = onnx.ReduceSum(%a)
      %b: f32[64] = onnx.Expand(%x, %x)
      %b1: f32[1] = onnx.ReduceSum(%b)
      return %a1, %b1
    }
    """
    plan = plan_memory(parse(text), Options(alignment=4, streams=2))
    proof = verdict(plan, 500).proof
    assert {live.values for live in proof} == {("a",), ("b",)}
    assert verdict(plan_memory(parse(text), Options(alignment=4)), 500).fits


def test_buffers_at_the_peak_are_largest_first() -> None:
    plan = plan_memory(parse(TEXT), Options(alignment=4))
    assert [live.values for live in buffers_at_peak(plan)] == [("x",), ("a",), ("b",)]
    assert sum(live.nbytes for live in buffers_at_peak(plan)) == plan.peak.nbytes


def test_padding_is_counted_for_the_buffers_named_and_no_more() -> None:
    """65 bytes take 128 beside another, 65 on top: two take 193, not 256, whatever else is alive."""
    text = """
    graph @net(%x: u8[65], %y: u8[65]) {
      %z: u8[1] = onnx.Foo(%x, %y)
      return %z
    }
    """
    plan = plan_memory(parse(text))
    assert [live.nbytes for live in verdict(plan, 192).proof] == [128, 65]
    assert len(verdict(plan, 193).proof) == 3


def test_a_bound_proven_by_search_needs_no_buffers() -> None:
    plan = replace(plan_memory(parse(TEXT), Options(alignment=4)), arena_bytes=1000, lower_bound_bytes=900)
    refused = verdict(replace(plan, bound="search", proof=()), 800)
    assert (refused.fits, refused.proof) == (False, ())
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_verdict(refused, replace(plan, bound="search", proof=())))
    assert "the search refuted every arena below 900 B" in console.export_text()
