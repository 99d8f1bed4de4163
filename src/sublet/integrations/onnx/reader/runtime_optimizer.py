"""ONNX models rewritten by ONNX Runtime's optimiser: fused operators, blocked layouts.

A model with open dimensions is rewritten once, with open dimensions, like by ONNX Runtime's own session; all extents
share the rewritten model. If the extents leave values of unknown size in the rewritten model, the model is rewritten
again with bound extents, and the rewriting with fewer values of unknown size is taken.

A cache on disk keeps every rewritten model. The key is a hash of the model with external data, the level of the
optimiser, the extents bound before the rewriting, the branches of Ifs taken for the extents, the version of ONNX
Runtime, and the channel block of the blocked layout, which differs between processors. An entry is an ONNX model and
one memory-mapped file of weights, or, for a model rejected by ONNX Runtime, the error message.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sublet.base.arrays import is_packed
from sublet.base.cache import add_entry, find_entry, remove_entry
from sublet.base.errors import ModelError
from sublet.base.extents import is_ranged
from sublet.base.formatting import printable
from sublet.base.optional_imports import require
from sublet.base.tensor import NUMPY, TensorSpec, Unplannable
from sublet.integrations.onnx.dialect import BLOCKED
from sublet.integrations.onnx.reader.contrib import channel_block
from sublet.integrations.onnx.reader.model import bind_inputs, from_proto, initializer_names
from sublet.integrations.onnx.reader.model_file import (
    TakenBranches,
    all_nodes,
    graphs_of,
    inline_branches,
    inline_functions,
    open_session,
    opsets_of,
    read_model,
    session_options,
    with_explicit_nodes,
)
from sublet.integrations.onnx.reader.type_inference import inferred_types
from sublet.integrations.onnx.reader.types import TensorType, spec_of, type_of, write_type
from sublet.integrations.onnx.reader.weights import external_file, weight_of_array
from sublet.ir.graph import Value
from sublet.ir.model import Model

if TYPE_CHECKING:
    import onnx

CACHE_FORMAT = "9"
CACHE_NAME = "optimized"
MODEL, WEIGHTS, REFUSAL = "model.onnx", "weights.bin", "refusal.txt"
ALL = "onnxruntime"
LEVELS = {
    "onnxruntime-basic": "ORT_ENABLE_BASIC",
    "onnxruntime-extended": "ORT_ENABLE_EXTENDED",
    ALL: "ORT_ENABLE_ALL",
}
"""ONNX Runtime's levels: folding and redundant nodes; also fused operators; also blocked layouts."""

IR_VERSION_OF_CONSTANTS = 4
"""From this IR version on, an initialiser need not be an input, and is then a constant."""

EXTERNAL_WEIGHT_BYTES = 1024
"""Initialisers of at least this many bytes are written to the weights file, to be memory-mapped."""


MAX_REFUSAL_CHARACTERS = 300
"""The number of characters kept of ONNX Runtime's error message."""


class _RuntimeRefusal(Exception):
    """Rejection of a model by ONNX Runtime; `__cause__` is the original exception."""


def load_optimized_proto(
    model: onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    *,
    level: str = ALL,
    where: str = "model",
    folder: Path | None = None,
    loop_limits: Mapping[str, int] | None = None,
) -> Model:
    """Import the model after ONNX Runtime's optimiser. Otherwise like `from_proto`.

    A model rejected by ONNX Runtime is imported unoptimised, with a remark. Raises ModelError when the model is
    malformed or unsafe, when a dimension stays open, or for an unknown `level`.
    """
    dims = dict(dims or {})
    opsets_of(model, where)
    if level not in LEVELS:
        raise ModelError(f"there is no optimiser {level!r}; there are {', '.join(LEVELS)}")
    taken: TakenBranches = {}
    plain = from_proto(model, dims, where=where, folder=folder, taken=taken, loop_limits=loop_limits)
    rewriting = _Rewriting(model, level, where, folder, plain, taken, loop_limits)
    over_ranges = loop_limits is not None or any(map(is_ranged, dims.values()))
    if not _has_open_extents(model.graph) and not over_ranges:
        return rewriting.load(dims)
    shared = rewriting.load({})
    if over_ranges:
        more = _unknown_sizes(shared)[1] > _unknown_sizes(plain)[1]
        return _with_remark(plain, "the rewriting leaves more tensors without a size") if more else shared
    return shared if _unknown_sizes(shared) == (False, 0) else min(shared, rewriting.load(dims), key=_unknown_sizes)


def _has_open_extents(graph: onnx.GraphProto) -> bool:
    """True if the file leaves an extent of an input open; an input with an initialiser does not count."""
    defaults = initializer_names(graph)
    types = (value.type.tensor_type for value in graph.input if value.name not in defaults)
    return any(not dim.HasField("dim_value") or dim.dim_value < 0 for each in types for dim in each.shape.dim)


def _unknown_sizes(model: Model) -> tuple[bool, int]:
    """Return True if the model is not optimised, and the number of values of unknown size; the least is the best."""
    specs = [value.spec for value in model.graph.values()]
    return bool(model.remark), sum(isinstance(spec, Unplannable) and not spec.has_bound for spec in specs)


@dataclass(frozen=True)
class _Rewriting:
    """The rewriting of a model by an optimiser `level` of ONNX Runtime.

    plain  the model as read from the file
    taken  the branches of Ifs with a constant condition
    loop_limits  see `from_proto`
    """

    model: onnx.ModelProto
    level: str
    where: str
    folder: Path | None
    plain: Model
    taken: TakenBranches
    loop_limits: Mapping[str, int] | None

    def load(self, extents: Mapping[str, int]) -> Model:
        """Return the model rewritten with `extents` bound and all extents of `plain` bound afterwards.

        The model is `plain` with a remark, if ONNX Runtime rejects the model or the disk fails.
        """
        key = self._cache_key(extents)
        try:
            cached = find_entry(CACHE_NAME, key)
            if cached is not None:
                try:
                    return self._load_entry(cached)
                except (ModelError, OSError, ValueError):  # the entry is damaged
                    remove_entry(CACHE_NAME, key)
            cached = add_entry(CACHE_NAME, key, partial(self._write_entry, extents))
            if cached is not None:
                return self._load_new_entry(cached)
            with tempfile.TemporaryDirectory(prefix="sublet-", ignore_cleanup_errors=True) as scratch:
                self._write_entry(extents, Path(scratch))
                return self._load_new_entry(Path(scratch))
        except OSError as error:
            return _with_remark(self.plain, str(error))

    def _cache_key(self, extents: Mapping[str, int]) -> str:
        """Return the cache key: a hash of all inputs of the rewriting."""
        extents_and_branches = sorted(extents.items()), sorted(self.taken.items())
        parts = [CACHE_FORMAT, self.level, rewriting_environment(), *extents_and_branches]
        if self._measured_names:
            parts.append(self._measured_names)
        return sha256(f"{' '.join(map(str, parts))}\n{self._model_hash}".encode()).hexdigest()

    @cached_property
    def _measured_names(self) -> list[str]:
        """The values with extents bounded by a range, which must keep their names, without outputs of the graph."""
        ranged = [name for name, extent in self.plain.dims.items() if is_ranged(extent)]
        named = {each for name in ranged for each in (name, name.rpartition(":")[0])}
        computed = {name for node in self.model.graph.node for name in node.output}
        return sorted(named & computed - {output.name for output in self.model.graph.output})

    @cached_property
    def _model_hash(self) -> str:
        """The hash of the model with external data."""
        digest = sha256()
        digest.update(self.model.SerializeToString(deterministic=True))
        tensors = [*self.model.graph.initializer]
        for node in all_nodes(iter(self.model.graph.node)):
            tensors += [*_sub_graph_tensors(node), *(attribute.t for attribute in node.attribute)]
        external = (tensor for tensor in tensors if tensor.data_location == tensor.EXTERNAL)
        for place in sorted({_external_data_of(tensor).get("location", "") for tensor in external}):
            with external_file(self.folder or Path(), place, self.where).open("rb") as file:
                while chunk := file.read(1 << 24):
                    digest.update(chunk)
        return digest.hexdigest()

    def _write_entry(self, extents: Mapping[str, int], fresh: Path) -> None:
        """Write the rewritten model, or the rejection by ONNX Runtime, into the folder `fresh`.

        Local functions are inlined first: for a function called both inside and outside a loop, ONNX Runtime's
        inlining gives two values one name and then rejects the written model.
        """
        whole = with_explicit_nodes(inline_functions(self.model, self.where))
        model = _to_rewrite(inline_branches(whole, self.taken, self.where), extents)
        add_output = require("onnx.helper", extra="onnx").make_empty_tensor_value_info
        model.graph.output.extend(map(add_output, self._measured_names))
        try:
            _write_rewritten(model, self.level, self.folder, fresh)
        except _RuntimeRefusal as refusal:
            for path in fresh.iterdir():
                path.unlink()
            lines = str(refusal.__cause__).strip().splitlines() or [type(refusal.__cause__).__name__]
            (fresh / REFUSAL).write_text(lines[0][:MAX_REFUSAL_CHARACTERS], encoding="utf-8")

    def _load_new_entry(self, folder: Path) -> Model:
        """Return the model of an entry just written, or `plain` with a remark."""
        try:
            return self._load_entry(folder)
        except ModelError as error:
            return _with_remark(self.plain, f"the model rewritten by ONNX Runtime is invalid: {error}")

    def _load_entry(self, folder: Path) -> Model:
        """Return the model of an entry, or `plain` with ONNX Runtime's rejection as remark."""
        refusal = folder / REFUSAL
        if refusal.exists():
            reason = refusal.read_text(encoding="utf-8")
            return _with_remark(self.plain, f"ONNX Runtime rejects the model: {reason}")
        outputs = len(self.model.graph.output)
        restored = _load_rewritten(folder, self.plain.dims, self.loop_limits, outputs)
        recipe = replace(restored.recipe, optimize=self.level, by=rewriting_environment())
        return replace(restored, dims=dict(self.plain.dims), recipe=recipe, warnings=self.plain.warnings)


def _with_remark(plain: Model, reason: str) -> Model:
    """Return the unoptimised model with a remark giving the reason."""
    return replace(plain, remark=f"not optimised, {printable(reason)}")


def _load_rewritten(
    folder: Path, dims: Mapping[str, int], loop_limits: Mapping[str, int] | None, outputs: int
) -> Model:
    """Import the rewritten model from a folder, with memory-mapped weights. Only the first `outputs` are kept.

    ONNX Runtime infers the shapes of its own operators for the extents in `dims`, if the import leaves shapes unknown.
    """
    proto = read_model(folder / MODEL)
    del proto.graph.output[outputs:]
    is_open = _has_open_extents(proto.graph)
    mapped = {tensor.name: tensor for tensor in _mappable_tensors(proto, folder)}
    ranged = loop_limits is not None or any(map(is_ranged, dims.values()))
    if is_open and not ranged:
        _bind_extents(proto.graph, dims)
    restored = from_proto(proto, dims if ranged else {}, where=MODEL, folder=folder, loop_limits=loop_limits)
    if is_open and not ranged and not all(value.plannable for value in restored.graph.values()):
        _declare_known_types(proto.graph, restored)
        with suppress(Exception):  # ONNX Runtime rejects a model whose arm never taken conflicts with the extents
            proto.graph.value_info.extend(inferred_types(proto, folder))
        restored = from_proto(proto, {}, where=MODEL, folder=folder)
    raw = np.memmap(folder / WEIGHTS, np.uint8, "r") if mapped else np.empty(0, np.uint8)
    weights = dict(restored.weights)
    for value in restored.graph.weights:
        name, spec = value.name, value.spec
        if name in mapped and isinstance(spec, TensorSpec):
            offset = int(_external_data_of(mapped[name])["offset"])
            content = raw[offset : offset + spec.nbytes].view(NUMPY[spec.dtype]).reshape(spec.shape)
            weights[name] = weight_of_array(content, spec)
    return replace(restored, weights=weights)


def _declare_known_types(graph: onnx.GraphProto, restored: Model) -> None:
    """Declare the types of the imported values, as a start for ONNX Runtime's own inference."""
    declared = {value.name for value in (*graph.value_info, *graph.input, *graph.output)}
    for value in (value for node in restored.graph.nodes for value in node.defs):
        if isinstance(value.spec, TensorSpec) and value.name not in declared:
            graph.value_info.add(name=value.name).type.CopyFrom(write_type(type_of(value.spec)))


def _mappable_tensors(proto: onnx.ModelProto, folder: Path) -> Iterator[onnx.TensorProto]:
    """Yield the tensors to map from the weights file, and read the content of the remaining tensors into `proto`.

    The remaining tensors are tensors of sub-graphs, whose names need not be unique, and tensors with several elements
    per byte.
    """
    inner = [tensor for node in all_nodes(iter(proto.graph.node)) for tensor in _sub_graph_tensors(node)]
    names = {tensor.name for tensor in inner}
    for tensor in (*proto.graph.initializer, *inner):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        spec = spec_of(TensorType(tensor.data_type, tuple(tensor.dims)), "")
        if tensor.name not in names and isinstance(spec, TensorSpec) and not is_packed(spec):
            yield tensor
            continue
        place = _external_data_of(tensor)
        with (folder / WEIGHTS).open("rb") as file:
            file.seek(int(place["offset"]))
            tensor.raw_data = file.read(int(place["length"]))
        tensor.data_location = tensor.DEFAULT
        del tensor.external_data[:]


def _sub_graph_tensors(node: onnx.NodeProto) -> Iterator[onnx.TensorProto]:
    """Yield the initialisers of the node's sub-graphs."""
    return (tensor for graph in graphs_of(node) for tensor in graph.initializer)


def _external_data_of(tensor: onnx.TensorProto) -> dict[str, str]:
    """Return the external-data entries of the tensor, by key."""
    return {item.key: item.value for item in tensor.external_data}


def rewriting_environment() -> str:
    """Return, as text, the environment of a rewriting: version of ONNX Runtime, processor, and channel block."""
    version = require("onnxruntime", extra="onnxruntime").__version__
    return f"onnxruntime {version}, {platform.machine()}, blocks of {channel_block()} channels"


def channel_blocks(model: Model) -> Mapping[Value, int]:
    """Return the channels of a block of every map in the blocked layout, at the root level."""
    blocks: dict[Value, int] = {}
    for node in model.graph.nodes:
        name = node.op.removeprefix(BLOCKED)
        if name != "ReorderOutput" and (name != node.op or not blocks.keys().isdisjoint(node.uses)):
            blocks.update(dict.fromkeys(node.defs, channel_block() or 1))
    return blocks


def _to_rewrite(model: onnx.ModelProto, extents: Mapping[str, int]) -> onnx.ModelProto:
    """Return a copy with initialisers as constants, with `extents` bound, without declared shapes of computed values.

    Without `extents` all open dimensions stay open.
    """
    copy = type(model)()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, IR_VERSION_OF_CONSTANTS)
    graph = copy.graph
    defaults = initializer_names(graph)
    free = [type(value).FromString(value.SerializeToString()) for value in graph.input if value.name not in defaults]
    del graph.input[:]
    graph.input.extend(free)
    if extents:
        _bind_extents(graph, extents)
    _remove_declared_shapes(graph)
    return copy


def _bind_extents(graph: onnx.GraphProto, extents: Mapping[str, int]) -> None:
    """Bind the open dimensions of the graph's inputs, in place."""
    types = bind_inputs(graph.input, extents, {}, MODEL)
    for value in graph.input:
        if isinstance(type_ := types[value.name], TensorType):
            value.type.CopyFrom(write_type(type_))


def _remove_declared_shapes(graph: onnx.GraphProto) -> None:
    """Remove the declared shapes of computed values from the graph and the sub-graphs."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for inner in graphs_of(node):
            _remove_declared_shapes(inner)


def _write_rewritten(model: onnx.ModelProto, level: str, source: Path | None, folder: Path) -> None:
    """Write the rewritten model and the weights into `folder`.

    Raises _RuntimeRefusal when ONNX Runtime rejects the model.
    """
    ort = require("onnxruntime", extra="onnxruntime")
    options = session_options()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    options.optimized_model_filepath = str(folder / MODEL)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_min_size_in_bytes", str(EXTERNAL_WEIGHT_BYTES)
    )
    if source is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(source.resolve()))
    try:
        open_session(model.SerializeToString(), options)
        _finish_rewritten(folder)
    except OSError:
        raise
    except Exception as error:  # the binding passes on every C++ exception, even for a model it wrote itself
        raise _RuntimeRefusal from error


def _sort_and_name_nodes(graph: onnx.GraphProto) -> None:
    """Sort and name the nodes by the graph alone: the optimiser's order and names differ from run to run.

    A node follows the nodes computing the inputs, and these are in the order of the inputs, as in ONNX Runtime's own
    rule. A node is named after the first output.
    """
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    order: dict[int, None] = {}
    stack = [producers[value.name] for value in reversed(graph.output) if value.name in producers]
    stack = [*range(len(graph.node) - 1, -1, -1), *stack]
    while stack:
        i = stack[-1]
        inputs = [producers[name] for name in _names_read_by(graph.node[i]) if name in producers]
        unsorted = [k for k in inputs if k not in order]
        if i in order or not unsorted:
            order.setdefault(stack.pop())
        else:
            stack += reversed(unsorted)
    nodes = [type(graph.node[i]).FromString(graph.node[i].SerializeToString()) for i in order]
    for node in nodes:
        node.name = next(iter(node.output), node.name)
        for inner in graphs_of(node):
            _sort_and_name_nodes(inner)
    del graph.node[:]
    graph.node.extend(nodes)


def _names_read_by(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names read by a node, including the node's sub-graphs."""
    yield from node.input
    for inner in graphs_of(node):
        for other in inner.node:
            yield from _names_read_by(other)
        yield from (value.name for value in inner.output)


def _finish_rewritten(folder: Path) -> None:
    """Sort the rewritten model, and add the types inferred by ONNX Runtime: the onnx package misses some operators."""
    model = read_model(folder / MODEL)
    _sort_and_name_nodes(model.graph)
    model.graph.value_info.extend(inferred_types(model, folder))
    (folder / MODEL).write_bytes(model.SerializeToString())
