"""Import of ONNX models: a file becomes a graph with lazily read weights.

read -> inline functions -> name outputs -> bind dimensions -> convert (sort, infer, fold, loops, branches) -> prune
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sublet.base.errors import ModelError
from sublet.frontends.onnx.assumed_shapes import AssumedShapes
from sublet.frontends.onnx.convert import convert_graph
from sublet.frontends.onnx.dead_code import remove_dead_code
from sublet.frontends.onnx.graph_conversion import GraphConversion, results_of
from sublet.frontends.onnx.import_state import ATTEMPTS_PER_NODE, ImportState, Scope
from sublet.frontends.onnx.model_file import all_nodes, inline_functions, opsets_of, read_model, require_utf8
from sublet.frontends.onnx.symbolic_dims import Shapes, bind_inputs, named_extents
from sublet.frontends.onnx.unnamed_outputs import with_written_outputs
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.ir.recipe import PLAIN

if TYPE_CHECKING:
    import onnx

MAX_NODES = 2_000_000


def load(path: str | Path, dims: Mapping[str, int] | None = None, assume: Mapping[str, str] | None = None) -> Model:
    """Import the ONNX model at `path`.

    `dims` binds open dimensions, and `assume` declares the shapes of values without shape inference. The import
    executes nothing from the file, and checks external data without reading the data. Raises ModelError when the file
    is malformed or unsafe, or when a dimension stays open.
    """
    path = Path(path)
    return from_proto(read_model(path), dims, where=path.name, folder=path.parent, assume=assume)


def from_proto(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    *,
    shapes: Shapes | None = None,
    where: str = "model",
    folder: Path | None = None,
    assume: Mapping[str, str] | None = None,
) -> Model:
    """Import an ONNX model in memory; external data lies below `folder`. Otherwise like `load`.

    `shapes` are the shapes of inputs known to the caller. An input named in `shapes` stays an input even when the file
    has a default for the input.
    """
    shapes = shapes or {}
    require_utf8(model, where)
    opsets = opsets_of(model, where)
    model = with_written_outputs(inline_functions(_without_defaults(model, shapes), where))
    graph = model.graph
    dims = {**named_extents(graph.input, shapes), **(dims or {})}
    count = sum(1 for _ in all_nodes(iter(graph.node)))
    if count > MAX_NODES:
        raise ModelError(f"{where}: {count} nodes, more than {MAX_NODES}")
    budget = ATTEMPTS_PER_NODE * (count + 100)
    program = ImportState(where, folder, opsets, dims, budget, assumed=AssumedShapes(assume or {}))
    scope: Scope = ChainMap()
    inputs = _add_inputs(program, graph, shapes, scope)
    frame = convert_graph(program, graph, scope)
    return _assemble_model(frame, graph, inputs)


def _without_defaults(model: onnx.ModelProto, shapes: Shapes) -> onnx.ModelProto:
    """Return the model without the initialisers of inputs named in `shapes`."""
    given = {value.name for value in model.graph.input if value.name in shapes}
    if not given.intersection(_initializer_names(model.graph)):
        return model
    changed = type(model)()
    changed.CopyFrom(model)
    for i in reversed(range(len(changed.graph.initializer))):
        if changed.graph.initializer[i].name in given:
            del changed.graph.initializer[i]
    for i in reversed(range(len(changed.graph.sparse_initializer))):
        if changed.graph.sparse_initializer[i].values.name in given:
            del changed.graph.sparse_initializer[i]
    return changed


def _initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all dense and sparse initialisers."""
    names = {tensor.name for tensor in graph.initializer}
    return names | {tensor.values.name for tensor in graph.sparse_initializer}


def _add_inputs(program: ImportState, graph: onnx.GraphProto, shapes: Shapes, scope: Scope) -> tuple[str, ...]:
    """Add the inputs without initialisers to `scope` and return the names of the inputs.

    An input with an initialiser has a default, and counts as a constant.
    """
    defaults = _initializer_names(graph)
    free = [value for value in graph.input if value.name not in defaults]
    for name, type in bind_inputs(free, program.dims, shapes, program.where).items():
        if not name:
            raise ModelError(f"{program.where}: an input has no name")
        type = program.assumed.close_type(name, type)
        scope[name] = program.fresh(name, type, "the file does not declare its shape")
    if len(scope) < len(free):
        raise ModelError(f"{program.where}: two inputs have the same name")
    return tuple(scope)


def _assemble_model(frame: GraphConversion, graph: onnx.GraphProto, inputs: tuple[str, ...]) -> Model:
    """Assemble the pruned graph, the weights and the recorded assumptions into a `Model`."""
    program = frame.program
    results = results_of(program, graph, frame.scope)
    whole = Graph(
        graph.name or "graph",
        tuple(frame.scope[name].value for name in inputs),
        tuple(frame.nodes),
        tuple(known.value for known in results),
        tuple(known.value for known in program.weights.values()),
    )
    pruned = remove_dead_code(whole, program.assumed.values_to_enforce(whole))
    values = tuple(pruned.values())
    assumed, declared = program.assumed.assumptions_used_for(values), program.assumed.declared_types_of(values)
    return Model(
        pruned,
        dict(program.dims),
        {value.name: weight for value in pruned.weights if (weight := program.weights[value.name].weight)},
        inputs,
        tuple(value.name for value in graph.output),
        dict(program.opsets),
        recipe=replace(PLAIN, assumed=tuple(assumed.items()), declared=tuple(declared.items())),
        warnings=tuple(dict.fromkeys(program.warnings)),
    )
