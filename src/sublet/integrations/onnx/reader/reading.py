"""The entry points of the ONNX reader: a file or a ModelProto as a model, optimised by ONNX Runtime if requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sublet.base.arrays import Array, parse_numbers
from sublet.base.errors import ModelError
from sublet.base.extents import is_ranged
from sublet.base.formatting import known_names, printable
from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY
from sublet.integrations.onnx.reader.model import from_proto, initializer_names, remove_initializers
from sublet.integrations.onnx.reader.model_file import read_model
from sublet.integrations.onnx.reader.runtime_optimizer import load_optimized_proto
from sublet.integrations.onnx.reader.types import DTYPES, TensorType, read_type, write_type
from sublet.integrations.onnx.reader.weights import Weight, weight_of_tensor
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS, MAX_SHOWN_CHARACTERS, OPEN_DEFAULT

if TYPE_CHECKING:
    import onnx

MAX_NUMBERS = 4096
"""The largest number of elements of a constant for an input; a larger constant belongs into the file."""


def read_file(
    path: Path,
    dims: Mapping[str, int] | None,
    optimize: str,
    assume: Mapping[str, str],
    *,
    const: Mapping[str, str] | None = None,
    loop_limits: Mapping[str, int] | None = None,
) -> Model:
    """Read an ONNX file. With `loop_limits`, values may grow in loops, see `from_proto`.

    Raises ModelError for a malformed file, for shapes assumed together with an optimiser, and for a constant that does
    not fit an input.
    """
    if assume and optimize != AS_IS:
        raise ModelError(f"--assume names values of the unoptimised model in {path.name}: pass optimize={AS_IS}")
    return _read(read_model(path), dims, optimize, assume, const or {}, path.name, path.parent, loop_limits)


def read_object(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None,
    optimize: str,
    assume: Mapping[str, str],
    *,
    const: Mapping[str, str] | None = None,
    loop_limits: Mapping[str, int] | None = None,
) -> Model:
    """Read a ModelProto, see `read_file`.

    Raises ModelError for a malformed model, and for a constant that does not fit an input.
    """
    return _read(model, dims, optimize, assume, const or {}, "model", None, loop_limits)


def _read(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None,
    optimize: str,
    assume: Mapping[str, str],
    const: Mapping[str, str],
    where: str,
    folder: Path | None,
    loop_limits: Mapping[str, int] | None,
) -> Model:
    """Read a ModelProto, its inputs bound to constants; external data lies below `folder`."""
    bound, defaults = with_constants(model, const, dims or {}, where, folder) if const else (model, {})
    if optimize == AS_IS:
        read = from_proto(bound, dims, where=where, folder=folder, assume=assume, loop_limits=loop_limits)
    else:
        read = load_optimized_proto(bound, dims, level=optimize, where=where, folder=folder, loop_limits=loop_limits)
    recipe = replace(read.recipe, const=tuple(const.items()))
    return replace(read, recipe=recipe, defaults=defaults, fixed=_fixed_inputs(model.graph, const))


# Constants of inputs, and inputs with a default, as a change of the file: every later stage reads a plain ONNX model.


def with_constants(
    model: onnx.ModelProto, const: Mapping[str, str], dims: Mapping[str, int], where: str, folder: Path | None
) -> tuple[onnx.ModelProto, dict[str, Weight]]:
    """Return the model with constants as initialisers, opened inputs without initialiser, and the opened defaults.

    Raises ModelError for a name without an input, numbers that do not fit the input, and an opened input without a
    default.
    """
    inputs = {value.name: value for value in model.graph.input}
    unknown = [name for name in const if name not in inputs]
    if unknown:
        raise ModelError(
            f"{where}: --const {printable(unknown[0])}: not an input; the inputs are {known_names(inputs)}"
        )
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    changed = type(model)()
    changed.CopyFrom(model)
    graph, defaults = changed.graph, dict[str, Weight]()
    remove_initializers(graph, const)
    for i in reversed(range(len(graph.input))):
        value = graph.input[i]
        if value.name not in const:
            continue
        if const[value.name] != OPEN_DEFAULT:
            array = _constant_array(value, const[value.name], dims, where)
            graph.initializer.append(require("onnx.numpy_helper", extra="onnx").from_array(array, value.name))
            del graph.input[i]
        elif value.name in stored:
            tensor = stored[value.name]
            defaults[value.name] = weight_of_tensor(tensor, folder, where)
            value.type.CopyFrom(write_type(TensorType(tensor.data_type, tuple(tensor.dims))))
        else:
            what = f"{where}: --const {printable(value.name)}={OPEN_DEFAULT}"
            raise ModelError(f"{what}: the file has no default (a dense initialiser) to open")
    return changed, defaults


def _constant_array(value: onnx.ValueInfoProto, text: str, dims: Mapping[str, int], where: str) -> Array:
    """Return the numbers in `text` as a tensor of the input's type; at most one open extent follows from their count.

    Raises ModelError for an input other than a tensor of numbers, and for numbers of another type or count.
    """
    type = read_type(value.type, dims)
    what = f"{where}: --const {printable(value.name)}={printable(text[:80])}"
    dtype = DTYPES.get(type.elem) if isinstance(type, TensorType) else None
    if not isinstance(type, TensorType) or dtype is None or dtype.bits < 8 or dtype.text.startswith("c"):
        raise ModelError(f"{what}: the input is {type}, not a tensor of numbers with a byte or more each")
    if any(is_ranged(extent) for extent in type.dims or ()):
        raise ModelError(f"{what}: the input is {type}, with a range; pass one extent for each dimension of the input")
    count = text.count(",") + 1
    if count > MAX_NUMBERS:
        raise ModelError(f"{what}...: {count} numbers, more than {MAX_NUMBERS}; store the constant as an initialiser")
    open_shape = (None,) if count > 1 else ()
    shape = [-1 if extent is None else extent for extent in (open_shape if type.dims is None else type.dims)]
    try:
        return parse_numbers(text, NUMPY[dtype]).reshape(shape)
    except ValueError as error:
        raise ModelError(f"{what}: the input is {type}; {error}") from None


def _fixed_inputs(graph: onnx.GraphProto, const: Mapping[str, str]) -> dict[str, str]:
    """Return the inputs of the file that are constants of the graph, by name, each with a remark for the user."""
    stored = initializer_names(graph)
    remarks: dict[str, str] = {}
    for value in graph.input:
        name, text = printable(value.name), const.get(value.name)
        if text is None and value.name in stored:
            opening = f"const={{{name!r}: {OPEN_DEFAULT!r}}} (--const {name}={OPEN_DEFAULT})"
            remarks[value.name] = f"planned as the constant in the file; to pass a value, plan with {opening}"
        elif text is not None and text != OPEN_DEFAULT:
            shown = printable(text[:MAX_SHOWN_CHARACTERS])
            remarks[value.name] = f"planned as the constant {shown}; to pass a value, plan without this constant"
    return remarks
