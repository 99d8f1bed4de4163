"""Plans in the metadata of an ONNX file, and nodes for constants with a place in the plan.

Nodes for constants computed by an ONNX file, for plans with an arena place for the constants.

The ONNX front end folds every node without a dependence on an input into a weight. A tool may instead run the node and
write the result into the arena. The arena bytes are then live only from the node on, so a plan may use them before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sublet.base.errors import PlanError
from sublet.base.files import parse_json
from sublet.base.names import unused_name
from sublet.checker.external.external_plan import ForeignPlan, PlacedTensor
from sublet.integrations.onnx.reader.model_file import read_model, require_utf8
from sublet.ir.dataflow import reads_inside
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.model import Model
from sublet.plan import ARENA

if TYPE_CHECKING:
    import onnx

CONSTANT = "onnx.Constant"


def with_constant_nodes(graph: Graph, model: onnx.ModelProto, placed_names: Collection[str]) -> Graph:
    """Return the graph with an `onnx.Constant` node for each folded weight with an arena place.

    A weight is replaced if the tool placed it (its name is in `placed_names`), a node of `model` defines it, and the
    graph knows its content. Return `graph` itself if no weight qualifies.
    """
    position = {name: i for i, node in enumerate(model.graph.node) for name in node.output if name}
    candidates = (value for value in graph.weights if value.name in position and value.name in placed_names)
    moved = {value: position[value.name] for value in candidates}
    moved = {value: at for value, at in moved.items() if value in graph.constants}
    if not moved:
        return graph
    used_names = {node.name for node in graph.walk()}
    due = _insertion_positions(graph, position, moved)
    nodes: list[Node] = []
    for i, node in enumerate((*graph.nodes, None)):
        for value in sorted((value for value in moved if due[value] == i), key=lambda value: moved[value]):
            name = unused_name(f"{model.graph.node[moved[value]].op_type} {value.name}", used_names)
            nodes.append(Node(name, CONSTANT, (), (value,)))
        nodes += [] if node is None else [node]
    return replace(graph, nodes=tuple(nodes), weights=tuple(value for value in graph.weights if value not in moved))


def _insertion_positions(graph: Graph, position: Mapping[str, int], moved: Mapping[Value, int]) -> dict[Value, int]:
    """Return the insertion index of each constant: the new node goes before the graph node of this index.

    The index is the smaller of two: the first node with a later position in the file, and the first reader of the
    constant; the number of nodes if neither exists.
    """
    due = dict.fromkeys(moved, len(graph.nodes))
    for i in reversed(range(len(graph.nodes))):
        node = graph.nodes[i]
        at = max((position[value.name] for value in node.defs if value.name in position), default=-1)
        for value in moved:
            if at > moved[value]:
                due[value] = i
    for i in reversed(range(len(graph.nodes))):
        for value in (*graph.nodes[i].uses, *reads_inside(graph.nodes[i])):
            if value in due:
                due[value] = min(due[value], i)
    return due


# Reader of a plan from the metadata of an ONNX file, under the keys of onnxsim and of `sublet export --to onnx`.
#
# A value (input, output or value_info of a graph) has `<prefix>mem_offset` and `<prefix>mem_size`. The model has
# `<prefix>memory_plan_arena_bytes`. If the graph of a branch or loop has the arena key too, the offsets of the graph
# count in separate memory; otherwise they count in the memory of the enclosing graph. Sublet also writes
# `<prefix>memory_plan_alignment`, `<prefix>memory_plan_options` with the dimensions, trip counts and shapes declared by
# the caller of the planner, and `<prefix>mem_region` with the name of the memory if a plan has several.

if TYPE_CHECKING:
    import onnx

OFFSET, SIZE, REGION, ARENA_BYTES = "mem_offset", "mem_size", "mem_region", "memory_plan_arena_bytes"
ALIGNMENT, FINGERPRINT, OPTIONS = "memory_plan_alignment", "memory_plan_fingerprint", "memory_plan_options"
"""Keys written by Sublet, but not by onnxsim."""

OPTION_KINDS = {"dims": int, "max_trips": int, "assume": str}
"""The options of reading under the key `OPTIONS`, each an object in JSON, with the kind of its entries."""


def plan_from_onnx(model: onnx.ModelProto, source: str) -> ForeignPlan:
    """Return the plan in a model's metadata.

    Raises PlanError if the file has no plan, plans of several tools, or an invalid plan.
    """
    prefixes = _prefixes(model)
    if len(prefixes) != 1:
        what = f"plans of several tools: {', '.join(sorted(prefixes))}" if prefixes else "no plan in its metadata"
        raise PlanError(f"{source} has {what}; expected the offset of a tensor under <prefix>{OFFSET}")
    return _Metadata(model, source, prefixes.pop()).read_plan()


def _prefixes(model: onnx.ModelProto) -> set[str]:
    """Return the prefixes of all offset keys in the model."""
    entries = (
        entry
        for graph, _ in graphs_of(model.graph)
        for value in typed_values_of(graph)
        for entry in value.metadata_props
    )
    return {entry.key.removesuffix(OFFSET) for entry in entries if entry.key.endswith(OFFSET)}


def typed_values_of(graph: onnx.GraphProto) -> Iterator[Any]:
    """Yield the inputs, outputs and value_info entries of a graph: all values with a type and metadata."""
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def graphs_of(graph: onnx.GraphProto, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield a graph and all nested graphs, each with the path from the outermost graph to it.

    A path is a tuple of (graph, "node.attribute"), and is empty for the outermost graph.
    """
    yield graph, path
    for i, node in enumerate(graph.node):
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                yield from graphs_of(inner, (*path, (inner, f"{node.name or f'{node.op_type}_{i}'}.{attribute.name}")))


class _Metadata:
    """Metadata of a model, read under a single key prefix."""

    def __init__(self, model: onnx.ModelProto, source: str, prefix: str) -> None:
        self._model, self._source, self._prefix = model, source, prefix

    def read_plan(self) -> ForeignPlan:
        """Return the plan with all offsets. A name defined by several graphs is left out: the metadata is ambiguous."""
        placed: dict[str, PlacedTensor] = {}
        sizes: dict[str, int] = {}
        graphs = list(graphs_of(self._model.graph))
        ambiguous = names_of_several_graphs(graph for graph, _ in graphs)
        unplaced: dict[str, None] = {}
        for graph, path in graphs:
            region = self._memory_of(path, sizes)
            for value in typed_values_of(graph):
                keys = self._entries_of(value)
                if OFFSET not in keys:
                    continue
                if value.name in ambiguous and path:
                    unplaced[value.name] = None
                    continue
                memory = keys.get(REGION, region)
                size = self._integer(keys[SIZE], value.name) if SIZE in keys else None
                tensor = PlacedTensor(value.name, self._integer(keys[OFFSET], value.name), memory, size)
                if placed.setdefault(value.name, tensor) != tensor:
                    raise PlanError(f"{self._source}: {value.name!r} is placed twice, at different offsets")
        names = tuple(name for name in unplaced if name not in placed)
        whole = self._entries_of(self._model)
        alignment = self._integer(whole[ALIGNMENT], ALIGNMENT) if ALIGNMENT in whole else None
        nested = dict.fromkeys((region for region in sizes if region != ARENA), ARENA) if ARENA in sizes else {}
        return ForeignPlan(tuple(placed.values()), self._tool_name, sizes, alignment, names, nested=nested)

    @property
    def _tool_name(self) -> str:
        """The name of the tool: Sublet if the metadata has a fingerprint, else the key prefix."""
        if FINGERPRINT in self._entries_of(self._model):
            return "Sublet"
        return self._prefix.rstrip("./_") or "metadata"

    def _memory_of(self, path: Sequence[tuple[Any, str]], sizes: dict[str, int]) -> str:
        """Return the memory for the graph at `path`: the memory of the innermost graph with a size, else the arena.

        The size of the memory, if declared, is noted in `sizes`.
        """
        names = [name for _, name in path]
        own = [i for i, (graph, _) in enumerate(path) if ARENA_BYTES in self._entries_of(graph)]
        region = "/".join(names[: own[-1] + 1]) if own else ARENA
        keys = self._entries_of(path[own[-1]][0] if own else self._model)
        if ARENA_BYTES in keys:
            sizes[region] = self._integer(keys[ARENA_BYTES], region)
        return region

    def _entries_of(self, holder: Any) -> Mapping[str, str]:
        """Return the metadata entries of `holder` under the prefix, without the prefix."""
        return {
            entry.key.removeprefix(self._prefix): entry.value
            for entry in holder.metadata_props
            if entry.key.startswith(self._prefix)
        }

    def _integer(self, text: str, name: str) -> int:
        """Return the integer in a metadata entry of at most 20 ASCII characters. Raises PlanError otherwise."""
        if not text.lstrip("-").isdecimal() or not text.isascii() or len(text) > 20:
            raise PlanError(f"{self._source}: the metadata of {name!r} has {text[:40]!r}; expected an integer")
        return int(text)


def names_of_several_graphs(graphs: Iterator[Any]) -> set[str]:
    """Return the names defined by more than one graph; Sublet reads such values under different names."""
    seen: set[str] = set()
    twice: set[str] = set()
    for graph in graphs:
        names = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
        names |= {tensor.name for tensor in graph.initializer}
        twice |= seen & names
        seen |= names
    return twice


def read_embedded_plan(model: Model, path: Path) -> tuple[Model, ForeignPlan]:
    """Return the model and the plan in the metadata of its file. Raises PlanError if the file has no plan.

    Nodes for constants computed by the file are added to the model, if the plan has a place for the constants.
    """
    proto = read_model(path)
    require_utf8(proto, path.name)
    plan = plan_from_onnx(proto, path.name)
    names = {tensor.name for tensor in plan.tensors}
    return replace(model, graph=with_constant_nodes(model.graph, proto, names)), plan


def read_embedded_options(path: Path) -> dict[str, Any]:
    """Return the options of reading that the plan in a file was made with, as arguments of `read_source`.

    Raises PlanError for a malformed record.
    """
    proto = read_model(path)
    text = next((entry.value for entry in proto.metadata_props if entry.key.endswith(OPTIONS)), "{}")
    options = parse_json(text, f"{path}, metadata {OPTIONS}", PlanError)
    if not isinstance(options, dict) or not all(
        isinstance(entries, dict) and all(type(entry) is OPTION_KINDS.get(name) for entry in entries.values())
        for name, entries in options.items()
    ):
        example = '{"dims": {"batch": 1}, "max_trips": {"loop": 8}, "assume": {"a": "f32[1,8]"}}'
        raise PlanError(f"{path}: the metadata {OPTIONS} has {text[:80]!r}; expected an object such as {example}")
    return options
