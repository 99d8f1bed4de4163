"""Executables with tiers: equal to ONNX Runtime at every shape, in one arena, with one set of sessions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sublet.analysis.options import Options, StorageChoice
from sublet.api.ranges import compile_ranges
from sublet.base.errors import RunError
from sublet.integrations.onnx.kernels.backend import OnnxRuntime
from sublet.runtime import backends
from sublet.runtime.tiers import TieredExecutable
from tests.runtime.test_ranged import (
    DECODER_DIMS,
    DECODER_STATE,
    IO,
    decoder,
    differing_points,
    feeds_at,
    points_of,
    session_of,
    two_dimensions,
)
from tests.support.onnx.ranged_programs import RANGES, ranged_program

TIERS = {"s": (8, 16), "n": (1,)}
"""Upper ends of the tiers of the model of two inputs."""


@pytest.fixture
def tiered() -> TieredExecutable:
    """The executable of the model of two inputs, with tiers."""
    return compile_ranges(two_dimensions(), {"n": (1, 4), "s": "2..64"}, tiers=TIERS)


@pytest.mark.parametrize("seed", range(12))
def test_generated_programs_in_tiers_equal_onnx_runtime(seed: int) -> None:
    tiers = {"a": (1, 3), "b": (4,)}
    assert differing_points(ranged_program(seed), RANGES, 12, seed, tiers) in ([], None)


def test_a_call_runs_in_the_smallest_tier(tiered: TieredExecutable) -> None:
    arenas = {tuple(ends.values()): nbytes for ends, nbytes in tiered.tiers}
    assert list(arenas)[-1] == (4, 64)
    assert set(arenas) == {(n, s) for n in (1, 4) for s in (8, 16, 64)}
    arena = tiered.memory.raw("arena")
    for n, s in ((1, 2), (1, 8), (2, 8), (4, 16), (1, 17), (4, 64)):
        touched = next(nbytes for (most_n, most_s), nbytes in arenas.items() if n <= most_n and s <= most_s)
        arena[:] = 0xA5
        tiered(feeds_at(n, s))
        assert np.all(arena[touched:] == 0xA5)
        assert tiered.bytes_at(n=n, s=s) <= touched


def test_tiers_share_arena_weights_and_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[OnnxRuntime] = []

    def recorded(names: object, model: object) -> list[object]:
        found = backends.backends_of(names, model)  # type: ignore[arg-type]
        opened.extend(each for each in found if isinstance(each, OnnxRuntime))
        return list(found)

    monkeypatch.setattr("sublet.api.binding.backends_of", recorded)
    tiered = compile_ranges(two_dimensions(), {"n": (1, 4), "s": "2..64"}, tiers=TIERS)
    assert len(opened) == 6
    assert all(each is opened[0] for each in opened)
    assert len({raw.ctypes.data for raw in (e.executable.memory.raw("arena") for e in tiered._smaller)}) == 1
    before = dict(opened[0]._sessions)
    for n, s in ((1, 2), (4, 64), (2, 9)):
        tiered(feeds_at(n, s))
    assert opened[0]._sessions == before


def test_points_of_all_tiers_are_counted_and_forgotten(tiered: TieredExecutable) -> None:
    tiered.prepare(n=1, s=4)
    tiered.prepare(n=4, s=64)
    assert tiered.bound_points == 2
    tiered(feeds_at(1, 4))
    assert tiered.bound_points == 2
    assert tiered.binding_bytes > 0
    tiered.forget_points()
    assert tiered.bound_points == 0


@pytest.mark.parametrize("io", IO)
def test_a_session_keeps_its_state_from_tier_to_tier(io: StorageChoice) -> None:
    model, options = decoder(), Options(io=io)
    model.graph.node[-1].output[0] = "scaled"
    means = onnx.helper.make_node("ReduceMean", ["scaled"], ["means"], axes=[2])  # in the arena with both kinds of io
    model.graph.node.extend([means, onnx.helper.make_node("Mul", ["scaled", "means"], ["y"])])
    plain, tiered = (
        compile_ranges(model, DECODER_DIMS, state=DECODER_STATE, tiers=tiers, options=options)
        for tiers in (None, {"old": (0, 4, 8), "new": (1,)})
    )
    assert len(tiered.tiers) > 3
    one, other, rng = plain.session(), tiered.session(), np.random.default_rng(3)
    for new in (4, 1, 1, 1, 2, 1, 2):
        x = rng.standard_normal((2, new, 4), dtype=np.float32)
        assert np.array_equal(one(x=x)["y"], other(x=x)["y"])
    assert np.array_equal(one.state("past"), other.state("past"))
    assert tiered.arena_bytes == plain.arena_bytes


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ({"q": (8,)}, "tiers of q: no dimension with a range; the ranges are 'n', 's'"),
        ({"s": (8, 65)}, "tiers of s: is 65; s ranges from 2 to 64"),
        ({"s": (16, 8)}, "tiers of s: 16, 8 are not ascending"),
        ({"s": tuple(range(2, 50)), "n": (1, 2)}, "tiers: 147 combinations; the maximum is 64"),
        ({"s": ("8",)}, "'8' is no whole number"),
    ],
)
def test_wrong_tiers_are_one_error(tiers: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(RunError, match=message):
        compile_ranges(two_dimensions(), {"n": (1, 4), "s": "2..64"}, tiers=tiers)


def test_one_end_may_be_a_number() -> None:
    one, several = (
        compile_ranges(two_dimensions(), {"n": (1, 4), "s": "2..64"}, tiers={"s": ends}).tiers for ends in (8, (8,))
    )
    assert one == several
    assert [ends["s"] for ends, _ in one] == [8, 64]


def test_a_wrong_shape_writes_nothing_in_any_tier(tiered: TieredExecutable) -> None:
    tiered(feeds_at(1, 4))
    before = tiered.memory.raw("arena").copy()
    with pytest.raises(RunError, match="s ranges from 2 to 64"):
        tiered(feeds_at(1, 65))
    assert np.array_equal(tiered.memory.raw("arena"), before)


@pytest.mark.parametrize("seed", [2, 6, 9, 21, 31, 48, 49, 52])
def test_generated_states_in_tiers_equal_a_state_carried_by_hand(seed: int) -> None:
    model, ranges = ranged_program(seed), {each.name: each for each in RANGES}
    plain, options = compile_ranges(model, ranges), Options(io="bound" if seed % 2 else "arena")
    found = {
        name: [result for result, output in plain.outputs.items() if output.spec == value.spec]
        for name, value in plain.inputs.items()
    }
    state = {name: results[-1] for name, results in found.items() if results}
    executable = compile_ranges(model, ranges, state=state, tiers={"a": (1, 3), "b": (4,)}, options=options)
    truth, numbers = session_of(model), np.random.default_rng(seed)
    names = [each.name for each in truth.get_outputs()]

    def content(point: dict[str, int]) -> np.ndarray:
        return numbers.standard_normal((point["a"], point["b"], 4), dtype=np.float32)

    clients = [
        (executable.session(), point, {name: content(point) for name in state})
        for point in points_of(RANGES, 4, seed)[1:]
    ]
    for session, _, carried in clients:
        for name, array in carried.items():
            session.set_state(name, array)
    for _ in range(4):
        for session, point, carried in clients:
            feeds = {name: content(point) for name in executable.inputs if name not in state}
            given = {each.name: {**carried, **feeds}[each.name] for each in truth.get_inputs()}
            wanted = dict(zip(names, truth.run(None, given), strict=True))
            executable.memory.raw("arena")[:] = 0xA5
            for name, array in session(feeds).items():
                assert np.allclose(array, wanted[name], atol=1e-4)
            for name, result in state.items():
                carried[name] = session.state(name)
                assert np.allclose(carried[name], wanted[result], atol=1e-4)


def test_tiers_of_a_plan_have_its_storage_of_inputs_and_outputs() -> None:
    dims, bound = {"n": (1, 4), "s": "2..64"}, Options(io="bound")
    made = compile_ranges(two_dimensions(), dims, tiers=TIERS, options=bound)
    again = compile_ranges(two_dimensions(), plan=made.plan, tiers=TIERS)
    assert again.tiers == made.tiers
