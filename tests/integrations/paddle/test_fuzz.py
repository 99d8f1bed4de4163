"""Random programs that Paddle makes: rewritten, judged, and run in Paddle. `make fuzz-paddle` does more of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sublet.base.errors import MissingExtraError
from sublet.base.tensor import DType
from sublet.integrations.paddle.format.encoding import encode_program
from sublet.integrations.paddle.format.program import PaddleAttr, PaddleBlock, PaddleOp, PaddleProgram, new_op, new_var
from sublet.integrations.paddle.running.verify import find_paddle_python

from .fuzz import Tally, answered, batch, settle


@pytest.fixture(scope="module")
def found() -> str:
    """The Python that has Paddle."""
    try:
        return find_paddle_python()
    except MissingExtraError as missing:
        pytest.skip(str(missing))


def test_what_is_accepted_computes_the_same_bits_in_paddle(found: str) -> None:
    tally = Tally(arenas=True)
    batch(9000, 6, 4, found, tally)
    assert not tally.wrong
    assert tally.accepted["ours"]
    assert tally.accepted["arena"]
    assert sum(tally.refused.values())


def around(*ops: PaddleOp) -> PaddleProgram:
    """A program that adds one to what it is fed, with ops in front, and an empty block that they may run."""
    vars = {name: new_var(name, DType.F32, (4, 4)) for name in ("x", "loss", "made")}
    vars |= {"go": new_var("go", DType.BOOL, (1,)), "scopes": new_var("scopes", None, kind="STEP_SCOPES")}
    end = new_op("scale", {"X": ["x"]}, {"Out": ["loss"]}, {"scale": 1.0, "bias": 1.0, "bias_after_scale": True})
    return PaddleProgram((PaddleBlock(0, -1, -1, vars, (*ops, end)), PaddleBlock(1, 0, -1, {}, ())), 3_000_000)


def test_a_program_that_takes_too_much_has_that_for_an_answer(found: str, tmp_path: Path) -> None:
    """Mutants do: one made a loop endless. The programs after it are run all the same."""
    go = new_op("fill_constant", {}, {"Out": ["go"]}, {"shape": [1], "dtype": 0, "value": 1.0})
    slots = {"Condition": ["go"], "X": ["x"]}
    attributes = {"sub_block": PaddleAttr("BLOCK", 1), "is_test": True}
    endless = new_op("while", slots, {"Out": ["go"], "StepScopes": ["scopes"]}, attributes)
    huge = new_op("fill_constant", {}, {"Out": ["made"]}, {"shape": [1 << 29], "dtype": 5, "value": 1.0})
    for name, program in {"1": around(go, endless), "2": around(huge), "3": around()}.items():
        (tmp_path / f"{name}.pb").write_bytes(encode_program(program))
    for name in "123":
        (tmp_path / f"{name}.start.pb").write_bytes(
            encode_program(PaddleProgram((PaddleBlock(0, -1, -1, {}, ()),), 3_000_000))
        )
        np.savez(tmp_path / f"{name}.npz", **{"0": np.zeros((4, 4), np.float32)})
        (tmp_path / f"{name}.json").write_text(json.dumps({"loss": "loss"}))
    answers = answered(Tally(computing=2), found, tmp_path)
    assert [answers[f"{name}.pb"][0] for name in "12"] == ["too much computing", "too much memory"]
    assert answers["3.pb"][0] == [np.ones((4, 4), np.float32).tobytes().hex()]


BITS, OTHER = [["00"], "a hash"], [["01"], "a hash"]
NOTHING, LATER, ENDLESS = ["RuntimeError", "scale"], ["RuntimeError", "matmul"], ["too long", ""]


@pytest.mark.parametrize(
    ("own", "again", "variant", "wrong", "unstable"),
    [
        (BITS, [BITS], BITS, False, False),
        (BITS, [BITS], OTHER, True, False),
        (BITS, [BITS], NOTHING, True, False),
        (BITS, [BITS], ENDLESS, True, False),
        (BITS, [BITS, OTHER], OTHER, False, True),
        (BITS, [NOTHING], OTHER, False, True),
        (NOTHING, [NOTHING], LATER, False, False),
        (NOTHING, [NOTHING], BITS, True, False),
        (ENDLESS, [], BITS, False, False),
    ],
)
def test_what_is_wrong(
    own: list[object], again: list[list[object]], variant: list[object], wrong: bool, unstable: bool
) -> None:
    """A variant that was accepted and computes something else, unless Paddle gives its program several answers."""
    answers = {"7.pb": own, "7.1.pb": variant, **{f"7.again{i}.pb": answer for i, answer in enumerate(again)}}
    tally = Tally()
    assert settle(answers, {"7.1.pb": ("swap", True)}, tally) == (["7.1.pb"] if wrong else [])
    assert bool(tally.wrong) is wrong
    assert tally.unstable == ({"7"} if unstable else set())
