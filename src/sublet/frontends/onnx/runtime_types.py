"""Types of values as ONNX Runtime infers them, which knows operators that the onnx package does not.

Its interface gives `[]` for a scalar and for a value whose rank it does not know. What it infers for a Shape of the
value tells them apart: that has as many elements as the value has dimensions, or an open number of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.base.extras import require
from sublet.base.tensor import TensorSpec
from sublet.frontends.onnx.file import all_nodes
from sublet.frontends.onnx.types import Dims, TensorType, spec_of, write_type

if TYPE_CHECKING:
    import onnx

ELEMENTS = {
    f"tensor({text})": number
    for text, number in {
        **{"float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9},
        **{"float16": 10, "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16},
    }.items()
}
"""ONNX Runtime's words for tensor types."""


def session_options() -> Any:
    """Options of a session that says nothing and rearranges no weights."""
    options = require("onnxruntime", extra="onnxruntime").SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def session_over(model: bytes, options: Any) -> Any:
    """A session on the processor. It may raise anything."""
    ort = require("onnxruntime", extra="onnxruntime")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def inferred_types(model: onnx.ModelProto, folder: Path) -> list[onnx.ValueInfoProto]:
    """The types of what the model's nodes give, where nothing of them is open; its weights lie in `folder`."""
    make = require("onnx.helper", extra="onnx").make_tensor_value_info
    produced = list(dict.fromkeys(name for node in model.graph.node for name in node.output if name))
    found = _asked(model, folder, produced)
    known = {name: TensorType(ELEMENTS[text], dims) for name, (text, dims) in found.items() if text in ELEMENTS}
    scalars = _scalars(model, folder, [name for name in produced if name in known and not known[name].dims])
    types = []
    for name, type_ in ((name, known[name]) for name in produced if name in known):
        if (type_.dims or name in scalars) and isinstance(spec_of(type_, ""), TensorSpec):
            info = make(name, type_.elem, None)
            info.type.CopyFrom(write_type(type_))
            types.append(info)
    return types


def _scalars(model: onnx.ModelProto, folder: Path, names: list[str]) -> set[str]:
    """Those of `names` that are known to have no dimensions."""
    make = require("onnx.helper", extra="onnx").make_node
    taken = {name for node in all_nodes(iter(model.graph.node)) for name in (*node.input, *node.output)}
    ranks: dict[str, str] = {}
    for name in names:
        rank = f"{name}.rank"
        while rank in taken:
            rank += "_"
        ranks[rank] = name
    asking = type(model)()
    asking.CopyFrom(model)
    asking.graph.node.extend(make("Shape", [name], [rank]) for rank, name in ranks.items())
    found = _asked(asking, folder, list(ranks)) if ranks else {}
    return {ranks[rank] for rank, (_, dims) in found.items() if rank in ranks and dims == (0,)}


def _asked(model: onnx.ModelProto, folder: Path, names: list[str]) -> dict[str, tuple[str, Dims]]:
    """What ONNX Runtime says of `names` and of the outputs: the text of the type, and the dimensions it knows."""
    make = require("onnx.helper", extra="onnx").make_empty_tensor_value_info
    asked = type(model)()
    asked.CopyFrom(model)
    outputs = {value.name for value in model.graph.output}
    asked.graph.output.extend(make(name) for name in names if name not in outputs)
    options = session_options()
    ort = require("onnxruntime", extra="onnxruntime")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    session = session_over(asked.SerializeToString(), options)
    return {output.name: (output.type, tuple(map(_extent, output.shape))) for output in session.get_outputs()}


def _extent(dim: Any) -> int | None:
    """An extent; None for an open one, which has a name or nothing."""
    return dim if isinstance(dim, int) and dim >= 0 else None
