"""Reader of inference programs in Paddle's older format: decode, bind extents, convert block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sublet.base.errors import ModelError
from sublet.base.files import read_bytes
from sublet.frontends.paddle.convert.operators import TRAINING_ADVICE, convert_block
from sublet.frontends.paddle.convert.scope import PaddleConversion, Scope, used_variables
from sublet.frontends.paddle.format.decoding import decode_program
from sublet.frontends.paddle.format.params import read_params
from sublet.frontends.paddle.format.program import TENSOR, PaddleProgram
from sublet.frontends.paddle.operators.shapes import infer_sizes
from sublet.ir.graph import Graph, Value
from sublet.ir.model import Model

PROGRAM_NAME, PARAMS_NAME, PARAMS_SUFFIX = "__model__", "__params__", ".pdiparams"
"""File names; the first two are of older versions."""


def load_program(path: str | Path, dims: Mapping[str, int] | None = None) -> Model:
    """Read a model from a `.pdmodel`, `__model__` or other serialised program. `dims` binds open extents.

    The weights come from the parameter file beside the program, if present. Raises ModelError if the file is malformed,
    is no inference program, or leaves an extent of an input open.
    """
    path = Path(path)
    raw = read_bytes(path, ModelError)
    program = decode_program(raw, path.name)
    model = model_from_program(program, dims, where=path.name)
    beside = path.with_name(PARAMS_NAME) if path.name == PROGRAM_NAME else path.with_suffix(PARAMS_SUFFIX)
    if not beside.is_file():
        return model
    params = read_params(beside, program)
    used = {weight.name for weight in model.graph.weights}
    return replace(model, weights={name: param for name, param in params.items() if name in used})


def model_from_program(
    program: PaddleProgram, dims: Mapping[str, int] | None = None, *, where: str = "the program"
) -> Model:
    """Return the model of a decoded program, as `load` does."""
    dims = dims or {}
    feeds, fetches = _feeds_or_fetches(program, "feed"), _feeds_or_fetches(program, "fetch")
    if not fetches:
        raise ModelError(f"{where}: the program returns nothing (no operator fetch): {TRAINING_ADVICE}")
    sizes = infer_sizes(program, None, dims, where)
    conversion = PaddleConversion(
        program,
        sizes,
        where,
        bool(feeds),
        wanted=used_variables(program),
        read_elsewhere=used_variables(program, "select_input"),
    )
    scope: Scope = {}
    for name in feeds:
        key = conversion.variable_key(0, name)
        scope[key] = conversion.inputs[key] = conversion.new_value(key, sizes.dims(*key))
    _add_weights(conversion)
    nodes = convert_block(conversion, 0, scope)
    outputs = tuple(conversion.read_value(0, name, scope) for name in fetches)
    for (_, name), value in conversion.inputs.items():
        error = conversion.open_input_error(value, name)
        if error is not None:
            raise error
    graph = Graph(
        Path(where).stem or "program",
        tuple(conversion.inputs.values()),
        tuple(nodes),
        outputs,
        tuple(conversion.weights.values()),
        _weight_updates(conversion, scope),
    )
    return Model(graph, dict(dims), {}, tuple(name for _, name in conversion.inputs), fetches)


def _feeds_or_fetches(program: PaddleProgram, type_: str) -> tuple[str, ...]:
    """Return the variables of all `feed` or all `fetch` operators, in the order of their columns."""
    columns: list[tuple[int, str]] = []
    for op in program.blocks[0].ops:
        if op.type == type_:
            column = op.attrs.get("col")
            names = op.writes if type_ == "feed" else op.reads
            at = column.value if column and isinstance(column.value, int) else len(columns)
            columns += [(at, name) for name in names]
    return tuple(name for _, name in sorted(columns, key=lambda pair: pair[0]))


def _add_weights(conversion: PaddleConversion) -> None:
    """Read all persistable variables used by an operator, so that each becomes a weight."""
    program = conversion.program
    used = {name for block in program.blocks for op in block.ops for name in (*op.reads, *op.writes)}
    for name, var in program.blocks[0].vars.items():
        if var.persistable and var.kind == TENSOR and name in used:
            conversion.read_value(0, name, {})


def _weight_updates(conversion: PaddleConversion, scope: Scope) -> tuple[tuple[Value, Value], ...]:
    """Return the (weight, final value) pairs of the persistable variables changed by a run."""
    pairs = ((weight, scope.get(key, weight)) for key, weight in conversion.weights.items())
    return tuple((target, source) for target, source in pairs if target is not source and source.plannable)
