"""Import of .tflite files: decode -> find variables -> convert subgraph by subgraph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sublet.base.errors import Finding, ModelError
from sublet.base.files import read_bytes
from sublet.integrations.tflite.conversion_state import TFLiteConversion, VariableKey
from sublet.integrations.tflite.convert_subgraph import convert_subgraph, variables_of
from sublet.integrations.tflite.program import TFLiteProgram, decode
from sublet.ir.model import OPEN_EXTENT, Model

ALIGNMENT = 16
"""The alignment of tensors in TensorFlow Lite Micro, in bytes."""

REMARK = (
    "TensorFlow Lite Micro needs more memory than the plan: kernel scratch, persistent buffers "
    "and its own records. "
    "`sublet export --to tflm` measures the total."
)


def load(path: str | Path) -> Model:
    """Import the model in a .tflite file. Raises ModelError for a malformed file or unsupported content."""
    path = Path(path)
    return from_program(read_program(path))


def read_file(path: Path, dims: Mapping[str, int] | None, optimize: str, assume: Mapping[str, str]) -> Model:
    """Read a .tflite file, which declares all shapes. Raises ModelError for a malformed file."""
    return load(path)


def read_program(path: Path) -> TFLiteProgram:
    """Decode a .tflite file. Raises ModelError for a file that cannot be read or decoded."""
    raw = read_bytes(path, ModelError)
    return decode(raw, path.name)


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """A converted model, with the relation of values and tensors.

    model        the model
    value_names  the value name of each non-constant tensor of the first subgraph
    persistent   the variable behind each persistent value, by value name
    """

    model: Model
    value_names: dict[int, str]
    persistent: dict[str, VariableKey]


def from_program(program: TFLiteProgram) -> Model:
    """Return the model of a decoded program. Raises ModelError for unsupported content."""
    return convert_program(program).model


def convert_program(program: TFLiteProgram) -> ConvertedModel:
    """Convert a decoded program to a model, and return also the relation of values and tensors.

    Raises ModelError for unsupported content.
    """
    conversion = TFLiteConversion(program, *variables_of(program))
    main = program.subgraphs[0]
    if len(set(main.inputs)) != len(main.inputs):
        raise conversion.error(0, "an input is listed twice")
    for index in main.inputs:
        if program.constant_content(main.tensors[index]) is not None or main.tensors[index].is_variable:
            raise conversion.error(0, f"the input {main.tensors[index].name[:80]!r} is a constant or a variable")
    inputs = [conversion.new_value(0, index) for index in main.inputs]
    variables = dict(conversion.initial_state)
    nodes, outputs = convert_subgraph(conversion, 0, inputs, variables)
    graph = conversion.finish_graph(inputs, nodes, outputs, variables)
    model = Model(
        graph,
        weights={value.name: stored for value, stored in conversion.weights.items() if stored is not None},
        inputs=tuple(value.name for value in inputs),
        outputs=tuple(main.tensors[index].name for index in main.outputs),
        remark=REMARK,
        warnings=tuple(_open_extent_warnings(program)),
    )
    tensors = {index: value.name for index, value in conversion.tensors.items()}
    return ConvertedModel(model, tensors, {value.name: key for value, key in conversion.persistent.items()})


def _open_extent_warnings(program: TFLiteProgram) -> list[Finding]:
    """Return a warning for each input with an extent left open by the converter and planned at the stored extent."""
    main = program.subgraphs[0]
    return [
        Finding(
            OPEN_EXTENT,
            f"input {main.tensors[index].name[:80]!r}",
            f"the shape is open in the file, {list(main.tensors[index].signature)}; "
            f"planned as {main.tensors[index].spec}",
        )
        for index in main.inputs
        if -1 in main.tensors[index].signature
    ]
