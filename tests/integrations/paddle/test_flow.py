"""The flow of whole programs: the sets of the seed, both back edges, scopes of trips, and what branches leave."""

from __future__ import annotations

from random import Random

import pytest

from sublet.analysis.liveness import live_in_out
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.integrations.paddle.peaks.control_flow import PaddleFlow, PaddlePoint, ScopedVariable, build_flow
from sublet.integrations.paddle.peaks.scopes import PaddleScopes
from tests.integrations.paddle.given import program_files
from tests.integrations.paddle.written import straight

FILES = {path.name: path for path in program_files()}


def read(name: str) -> PaddleProgram:
    if name not in FILES:
        pytest.skip(f"{name} is only in the shared programs")
    return decode_program(FILES[name].read_bytes(), name)


def names(places: object) -> set[str]:
    assert isinstance(places, frozenset | tuple)
    return {place.name for place in places}


def test_the_seeds_example_has_the_seeds_sets() -> None:
    laid = build_flow(straight("a = op1(b, c)", "d = op2(a)", "e = op3(d, f)"))
    sets = live_in_out(laid)
    at = [laid.point_of_operator[0, index] for index in range(3)]
    assert [names(laid.points[point].uses) for point in at] == [{"b", "c"}, {"a"}, {"d", "f"}]
    assert [names(laid.points[point].defs) for point in at] == [{"a"}, {"d"}, {"e"}]
    assert [names(sets[point][0]) for point in at] == [{"b", "c", "f"}, {"a", "f"}, {"d", "f"}]
    assert [names(sets[point][1]) for point in at] == [{"a", "f"}, {"d", "f"}, set()]


def back_edges(laid: PaddleFlow) -> list[tuple[PaddlePoint, PaddlePoint]]:
    """Edges from a point to an earlier one."""
    points = laid.points
    return [
        (point, points[follower])
        for index, point in enumerate(points)
        for follower in laid.successors[index]
        if follower <= index
    ]


@pytest.mark.parametrize(("name", "loops"), [("book_mt_1.8.5.pb", 1), ("mt.pb", 2), ("mt_written_by_2.6.2.pb", 2)])
def test_machine_translation_has_both_back_edges_of_each_loop(name: str, loops: int) -> None:
    program = read(name)
    found = [
        (last.kind, program.blocks[head.block].ops[head.op].type, head.kind)
        for last, head in back_edges(build_flow(program))
    ]
    assert sorted(found) == sorted([("keep", "while", "head"), ("add", "while_grad", "head")] * loops)


def test_the_books_machine_translation_has_the_sets_of_its_blocks() -> None:
    """The design lists the operators of three blocks; these are sets in the two inside."""
    program = read("book_mt_1.8.5.pb")
    laid = build_flow(program)
    sets = live_in_out(laid)
    counter, states = "fill_constant_0.tmp_0", "dynamic_rnn_mem_array_0"

    def at(block: int, index: int) -> tuple[set[str], set[str], set[str], set[str]]:
        point = laid.point_of_operator[block, index]
        into, out = (names(frozenset(each for each in live if each.block == block)) for live in sets[point])
        return names(laid.points[point].uses), names(laid.points[point].defs), into, out

    types = [[op.type for op in block.ops] for block in program.blocks]
    assert types[1][:2] == ["read_from_array", "read_from_array"]
    assert types[1][-4:] == ["write_to_array", "increment", "write_to_array", "less_than"]
    assert types[2][:2] == ["read_from_array", "increment"]
    assert types[2][-2:] == ["write_to_array", "write_to_array"]
    assert at(1, 0) == ({counter, "dynamic_rnn_input_array_0"}, {"array_read_0.tmp_0"}, set(), {"array_read_0.tmp_0"})
    kept = {"array_read_0.tmp_0", "array_read_1.tmp_0", "fc_1.tmp_2", "fc_1.tmp_4", "fc_2.tmp_0", "fc_2.tmp_2"}
    kept |= {"shrink_memory_0.tmp_0"}
    assert at(1, 13) == ({counter, "fc_1.tmp_4", states}, {states}, kept, kept)  # what the gradient reads of the trip
    assert at(1, 14)[:2] == ({counter, "dynamic_rnn_max_seq_len_0"}, {"dynamic_rnn_0.tmp_0"})
    gradient = "fc_1.tmp_4@GRAD@RENAME@block1@0"
    assert at(2, 0)[:2] == ({counter, f"{states}@GRAD", "fc_1.tmp_4"}, {gradient})
    assert gradient in at(2, 0)[3]
    weights = {"fc_2.w_0@GRAD", "fc_1.w_1@GRAD", "fc_2.b_0@GRAD", "fc_1.w_0@GRAD", "fc_1.b_0@GRAD"}
    last = at(2, len(types[2]) - 1)
    assert weights <= last[3]  # found by their names and added to those outside


def test_machine_translation_needs_its_feeds_and_nothing_else() -> None:
    laid = build_flow(read("mt.pb"))
    assert names(live_in_out(laid)[0][1]) - names(laid.points[0].defs) == {"src", "trg", "nxt"}


def test_a_trip_backwards_finds_what_the_loop_took_in_that_trip() -> None:
    """The state before a step of the encoder, which block 0 has under one name, is another in each trip."""
    scopes = PaddleScopes(read("mt.pb"))
    assert scopes.resolve(1, "fill_constant_5.tmp_0") == ScopedVariable(0, "fill_constant_5.tmp_0")
    assert scopes.resolve(4, "fill_constant_5.tmp_0") == ScopedVariable(1, "fill_constant_5.tmp_0")
    assert scopes.resolve(4, "transpose_0.tmp_0") == ScopedVariable(
        0, "transpose_0.tmp_0"
    )  # copied, but the same in every trip
    assert "transpose_0.tmp_0" in scopes.copied_inputs[1]
    assert scopes.resolve(4, "sigmoid_0.tmp_0") == ScopedVariable(1, "sigmoid_0.tmp_0")


def test_the_state_of_a_loop_is_alive_along_its_back_edge() -> None:
    """In a flow without it, what a trip leaves for the next one would be dead at the end of the body."""
    laid = build_flow(read("mt.pb"))
    sets = live_in_out(laid)
    last_points = [index for index, point in enumerate(laid.points) if point.kind == "keep"]
    assert len(last_points) == 2
    for last in last_points:
        assert ScopedVariable(0, "fill_constant_5.tmp_0") in sets[last][1]


def test_values_of_one_trip_are_dead_when_the_next_begins() -> None:
    program = read("mt.pb")
    laid = build_flow(program)
    sets = live_in_out(laid)
    for index, point in enumerate(laid.points):
        if point.kind == "head":
            inner = program.blocks[point.block].ops[point.op].block_index()
            assert not [place for place in sets[index][0] if place.block == inner]


def test_what_a_branch_writes_is_nothing_before_it_and_needed_after_it() -> None:
    laid = build_flow(read("cond.pb"))
    sets = live_in_out(laid)
    written, head = ScopedVariable(0, "_generated_var_0"), laid.point_of_operator[0, 6]
    assert laid.points[head].kind == "head"
    assert written not in sets[head][0]
    chosen = next(point for point in laid.point_of_operator.values() if written in laid.points[point].uses)
    assert written in sets[chosen][0]
    assert ScopedVariable(1, "tanh_0.tmp_0") not in sets[chosen][0]  # it is in the scope that the branch keeps


def test_without_shapes_less_is_alive() -> None:
    program = read("mt.pb")
    all_of_it, bytes_of_it = (build_flow(program, by_shape=by_shape) for by_shape in (True, False))
    kept = [next(point for point in laid.points if point.kind == "keep") for laid in (all_of_it, bytes_of_it)]
    assert set(kept[1].uses) < set(kept[0].uses)
    assert ScopedVariable(1, "tmp_7") in set(kept[0].uses) - set(
        kept[1].uses
    )  # elementwise_add_grad asks for its shape


def live_by_paths(laid: PaddleFlow, place: ScopedVariable, index: int) -> bool:
    """Whether some path from before a point comes to a use of a place and not to a definition before."""
    todo, seen = [index], set()
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        point = laid.points[at]
        if place in point.uses:
            return True
        if place not in point.defs and place not in point.kills:
            todo += laid.successors[at]
    return False


def random_flow(random: Random) -> PaddleFlow:
    """Points that use and define some of five names, with edges to any others."""
    count = random.randint(1, 12)
    places = [ScopedVariable(0, name) for name in "abcde"]
    draw = lambda most: tuple(random.sample(places, random.randint(0, most)))  # noqa: E731
    points = tuple(PaddlePoint("op", 0, index, draw(2), draw(1), (), draw(1)) for index in range(count))
    followers = tuple(
        tuple(
            sorted(
                {*([index + 1] if index + 1 < count else []), *random.sample(range(count), random.randint(0, 2) // 2)}
            )
        )
        for index in range(count)
    )
    return PaddleFlow(points, followers, PaddleScopes(PaddleProgram(())))


@pytest.mark.parametrize("seed", range(8))
def test_liveness_is_what_a_search_over_paths_finds(seed: int) -> None:
    random = Random(seed)
    for _ in range(60):
        laid = random_flow(random)
        places = {place for point in laid.points for place in (*point.uses, *point.defs)}
        for index, (into, out) in enumerate(live_in_out(laid)):
            assert into == {place for place in places if live_by_paths(laid, place, index)}
            assert out == {
                place for place in places for after in laid.successors[index] if live_by_paths(laid, place, after)
            }


@pytest.mark.parametrize("name", sorted(FILES))
def test_liveness_of_given_programs_is_what_a_search_over_paths_finds(name: str) -> None:
    laid = build_flow(read(name))
    sets, random = live_in_out(laid), Random(1)
    places = sorted({place for point in laid.points for place in (*point.uses, *point.defs)})
    for place in random.sample(places, min(len(places), 40)):
        for index in random.sample(range(len(laid.points)), min(len(laid.points), 40)):
            assert (place in sets[index][0]) == live_by_paths(laid, place, index)
