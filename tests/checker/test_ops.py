"""What single ops may and may not do with bytes: kernels, views, parts."""

from __future__ import annotations

import pytest

from sublet.checker import check_bytes
from sublet.checker.actions import misread_finding
from sublet.checker.contents import byte_sources_of, compute_contents
from sublet.checker.memory import MemorySegment
from sublet.ir.graph import Graph
from sublet.ir.text import parse
from sublet.ops import Share
from sublet.ops.op import Op
from sublet.plan import Region
from sublet.plan.schedule import serial_schedule
from tests.support import dialect
from tests.support.plans import Place, plan_at

assert dialect.OPS


def net(body: str, inputs: str = "%x: u8[8]", returns: str = "%y") -> Graph:
    return parse(f"graph @net({inputs}) {{\n{body}\n  return {returns}\n}}")


def messages(graph: Graph, places: dict[str, Place], arena: int = 64, bound: dict[str, str] | None = None) -> str:
    plan = plan_at(graph, places, arena, bound=bound)
    return "\n".join(map(str, check_bytes(graph, serial_schedule(graph), plan)))


def test_an_element_wise_op_writes_over_its_input() -> None:
    graph = net("%y: u8[8] = test.relu(%x)")
    assert messages(graph, {"x": 0, "y": 0}) == ""
    assert messages(graph, {"x": 0, "y": 8}) == ""
    assert "writes %y at arena[4, 12) over its own input %x at arena[0, 8)" in messages(graph, {"x": 0, "y": 4})


def test_a_kernel_without_that_fact_does_not() -> None:
    graph = net("%y: u8[8] = test.matmul(%x)")
    assert messages(graph, {"x": 0, "y": 8}) == ""
    found = messages(graph, {"x": 0, "y": 0})
    assert "[input-overwritten]" in found
    assert "test.matmul cannot write output 0 over input 0" in found


@pytest.mark.parametrize(("op", "right"), [("add", True), ("sub", False)])
def test_a_repeated_operand_needs_the_fact_at_every_position(op: str, right: bool) -> None:
    graph = net(f"%y: u8[8] = test.{op}(%x, %x)")
    assert (messages(graph, {"x": 0, "y": 0}) == "") is right


def test_only_the_operand_written_over_may_overlap() -> None:
    graph = net("%y: u8[8] = test.add(%x, %b)", "%x: u8[8], %b: u8[4]")
    assert messages(graph, {"x": 0, "b": 8, "y": 0}) == ""
    assert "over its own input %b at arena[8, 12)" in messages(graph, {"x": 0, "b": 8, "y": 8})


def test_an_input_written_over_is_not_read_again() -> None:
    graph = net("%r: u8[8] = test.relu(%x)\n%y: u8[8] = test.matmul(%x, %r)")
    assert messages(graph, {"x": 0, "r": 8, "y": 16}) == ""
    found = messages(graph, {"x": 0, "r": 0, "y": 16})
    assert "node y: reads %x at arena[0, 8), but bytes [0, 8) hold bytes [0, 8) of %r, written by node r" in found
    assert found.endswith("[clobbered]")


def test_a_dead_result_still_clobbers() -> None:
    graph = net("%d: u8[4] = test.const()\n%y: u8[8] = test.matmul(%x)")
    assert messages(graph, {"x": 0, "d": 8, "y": 16}) == ""
    assert "bytes [4, 8) hold bytes [0, 4) of %d" in messages(graph, {"x": 0, "d": 4, "y": 16})


def test_two_outputs_lie_apart() -> None:
    graph = net("%y: u8[8], %z: u8[8] = test.two(%x)")
    assert messages(graph, {"x": 0, "y": 8, "z": 16}) == ""
    assert "writes %y at arena[8, 16) and %z at arena[12, 20)" in messages(graph, {"x": 0, "y": 8, "z": 12})


def test_a_view_in_place_costs_nothing_and_keeps_its_base() -> None:
    graph = net("%v: u8[4] = test.slice(%x) {offset = 4}\n%y: u8[8] = test.matmul(%v, %x)")
    assert messages(graph, {"x": 0, "v": 4, "y": 8}) == ""
    later = net("%v: u8[4] = test.slice(%x) {offset = 4}\n%d: u8[4] = test.const()\n%y: u8[8] = test.matmul(%v)")
    assert messages(later, {"x": 0, "v": 4, "d": 0, "y": 8}) == ""
    assert "bytes [4, 8) hold bytes [0, 4) of %d" in messages(later, {"x": 0, "v": 4, "d": 4, "y": 8})


def test_a_view_elsewhere_is_a_copy() -> None:
    graph = net("%v: u8[4] = test.slice(%x) {offset = 2}\n%y: u8[8] = test.relu(%x)\n%z: u8[8] = test.matmul(%v)")
    assert messages(graph, {"x": 0, "v": 8, "y": 0, "z": 16}) == ""
    assert "[clobbered]" in messages(graph, {"x": 0, "v": 2, "y": 0, "z": 16})
    assert "over its own input %x" in messages(graph, {"x": 0, "v": 3, "y": 12, "z": 24})


def test_writing_over_a_view_changes_its_base() -> None:
    graph = net("%v: u8[8] = test.reshape(%x)\n%r: u8[8] = test.relu(%v)\n%y: u8[8] = test.add(%x, %r)")
    assert messages(graph, {"x": 0, "v": 0, "r": 8, "y": 0}) == ""
    assert "node y: reads %x at arena[0, 8), but bytes [0, 8) hold" in messages(graph, {"x": 0, "v": 0, "r": 0, "y": 8})


def test_parts_in_place_are_not_touched_and_the_others_copied() -> None:
    graph = net("%a: u8[4] = test.const()\n%b: u8[4] = test.const()\n%y: u8[12] = test.concat(%a, %b, %a)", "%x: u8[8]")
    assert messages(graph, {"x": 0, "a": 8, "b": 12, "y": 8}) == ""
    assert messages(graph, {"x": 0, "a": 24, "b": 12, "y": 8}) == ""
    assert messages(graph, {"x": 0, "a": 24, "b": 28, "y": 8}) == ""
    assert "writes %y at arena[12, 20) over its own input %b" in messages(graph, {"x": 0, "a": 8, "b": 16, "y": 8})


def test_a_split_and_a_concat_are_the_same_bytes() -> None:
    graph = net("%a: u8[4], %b: u8[4] = test.split(%x)\n%c: u8[8] = test.concat(%a, %b)\n%y: u8[8] = test.add(%c, %x)")
    assert messages(graph, {"x": 0, "a": 0, "b": 4, "c": 0, "y": 0}) == ""
    swapped = net("%a: u8[4], %b: u8[4] = test.split(%x)\n%c: u8[8] = test.concat(%b, %a)\n%y: u8[8] = test.add(%c)")
    assert messages(swapped, {"x": 0, "a": 0, "b": 4, "c": 8, "y": 8}) == ""
    assert "[input-overwritten]" in messages(swapped, {"x": 0, "a": 0, "b": 4, "c": 0, "y": 8})


def test_bytes_that_no_part_covers_are_computed() -> None:
    graph = net(
        "%a: u8[4] = test.relu(%x)\n%p: u8[12] = test.pad(%a) {offset = 4}\n%y: u8[8] = test.matmul(%p, %z)",
        "%x: u8[4], %z: u8[4]",
    )
    assert messages(graph, {"x": 0, "a": 12, "p": 8, "z": 4, "y": 24}) == ""
    assert "reads %z at arena[8, 12), but bytes [8, 12) hold bytes [0, 4) of %p" in messages(
        graph, {"x": 0, "a": 12, "p": 8, "z": 8, "y": 24}
    )


def test_a_second_output_does_not_disturb_a_view_in_place() -> None:
    graph = net("%v: u8[8], %m: u8[8] = test.drop(%x)\n%y: u8[8] = test.matmul(%v, %m)")
    assert messages(graph, {"x": 0, "v": 0, "m": 8, "y": 16}) == ""
    assert "[outputs-overlap]" in messages(graph, {"x": 0, "v": 0, "m": 4, "y": 16})
    assert "[outputs-overlap]" in messages(graph, {"x": 4, "v": 4, "m": 0, "y": 16})


def test_values_outside_are_always_readable_but_read_their_operands() -> None:
    graph = net('%s: outside("seq", "a test") = test.wrap(%r)\n%y: u8[8] = test.unwrap(%s)', "%x: u8[8], %r: u8[8]")
    assert messages(graph, {"x": 0, "r": 8, "y": 8}) == ""
    late = net('%d: u8[8] = test.const()\n%s: outside("seq", "a test") = test.wrap(%x)\n%y: u8[8] = test.unwrap(%s)')
    assert "node s: reads %x" in messages(late, {"x": 0, "d": 0, "y": 8})


def test_outputs_survive_to_the_end() -> None:
    graph = net("%y: u8[8] = test.relu(%x)\n%d: u8[8] = test.const()", returns="%y, %x")
    assert messages(graph, {"x": 0, "y": 8, "d": 16}) == ""
    found = messages(graph, {"x": 0, "y": 8, "d": 8})
    assert found.startswith("graph output %y: reads %y at arena[8, 16), but bytes [8, 16) hold bytes [0, 8) of %d")
    assert "[output-lost]" in found
    assert "graph output %x" in messages(graph, {"x": 0, "y": 0, "d": 16})


def test_weights_in_the_arena_survive_to_the_next_run() -> None:
    graph = parse("graph @net() {\n  weights %w: u8[8]\n  %y: u8[8] = test.relu(%w)\n  return %y\n}")
    assert messages(graph, {"w": 0, "y": 8}) == ""
    assert "weight %w at the end: reads %w at arena[0, 8)" in messages(graph, {"w": 0, "y": 0})
    assert "[weight-clobbered]" in messages(graph, {"w": 0, "y": 0})


@pytest.mark.parametrize("kind", ["input", "weight"])
def test_memory_of_the_caller_is_read_only(kind: str) -> None:
    declared = ("%x: u8[8]", "") if kind == "input" else ("", "weights %x: u8[8]\n")
    graph = net(f"{declared[1]}%v: u8[8] = test.reshape(%x)\n%y: u8[8] = test.relu(%v)", declared[0])
    bound = {"x": kind}
    assert messages(graph, {"x": ("x", 0), "v": ("x", 0), "y": 8}, bound=bound) == ""
    found = messages(graph, {"x": ("x", 0), "v": ("x", 0), "y": ("x", 0)}, bound=bound)
    assert f"node y: writes %y at %x[0, 8), memory of a bound {kind} (the network never writes {kind}s)" in found


def test_reading_what_was_never_written() -> None:
    graph = net("%a: u8[4] = test.const()\n%v: u8[4] = test.slice(%x) {offset = 0}\n%y: u8[8] = test.matmul(%v)")
    found = messages(graph, {"x": 0, "a": 16, "v": 8, "y": 16}).splitlines()
    assert found == []
    early = Graph(graph.name, graph.inputs, (graph.nodes[0], graph.nodes[2], graph.nodes[1]), graph.outputs)
    found = messages(early, {"x": 0, "a": 16, "v": 8, "y": 16}).splitlines()
    assert "[missing-wait]" in found[0]
    assert "node y: reads %v at arena[8, 12), but bytes [8, 12) have no known content" in found[1]
    assert "[undefined]" in found[1]


def test_two_outputs_of_one_node_may_be_the_same_bytes_of_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is written."""
    twice = Op("test.twice", views=lambda _: (Share(0, 0), Share(1, 0)))
    monkeypatch.setitem(dialect.OPS, "twice", twice)
    graph = net("%y: u8[8], %z: u8[8] = test.twice(%x)", returns="%y, %z")
    assert messages(graph, {"x": 0, "y": 0, "z": 0}) == ""
    assert "[outputs-overlap]" in messages(graph, {"x": 0, "y": 8, "z": 8})


def test_what_has_no_bytes_has_no_content() -> None:
    graph = net("%y: u8[8] = test.concat(%none, %x)", "%x: u8[8], %none: u8[0]")
    node_sources = {node.name: byte_sources_of(node) for node in graph.nodes}
    assert compute_contents(graph, node_sources) == {"x": (("x", 0, 8),), "none": (), "y": (("x", 0, 8),)}


def test_a_view_of_bytes_that_are_not_there_is_computed() -> None:
    graph = net("%y: u8[4] = test.slice(%x) {offset = 6}")
    assert messages(graph, {"x": 0, "y": 8}) == ""
    assert "[input-overwritten]" in messages(graph, {"x": 0, "y": 6})


def test_what_continues_in_one_value_is_one_piece() -> None:
    body = """
    %first: u8[4] = test.slice(%x) {offset = 0}
    %second: u8[4] = test.slice(%x) {offset = 4}
    %other: u8[4] = test.slice(%z) {offset = 4}
    %whole: u8[8] = test.concat(%first, %second)
    %mixed: u8[8] = test.concat(%first, %other)
    %turned: u8[8] = test.concat(%second, %first)
    """
    graph = net(body, "%x: u8[8], %z: u8[8]", "%whole, %mixed, %turned")
    found = compute_contents(graph, {node.name: byte_sources_of(node) for node in graph.nodes})
    assert found["whole"] == (("x", 0, 8),)
    assert found["mixed"] == (("x", 0, 4), ("z", 4, 4))
    assert found["turned"] == (("x", 4, 4), ("x", 0, 4))


def test_a_misread_names_what_lies_there_instead() -> None:
    (x,) = net("%y: u8[8] = test.relu(%x)").inputs
    wrong = [MemorySegment(0, 2, None, 0, "a loop"), MemorySegment(2, 4, "other", 2, "node other")]
    finding = misread_finding(x, Region("arena", 0, 8), wrong, "node y", "", ("x", "y"))
    assert (finding.rule, finding.names) == ("clobbered", ("x", "y", "other"))
    assert misread_finding(x, Region("arena", 0, 8), wrong[:1], "node y", "", ("x", "y")).names == ("x", "y")
