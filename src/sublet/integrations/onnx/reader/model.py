"""Import of ONNX models: a file becomes a graph with lazily read weights.

read -> inline functions -> name outputs -> bind dimensions -> convert (sort, infer, fold, loops, branches) -> prune
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sublet.base.errors import ModelError
from sublet.base.extents import is_ranged
from sublet.base.formatting import known_names
from sublet.base.optional_imports import require
from sublet.base.tensor import MAX_BYTES, Unplannable
from sublet.integrations.onnx.dialect import always_written_outputs
from sublet.integrations.onnx.reader.conversion_state import (
    ATTEMPTS_PER_NODE,
    AssumedShapes,
    GraphConversion,
    ImportState,
    Scope,
    results_of,
)
from sublet.integrations.onnx.reader.convert import convert_graph
from sublet.integrations.onnx.reader.model_file import (
    TakenBranches,
    all_nodes,
    inline_functions,
    opsets_of,
    require_utf8,
    with_explicit_nodes,
)
from sublet.integrations.onnx.reader.types import TensorType, Type, read_type
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ir.model import Model
from sublet.ir.recipe import PLAIN

# Dead-code elimination: removes unneeded nodes, optional outputs, stacked rows of loops, and weights.
#
# The graph is read backwards; a value is needed when an output, an update or a needed node reads the value.

T = TypeVar("T")


def remove_dead_code(graph: Graph, also: Collection[Value] = ()) -> Graph:
    """Return the graph without dead nodes and unused weights.

    Inputs, outputs, updates, and the values in `also` stay.
    """
    needed = {*graph.outputs, *(value for pair in graph.updates for value in pair), *also}
    nodes = _live_nodes(graph.nodes, needed)
    weights = tuple(weight for weight in graph.weights if weight in needed)
    return replace(graph, nodes=nodes, weights=weights)


def _live_nodes(nodes: Sequence[Node], needed: set[Value]) -> tuple[Node, ...]:
    """Return the nodes defining a needed value, and add the values read by the returned nodes to `needed`."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if not any(value in needed for value in node.defs):
            continue
        if isinstance(node, CaseOf):
            node = _prune_case(node, needed)
        elif isinstance(node, While):
            node = _prune_while(node, needed)
        else:
            node = replace(node, outputs=_live_outputs(node, needed))
        needed.update(node.uses)
        kept.append(node)
    return tuple(reversed(kept))


def _items_at(items: Sequence[T], keep: Sequence[int]) -> tuple[T, ...]:
    """Return the items at the positions in `keep`."""
    return tuple(items[i] for i in keep)


def _prune_case(node: CaseOf, needed: set[Value]) -> CaseOf:
    """Remove unneeded outputs from the branch and dead nodes from the arms."""
    keep = [i for i, value in enumerate(node.outputs) if value is not None and value in needed]
    arms: list[Graph] = []
    for arm in node.arms:
        outputs = _items_at(arm.outputs, keep)
        needed.update(outputs)
        arms.append(replace(arm, nodes=_live_nodes(arm.nodes, needed), outputs=outputs))
    return replace(node, outputs=_items_at(node.outputs, keep), arms=tuple(arms))


def _prune_while(node: While, needed: set[Value]) -> While:
    """Remove unneeded outputs and rows from the loop and dead nodes from the body."""
    keep = [i for i, value in enumerate(node.stacked_outputs) if value is not None and value in needed]
    outputs = (*node.updates, *_items_at(node.rows, keep))
    needed.update((*outputs, node.condition))
    rest = _live_nodes(node.body.nodes[node.check :], needed)
    prefix = _live_nodes(node.body.nodes[: node.check], needed)
    finals = tuple(value if value in needed else None for value in node.finals)
    return replace(
        node,
        outputs=(*finals, *_items_at(node.stacked_outputs, keep)),
        body=replace(node.body, nodes=(*prefix, *rest), outputs=outputs),
        check=len(prefix),
        row_axes=_items_at(node.row_axes, keep),
        row_reversed=_items_at(node.row_reversed, keep),
    )


def _live_outputs(node: Node, needed: set[Value]) -> tuple[Value | None, ...]:
    """Return the outputs without unread optional outputs (a mask, indices), unless a kernel writes the output anyway.

    The positions of removed outputs stay, as None. ONNX Runtime picks a kernel by the number of listed outputs, and
    MaxPool with indices computes another result from NaN than MaxPool without indices.
    """
    domain, _, op_type = node.op.removeprefix("onnx.").rpartition(".")
    present = [value is not None for value in node.inputs]
    optional = optional_outputs(node.op) - always_written_outputs(domain, op_type, present, len(node.outputs))
    return tuple(None if i in optional and v not in needed else v for i, v in enumerate(node.outputs))


@lru_cache(maxsize=1024)
def optional_outputs(op: str) -> frozenset[int]:
    """Return the positions of the optional outputs of an ONNX operator."""
    defs = require("onnx.defs", extra="onnx")
    domain, _, name = op.removeprefix("onnx.").rpartition(".")
    try:
        schema = defs.get_schema(name, domain=domain)
    except defs.SchemaError:
        return frozenset()
    option = defs.OpSchema.FormalParameterOption.Optional
    return frozenset(i for i, output in enumerate(schema.outputs) if output.option == option)


# Binding of the open dimensions of a model's inputs to extents.
#
# A dimension is bound by the name in the file ("batch"), for every occurrence of the name, or by input and axis
# ("x:2"), for one axis only. The second form has precedence. A caller with input arrays at hand passes shapes instead.

if TYPE_CHECKING:
    import onnx

UNNAMED = ("", "?")
"""dim_param texts written by some exporters for an unnamed dimension."""


Shape = Sequence[int]
Shapes = Mapping[str, Shape]
"""Shapes of inputs by name. A shape binds an open dimension or rank, and never changes a fixed extent."""


def named_extents(inputs: Sequence[onnx.ValueInfoProto], shapes: Shapes) -> dict[str, int]:
    """Return the extents of named dimensions derived from `shapes`, without names bound to several extents or to 0."""
    extents_by_name: dict[str, set[int]] = {}
    for value in inputs:
        for dim, extent in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if dim.dim_param not in UNNAMED:
                extents_by_name.setdefault(dim.dim_param, set()).add(extent)
    return {
        name: extent for name, extents in extents_by_name.items() for extent in extents if len(extents) == 1 and extent
    }


def bind_inputs(
    inputs: Sequence[onnx.ValueInfoProto],
    dims: Mapping[str, int],
    shapes: Shapes,
    where: str,
    undecided: set[str] | None = None,
) -> dict[str, Type]:
    """Return the types of `inputs` with open dimensions bound by `shapes` and `dims`.

    Names of ranges in `dims` that no input has are added to `undecided`, if given. Raises ModelError for dimensions
    left open (listing all, with the missing options), for another name in `dims` unknown to the inputs, for a shape of
    another rank, and for an extent outside 0 to 2^56.
    """
    for name, extent in dims.items():
        if is_ranged(extent):
            continue
        if isinstance(extent, bool) or not isinstance(extent, int) or not 0 <= extent <= MAX_BYTES:
            hint = "; `sublet.compile_ranges` takes ranges" if isinstance(extent, str | tuple) else ""
            raise ModelError(f"--dim {name}={extent}: an extent is a whole number from 0 to 2^56{hint}")
    known: dict[str, None] = {}
    missing: dict[str, str] = {}
    types: dict[str, Type] = {}
    for value in inputs:
        types[value.name] = _bind_input(value, dims, shapes.get(value.name), known, missing, where)
    unknown = [name for name in dims if name not in known]
    if undecided is not None:
        undecided.update(name for name in unknown if is_ranged(dims[name]))
        unknown = [name for name in unknown if name not in undecided]
    if unknown:
        names = ", ".join(known) or "none; all are fixed"
        hint = "" if undecided is None else ". An extent that depends on data needs a range of two ends, such as 0..9"
        raise ModelError(f"{where}: no dimension has the name {', '.join(unknown)}; open dimensions: {names}{hint}")
    if missing:
        examples = {name: "1" if place.endswith(" axis 0") else "N" for name, place in missing.items()}
        lines = "".join(f"\n  {place}: --dim {name}={examples[name]}" for name, place in missing.items())
        ranges = " (N: an extent, or for `sublet plan` a range such as 1..512)" if "N" in examples.values() else ""
        raise ModelError(f"{where}: {len(missing)} dimension(s) are open; declare an extent for each{ranges}:{lines}")
    return types


def _bind_input(
    value: onnx.ValueInfoProto,
    dims: Mapping[str, int],
    shape: Shape | None,
    known: dict[str, None],
    missing: dict[str, str],
    where: str,
) -> Type:
    """Return the type of one input; add open dimensions to `known` and dimensions without an extent to `missing`."""
    type = read_type(value.type)
    if not isinstance(type, TensorType):
        return type
    if type.dims is None:
        return TensorType(type.elem, None if shape is None else tuple(shape))
    if shape is not None and len(shape) != len(type.dims):
        raise ModelError(
            f"{where}: input {value.name} has {len(type.dims)} dimensions; the shape passed has {len(shape)}"
        )
    extents: list[int | None] = []
    for axis, dim in enumerate(value.type.tensor_type.shape.dim):
        if dim.dim_value > 0 or (dim.HasField("dim_value") and dim.dim_value == 0):
            extents.append(int(dim.dim_value))
            continue
        place = f"input {value.name} axis {axis}"
        name = _dimension_name(dim, f"{where}: {place}") or f"{value.name}:{axis}"
        known.update({name: None, f"{value.name}:{axis}": None})
        extent = dims.get(f"{value.name}:{axis}", dims.get(name)) if shape is None else shape[axis]
        if extent is None and name not in missing:
            missing[name] = place
        extents.append(extent)
    return TensorType(type.elem, tuple(extents))


def _dimension_name(dim: Any, place: str) -> str:
    """Return the name of an open dimension, "" without a name; some exporters write -1 for an open dimension.

    Raises ModelError for any other negative extent.
    """
    if dim.HasField("dim_value") and dim.dim_value != -1:
        raise ModelError(f"{place}: the file declares extent {dim.dim_value}")
    return "" if dim.dim_param in UNNAMED else str(dim.dim_param)


if TYPE_CHECKING:
    import onnx

MAX_NODES = 2_000_000


def from_proto(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    *,
    shapes: Shapes | None = None,
    where: str = "model",
    folder: Path | None = None,
    assume: Mapping[str, str] | None = None,
    taken: TakenBranches | None = None,
    loop_limits: Mapping[str, int] | None = None,
) -> Model:
    """Import an ONNX model in memory; external data lies below `folder`.

    `dims` binds open dimensions, and `assume` declares the shapes of values without shape inference. The import
    executes nothing from the file, and checks external data without reading the data. Raises ModelError when the model
    is malformed or unsafe, or when a dimension stays open.

    `shapes` are the shapes of inputs known to the caller. An input named in `shapes` stays an input even when the file
    has a default for the input. `taken` receives the branches of Ifs with a constant condition. `loop_limits` are the
    maximum trip counts of loops over ranges of dimensions, by loop or for all (""): carried values may then grow by the
    same rows in every iteration. Without `loop_limits` such values have no size.
    """
    shapes = shapes or {}
    require_utf8(model, where)
    opsets = opsets_of(model, where)
    model = with_explicit_nodes(inline_functions(_without_defaults(model, shapes), where))
    graph = model.graph
    dims = {**named_extents(graph.input, shapes), **(dims or {})}
    count = sum(1 for _ in all_nodes(iter(graph.node)))
    if count > MAX_NODES:
        raise ModelError(f"{where}: {count} nodes, more than {MAX_NODES}")
    budget = ATTEMPTS_PER_NODE * (count + 100)
    program = ImportState(
        where, folder, opsets, dims, budget, assumed=AssumedShapes(assume or {}), loop_limits=loop_limits
    )
    program.taken = {} if taken is None else taken
    scope: Scope = ChainMap()
    inputs = {name: scope[name].value for name in _add_inputs(program, graph, shapes, scope)}
    frame = convert_graph(program, graph, scope)
    _require_measured(frame)
    return _assemble_model(frame, graph, inputs)


def _require_measured(frame: GraphConversion) -> None:
    """Raise ModelError for a range of a name that neither an input nor an extent depending on data has."""
    undecided = sorted(frame.program.undecided)
    if not undecided:
        return
    opened = [
        f"{value.name}:{axis}"
        for node in frame.nodes
        for value in node.defs
        if isinstance(value.spec, Unplannable) and not node.subgraphs
        for axis, extent in enumerate(value.spec.dims or ())
        if extent is None
    ]
    results = {value.name for node in frame.nodes if node.subgraphs for value in node.defs}
    of_control = [name for name in undecided if {name, name.rpartition(":")[0]} & results]
    if of_control:
        what = "is a result of a loop or branch, which no range can bound; `max_trips` bounds the rows of a loop"
        raise ModelError(f"{frame.program.where}: {of_control[0]} {what}")
    bound = [name for name in frame.program.dims if name not in undecided]
    raise ModelError(
        f"{frame.program.where}: no dimension has the name {', '.join(undecided)}; open dimensions of inputs: "
        f"{', '.join(bound) or 'none; all are fixed'}; extents that depend on data: "
        f"{known_names(opened) if opened else 'none'}"
    )


def _without_defaults(model: onnx.ModelProto, shapes: Shapes) -> onnx.ModelProto:
    """Return the model without the initialisers of inputs named in `shapes`."""
    given = {value.name for value in model.graph.input if value.name in shapes}
    if not given.intersection(initializer_names(model.graph)):
        return model
    changed = type(model)()
    changed.CopyFrom(model)
    remove_initializers(changed.graph, given)
    return changed


def remove_initializers(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Remove the dense and sparse initialisers called `names` from the graph, in place."""
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name in names:
            del graph.initializer[i]
    for i in reversed(range(len(graph.sparse_initializer))):
        if graph.sparse_initializer[i].values.name in names:
            del graph.sparse_initializer[i]


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all dense and sparse initialisers."""
    names = {tensor.name for tensor in graph.initializer}
    return names | {tensor.values.name for tensor in graph.sparse_initializer}


def _add_inputs(program: ImportState, graph: onnx.GraphProto, shapes: Shapes, scope: Scope) -> tuple[str, ...]:
    """Add the inputs without initialisers to `scope` and return the names of the inputs.

    An input with an initialiser has a default, and counts as a constant.
    """
    defaults = initializer_names(graph)
    free = [value for value in graph.input if value.name not in defaults]
    for name, type in bind_inputs(free, program.dims, shapes, program.where, program.undecided).items():
        if not name:
            raise ModelError(f"{program.where}: an input has no name")
        type = program.assumed.close_type(name, type)
        scope[name] = program.fresh(name, type, "the file does not declare its shape")
    if len(scope) < len(free):
        raise ModelError(f"{program.where}: two inputs have the same name")
    return tuple(scope)


def _assemble_model(frame: GraphConversion, graph: onnx.GraphProto, inputs: Mapping[str, Value]) -> Model:
    """Assemble the pruned graph, the weights and the recorded assumptions into a `Model`."""
    program = frame.program
    results = results_of(program, graph, frame.scope)
    whole = Graph(
        graph.name or "graph",
        tuple(inputs.values()),
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
        tuple(inputs),
        tuple(value.name for value in graph.output),
        dict(program.opsets),
        recipe=replace(PLAIN, assumed=tuple(assumed.items()), declared=tuple(declared.items())),
        warnings=tuple(dict.fromkeys(program.warnings)),
    )
