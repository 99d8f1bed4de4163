"""What loops and branches cost: arenas no larger than NNC's for its own tests of control flow, and optima.

Sizes are bytes rounded up to 64, as NNC counts them, with weights in the arena. Convolutions are over 5x5x4
images (400 bytes, so 448), with weights of 576 and 64 bytes.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sublet.analysis.options import Options
from sublet.checker import check, check_bytes
from sublet.integrations.onnx.reader.model import from_proto
from sublet.ir.graph import Graph
from sublet.ir.text import parse, to_text
from sublet.plan import OPEN, MemoryPlan, RolledLoop, VersionTransition
from sublet.plan.schedule import Schedule, ScheduleStep, serial_schedule
from sublet.planning.pipeline import plan_memory
from tests.integrations.onnx.models import parsed
from tests.runtime.loop_models import CARRIED, CONVOLUTION
from tests.support import dialect
from tests.support.interpreter import results_match
from tests.support.plan_file_mutants import CHOSEN

assert dialect.OPS

MIB = 1 << 20
IMAGE = "f32[1,5,5,4]"


ALL = f"%x0: {IMAGE}, %w: f32[4,3,3,4], %b: f32[4]"


def convolution(after: str = "", returns: str = "%last", inputs: str = ALL, weights: str = "") -> Graph:
    """x <- conv(x, w, b), as often as the input says."""
    return parse(f"""
    graph @net({inputs}) {{
      {weights}
      %last: {IMAGE} = while(%i: i64[]; %x: {IMAGE} = %x0; ) @loop body @body {{
        %c: bool[] = onnx.Less(%i, %i)
        continue if %c
        %y: {IMAGE} = onnx.Conv(%x, %w, %b)
        next %y;
      }}
      {after}
      return {returns}
    }}
    """)


CHAIN = parse(f"""
graph @net(%a: {IMAGE}, %b: {IMAGE}, %c: {IMAGE}, %d: {IMAGE}, %y: {IMAGE}, %w: f32[4,3,3,4], %k: f32[4]) {{
  %f0: {IMAGE}, %f1: {IMAGE}, %f2: {IMAGE}, %f3: {IMAGE} = while(%i: i64[];
      %x0: {IMAGE} = %a, %x1: {IMAGE} = %b, %x2: {IMAGE} = %c, %x3: {IMAGE} = %d; ) @loop body @body {{
    %go: bool[] = onnx.Less(%i, %i)
    continue if %go
    %v: {IMAGE} = onnx.Conv(%y, %w, %k)
    %n: {IMAGE} = onnx.Add(%x0, %v)
    next %x1, %x2, %x3, %n;
  }}
  %z: {IMAGE} = onnx.Sum(%f0, %f1, %f2, %f3)
  return %z
}}
""")
"""The carry chain x3 => x2 => x1 => x0 of NNC's test, with a convolution in place of 1.2 y."""


def rings(plan: MemoryPlan) -> list[int]:
    return [record.ring for record in plan.rolled]


def test_a_convolution_again_and_again() -> None:
    plan = plan_memory(convolution())
    assert plan.arena_bytes <= 1536
    assert rings(plan) == [2]
    assert plan.moves == ()
    assert plan.gap == 0


def test_the_initial_value_is_read_after_the_loop() -> None:
    plan = plan_memory(convolution(f"%z: {IMAGE} = onnx.Add(%x0, %last)", "%z"))
    assert plan.arena_bytes <= 1984
    assert plan.moves == ()
    assert plan.gap == 0


@pytest.mark.parametrize(
    ("after", "images"),
    [
        ("Add(%x0, %last)", 3),  # over the initial value, which is what the loop leaves if it makes no round
        ("Add(%last, %x0)", 3),
        ("Sub(%last, %x0)", 3),
        ("Relu(%last)", 2),
        ("Softmax(%last)", 2),  # not over what it reads; but the other of the two is free then
    ],
)
def test_what_a_loop_leaves_is_computed_on_in_place(after: str, images: int) -> None:
    """With the parameters in the arena for good, as NNC counts its preserved input: 1,984 bytes."""
    weights = "weights %w: f32[4,3,3,4], %b: f32[4]"
    graph = convolution(f"%z: {IMAGE} = onnx.{after}", "%z", f"%x0: {IMAGE}", weights)
    plan = plan_memory(graph, Options(weights="arena"))
    assert plan.arena_bytes <= 448 * images + 576 + 64
    assert plan.moves == ()
    assert plan.gap == 0


KEPT = """
graph @net(%a: u8[24], %seed: u8[4]) {{
  weights %k: u8[24]
  %last: u8[24] = while(%i: i64[]; %x: u8[24] = %a; ) @loop body @body {{
    %go: bool[] = test.below(%i, %seed)
    continue if %go
    %y: u8[24] = test.matmul(%x, %k)
    next %y;
  }}
  %z: u8[24] = test.{after}
  return {returns}
}}
"""


@pytest.mark.parametrize(
    ("after", "returns", "arena"),
    [
        ("add(%a, %last)", "%z", 24 * 3 + 4),
        ("add(%last, %a)", "%z, %a", 24 * 3 + 4),
        ("add(%a, %last)", "%z, %last", 24 * 4),
        ("sub(%last, %a)", "%z", 24 * 3 + 4),
        ("sub(%a, %last)", "%z", 24 * 4),  # over its first only: but where no round was made that is its second
        ("sub(%last, %k)", "%z", 24 * 2 + 4),
        ("sub(%k, %last)", "%z", 24 * 3),
        ("add(%last, %last)", "%z", 24 * 2 + 4),
    ],
)
def test_ops_are_in_place_over_whatever_a_pointer_stands_for(after: str, returns: str, arena: int) -> None:
    """The inputs are %a of 24 bytes and %seed of 4, which is not read any more after the loop."""
    graph = parse(KEPT.format(after=after, returns=returns))
    plan = plan_memory(graph, Options(alignment=1))
    assert plan.arena_bytes == arena
    assert plan.moves == ()
    assert plan.gap == 0
    assert results_match(graph, plan.schedule, plan, random.Random(1), 20)


VECTOR = "u8[24]"

ONCE_MORE = """
      %m: u8[24] = while(%j: i64[]; %y: u8[24] = %x; ) @inner body @rounds {
        %d: bool[] = test.below(%j, %seed)
        continue if %d
        %z: u8[24] = test.matmul(%y, %seed)
        next %z;
      }
"""
PERHAPS = """
      %which: i32[] = test.choose(%x) {count = 2, low = 0}
      %m: u8[24] = case %which @perhaps {
        arm @keep {
          yield %x
        }
        arm @change {
          %z: u8[24] = test.matmul(%x, %seed)
          yield %z
        }
      }
"""


@pytest.mark.parametrize("inner", [ONCE_MORE, PERHAPS, ONCE_MORE.replace("= %x;", "= %n;")])
def test_what_a_round_may_keep_is_alive_only_where_it_does(inner: str) -> None:
    """A round that leaves %x as it is needs it, but not one that makes another %m of it: two places are enough."""
    first = "%n: u8[24] = test.relu(%x)" if "%n" in inner else ""
    graph = parse(f"""
    graph @net(%a: u8[24], %seed: u8[4]) {{
      %last: u8[24] = while(%i: i64[]; %x: u8[24] = %a; ) @outer body @body {{
        %go: bool[] = test.below(%i, %seed)
        continue if %go
        {first}
        {inner}
        next %m;
      }}
      return %last
    }}
    """)
    plan = plan_memory(graph, Options(alignment=1))
    assert plan.arena_bytes == 24 * 2 + 4
    assert plan.moves == ()
    assert plan.gap == 0
    assert results_match(graph, plan.schedule, plan, random.Random(1), 20)


IN_STREAMS = f"""
graph @net(%a: {VECTOR}, %b: {VECTOR}, %seed: u8[4]) {{
  %f: {VECTOR}, %g: {VECTOR} = while(%i: i64[]; %x: {VECTOR} = %a, %y: {VECTOR} = %b; ) @loop body @body {{
    %go: bool[] = test.below(%i, %seed)
    continue if %go
    %u: {VECTOR} = test.matmul(%x, %seed)
    %v: {VECTOR} = test.matmul(%y, %seed)
    %w: {VECTOR} = test.add(%x, %y)
    %s: {VECTOR} = test.add(%u, %w)
    next %v, %s;
  }}
  %beside: {VECTOR} = test.matmul(%a, %seed)
  %p: {VECTOR} = test.relu(%beside)
  %q: {VECTOR} = test.sub(%f, %p)
  %r: {VECTOR} = test.add(%g, %p)
  return %q, %r
}}
"""


@pytest.mark.parametrize("streams", [2, 3])
def test_loops_of_several_streams_move_no_byte(streams: int) -> None:
    graph = parse(IN_STREAMS)
    plan = plan_memory(graph, Options(streams=streams, alignment=1))
    assert plan.rolled
    assert plan.moves == ()
    assert results_match(graph, plan.schedule, plan, random.Random(1), 30)


def test_slices_and_rows_of_several_streams_lie_in_their_wholes() -> None:
    graph = parse("""
    graph @net(%a: u8[24], %s: u8[3,24], %seed: u8[4]) {
      %f: u8[24], %stacked: u8[3,24] = while(%i: i64[]; %x: u8[24] = %a; %e: u8[24] in %s axis 0) @loop body @body {
        %go: bool[] = test.below(%i, %seed)
        continue if %go
        %u: u8[24] = test.matmul(%x, %e)
        %v: u8[24] = test.sub(%e, %x)
        %w: u8[24] = test.matmul(%seed)
        %r: u8[24] = test.add(%v, %w)
        next %u; %r axis 0
      }
      return %f, %stacked
    }
    """)
    plan = plan_memory(graph, Options(streams=3, alignment=1, in_place_from=0))
    assert {p.how for p in plan.placements if p.strides} >= {"slice", "row"}
    assert plan.moves == ()
    assert results_match(graph, plan.schedule, plan, random.Random(1), 30)


RECURRENT = """
  %last: u8[24], %ys: u8[4,24] = while(%i: i64[]; %h: u8[24] = {init}; %e: u8[24] in %s axis 0) @loop body @body {{
    %go: bool[] = test.below(%i, %seed)
    continue if %go
    %g: u8[24] = test.matmul(%h, %e, %k)
    %t: u8[24] = test.relu(%h)
    %u: u8[24] = test.add(%g, %t)
    next %u; %u axis 0{back}
  }}
"""
INPUTS = "%h0: u8[24], %s: u8[4,24], %seed: u8[4], %k: u8[24]"


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("back", ["", " reversed"])
@pytest.mark.parametrize(
    ("after", "returns"),
    [
        ("", "%last, %ys"),
        ("%z: u8[24] = test.add(%last, %h0)", "%z, %ys"),
        ("%z: u8[120] = test.concat(%ys, %last)", "%z"),
        ("%z: u8[24] = test.matmul(%last, %ys)", "%z"),
    ],
)
def test_a_row_that_is_carried_stays_where_it_is(after: str, returns: str, back: str, streams: int) -> None:
    text = RECURRENT.format(init="%h0", back=back)
    graph = parse(f"graph @net({INPUTS}) {{ {text} {after} return {returns} }}")
    plan = plan_memory(graph, Options(alignment=1, in_place_from=0, streams=streams))
    if streams == 1:
        assert plan.moves == ()
        assert {p.how for p in plan.placements if p.value == "u"} == {"row"}
    assert results_match(graph, plan.schedule, plan, random.Random(1), 30)


def test_a_row_is_not_written_over_while_another_stream_reads_what_the_loop_left() -> None:
    text = RECURRENT.format(init="%h0", back="")
    graph = parse(f"""
    graph @net({INPUTS}) {{
      {text}
      %p: u8[24] = test.matmul(%last)
      %q: u8[4,24] = test.relu(%ys)
      return %p, %q
    }}
    """)
    loop = serial_schedule(graph).bodies
    steps = (ScheduleStep(graph.nodes[0].name), ScheduleStep("p", 0), ScheduleStep("q", 1, (graph.nodes[0].name,)))
    plan = plan_memory(graph, Options(alignment=1, in_place_from=0), schedule=Schedule(steps, loop))
    assert [move.source for move in plan.moves] == ["u"]
    assert results_match(graph, plan.schedule, plan, random.Random(1), 30)


def test_a_row_that_is_carried_in_a_loop_around() -> None:
    """What the inner loop leaves is the next one's initial value, and its stacked output is written anew by then."""
    text = RECURRENT.format(init="%o", back="")
    graph = parse(f"""
    graph @net({INPUTS}) {{
      %end: u8[24] = while(%j: i64[]; %o: u8[24] = %h0; ) @outer body @rounds {{
        %more: bool[] = test.below(%j, %k)
        continue if %more
        {text}
        %w: u8[24] = test.matmul(%ys)
        %v: u8[24] = test.add(%w, %last)
        next %v;
      }}
      return %end
    }}
    """)
    plan = plan_memory(graph, Options(alignment=1, in_place_from=0))
    assert results_match(graph, plan.schedule, plan, random.Random(1), 30)
    other = parse(to_text(graph).replace("next %v;", "next %last;"))
    plan = plan_memory(other, Options(alignment=1, in_place_from=0))
    assert results_match(other, plan.schedule, plan, random.Random(1), 30)


def test_a_row_is_read_only_until_its_whole_is_written_over() -> None:
    """The checker refuses to let a pointer stand for a row where other bytes have come."""
    text = RECURRENT.format(init="%h0", back="")
    graph = parse(f"""
    graph @net({INPUTS}) {{ {text} %z: u8[96] = test.matmul(%ys) %y: u8[24] = test.add(%last, %h0) return %y, %z, %ys }}
    """)
    plan = plan_memory(graph, Options(alignment=1, in_place_from=0))
    assert plan.moves == ()
    whole = next(p for p in plan.placements if p.value == "ys")
    over = tuple(replace(p, region=whole.region) if p.value == "z" else p for p in plan.placements)
    found = check(graph, plan.schedule, replace(plan, placements=over))
    assert any("reads %last" in str(finding) for finding in found)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("nbytes", [1, 24])
@pytest.mark.parametrize("op", ["norm", "sub"])
def test_nobody_writes_over_the_whole_who_reads_a_row_of_it(nbytes: int, rows: int, op: str) -> None:
    """Planning does not, and the checker refuses it: the row may be any of the whole."""
    graph = parse(f"""
    graph @net(%h0: u8[{nbytes}], %s: u8[{rows},{nbytes}]) {{
      %last: u8[{nbytes}], %ys: u8[{rows},{nbytes}]
        = while(%i: i64[]; %h: u8[{nbytes}] = %h0; %e: u8[{nbytes}] in %s axis 0) @loop body @body {{
        %go: bool[] = test.below(%i, %s)
        continue if %go
        %u: u8[{nbytes}] = test.add(%h, %e)
        next %u; %u axis 0
      }}
      %z: u8[{rows},{nbytes}] = test.{op}(%ys, %last)
      return %z
    }}
    """)
    plan = plan_memory(graph, Options(alignment=1, in_place_from=0))
    assert results_match(graph, plan.schedule, plan, random.Random(1), 30)
    without = parse(to_text(graph).replace("(%ys, %last)", "(%ys)"))
    pointing = plan_memory(without, Options(alignment=1, in_place_from=0))
    assert {p.how for p in pointing.placements if p.value == "last"} == {"pointer"}
    assert len({p.region for p in pointing.placements if p.value in ("ys", "z")}) == 1
    found = check_bytes(graph, pointing.schedule, pointing)
    assert "input-overwritten" in {finding.rule for finding in found}
    assert not results_match(graph, pointing.schedule, pointing, random.Random(1), 30)


def test_a_pointer_is_not_read_while_another_stream_writes_what_it_stands_for() -> None:
    """%u is put where %y stands, in the copy that begins with that; another stream reads it."""
    graph = parse(IN_STREAMS)
    plan = plan_memory(graph, Options(streams=2, alignment=1))
    place = next(i for i, p in enumerate(plan.placements) if p.value == "u")
    regions = {p.region for p in plan.placements if p.value == "v"}
    found = set()
    for region in regions:
        one = replace(plan.placements[place], region=region)
        placements = (*plan.placements[:place], one, *plan.placements[place + 1 :])
        found |= {finding.rule for finding in check(graph, plan.schedule, replace(plan, placements=placements))}
    assert "race" in found


def test_the_same_loop_from_an_onnx_file() -> None:
    """Its trip count is one more input."""
    plan = plan_memory(from_proto(CONVOLUTION.model()).graph)
    assert plan.arena_bytes <= 1984 + 64
    assert rings(plan) == [2]
    assert plan.moves == ()


def test_a_chain_of_four_carries() -> None:
    plan = plan_memory(CHAIN)
    assert plan.arena_bytes <= 3776
    assert plan.moves == ()
    assert plan.gap == 0


@pytest.mark.parametrize(
    ("name", "vectors", "copies"),
    [
        ("fibonacci", 2, 4),
        ("swap", 2, 2),
        ("rotation of three", 3, 3),
        ("delay line of five", 5, 10),
        ("x[c] = f(x[c-4])", 4, 8),
        ("swap beside rotation", 5, 6),
        ("swap of two new values", 3, 3),
        ("the counter counts", 3, 4),
        ("initial value read afterwards", 3, 4),
        ("nothing changes", 2, 0),
    ],
)
def test_carried_values_need_no_more_than_themselves(name: str, vectors: int, copies: int) -> None:
    """In vectors of 64 bytes; the trip count, the counter and the condition, and %k where it is used, come on top."""
    carried = CARRIED[name]
    graph = from_proto(carried.model()).graph
    plan = plan_memory(graph)
    used = {value.name for node in graph.walk() for value in node.uses}
    scalars = 3 + ("k" in used)
    assert plan.arena_bytes <= 64 * (vectors + scalars)
    assert plan.moves == ()
    assert sum(record.first + record.ring for record in plan.rolled) == copies


ARMS = """g (bool c, float[1024,4096] x) => (float[1024,4096] y) {{
  y = If (c) <
    then_branch = yes () => (float[1024,4096] r) {{ {then} }},
    else_branch = no () => (float[1024,4096] s) {{ {other} }}
  >
}}"""


@pytest.mark.parametrize(
    ("then", "other", "most"),
    [
        ("p = Sin(x) q = Exp(p) r = Neg(q)", "p2 = Abs(x) s = Sqrt(p2)", 16 * MIB),
        ("r = Softmax(x)", "p = Neg(x) s = Softmax(p)", 32 * MIB),
        ("p = CumSum(x, axis) r = Neg(p)", "p2 = Exp(x) s = CumSum(p2, axis)", 32 * MIB),
    ],
)
def test_the_arms_of_a_branch_take_turns(then: str, other: str, most: int) -> None:
    """Results of 16 MiB out of 16 MiB: one block where all is element-wise, else the input's and the output's."""
    text = ARMS.format(then=then, other=other)
    if "axis" in text:
        text = text.replace("  y = If", "  axis = Constant <value = int64 {1}> ()\n  y = If", 1)
    plan = plan_memory(from_proto(parsed(text)).graph)
    assert plan.moves == ()
    assert plan.gap == 0
    assert plan.arena_bytes <= most + 64


def test_what_a_branch_before_the_loop_chose_stays_chosen() -> None:
    """However the second branch ends, there is one copy that follows."""
    graph = parse(f"graph @net(%a: u8[24], %seed: u8[4]) {{ {CHOSEN} return %last }}")
    plan = plan_memory(graph)
    ways = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2), (2, 0, 2), (2, 1, 1)]
    jumps = tuple(VersionTransition(copy, (("second", way),), after) for copy, way, after in ways)
    [record] = plan.rolled
    assert replace(record, heads=()) == RolledLoop("loop", (), 0, 3, jumps)
    [before], [one], [other] = record.heads
    assert before == OPEN
    assert [plan.placements[number].value for number in (one, other)] == ["m", "m"]
    assert one != other
    assert plan.moves == ()
    assert results_match(graph, plan.schedule, plan, random.Random(1), 20)


def test_what_a_branch_chose_in_a_round_of_a_loop_around() -> None:
    graph = parse(f"""
    graph @net(%a0: u8[24], %b0: u8[24], %seed: u8[4]) {{
      %end: u8[24], _ = while(%o: i64[]; %a: u8[24] = %a0, %b: u8[24] = %b0; ) @outer body @rounds {{
        %more: bool[] = test.below(%o, %seed)
        continue if %more
        {CHOSEN}
        next %last, %a;
      }}
      %r: u8[24] = test.matmul(%end)
      return %r
    }}
    """)
    plan = plan_memory(graph)
    assert plan.moves == ()
    assert results_match(graph, plan.schedule, plan, random.Random(1), 20)
