"""Slices and rows that move from round to round: what lies where, and every way to get it wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sublet.base.tensor import DType, TensorSpec
from sublet.checker import check_bytes
from sublet.checker.loop_slices import SliceStorage, SliceStorages, slice_region
from sublet.ir.graph import Value
from sublet.ir.text import parse
from sublet.plan import OPEN, MemoryPlan, Region, RolledLoop, Storage, Stride
from sublet.plan.schedule import Schedule, ScheduleStep, serial_schedule
from tests.support import dialect
from tests.support.plans import plan_at

assert dialect.OPS


def text(back: str = "", body: str = "%u: u8[8] = test.relu(%e)", update: str = "%p") -> str:
    return f"""
    graph @net(%x: u8[8], %s: u8[3,8]) {{
      %f: u8[8], %r: u8[3,8] = while(%i: i64[]; %p: u8[8] = %x; %e: u8[8] in %s axis 0{back}) @loop body @body {{
        %c: bool[] = test.below(%i, %i)
        continue if %c
        {body}
        next {update}; %u axis 0{back}
      }}
      return %f, %r
    }}
    """


PLACES = {"x": 0, "s": 8, "f": 0, "r": 32, "i": 56, "p": 0, "c": 72, "e": 8, "u": 32}
STEP = Stride("loop", 8)
CELLS = ("arena[8, 32) by 8 an iteration of loop: ", "arena[32, 56) by 8 an iteration of loop: ",
         "arena[32, 56) by 8 an iteration of loop:  (latest row)")  # fmt: skip
"""What the steps of a round are called."""

MOVING = {"e": (STEP,), "u": (STEP,)}


def messages(
    places: dict[str, int], strides: dict[str, tuple[Stride, ...]], source: str = "", alignment: int = 1
) -> str:
    graph = parse(source or text())
    plan = plan_at(graph, places, 128, alignment)
    return "\n".join(map(str, check_bytes(graph, serial_schedule(graph), moved_by(plan, strides))))


def moved_by(plan: MemoryPlan, strides: dict[str, tuple[Stride, ...]]) -> MemoryPlan:
    placements = (replace(place, strides=strides.get(place.value, ())) for place in plan.placements)
    return replace(plan, placements=tuple(placements))


def test_slices_and_rows_in_place() -> None:
    assert messages(PLACES, MOVING) == ""


@pytest.mark.parametrize("name", CELLS)
def test_no_arena_is_taken_for_the_step_of_a_round(name: str) -> None:
    """Whoever names one so would have bytes of a row read where they never were."""
    source = text(body="%v: u8[8] = test.matmul(%e)\n%u: u8[8] = test.relu(%v)")
    graph = parse(source)
    plan = moved_by(plan_at(graph, {**PLACES, "v": 32}, 128), {**MOVING, "v": (STEP,)})
    assert check_bytes(graph, serial_schedule(graph), plan) == ()
    storages = (*plan.storages, Storage(name, "arena", 8))
    found = check_bytes(graph, serial_schedule(graph), replace(plan, storages=storages, arena_bytes=136))
    assert "duplicate-storage" in {finding.rule for finding in found}


def test_from_the_far_end() -> None:
    back = {name: (replace(STEP, backwards=True),) for name in MOVING}
    assert messages({**PLACES, "e": 24, "u": 48}, back, text(" reversed")) == ""
    assert "[bad-stride]" in messages(PLACES, back, text(" reversed"))
    assert "[bad-stride]" in messages({**PLACES, "e": 24, "u": 48}, MOVING, text(" reversed"))


@pytest.mark.parametrize("name", ["e", "u"])
@pytest.mark.parametrize("stride", [Stride("loop", 16), Stride("loop", 8, True), Stride("loop", 4), Stride("lop", 8)])
def test_a_wrong_stride(name: str, stride: Stride) -> None:
    assert f"value %{name}: moves from iteration to iteration" in messages(PLACES, {**MOVING, name: (stride,)})


@pytest.mark.parametrize(("name", "offset"), [("e", 16), ("e", 9), ("e", 0), ("u", 40), ("u", 24), ("u", 72)])
def test_a_wrong_base(name: str, offset: int) -> None:
    assert f"value %{name}: moves from iteration to iteration" in messages({**PLACES, name: offset}, MOVING)


def test_a_slice_that_stays_where_it_is_is_written_over_its_sequence() -> None:
    assert "loop loop, slices: reads %s" in messages(PLACES, {"u": (STEP,)})


def test_a_row_that_stays_where_it_is_spoils_those_before() -> None:
    assert "loop loop, rows: reads %r at arena[32, 56), but bytes [32, 40) hold" in messages(PLACES, {"e": (STEP,)})


def test_nothing_is_written_over_a_slice() -> None:
    """The next round's sequence is no longer whole, whichever round it was."""
    source = text(body="%v: u8[8] = test.relu(%e)\n%u: u8[8] = test.relu(%v)")
    right = {**PLACES, "v": 80}
    assert messages(right, MOVING, source) == ""
    assert "loop loop, slices: reads %s" in messages({**right, "v": 8}, {**MOVING, "v": (STEP,)}, source)
    found = messages({**right, "v": 16}, MOVING, source)
    assert "loop loop, slices: reads %s" in found


def test_a_row_that_is_there_stays() -> None:
    source = text(body="%u: u8[8] = test.relu(%e)\n%v: u8[8] = test.relu(%e)")
    assert messages({**PLACES, "v": 80}, MOVING, source) == ""
    assert "loop loop, rows: reads %u" in messages({**PLACES, "v": 32}, {**MOVING, "v": (STEP,)}, source)
    assert "loop loop, rows: reads %" in messages({**PLACES, "v": 40}, MOVING, source)


def test_what_a_row_is_computed_over_moves_with_it() -> None:
    source = text(body="%v: u8[8] = test.matmul(%e)\n%u: u8[8] = test.relu(%v)")
    assert messages({**PLACES, "v": 32}, {**MOVING, "v": (STEP,)}, source) == ""


def test_a_sequence_keeps_its_bytes_for_the_slices() -> None:
    source = text(body="%v: u8[8] = test.const()\n%u: u8[8] = test.add(%e, %v)")
    assert messages({**PLACES, "v": 80}, MOVING, source) == ""
    assert "reads %s at arena[8, 32)" in messages({**PLACES, "v": 24}, MOVING, source)
    assert "reads %s at arena[8, 32)" in messages({**PLACES, "i": 24}, MOVING)


LATER = RolledLoop("loop", (), 1, 1, heads=((OPEN,), (OPEN,)))
"""Only the run knows what the pointer stands for, in the first round and in all others."""


def pointing(update: str, rolled: tuple[RolledLoop, ...] = ()) -> str:
    """What is wrong when %p and %f are pointers, which stand for what the update is."""
    graph = parse(text(update=update))
    plan = moved_by(plan_at(graph, PLACES, 128), MOVING)
    assert check_bytes(graph, serial_schedule(graph), plan) == ()
    placements = tuple(
        replace(place, how="pointer", region=replace(place.region, storage="")) if place.value in "pf" else place
        for place in plan.placements
    )
    found = check_bytes(graph, serial_schedule(graph), replace(plan, placements=placements, rolled=rolled))
    return "\n".join(map(str, found))


def test_a_slice_is_gone_in_the_next_round() -> None:
    """A pointer to it would stand for another one every round; the parameter gets a copy or nothing."""
    assert "binds %p to %e, which moves from iteration to iteration" in pointing("%e", (LATER,))


def test_a_row_is_there_in_the_next_round() -> None:
    assert pointing("%u", (LATER,)) == ""
    assert "[bad-jumps]" in pointing("%u")


def test_the_evaluation_nodes_also_run_when_there_is_no_more_room() -> None:
    assert "value %c: moves from iteration to iteration" in messages({**PLACES, "c": 32}, {**MOVING, "c": (STEP,)})
    assert "value %p: moves from iteration to iteration" in messages({**PLACES, "p": 32}, {**MOVING, "p": (STEP,)})


def test_strides_are_aligned() -> None:
    places = {"x": 0, "s": 16, "f": 0, "r": 48, "i": 80, "p": 0, "c": 96, "e": 16, "u": 48}
    assert "value %e: moves by 8 bytes, which is no multiple of the alignment 16" in messages(
        places, MOVING, alignment=16
    )


def test_two_streams_in_one_step_of_a_sequence() -> None:
    """Reading it side by side is no race; writing to what the other touches is, in cells and around them."""
    graph = parse(text(body="%t: u8[8] = test.matmul(%p) %v: u8[8] = test.relu(%e) %u: u8[8] = test.relu(%e)"))
    early, late = (
        (ScheduleStep("c"),),
        (ScheduleStep("t", 1, ("c",)), ScheduleStep("v", 2, ("c",)), ScheduleStep("u", 0)),
    )
    schedule = Schedule((ScheduleStep("loop"),), {"loop": (Schedule((*early, *late)),)})

    def found(places: dict[str, int], strides: dict[str, tuple[Stride, ...]]) -> str:
        plan = moved_by(plan_at(graph, {**PLACES, "t": 88, "v": 96, **places}, 128, schedule=schedule), strides)
        return "\n".join(map(str, check_bytes(graph, schedule, plan)))

    assert found({}, MOVING) == ""
    over_the_row = found({"t": 32}, {**MOVING, "t": (STEP,)})
    assert "nothing orders the two" in over_the_row
    assert "node u" in over_the_row
    over_the_whole = found({"t": 40}, MOVING)
    assert "node u: writes" in over_the_whole
    assert "[race]" in over_the_whole


def some_cells() -> SliceStorages:
    """Rows at [16, 48) and slices at [64, 96), each of which is taken apart once more."""
    cells = SliceStorages()
    cells.add("row", SliceStorage("loop", Region("arena", 16, 32), 8, stacked=True))
    cells.add("slice", SliceStorage("loop", Region("arena", 64, 32), 8, stacked=False))
    cells.add("part", SliceStorage("inner", Region("slice", 0, 8), 4, stacked=False))
    return cells


def test_what_a_cell_lies_in() -> None:
    cells = some_cells()
    latest = "row (latest row)"
    assert [cells.current_slice_of(name) for name in (latest, "row", "part", "arena")] == [
        "row",
        "row",
        "part",
        "arena",
    ]
    assert [cells.root_storage(name) for name in (latest, "part", "slice", "arena")] == ["arena"] * 4
    part = Region("part", 1, 2)
    around = [part, Region("slice", 0, 8), Region("arena", 64, 32)]
    assert list(cells.enclosing_regions(part)) == [(region.storage, region) for region in around]
    assert cells.latest_row_of(Region("row", 2, 4), "loop") == Region(latest, 2, 4)
    for storage, loop in (("row", "inner"), ("slice", "loop"), (latest, "loop"), ("arena", "loop")):
        assert cells.latest_row_of(Region(storage, 2, 4), loop) is None


@pytest.mark.parametrize(
    ("written", "spoilt"),
    [
        (Region("arena", 48, 16), []),
        (Region("arena", 47, 1), [Region("row", 0, 8), Region("row (latest row)", 0, 8)]),
        (Region("arena", 0, 17), [Region("row", 0, 8), Region("row (latest row)", 0, 8)]),
        (Region("arena", 95, 1), [Region("slice", 0, 8), Region("part", 0, 4)]),
        (Region("slice", 4, 4), [Region("arena", 64, 32), Region("part", 0, 4)]),
        (Region("part", 0, 2), [Region("slice", 0, 8), Region("arena", 64, 32)]),
        (Region("row", 0, 4), []),
        (Region("elsewhere", 0, 100), []),
    ],
)
def test_what_a_write_spoils(written: Region, spoilt: list[Region]) -> None:
    assert list(some_cells().invalidated_regions(written)) == spoilt


@pytest.mark.parametrize(
    ("shape", "axis", "nbytes"),
    [((4, 8), 0, 8), ((4, 8), 1, 0), ((1, 4, 8), 1, 8), ((2, 1, 8), 1, 0), ((0, 8), 0, 0), ((1, 8), 1, 1)],
)
def test_the_step_of_a_round(shape: tuple[int, ...], axis: int, nbytes: int) -> None:
    whole, place = Value("whole", TensorSpec(DType.U8, shape)), Region("arena", 16, 32)
    steps = [slice_region("loop", whole, place, axis, backwards) for backwards in (False, True)]
    assert [step and (step.offset, step.nbytes) for step in steps] == [(0, nbytes) if nbytes else None] * 2
    assert not nbytes or steps[0] != steps[1]
    assert slice_region("loop", whole, None, axis, False) is None
