"""Damaged programs: each is read as something that is written back byte for byte, or refused in words.

python -m tests.integrations.paddle.hostile --flips 10000
"""

from __future__ import annotations

from sublet.base.errors import SubletError
from sublet.integrations.paddle.convert.model import model_from_program
from sublet.integrations.paddle.format.encoding import decode_program, encode_program
from sublet.integrations.paddle.format.program import PaddleProgram
from sublet.planning.pipeline import plan_memory
from tests.integrations.onnx.damage import NAME, Format, arguments, tell
from tests.integrations.paddle.given import BESIDE


def files() -> list[bytes]:
    return [(BESIDE / name).read_bytes() for name in ("loopnet0.pdmodel", "cond.pb")]


def used(raw: bytes, program: PaddleProgram, deep: bool) -> str:
    """What becomes of a program that was read."""
    assert encode_program(program) == raw
    try:
        model = model_from_program(program)
        if deep:
            plan_memory(model)
    except SubletError:
        return "read, and refused as a model"
    return "read as a model"


PROGRAMS = Format(files, lambda raw: decode_program(raw, NAME), used)

if __name__ == "__main__":
    tell(PROGRAMS, arguments(__doc__).parse_args())
