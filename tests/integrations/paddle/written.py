"""Programs written by tests, from lines such as "a = op1(b, c)" in blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sublet.base.tensor import DType
from sublet.integrations.paddle.format.program import (
    PaddleAttr,
    PaddleBlock,
    PaddleOp,
    PaddleProgram,
    PaddleVar,
    new_op,
    new_var,
)


def op(line: str) -> PaddleOp:
    """ "a, b = kind(c, d)" as an operator with the slots X and Out."""
    found = re.fullmatch(r"([\w@.]*(?:, [\w@.]+)*) = (\w+)\((.*)\)", line)
    assert found, line
    outputs, kind, inputs = found.groups()
    return new_op(kind, {"X": _names(inputs)}, {"Out": _names(outputs)})


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


def tensors(*names: str, dims: Sequence[int] = (4,), persistable: bool = False) -> dict[str, PaddleVar]:
    return {name: new_var(name, DType.F32, dims, persistable=persistable) for name in names}


def straight(*lines: str, persistable: Sequence[str] = ()) -> PaddleProgram:
    """A program of one block, in which every name is a tensor."""
    ops = tuple(map(op, lines))
    names = dict.fromkeys(name for each in ops for name in (*each.reads, *each.writes))
    found = {name: new_var(name, DType.F32, (4,), persistable=name in persistable) for name in names}
    return PaddleProgram((PaddleBlock(0, -1, -1, found, ops),), 3_000_000)


def runs(kind: str, block: int, inputs: Mapping[str, Sequence[str]], outputs: Mapping[str, Sequence[str]]) -> PaddleOp:
    """An operator that runs a block."""
    return new_op(kind, inputs, outputs, {"sub_block": PaddleAttr("BLOCK", block)})
