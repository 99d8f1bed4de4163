"""A Paddle program for inference as a model: decode -> bind extents -> convert, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sublet.base.errors import ModelError
from sublet.base.files import read_bytes
from sublet.frontends.paddle.convert.operators import TRAINING, convert_block
from sublet.frontends.paddle.convert.scope import Conversion, Scope, wanted
from sublet.frontends.paddle.format.decoding import decode
from sublet.frontends.paddle.format.params import read_params
from sublet.frontends.paddle.format.program import TENSOR, Program
from sublet.frontends.paddle.operators.shapes import bound
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model

PROGRAM_NAME, PARAMS_NAME, PARAMS_SUFFIX = "__model__", "__params__", ".pdiparams"
"""Older versions write the first two."""


def load(path: str | Path, dims: Mapping[str, int] | None = None) -> Model:
    """The model in a `.pdmodel`, `__model__` or other serialised program, with open extents bound by `dims`.

    Its weights are those in the file beside it, if there is one.
    Raises ModelError when the file is malformed, is no program for inference, or leaves an extent of an input open.
    """
    path = Path(path)
    raw = read_bytes(path, ModelError)
    program = decode(raw, path.name)
    model = from_program(program, dims, where=path.name)
    beside = path.with_name(PARAMS_NAME) if path.name == PROGRAM_NAME else path.with_suffix(PARAMS_SUFFIX)
    if not beside.is_file():
        return model
    params = read_params(beside, program)
    used = {weight.name for weight in model.graph.weights}
    return replace(model, weights={name: param for name, param in params.items() if name in used})


def from_program(program: Program, dims: Mapping[str, int] | None = None, *, where: str = "the program") -> Model:
    """Like `load`, of a program in memory."""
    dims = dims or {}
    feeds, fetches = _ends(program, "feed"), _ends(program, "fetch")
    if not fetches:
        raise ModelError(f"{where}: the program gives nothing back (no operator fetch): {TRAINING}")
    sizes = bound(program, None, dims, where)
    conversion = Conversion(
        program, sizes, where, bool(feeds), wanted=wanted(program), read_elsewhere=wanted(program, "select_input")
    )
    scope: Scope = {}
    for name in feeds:
        key = conversion.key(0, name)
        scope[key] = conversion.inputs[key] = conversion.value(key, sizes.dims(*key))
    _add_weights(conversion)
    nodes = convert_block(conversion, 0, scope)
    outputs = tuple(conversion.read(0, name, scope) for name in fetches)
    for (_, name), value in conversion.inputs.items():
        error = conversion.open_input(value, name)
        if error is not None:
            raise error
    graph = Graph(
        Path(where).stem or "program",
        tuple(conversion.inputs.values()),
        tuple(nodes),
        outputs,
        tuple(conversion.weights.values()),
        _updates(conversion, scope),
    )
    return Model(graph, dict(dims), {}, tuple(name for _, name in conversion.inputs), fetches)


def _ends(program: Program, type_: str) -> tuple[str, ...]:
    """The variables that come in by `feed` or go out by `fetch`, in the order of their columns."""
    found: list[tuple[int, str]] = []
    for op in program.blocks[0].ops:
        if op.type == type_:
            column = op.attrs.get("col")
            names = op.writes if type_ == "feed" else op.reads
            at = column.value if column and isinstance(column.value, int) else len(found)
            found += [(at, name) for name in names]
    return tuple(name for _, name in sorted(found, key=lambda pair: pair[0]))


def _add_weights(conversion: Conversion) -> None:
    """The persistable variables that operators read or write are there before the run."""
    program = conversion.program
    used = {name for block in program.blocks for op in block.ops for name in (*op.reads, *op.writes)}
    for name, var in program.blocks[0].vars.items():
        if var.persistable and var.kind == TENSOR and name in used:
            conversion.read(0, name, {})


def _updates(conversion: Conversion, scope: Scope) -> tuple[tuple[Value, Value], ...]:
    """The persistable variables that a run leaves with another content."""
    pairs = ((weight, scope.get(key, weight)) for key, weight in conversion.weights.items())
    return tuple((target, source) for target, source in pairs if target is not source and source.plannable)
