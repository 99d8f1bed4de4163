"""Programs and what Sublet makes of them, run in Paddle: the same bits, fewer bytes.

They need a Python that has paddlepaddle, named by SUBLET_PADDLE_PYTHON, or this one; else they are skipped. The
programs are written by that Paddle (`benchmarks/paddle/programs.py`): 2.6 to 3.0 can.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.paddle import book
from sublet.base.errors import MissingExtraError, RunError
from sublet.base.optional_imports import is_installed
from sublet.integrations.paddle.arena import ARENA, ArenaForm, to_arena_form, with_lasting_arena
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.format.program import PaddleProgram, new_op
from sublet.integrations.paddle.operators.dialect import nonempty_names
from sublet.integrations.paddle.operators.shapes import infer_sizes
from sublet.integrations.paddle.peaks.control_flow import build_flow
from sublet.integrations.paddle.policies import apply_own_policy
from sublet.integrations.paddle.running.verify import (
    PYTHON,
    Training,
    TrainingComparison,
    TrainingOutcome,
    compare_outcomes,
    find_paddle_python,
    run_in_paddle,
    verify,
)
from sublet.integrations.paddle.transpile import TranspileRequest, transpile, with_missing_types

WRITER = Path(__file__).parents[3] / "benchmarks" / "paddle" / "programs.py"
TWO_LINES = Path(__file__).with_name("two_lines.py")
VERSION = "import sys; print('{}.{}'.format(*sys.version_info))"
SMALL = {
    "translation": ["--batch", "2", "--source", "5", "--target", "4"],
    "branch": ["--batch", "4", "--width", "16"],
    "transformer": ["--batch", "2", "--length", "6", "--width", "16", "--layers", "2"],
}


@dataclass(frozen=True)
class Written:
    """A program that Paddle wrote, and how it is trained: fifty steps, where nothing else is said."""

    program: bytes
    training: Training

    @cached_property
    def whole(self) -> TrainingOutcome:
        """What Paddle makes of the program as it is."""
        return run_in_paddle(self.program, self.training)

    def beside(self, rewritten: bytes, **changes: Any) -> TrainingComparison:
        """The program as it is, and another one in its place."""
        return compare_outcomes(
            self.whole, run_in_paddle(rewritten, replace(self.training, **changes)), self.training.fetch
        )

    @cached_property
    def rewritten(self) -> bytes:
        return encode_program(apply_own_policy(decode_program(self.program, "the program"), self.training.fetch))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Written]:
    try:
        chosen = find_paddle_python()
    except MissingExtraError as error:
        pytest.skip(str(error))

    @cache  # each start of Paddle takes seconds
    def write(network: str, *sizes: str) -> Written:
        folder = tmp_path_factory.mktemp(network)
        subprocess.run([chosen, str(WRITER), network, str(folder), *sizes], check=True, capture_output=True)
        feeds: dict[int, dict[str, np.ndarray]] = {}
        with np.load(folder / "feeds.npz") as arrays:
            for key in arrays.files:
                name, _, step = key.rpartition(".")
                feeds.setdefault(int(step), {})[name] = arrays[key]
        loss = json.loads((folder / "about.json").read_text())["loss"]
        startup = (folder / "startup.pb").read_bytes()
        training = Training(startup, [feeds[step] for step in sorted(feeds)], [loss], steps=50)
        return Written((folder / "program.pb").read_bytes(), training)

    return write


SEQUENTIAL = {"FLAGS_new_executor_sequential_run": "1"}


@pytest.mark.parametrize("network", SMALL)
def test_fifty_steps_are_equal_in_a_poisoned_arena(written: Callable[..., Written], network: str) -> None:
    """The arena is full of NaN before every run."""
    made = written(network, *SMALL[network])
    program = decode_program(made.program, network)
    form = to_arena_form(program, infer_sizes(program), made.training.fetch, poisoned=True)
    found = made.beside(encode_program(form.program), flags=SEQUENTIAL)
    assert found.equal, found.differences[:3]
    assert len(form.places) > 20


def test_fifty_steps_are_equal_in_a_lasting_arena(written: Callable[..., Written]) -> None:
    """It is there once, whatever Paddle frees late: steps after the first hold no second one."""
    made = written("transformer", *SMALL["transformer"])
    program = decode_program(made.program, "transformer")
    form = to_arena_form(program, infer_sizes(program), made.training.fetch, poisoned=True)
    found = made.beside(encode_program(with_lasting_arena(form.program)), flags=SEQUENTIAL)
    assert found.equal, found.differences[:3]
    assert max(found.rewritten.peaks[1:]) < found.rewritten.peaks[0]


def test_the_two_lines_in_paddle(written: Callable[..., Written]) -> None:
    """A `paddle.static.Program` that is built in Paddle, transpiled and trained there for ten steps."""
    version = subprocess.run(
        [find_paddle_python(), "-c", VERSION], check=True, capture_output=True, text=True
    ).stdout.strip()
    here = "{}.{}".format(*sys.version_info)
    if version != here:
        pytest.skip(
            f"the Python that has Paddle is {version}, which cannot import what Sublet needs of this one, {here}"
        )
    folder = sysconfig.get_path("purelib")
    done = subprocess.run([find_paddle_python(), str(TWO_LINES), folder], check=True, capture_output=True, text=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kind"] == told["untouched"] == told["rewritten"] is True
    before, after = told["losses"]
    assert before == after
    assert len(set(after)) == 10


@pytest.mark.parametrize("network", SMALL)
def test_every_planned_variable_lies_at_its_address(
    written: Callable[..., Written], network: str, tmp_path: Path
) -> None:
    """A Python function after every operator is given the arena and what was written, and subtracts the addresses."""
    made = written(network, *SMALL[network])
    program = decode_program(made.program, network)
    form = to_arena_form(program, infer_sizes(program), made.training.fetch)
    watched, wanted = watched_places(form)
    (tmp_path / "program.pb").write_bytes(encode_program(watched))
    assert made.training.startup is not None
    (tmp_path / "startup.pb").write_bytes(made.training.startup)
    feeds = {f"{name}.{run}": array for run, feed in enumerate(made.training.feeds) for name, array in feed.items()}
    np.savez(tmp_path / "feeds.npz", **feeds)
    (tmp_path / "wanted.json").write_text(json.dumps(wanted))
    script = Path(__file__).with_name("addresses.py")
    subprocess.run([find_paddle_python(), str(script), str(tmp_path)], check=True, capture_output=True)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["elsewhere"] == []
    assert set(seen["names"]) == {str(place) for place in form.places}


def watched_places(form: ArenaForm) -> tuple[PaddleProgram, list[list[tuple[str, int]]]]:
    """The program with a `py_func` after each operator that writes what is planned, and the offsets each should see."""
    scopes, wanted, blocks = build_flow(form.program).scopes, [], []
    for block in form.program.blocks:
        ops = []
        for op in block.ops:
            ops.append(op)
            places = {name: scopes.resolve(block.index, name) for name in nonempty_names(op.writes)}
            mine = [name for name, place in places.items() if place in form.places]
            if mine and op.type not in ("view_slice", "while", "conditional_block"):
                wanted.append([(str(places[name]), form.places[places[name]][0]) for name in mine])
                attrs = {"forward_callable_id": len(wanted) - 1, "backward_callable_id": -1}
                ops.append(new_op("py_func", {"X": [ARENA, *mine]}, {"Out": []}, attrs))
        blocks.append(replace(block, ops=tuple(ops)))
    return replace(form.program, blocks=tuple(blocks)), wanted


@pytest.mark.parametrize("network", SMALL)
def test_fifty_steps_are_equal(written: Callable[..., Written], network: str) -> None:
    """Losses and, at the end, every weight and every state of the optimiser; of the branch, both arms in turn."""
    made = written(network, *SMALL[network])
    found = made.beside(made.rewritten)
    assert found.equal, found.differences[:3]
    assert len(found.original.fetched) == 50
    assert len(set(found.original.fetched)) == 50


def test_the_translation_of_thirty_words_holds_a_quarter(written: Callable[..., Written]) -> None:
    made = written("translation")
    found = verify(made.program, made.rewritten, replace(made.training, steps=4))
    assert found.equal, found.differences[:3]
    assert 4 * max(found.rewritten.peaks) < min(found.original.peaks)
    assert max(found.rewritten.peaks) < 11_700_000  # whenever Paddle's thread frees what dies


def test_training_goes_on_from_a_checkpoint(written: Callable[..., Written], tmp_path: Path) -> None:
    """Saved by Paddle in the middle of a rewritten training, restored by Paddle: as if nothing had been."""
    made = written("translation", *SMALL["translation"])
    middle = str(tmp_path / "middle")
    first = run_in_paddle(made.rewritten, replace(made.training, steps=25, save=middle))
    second = run_in_paddle(made.rewritten, replace(made.training, steps=25, first=25, restore=middle))
    both = replace(second, fetched=first.fetched + second.fetched)
    assert compare_outcomes(made.whole, both, made.training.fetch).differences == ()


def test_the_book_in_the_paddle_it_was_written_by() -> None:
    """Sequences, a DynamicRNN, tensor arrays: a Python of its own, because 1.8.5 knows none after 3.8."""
    chosen = os.environ.get("SUBLET_PADDLE_1_PYTHON")
    if not chosen:
        pytest.skip("SUBLET_PADDLE_1_PYTHON names no Python that has paddlepaddle 1.8.5")
    raw = book.BOOK.read_bytes()
    rewritten = encode_program(apply_own_policy(decode_program(raw, book.BOOK.name), [book.LOSS]))
    found = verify(raw, rewritten, book.training(steps=50), chosen)
    assert found.equal, found.differences[:3]
    assert found.original.version == "1.8.5"


def test_another_program_is_told_by_step_and_name(written: Callable[..., Written]) -> None:
    made = written("branch", *SMALL["branch"])
    program = decode_program(made.program, "the program")
    ops = tuple(replace(op, type="sigmoid") if op.type == "tanh" else op for op in program.blocks[0].ops)
    other = replace(program, blocks=(replace(program.blocks[0], ops=ops), *program.blocks[1:]))
    found = made.beside(encode_program(other))
    assert found.differences[0].startswith(f"step 0, {made.training.fetch[0]}: ")
    assert any("at the end" in line for line in found.differences)


def test_a_gradient_without_a_data_type_is_repaired(written: Callable[..., Written]) -> None:
    """Paddle 2.6.2 and 3.0.0 write such a program of an LSTM cell, do not parse it, and train what is made of it."""
    made = written("lstm", "--batch", "2", "--source", "5")
    with pytest.raises(RunError, match="Failed to parse program_desc"):
        run_in_paddle(made.program, replace(made.training, steps=3))
    program = decode_program(made.program, "the program")
    whole, names = with_missing_types(program)
    small = transpile(program, TranspileRequest(keep=made.training.fetch))
    assert [name.partition("@")[1:] for name in names] == [("@", "GRAD")]
    assert small.report.completed == names
    assert small.report.is_proven
    found = verify(encode_program(whole), encode_program(small.program), replace(made.training, steps=3))
    assert found.equal
    assert found.rewritten.peak < found.original.peak


def test_what_paddle_refuses_is_told_in_its_words(written: Callable[..., Written]) -> None:
    made = written("branch", *SMALL["branch"])
    with pytest.raises(RunError, match=r"did not run in Paddle.*\n(.*\n)*.*nobody"):
        run_in_paddle(made.program, replace(made.training, fetch=["nobody"], steps=3))


def test_no_python_with_paddle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON, raising=False)
    if is_installed("paddle"):
        assert find_paddle_python()
    else:
        with pytest.raises(MissingExtraError, match=PYTHON):
            find_paddle_python()


def test_a_python_that_is_not_there() -> None:
    with pytest.raises(RunError, match="cannot start '/nowhere/python'"):
        run_in_paddle(b"", Training(None, [], []), "/nowhere/python")


ONE = TrainingOutcome("3.0.0", ((("0x1p+0",),), (("0x1p+1", "0x1p+2"),)), (10, 30, 20), {"w": "ab"})


@pytest.mark.parametrize(
    ("other", "differences"),
    [
        (ONE, ()),
        (replace(ONE, fetched=ONE.fetched[:1]), ("2 and 1 steps",)),
        (replace(ONE, fetched=(ONE.fetched[0], (("0x1p+1", "0x1p+3"),))), ("step 1, loss: 0x1p+2 became 0x1p+3",)),
        (replace(ONE, fetched=(ONE.fetched[0], (("0x1p+1",),))), ("step 1, loss: 2 and 1 numbers",)),
        (replace(ONE, state={}), ("w has other bytes at the end",)),
    ],
)
def test_what_differs(other: TrainingOutcome, differences: tuple[str, ...]) -> None:
    assert compare_outcomes(ONE, other, ["loss"]).differences == differences


def test_the_peak_is_the_middle_of_the_steps() -> None:
    assert ONE.peak == 20
    assert replace(ONE, peaks=()).peak == 0
