"""The check of plans over ranges: mutants that are right at the largest point, or at all corners, are refused."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper

from sublet.analysis.options import Options
from sublet.api.binding import CompileRequest
from sublet.api.ranges import read_over_ranges
from sublet.base.boxes import Range
from sublet.base.errors import PlanError
from sublet.checker import check_bytes
from sublet.checker.box import check_box
from sublet.plan import ARENA, MemoryPlan, Placement
from sublet.plan.ranges import RangedPlan
from sublet.planning.ranges import plan_over_ranges

A, B = Range("a", 1, 8), Range("b", 1, 8)


def ranged_plan(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[object]], *ranges: Range, options: Options | None = None
) -> RangedPlan:
    """The plan of a small ONNX graph over ranges; the result is called y."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    graph = helper.make_graph(nodes, "small", infos, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    read = read_over_ranges(CompileRequest(model, dims={each.name: each for each in ranges}, optimize="none"))
    return plan_over_ranges(read, options)


def concat_of_two(a: Range = A, b: Range = B) -> RangedPlan:
    """Two parts of sizes 64 a and 64 b, in place in their concatenation."""
    nodes = [
        helper.make_node("Relu", ["p"], ["u"]),
        helper.make_node("Relu", ["q"], ["v"]),
        helper.make_node("Concat", ["u", "v"], ["w"], axis=0),
        helper.make_node("Relu", ["w"], ["y"]),
    ]
    return ranged_plan(nodes, {"p": ["a", 16], "q": ["b", 16]}, a, b)


def moved(ranged: RangedPlan, name: str, **changes: object) -> RangedPlan:
    """The plan with another region of a value."""

    def change(place: Placement) -> Placement:
        return replace(place, region=replace(place.region, **changes)) if place.value == name else place  # type: ignore[arg-type]

    return replace(ranged, over=replace(ranged.over, placements=tuple(map(change, ranged.over.placements))))


def with_larger_arena(ranged: RangedPlan, nbytes: int) -> RangedPlan:
    """The plan in a larger arena."""
    storages = tuple(replace(each, nbytes=nbytes) if each.kind == ARENA else each for each in ranged.over.storages)
    return replace(ranged, over=replace(ranged.over, storages=storages, arena_bytes=nbytes))


def rules_of(ranged: RangedPlan) -> set[str]:
    """The rules that the check of the box finds violated."""
    return {finding.rule for finding in check_box(ranged.box, ranged.within, ranged.at)}


def place_of(plan: MemoryPlan, name: str) -> Placement:
    """The placement of a value."""
    return next(place for place in plan.placements if place.value == name)


def test_a_part_behind_a_part_of_varying_size_is_proven() -> None:
    ranged = concat_of_two()
    assert rules_of(ranged) == set()
    whole, second = place_of(ranged.over, "w"), place_of(ranged.over, "v")
    assert second.buffer == whole.buffer
    assert str(second.region.offset - whole.region.offset) == "64*a"


def test_an_offset_right_at_all_corners_and_wrong_inside_is_refused() -> None:
    ranged, a = concat_of_two(), A.extent
    offset = place_of(ranged.over, "v").region.offset + 64 * (a - 1) * (8 - a)
    bent = with_larger_arena(moved(ranged, "v", offset=offset), 4096)
    for corner in bent.box.corners():
        graph, plan = bent.at(corner)
        assert check_bytes(graph, plan.schedule, plan) == ()
    assert rules_of(bent)


def test_parts_that_are_swapped_are_refused() -> None:
    ranged = concat_of_two()
    begin = place_of(ranged.over, "w").region.offset
    swapped = moved(moved(ranged, "u", offset=begin + 64 * B.extent), "v", offset=begin)
    assert "clobbered" in rules_of(swapped)


def test_a_constant_offset_of_the_largest_point_is_refused() -> None:
    ranged = concat_of_two()
    assert rules_of(moved(ranged, "v", offset=place_of(ranged.worst, "v").region.offset))


def test_an_unaligned_offset_at_odd_points_is_refused() -> None:
    ranged = with_larger_arena(concat_of_two(), 4096)
    assert rules_of(moved(ranged, "y", offset=2048 + 64 * A.extent)) == set()
    assert rules_of(moved(ranged, "y", offset=2048 + 32 * A.extent)) == {"misaligned"}


def test_a_region_one_expression_too_short_is_refused() -> None:
    ranged = concat_of_two()
    assert "wrong-size" in rules_of(moved(ranged, "w", nbytes=64 * A.extent))


def test_a_fact_of_the_largest_point_is_no_fact() -> None:
    """Add may overwrite either operand at a = b = 8, and at a = 1 only the operand with all rows."""
    nodes = [
        helper.make_node("Relu", ["p"], ["u"]),
        helper.make_node("Relu", ["q"], ["v"]),
        helper.make_node("Concat", ["u", "u"], ["w"], axis=0),
        helper.make_node("MatMul", ["w", "m"], ["x"]),
        helper.make_node("Add", ["x", "v"], ["y"]),
    ]
    ranged = ranged_plan(nodes, {"p": ["a", 4], "q": [16, 4], "m": [4, 4]}, A)
    inplace = {place.value: place.shares for place in ranged.worst.placements if place.how == "inplace"}
    assert inplace.get("y") != "x"
    forced = moved(ranged, "y", offset=place_of(ranged.over, "x").region.offset)
    assert rules_of(forced)


def test_blocks_that_overlap_inside_the_box_are_refused() -> None:
    nodes = [
        helper.make_node("Relu", ["p"], ["u"]),
        helper.make_node("Sigmoid", ["p"], ["v"]),
        helper.make_node("MatMul", ["u", "v"], ["y"]),
    ]
    ranged = ranged_plan(nodes, {"p": ["a", "a"]}, A)
    places = sorted((place_of(ranged.over, name).region.offset, name) for name in ("u", "v"))
    assert "rooms-overlap" in rules_of(moved(ranged, places[1][1], offset=places[1][0] - 64))


def test_a_plan_that_is_right_without_proof_is_refused() -> None:
    """64 (a - b)^2 is no negative offset, but only a part of the box for each a = b shows that."""
    a, b = Range("a", 1, 2000), Range("b", 1, 2000)
    ranged = with_larger_arena(concat_of_two(a, b), 1 << 31)
    for place in ranged.over.placements:
        ranged = moved(ranged, place.value, offset=place.region.offset + (1 << 30))
    assert rules_of(ranged) == set()
    distance = 64 * (a.extent - b.extent) * (a.extent - b.extent)
    assert rules_of(moved(ranged, "y", offset=distance)) == {"unproven-box"}


def test_a_range_from_zero_is_proven_in_parts() -> None:
    nodes = [helper.make_node("Concat", ["p", "q"], ["w"], axis=0), helper.make_node("Relu", ["w"], ["y"])]
    ranged = ranged_plan(nodes, {"p": ["a", 16], "q": ["b", 16]}, Range("a", 0, 8), B)
    assert rules_of(ranged) == set()


def test_bound_inputs_and_outputs_are_proven() -> None:
    nodes = [helper.make_node("Exp", ["p"], ["u"]), helper.make_node("Add", ["u", "q"], ["y"])]
    ranged = ranged_plan(nodes, {"p": ["a", 16], "q": ["a", 16]}, A, options=Options(io="bound"))
    assert place_of(ranged.over, "y").region.storage == "%y"
    assert rules_of(ranged) == set()
    assert rules_of(moved(ranged, "u", storage="%q", offset=0))
    assert rules_of(moved(ranged, "y", storage="%p", offset=0))
    assert rules_of(moved(ranged, "y", offset=64))


@pytest.mark.parametrize("options", [Options(streams=2), Options(weights="arena")])
def test_streams_and_weights_in_the_arena_are_refused(options: Options) -> None:
    nodes = [helper.make_node("Relu", ["p"], ["y"])]
    with pytest.raises(PlanError, match="one stream"):
        ranged_plan(nodes, {"p": ["a", 16]}, A, options=options)


CONTROL = {
    "branch": "y = If (c) <then_branch = t () => (float[m, 4] r) {{ {body} r = Relu(last) }},"
    " else_branch = e () => (float[m, 4] k) {{ k = Neg({other}) }}>",
    "loop": "n = Constant <value_int = 3> () y = Loop(n, , {other}) <body = b (int64 i, bool go, float[m, 4] h) =>"
    " (bool went, float[m, 4] r) {{ went = Identity(go) {body} s = Relu(last) r = Add(s, h) }}>",
}
"""Control flow around a body that computes `last`, of the shape of `other`."""

PARTS = ("u = Relu(p) v = Exp(p) last = Concat <axis = 0> (u, v)", "q")
BROADCAST = ("u = Relu(p) w = Concat <axis = 0> (u, u) x = MatMul(w, m4) o = Relu(f) last = Add(x, o)", "f")


def plan_in_control_flow(kind: str, body: tuple[str, str]) -> RangedPlan:
    """The plan of a body within control flow, over a range."""
    inputs = "float[a, 16] p16, float[64, 4] f, float[4, 4] m4, bool c"
    before = "four = Constant <value_ints = [-1, 4]> () p = Reshape(p16, four) q = Concat <axis = 0> (p, p)"
    inside = CONTROL[kind].format(body=body[0], other=body[1])
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (y) {{ {before} {inside} }}'
    return plan_over_ranges(read_over_ranges(CompileRequest(onnx.parser.parse_model(text), dims={"a": A})))


@pytest.mark.parametrize("kind", CONTROL)
def test_a_part_in_place_within_control_flow_is_proven_and_its_mutants_refused(kind: str) -> None:
    ranged = plan_in_control_flow(kind, PARTS)
    assert rules_of(ranged) == set()
    whole, first, second = (place_of(ranged.over, name).region for name in ("last", "u", "v"))
    assert (first.offset, second.offset) == (whole.offset, whole.offset + 64 * A.extent)
    larger = with_larger_arena(ranged, 1 << 16)
    assert rules_of(larger) == set()
    assert "wrong-size" in rules_of(moved(larger, "last", nbytes=64 * A.extent))
    assert "wrong-size" in rules_of(moved(larger, "v", nbytes=64 * A.extent - 64))
    assert rules_of(moved(larger, "v", offset=place_of(ranged.worst, "v").region.offset))
    assert rules_of(moved(moved(larger, "u", offset=second.offset), "v", offset=first.offset))
    bent = moved(larger, "v", offset=second.offset + 64 * (A.extent - 1) * (8 - A.extent))
    for corner in bent.box.corners():
        graph, plan = bent.at(corner)
        assert check_bytes(graph, plan.schedule, plan) == ()
    assert rules_of(bent)


@pytest.mark.parametrize("kind", CONTROL)
def test_a_fact_of_the_largest_point_is_no_fact_within_control_flow(kind: str) -> None:
    """Add may overwrite either operand at a = 8, and elsewhere only the operand with 64 rows."""
    ranged = plan_in_control_flow(kind, BROADCAST)
    assert rules_of(ranged) == set()
    inplace = {place.value: place.shares for place in ranged.worst.placements if place.how == "inplace"}
    assert inplace.get("last") != "x"
    assert rules_of(moved(ranged, "last", offset=place_of(ranged.over, "x").region.offset))


def test_a_carried_value_in_the_bytes_of_a_value_that_every_iteration_reads_is_refused() -> None:
    ranged = plan_in_control_flow("loop", PARTS)
    assert rules_of(moved(ranged, "h", offset=place_of(ranged.over, "p").region.offset)) == {"rooms-overlap"}
    assert "wrong-size" in rules_of(moved(ranged, "h", nbytes=128 * A.extent - 64))
