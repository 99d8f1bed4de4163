"""Repair of programs with missing data types.

Paddle writes some gradients without an element type: those of unused loop results, such as the last state of an LSTM
cell. Paddle (2.6.2 and 3.0.0) refuses to parse such a program (`data_type` is a required field), and any rewritten
version of the program.
"""

from __future__ import annotations

from dataclasses import replace

from sublet.base.errors import ModelError
from sublet.frontends.paddle.format.kinds import TENSOR_FIELD
from sublet.frontends.paddle.format.program import GRAD, PaddleBlock, PaddleProgram, PaddleVar
from sublet.frontends.paddle.format.wire import WireMessage


def with_missing_types(program: PaddleProgram) -> tuple[PaddleProgram, tuple[str, ...]]:
    """Return the program with all missing data types filled in, and the names of the changed variables.

    A gradient gets the data type of its variable. Raises ModelError if no variable determines the type.
    """
    names: list[str] = []
    blocks = []
    for block in program.blocks:
        typed = {name: _with_dtype(program, block, var) for name, var in block.vars.items() if _lacks_dtype(var)}
        names += typed
        blocks.append(replace(block, vars={**block.vars, **typed}) if typed else block)
    return (replace(program, blocks=tuple(blocks)) if names else program), tuple(names)


def _lacks_dtype(var: PaddleVar) -> bool:
    """Return True if the file describes a tensor without an element type."""
    if var.dtype is not None or var.origin is None or var.kind not in TENSOR_FIELD:
        return False
    type_ = WireMessage.parse(var.origin.raw, var.name).message(2)
    tag, nested = TENSOR_FIELD[var.kind]
    outer = None if type_ is None else type_.message(tag)
    tensor = outer.message(1) if outer is not None and nested else outer
    return tensor is not None and 1 not in tensor.by_tag


def _with_dtype(program: PaddleProgram, block: PaddleBlock, var: PaddleVar) -> PaddleVar:
    """Return the gradient variable with the data type of its forward variable. Raises ModelError if unknown."""
    stem, mark, _ = var.name.partition(GRAD)
    source = program.find_var(block.index, stem) if mark else None
    if source is None or source.dtype is None:
        raise ModelError(
            f"variable {var.name!r:.80} of block {block.index} has no data_type, and Paddle rejects such a program. "
            "Sublet adds the type of gradients only: set the type of other variables (VarDesc.set_dtype)"
        )
    return replace(var, dtype=source.dtype)
