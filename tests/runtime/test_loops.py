"""Loops and branches without copies: run, run in poison, and beside ONNX Runtime's own session."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

from sublet.analysis.options import Options
from sublet.api.compiling import compile
from sublet.runtime.differential import compare, equal_bits
from sublet.runtime.executable import Executable
from tests.integrations.onnx.models import parsed
from tests.runtime.loop_models import (
    BRANCH_BEFORE_LOOP,
    BRANCH_IN_LOOP,
    CARRIED,
    CONVOLUTION,
    HALVING,
    LOOP_IN_BRANCH,
    LOOP_IN_LOOP,
    SCAN,
    feeds_for,
)

ort = pytest.importorskip("onnxruntime")

BACKENDS = ("onnxruntime", "reference")
UNPLANNED = Options(strategy="no_reuse", share=False)


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUBLET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


class Case:
    """One model: unplanned and planned executables of a backend, and ONNX Runtime's session."""

    def __init__(self, model: onnx.ModelProto, backend: str, streams: int = 1) -> None:
        self.planned: Executable = compile(model, backend=backend, options=Options(streams=streams))
        self.unplanned: Executable = compile(model, backend=backend, options=UNPLANNED)
        self.exact = backend == "onnxruntime"
        options = ort.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4
        self.session = ort.InferenceSession(model.SerializeToString(), options)

    @property
    def turns(self) -> int:
        """After how many rounds the copies of the body have come around."""
        return max((record.first + record.ring for record in self.planned.plan.rolled), default=1)

    def feeds(self, **given: Any) -> dict[str, np.ndarray]:
        shapes = {entry.name: entry.shape for entry in self.session.get_inputs()}
        return feeds_for(list(self.planned.inputs), shapes, **{name: np.array(v) for name, v in given.items()})

    def check(self, feeds: dict[str, np.ndarray]) -> None:
        """Unplanned, planned and poisoned are the same bits, and what ONNX Runtime gives."""
        compared = compare(self.unplanned, self.planned, feeds)
        assert compared.differences == ()
        names = [entry.name for entry in self.session.get_outputs()]
        for name, expected in zip(names, self.session.run(names, feeds), strict=True):
            if self.exact:
                assert equal_bits(compared.outputs[name], expected)
            else:
                scale = float(np.abs(expected).max())
                np.testing.assert_allclose(compared.outputs[name], expected, rtol=1e-5, atol=1e-6 * scale)


@cache
def carried(name: str, backend: str) -> Case:
    return Case(CARRIED[name].model(), backend)


def rounds(turns: int) -> list[int]:
    """None, few, and around a full turn of the copies, and several turns."""
    return sorted({0, 1, 2, turns - 1, turns, turns + 1, 3 * turns + 1})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CARRIED)
def test_carried_values_move_no_byte(name: str, backend: str) -> None:
    case = carried(name, backend)
    assert case.planned.plan.moves == ()
    for n in rounds(case.turns):
        case.check(case.feeds(n=n))
        assert case.planned.copied_bytes == 0


@pytest.mark.parametrize("name", ["swap of two new values", "the counter counts", "fibonacci", "swap"])
def test_carried_values_move_no_byte_in_several_streams(name: str) -> None:
    case = Case(CARRIED[name].model(), "reference", streams=3)
    assert case.planned.plan.moves == ()
    for n in rounds(case.turns):
        case.check(case.feeds(n=n))
        assert case.planned.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_convolution_again_and_again(backend: str) -> None:
    case = Case(CONVOLUTION.model(), backend)
    assert case.planned.plan.moves == ()
    for n in rounds(case.turns):
        case.check(case.feeds(n=n))
        assert case.planned.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_in_a_loop(backend: str) -> None:
    case = Case(parsed(LOOP_IN_LOOP), backend)
    for n, m in ((0, 3), (1, 0), (1, 1), (2, 1), (2, 3), (3, 2), (5, 4), (9, 6)):
        case.check(case.feeds(n=n, m=m))
        assert case.planned.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_branch_in_a_loop(backend: str) -> None:
    case = Case(parsed(BRANCH_IN_LOOP), backend)
    for n in (*range(8), 31):
        case.check(case.feeds(n=n))
        assert case.planned.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_in_a_branch(backend: str) -> None:
    case = Case(parsed(LOOP_IN_BRANCH), backend)
    for c in (False, True):
        for n in (0, 1, 2, 3, 4, 5, 13):
            case.check(case.feeds(n=n, c=c))
            assert case.planned.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_branch_before_a_loop_that_may_keep_its_result(backend: str) -> None:
    case = Case(parsed(BRANCH_BEFORE_LOOP), backend)
    for c in (False, True):
        for n in (0, 1, 2, 3, 6):
            case.check(case.feeds(n=n, c=c))
            assert case.planned.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("limit", [9.0, 1.0, 0.4, 0.2, 0.1, 0.03, 1e-6])
def test_a_condition_that_depends_on_what_is_carried(limit: float, backend: str) -> None:
    case = Case(parsed(HALVING), backend)
    case.check(case.feeds(limit=np.float32(limit)))
    assert case.planned.copied_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scan_copies_only_slices_and_rows(backend: str) -> None:
    case = Case(parsed(SCAN), backend)
    case.check(case.feeds())
    assert {move.edge.kind: move.nbytes for move in case.planned.plan.moves} == {"fetch": 64, "next": 64}
    assert case.planned.copied_bytes == 9 * (64 + 64)


def test_every_run_starts_from_the_first_copy() -> None:
    """A run leaves pointers behind, in whatever state; the next must not see them."""
    case = carried("fibonacci", "onnxruntime")
    for n in (5, 0, 4, 1, 4, 5, 2):
        case.check(case.feeds(n=n))
