"""What planning and checking do is bounded by the size of the program: counted in points and steps, never timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm

import pytest

from sublet.analysis import carry_renaming
from sublet.analysis.alias_planner import AliasPlanner
from sublet.analysis.control_flow import ControlFlowGraph
from sublet.analysis.options import Options
from sublet.checker import check_bytes
from sublet.checker import state as states
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.plan import MemoryPlan
from sublet.planning.pipeline import plan_memory
from tests.support import dialect

assert dialect.OPS

Swap = tuple[int, int]


def swaps(count: int, chain: list[Swap]) -> Graph:
    """Branches one after another, each of which exchanges two of `count` values or does not."""
    lines, now, flags = [], [f"%p{i}" for i in range(count)], [f"%c{b}: bool[]" for b in range(len(chain))]
    for b, (i, j) in enumerate(chain):
        one, other = now[i], now[j]
        lines.append(f"%a{b}: u8[64], %b{b}: u8[64] = case %c{b} @if{b} {{")
        lines.append(f"  arm @keep{b} {{ yield {one}, {other} }}\n  arm @swap{b} {{ yield {other}, {one} }}\n}}")
        now[i], now[j] = f"%a{b}", f"%b{b}"
    lines += [f"%y{i}: u8[64] = test.relu({value})" for i, value in enumerate(now)]
    inputs = ", ".join([*(f"%p{i}: u8[64]" for i in range(count)), *flags])
    outputs = ", ".join(f"%y{i}" for i in range(count))
    return parse("\n".join([f"graph @chain({inputs}) {{", *lines, f"return {outputs}", "}"]))


def rings(*lengths: int) -> Graph:
    """A loop with carries that are rotated in rings of these lengths."""
    names = [[f"%r{n}_{i}" for i in range(n)] for n in lengths]
    flat = [name for ring in names for name in ring]
    turned = [name for ring in names for name in (*ring[1:], ring[0])]
    inputs = ", ".join(f"%x{i}: u8[64]" for i in range(len(flat)))
    carried = ", ".join(f"{name}: u8[64] = %x{i}" for i, name in enumerate(flat))
    finals = ", ".join(f"%f{i}: u8[64]" for i in range(len(flat)))
    return parse(f"""
    graph @turning({inputs}, %n: i64[]) {{
      {finals} = while(%i: i64[]; {carried}; ) @turn body @body {{
        %c: bool[] = onnx.Less(%i, %n)
        continue if %c
        next {", ".join(turned)};
      }}
      return {", ".join(f"%f{i}" for i in range(len(flat)))}
    }}
    """)


def steps(plan: MemoryPlan, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often the checker writes to memory."""
    count = 0
    write = states.AbstractState.write

    def counted(self: states.AbstractState, *details: object) -> None:
        nonlocal count
        count += 1
        write(self, *details)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(states.AbstractState, "write", counted)
        assert check_bytes(graph, plan.schedule, plan) == ()
    return count


def test_a_chain_of_choices_is_not_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight values in any of their orders: nothing is copied, and a chain twice as long takes twice the steps."""
    counts = []
    for length in (12, 24):
        graph = swaps(8, [(b % 8, (2 * b + 1) % 8 if (2 * b + 1) % 8 != b % 8 else (b + 1) % 8) for b in range(length)])
        plan = plan_memory(graph)
        assert plan.moves == ()
        counts.append(steps(plan, graph, monkeypatch))
    assert counts[1] <= 2 * counts[0] + 8


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [((2, 3, 5, 7, 11, 13), [11, 13]), ((7, 8, 9), [8, 9]), ((16, 5, 9), [9, 16]), ((8, 9, 5, 7), [8, 9])],
)
def test_rings_whose_least_common_multiple_is_too_large_are_copied_in_part(
    lengths: Sequence[int], kept: list[int]
) -> None:
    """The rotations with the most bytes that repeat together, after 256 iterations at most, are renamed."""
    plan = plan_memory(rings(*lengths))
    (record,) = plan.rolled
    assert record.copies == lcm(*kept)
    assert {move.why for move in plan.moves} == {"renaming needs more than 256 body versions"}
    copied = {int(move.destination[1:].partition("_")[0]) for move in plan.moves if move.edge.kind == "next"}
    assert copied == {*lengths} - {*kept}


def test_results_that_may_be_any_of_too_many_values_are_copied_at_the_exit() -> None:
    assert plan_memory(rings(32)).moves == ()
    moves = plan_memory(rings(64)).moves
    assert {move.why for move in moves} == {"it may be bound to too many values"}
    assert {move.edge.kind for move in moves} == {"exit"}
    assert 0 < len(moves) < 64


def test_rings_that_fit_together_copy_nothing() -> None:
    plan = plan_memory(rings(2, 3, 5))
    assert [record.copies for record in plan.rolled] == [30]
    assert plan.moves == ()


def test_no_plan_is_longer_than_it_may_be() -> None:
    for graph in (swaps(9, [(b % 9, (b + 1) % 9) for b in range(40)]), rings(4, 5, 3), rings(64), rings(61, 59)):
        plan = plan_memory(graph)
        base = sum(2 for _ in graph.walk()) * 4 + 16
        assert len(plan.points) <= 2 * base + carry_renaming.MAX_RING_POINTS


def test_a_hostile_plan_is_given_up() -> None:
    """A ring of a thousand million copies in a plan file of a few lines."""
    graph = rings(2)
    plan = plan_memory(graph)
    (record,) = plan.rolled
    endless = replace(plan, rolled=(replace(record, ring=10**9),))
    found = check_bytes(graph, plan.schedule, endless)
    assert {finding.rule for finding in found} == {"false-heads", "too-many-states"}


def test_a_ring_that_begins_before_its_first_copy_is_refused() -> None:
    """Whatever a file says of copies that there are not is a finding, and no error."""
    graph = rings(2, 3)
    plan = plan_memory(graph)
    (record,) = plan.rolled
    for first, ring in ((-1, record.ring), (-1, record.ring + 1), (-7, record.ring), (-record.ring, record.ring)):
        strange = replace(plan, rolled=(replace(record, first=first, ring=ring),))
        assert check_bytes(graph, plan.schedule, strange)


@pytest.mark.parametrize(
    ("made_of", "smallest", "expected"),
    [
        ("add(%v)", 0, 2),  # written over %h, the row is copied: it is laid out with a pointer to the row before
        ("add(%v)", 9, 1),  # it is too small to lie in %all
        ("matmul(%h)", 0, 2),  # it cannot be written over %h, which becomes a pointer; then nothing is copied
    ],
)
def test_rows_are_tried_in_place_only_where_they_could_be(
    made_of: str, smallest: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = parse(f"""
    graph @net(%h0: u8[8], %n: i64[]) {{
      _, %all: u8[4,8] = while(%i: i64[]; %h: u8[8] = %h0; ) @loop body @body {{
        %more: bool[] = test.below(%i, %n)
        continue if %more
        %v: u8[8] = test.relu(%h)
        %r: u8[8] = test.{made_of}
        next %r; %r axis 0
      }}
      return %all
    }}
    """)
    laid_out: list[ControlFlowGraph] = []
    of = AliasPlanner.assignment_of
    monkeypatch.setattr(AliasPlanner, "assignment_of", lambda self, flow: laid_out.append(flow) or of(self, flow))
    plan_memory(graph, Options(alignment=1, in_place_from=smallest))
    assert len(laid_out) == expected
