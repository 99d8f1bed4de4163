"""Programs come out of the codec as they went in, but for what was changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sublet.frontends.paddle.decoding import decode
from sublet.frontends.paddle.encoding import encode
from sublet.frontends.paddle.program import Program
from tests.frontends.paddle.given import BESIDE, program_files


def read(name: str) -> tuple[bytes, Program]:
    raw = (BESIDE / name).read_bytes()
    return raw, decode(raw, name)


def anew(program: Program) -> Program:
    """The same program as if no file had it."""
    blocks = []
    for block in program.blocks:
        ops = [
            replace(op, origin=None, attrs={name: replace(attr, origin=None) for name, attr in op.attrs.items()})
            for op in block.ops
        ]
        variables = {name: replace(var, origin=None) for name, var in block.vars.items()}
        blocks.append(replace(block, vars=variables, ops=tuple(ops), origin=None))
    return replace(program, blocks=tuple(blocks), origin=None)


@pytest.mark.parametrize("path", program_files(), ids=lambda path: path.name)
def test_every_program_comes_out_byte_for_byte(path: Path) -> None:
    raw = path.read_bytes()
    program = decode(raw, path.name)
    assert encode(program) == raw
    assert decode(encode(anew(program)), path.name) == program
