"""The plan in the metadata of an ONNX file, under the keys that onnxsim writes and `sublet export --to onnx` too.

A value (input, output or value_info of a graph) has `<prefix>mem_offset` and `<prefix>mem_size`; the model has
`<prefix>memory_plan_arena_bytes`. The graph of a branch or loop that has this key too has memory of its own, which
its offsets count in; another's count in that of the graph around. Sublet writes `<prefix>memory_plan_alignment` too,
and `<prefix>mem_region`, which names one of several memories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sublet.base.errors import PlanError
from sublet.foreign.placed import ForeignPlan, Placed
from sublet.plan import ARENA

if TYPE_CHECKING:
    import onnx

OFFSET, SIZE, REGION, ARENA_BYTES = "mem_offset", "mem_size", "mem_region", "memory_plan_arena_bytes"
ALIGNMENT, FINGERPRINT = "memory_plan_alignment", "memory_plan_fingerprint"
"""Keys that Sublet writes, and onnxsim does not."""


def placed_from_onnx(model: onnx.ModelProto, source: str) -> ForeignPlan:
    """The plan in a model's metadata. Raises PlanError when there is none, or one that makes no sense."""
    prefixes = _prefixes(model)
    if len(prefixes) != 1:
        what = f"plans of several tools: {', '.join(sorted(prefixes))}" if prefixes else "no plan in its metadata"
        raise PlanError(f"{source} has {what}; the offset of a tensor stands under <prefix>{OFFSET}")
    return _Metadata(model, source, prefixes.pop()).plan()


def _prefixes(model: onnx.ModelProto) -> set[str]:
    entries = (
        entry for graph, _ in graphs_of(model.graph) for value in values_of(graph) for entry in value.metadata_props
    )
    return {entry.key.removesuffix(OFFSET) for entry in entries if entry.key.endswith(OFFSET)}


def values_of(graph: onnx.GraphProto) -> Iterator[Any]:
    """What a graph tells types of, and metadata."""
    yield from graph.input
    yield from graph.output
    yield from graph.value_info


def graphs_of(graph: onnx.GraphProto, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """A graph and all within it, each with the graphs around it, those and itself by (graph, name of the attribute)."""
    yield graph, path
    for i, node in enumerate(graph.node):
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                yield from graphs_of(inner, (*path, (inner, f"{node.name or f'{node.op_type}_{i}'}.{attribute.name}")))


class _Metadata:
    def __init__(self, model: onnx.ModelProto, source: str, prefix: str) -> None:
        self._model, self._source, self._prefix = model, source, prefix

    def plan(self) -> ForeignPlan:
        """All offsets; a name that several graphs define is left out, as it is not known which one is meant."""
        placed: dict[str, Placed] = {}
        sizes: dict[str, int] = {}
        graphs = list(graphs_of(self._model.graph))
        ambiguous = several(graph for graph, _ in graphs)
        left: dict[str, None] = {}
        for graph, path in graphs:
            region = self._memory(path, sizes)
            for value in values_of(graph):
                keys = self._keys(value)
                if OFFSET not in keys:
                    continue
                if value.name in ambiguous and path:
                    left[value.name] = None
                    continue
                told = keys.get(REGION, region)
                size = self._integer(keys[SIZE], value.name) if SIZE in keys else None
                tensor = Placed(value.name, self._integer(keys[OFFSET], value.name), told, size)
                if placed.setdefault(value.name, tensor) != tensor:
                    raise PlanError(f"{self._source}: {value.name!r} is placed twice, at different offsets")
        names = tuple(name for name in left if name not in placed)
        whole = self._keys(self._model)
        alignment = self._integer(whole[ALIGNMENT], ALIGNMENT) if ALIGNMENT in whole else None
        nested = dict.fromkeys((region for region in sizes if region != ARENA), ARENA) if ARENA in sizes else {}
        return ForeignPlan(tuple(placed.values()), self._tool, sizes, alignment, names, nested=nested)

    @property
    def _tool(self) -> str:
        if FINGERPRINT in self._keys(self._model):
            return "Sublet"
        return self._prefix.rstrip("./_") or "metadata"

    def _memory(self, path: Sequence[tuple[Any, str]], sizes: dict[str, int]) -> str:
        """The memory that the offsets of a graph count in: of its own, or of the innermost around that has its own."""
        names = [name for _, name in path]
        own = [i for i, (graph, _) in enumerate(path) if ARENA_BYTES in self._keys(graph)]
        region = "/".join(names[: own[-1] + 1]) if own else ARENA
        keys = self._keys(path[own[-1]][0] if own else self._model)
        if ARENA_BYTES in keys:
            sizes[region] = self._integer(keys[ARENA_BYTES], region)
        return region

    def _keys(self, holder: Any) -> Mapping[str, str]:
        return {
            entry.key.removeprefix(self._prefix): entry.value
            for entry in holder.metadata_props
            if entry.key.startswith(self._prefix)
        }

    def _integer(self, text: str, name: str) -> int:
        if not text.lstrip("-").isdecimal() or not text.isascii() or len(text) > 20:
            raise PlanError(f"{self._source}: {name!r} has {text[:40]!r} for an integer in its metadata")
        return int(text)


def several(graphs: Iterator[Any]) -> set[str]:
    """The names that more than one graph defines: Sublet tells them apart, by other names."""
    seen: set[str] = set()
    twice: set[str] = set()
    for graph in graphs:
        own = {name for node in graph.node for name in node.output} | {value.name for value in graph.input}
        own |= {tensor.name for tensor in graph.initializer}
        twice |= seen & own
        seen |= own
    return twice
