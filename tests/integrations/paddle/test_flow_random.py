"""Liveness of random programs: against a search over paths, and against what runs of them read."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from sublet.analysis.liveness import live_in_out
from sublet.integrations.paddle.format.program import PaddleOp, PaddleProgram
from sublet.integrations.paddle.peaks.control_flow import build_flow
from sublet.integrations.paddle.peaks.scopes import ScopedVariable
from tests.integrations.paddle.generated import generated
from tests.integrations.paddle.test_flow import live_by_paths

MOST_TRIPS = 3


@pytest.mark.parametrize("seed", range(10))
def test_liveness_is_what_a_search_over_paths_finds(seed: int) -> None:
    laid = build_flow(generated(seed))
    sets, draw = live_in_out(laid), random.Random(seed)
    places = sorted({place for point in laid.points for place in (*point.uses, *point.defs)})
    for place in draw.sample(places, min(len(places), 12)):
        for index, (into, out) in enumerate(sets):
            assert (place in into) == live_by_paths(laid, place, index)
            assert (place in out) == any(live_by_paths(laid, place, after) for after in laid.successors[index])


@dataclass
class Run:
    """One run of a program that takes any way: which operators ran, and between which of them bytes were needed."""

    program: PaddleProgram
    draw: random.Random
    ran: list[tuple[int, int]] = field(default_factory=list)
    needed: list[tuple[ScopedVariable, int, int]] = field(
        default_factory=list
    )  # written at, read at, as indices of `ran`

    def block(self, block: int, scopes: dict[int, dict[str, int]]) -> None:
        scopes = {**scopes, block: {}}
        for index, op in enumerate(self.program.blocks[block].ops):
            inner = op.block_index()
            trips = 1 if inner is None else self.draw.randint(0, MOST_TRIPS if op.type == "while" else 1)
            for trip in range(trips + (op.type == "while")):
                self.operator(block, index, op, scopes)
                if inner is not None and trip < trips:
                    self.block(inner, scopes)
            if inner is not None and not trips and op.type != "while":
                self.operator(block, index, op, scopes)

    def operator(self, block: int, index: int, op: PaddleOp, scopes: dict[int, dict[str, int]]) -> None:
        now = len(self.ran)
        self.ran.append((block, index))
        conditions = op.inputs.get("Condition", ()) + op.inputs.get("Cond", ())
        for name in op.reads if op.block_index() is None else conditions:
            home = self.program.declaring_block(block, name) or 0
            if name in scopes[home]:
                self.needed.append((ScopedVariable(home, name), scopes[home][name], now))
        for name in op.writes if op.block_index() is None else ():
            scopes[self.program.declaring_block(block, name) or 0][name] = now


@pytest.mark.parametrize("seed", range(20))
def test_what_a_run_reads_is_alive_since_it_was_written(seed: int) -> None:
    program, draw = generated(seed), random.Random(seed)
    laid = build_flow(program)
    sets = live_in_out(laid)
    for _ in range(10):
        run = Run(program, draw)
        run.block(0, {})
        assert run.needed
        for place, written, read in run.needed:
            for at in run.ran[written + 1 : read + 1]:
                assert place in sets[laid.point_of_operator[at]][0], f"{place} at {at}"
