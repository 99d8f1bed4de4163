"""The arena form: who lies where, and that nobody who is needed is written over."""

from __future__ import annotations

from itertools import combinations

import pytest

from sublet.analysis.liveness import compute_live_ranges
from sublet.base.errors import ModelError
from sublet.integrations.paddle.arena import ArenaForm, to_arena_form
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.integrations.paddle.operators import dialect as facts
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.peaks.control_flow import build_flow
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from tests.integrations.paddle.given import program_files

MT, COND = "mean_2.tmp_0", "mean_1.tmp_0"
GIVEN = [("mt.pb", MT), ("cond.pb", COND)]


def read(name: str) -> PaddleProgram:
    path = next(path for path in program_files() if path.name == name)
    return decode_program(path.read_bytes(), name)


def formed(name: str, loss: str) -> tuple[PaddleProgram, ArenaForm]:
    program = read(name)
    return program, to_arena_form(program, infer_sizes(program), [loss])


@pytest.mark.parametrize(("name", "loss"), GIVEN)
def test_what_is_needed_together_lies_apart(name: str, loss: str) -> None:
    """But for an output that a fact puts in the place of an input, and a copy on what it copies."""
    program, form = formed(name, loss)
    graph = build_flow(program, [ScopedVariable(0, loss)], by_shape=False)
    lives = compute_live_ranges(graph)
    allowed = {
        (graph.scopes.resolve(block.index, one), graph.scopes.resolve(block.index, other))
        for block in program.blocks
        for op in block.ops
        for source, target in facts.facts_of(op.type).placed | facts.facts_of(op.type).placed_first
        for one in op.inputs.get(source, ())
        for other in op.outputs.get(target, ())
    }
    shared = 0
    for (one, (begin, size)), (other, (from_, length)) in combinations(sorted(form.places.items()), 2):
        if begin < from_ + length and from_ < begin + size:
            halves = [{half for b, e in lives.slot_ranges[place] for half in range(b, e)} for place in (one, other)]
            points = [{half // 2 for half in each} for each in halves]
            if points[0] & points[1]:
                assert {(one, other), (other, one)} & allowed, f"{one} and {other} overlap"
                assert (begin, size) == (from_, length)
                shared += 1
    assert shared > 5


@pytest.mark.parametrize(("name", "loss"), GIVEN)
def test_the_arena_is_as_small_as_its_bound(name: str, loss: str) -> None:
    _, form = formed(name, loss)
    assert form.bytes == form.bound > 0
    assert max(offset + size for offset, size in form.places.values()) == form.bytes


def test_what_trips_keep_and_what_is_fetched_stays_outside() -> None:
    program, form = formed("mt.pb", MT)
    kept = {
        place for point in build_flow(program, by_shape=False).points if point.kind == "keep" for place in point.uses
    }
    assert kept
    assert not kept & form.places.keys()
    assert ScopedVariable(0, MT) not in form.places
    assert all(not program.blocks[place.block].vars[place.name].persistable for place in form.places)
    assert not form.places.keys() & form.outside.keys()


def test_an_op_that_compares_allocations_has_its_output_on_its_input_or_elsewhere() -> None:
    program, form = formed("mt.pb", MT)
    scopes = build_flow(program).scopes
    seen = 0
    for block in program.blocks:
        for op in block.ops:
            if facts.facts_of(op.type).holder:
                out, given = (
                    scopes.resolve(block.index, op.outputs["Out"][0]),
                    scopes.resolve(block.index, op.inputs["X"][0]),
                )
                beside = [scopes.resolve(block.index, name) for name in op.reads]
                if out in form.places and any(place in form.places for place in beside):
                    assert form.places[out] == form.places[given]
                    seen += 1
    assert seen


@pytest.mark.parametrize(("name", "loss"), GIVEN)
def test_every_block_makes_views_of_its_own_variables(name: str, loss: str) -> None:
    program, form = formed(name, loss)
    for before, after in zip(program.blocks, form.program.blocks, strict=True):
        views = [op for op in after.ops if op.type == "view_slice" and op.outputs["out"][0] in before.vars]
        mine = {place.name: where for place, where in form.places.items() if place.block == before.index}
        ranges = {
            op.outputs["out"][0]: (begin, op.attrs["end_idx"].value - begin)  # type: ignore[operator]
            for op in views
            if isinstance(begin := op.attrs["begin_idx"].value, int)
        }
        assert ranges == mine
        assert [op for op in after.ops if op.type not in ("view_slice", "empty")] == list(before.ops)


def test_a_program_in_the_arena_form_is_refused() -> None:
    _, form = formed("cond.pb", COND)
    with pytest.raises(ModelError, match="already"):
        to_arena_form(form.program, infer_sizes(form.program), [COND])
