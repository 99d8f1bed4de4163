"""Types inferred by ONNX Runtime, including operators unknown to the onnx package.

ONNX Runtime's interface returns `[]` both for a scalar and for a value of unknown rank. The inferred shape of an
appended Shape node distinguishes the two: one extent equal to the rank, or an open extent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.base.optional_imports import require
from sublet.base.tensor import TensorSpec
from sublet.frontends.onnx.model_file import all_nodes
from sublet.frontends.onnx.types import Dims, TensorType, spec_of, write_type

if TYPE_CHECKING:
    import onnx

ELEMENT_BY_TYPE_NAME = {
    f"tensor({text})": number
    for text, number in {
        **{"float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9},
        **{"float16": 10, "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16},
    }.items()
}
"""ONNX Runtime's name of a tensor type -> ONNX's element type number."""


def session_options() -> Any:
    """Return options for a silent session without weight prepacking."""
    options = require("onnxruntime", extra="onnxruntime").SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def open_session(model: bytes, options: Any) -> Any:
    """Open a CPU session over a serialised model. May raise any exception."""
    ort = require("onnxruntime", extra="onnxruntime")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def inferred_types(model: onnx.ModelProto, folder: Path) -> list[onnx.ValueInfoProto]:
    """Return the fully known types of the node outputs of the model; external weights lie in `folder`."""
    make = require("onnx.helper", extra="onnx").make_tensor_value_info
    produced = list(dict.fromkeys(name for node in model.graph.node for name in node.output if name))
    inferred = _inferred_by_runtime(model, folder, produced)
    known = {
        name: TensorType(ELEMENT_BY_TYPE_NAME[text], dims)
        for name, (text, dims) in inferred.items()
        if text in ELEMENT_BY_TYPE_NAME
    }
    scalars = _known_scalars(model, folder, [name for name in produced if name in known and not known[name].dims])
    types = []
    for name, type_ in ((name, known[name]) for name in produced if name in known):
        if (type_.dims or name in scalars) and isinstance(spec_of(type_, ""), TensorSpec):
            info = make(name, type_.elem, None)
            info.type.CopyFrom(write_type(type_))
            types.append(info)
    return types


def _known_scalars(model: onnx.ModelProto, folder: Path, names: list[str]) -> set[str]:
    """Return the elements of `names` known to be scalars."""
    make = require("onnx.helper", extra="onnx").make_node
    taken = {name for node in all_nodes(iter(model.graph.node)) for name in (*node.input, *node.output)}
    ranks: dict[str, str] = {}
    for name in names:
        rank = f"{name}.rank"
        while rank in taken:
            rank += "_"
        ranks[rank] = name
    probe = type(model)()
    probe.CopyFrom(model)
    probe.graph.node.extend(make("Shape", [name], [rank]) for rank, name in ranks.items())
    inferred = _inferred_by_runtime(probe, folder, list(ranks)) if ranks else {}
    return {ranks[rank] for rank, (_, dims) in inferred.items() if rank in ranks and dims == (0,)}


def _inferred_by_runtime(model: onnx.ModelProto, folder: Path, names: list[str]) -> dict[str, tuple[str, Dims]]:
    """Return the types inferred by ONNX Runtime for `names` and the outputs: the text, and the known dimensions."""
    make = require("onnx.helper", extra="onnx").make_empty_tensor_value_info
    exposed = type(model)()
    exposed.CopyFrom(model)
    outputs = {value.name for value in model.graph.output}
    exposed.graph.output.extend(make(name) for name in names if name not in outputs)
    options = session_options()
    ort = require("onnxruntime", extra="onnxruntime")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    session = open_session(exposed.SerializeToString(), options)
    return {output.name: (output.type, tuple(map(_extent_or_none, output.shape))) for output in session.get_outputs()}


def _extent_or_none(dim: Any) -> int | None:
    """Return the extent; None for an open extent, represented by a name or None."""
    return dim if isinstance(dim, int) and dim >= 0 else None
