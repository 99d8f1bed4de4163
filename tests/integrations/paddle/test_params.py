"""Files of weights: found beside the program, held against what it declares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sublet.api.model_files import read_model
from sublet.base.errors import ModelError
from sublet.integrations.paddle.format.encoding import decode_program
from sublet.integrations.paddle.format.program import StoredParam, read_params
from tests.integrations.paddle.given import BESIDE

PROGRAM = decode_program((BESIDE / "loopnet0.pdmodel").read_bytes(), "loopnet0")
RAW = (BESIDE / "loopnet0.pdiparams").read_bytes()


def written(folder: Path, raw: bytes) -> Path:
    path = folder / "x.pdiparams"
    path.write_bytes(raw)
    return path


def test_every_weight_lies_where_it_is_said_to() -> None:
    model = read_model(BESIDE / "loopnet0.pdmodel")
    assert set(model.weights) == {weight.name for weight in model.graph.weights}
    for weight in model.graph.weights:
        param = model.weights[weight.name]
        assert isinstance(param, StoredParam)
        assert param.spec == weight.spec
        content = param.array()
        assert content.shape == param.spec.shape
        assert np.abs(content).max() < 2
        assert RAW[param.offset : param.offset + param.spec.nbytes] == content.tobytes()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (RAW[:-1], "ends within the weight 'linear_0.w_0'"),
        (RAW + b"x", "1 bytes are left"),
        (b"", "ends within the weight 'gru_cell_0.b_0'"),
        (b"\1" + RAW[1:], "as its version"),
        (RAW[:4] + b"\xff" * 8 + RAW[12:], "levels of detail"),
        (RAW[:16] + b"\xff\xff\xff\x7f" + RAW[20:], "bytes of description"),
        (RAW[:22] + b"\x1f" + RAW[23:], "weight 'gru_cell_0.b_0'"),
    ],
)
def test_other_bytes_are_refused(tmp_path: Path, raw: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_params(written(tmp_path, raw), PROGRAM)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    for length in range(0, len(RAW), 97):
        with pytest.raises(ModelError, match="ends within"):
            read_params(written(tmp_path, RAW[:length]), PROGRAM)


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    """A bit that is turned in a header is noticed, or changes nothing that is declared."""
    verdicts = [verdict(tmp_path, at, bit) for at in range(200) for bit in (0, 3, 7)]
    assert verdicts.count("") < len(verdicts)
    assert all(words == "" or "x.pdiparams" in words for words in verdicts)


def verdict(folder: Path, at: int, bit: int) -> str:
    raw = bytearray(RAW)
    raw[at] ^= 1 << bit
    try:
        return "" if len(read_params(written(folder, bytes(raw)), PROGRAM)) == 6 else "other weights"
    except ModelError as error:
        return str(error)


def test_weights_of_another_program_are_refused() -> None:
    other = decode_program((BESIDE / "cond.pb").read_bytes(), "cond")
    with pytest.raises(ModelError):
        read_params(BESIDE / "loopnet0.pdiparams", other)
