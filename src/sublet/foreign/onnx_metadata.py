"""Reader of a plan from the metadata of an ONNX file, under the keys of onnxsim and of `sublet export --to onnx`.

A value (input, output or value_info of a graph) has `<prefix>mem_offset` and `<prefix>mem_size`. The model has
`<prefix>memory_plan_arena_bytes`. If the graph of a branch or loop has the arena key too, the offsets of the graph
count in separate memory; otherwise they count in the memory of the enclosing graph. Sublet also writes
`<prefix>memory_plan_alignment`, and `<prefix>mem_region` with the name of the memory if a plan has several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sublet.base.errors import PlanError
from sublet.foreign.foreign_plan import ForeignPlan, PlacedTensor
from sublet.plan import ARENA

if TYPE_CHECKING:
    import onnx

OFFSET, SIZE, REGION, ARENA_BYTES = "mem_offset", "mem_size", "mem_region", "memory_plan_arena_bytes"
ALIGNMENT, FINGERPRINT = "memory_plan_alignment", "memory_plan_fingerprint"
"""Keys written by Sublet, but not by onnxsim."""


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
