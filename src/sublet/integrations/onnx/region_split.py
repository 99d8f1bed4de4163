"""Region split: a region of nodes around the peak, computed in two halves for equal results in less memory.

    %a = onnx.Conv(%x, %w)                 %x0 = onnx.Slice(%x, ...)     %x1 = onnx.Slice(%x, ...)
    %b = onnx.Relu(%a)             ->      %a0 = onnx.Conv(%x0, %w)      %a1 = onnx.Conv(%x1, %w)
    %c = onnx.MaxPool(%b)                  %b0 = onnx.Relu(%a0)          ...
                                           %c0 = onnx.MaxPool(%b0)       %c = onnx.Concat(%c0, %c1)

Halves are taken along the batch, the channels or the rows. The slice maps of the operators give the inputs of each
half, backwards from the last node; rows needed by both halves are computed twice. If a half needs only a part of a
weight, the weight is cut into two weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sublet.base.names import NameGenerator
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.dialect import BLOCKED
from sublet.ir.dataflow import all_names, producing_nodes, reads_inside
from sublet.ir.graph import Attr, Graph, Node, Value
from sublet.ops import slice_maps_of
from sublet.ops.slice_maps import one_axis
from sublet.passes.live_bytes import estimated_peak
from sublet.passes.rewriting import count_readers

MAX_REACH = 6
"""Nodes of a region before the peak, and after the peak."""
LARGE_GRAPH_NODES, LARGE_GRAPH_REACH = 2000, 2
"""Nodes of a large graph, and the reach in a large graph: the number of regions is quadratic in the reach."""
PLANNED_SPLITS = 3
"""Splits to plan: those with the lowest estimated peak."""
AXIS_NAMES = ("the batch", "the channels", "the rows")


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """The elements [begin, end) along an axis."""

    axis: int
    begin: int
    end: int

    def sliced_spec(self, spec: TensorSpec) -> TensorSpec:
        """Return the spec of the slice of a tensor with the given spec."""
        shape = (*spec.shape[: self.axis], self.end - self.begin, *spec.shape[self.axis + 1 :])
        return TensorSpec(spec.dtype, shape)


InputSlices = tuple[Mapping[int, AxisSlice], Mapping[str, Attr]]
"""The slices of the inputs, by position, and the attributes for a slice; inputs not listed are needed whole."""


def propagate_slice(node: Node, cut: AxisSlice) -> InputSlices | None:
    """Return the slices of the inputs needed for a slice of the only output; None if no slice map allows the slice."""
    known = node.op.startswith("onnx.") and not node.op.startswith(BLOCKED)  # maps in blocks have other bytes
    maps = slice_maps_of(node) if known else ()
    found = next((each for each in maps if each.outputs[0] == one_axis(cut.axis)), None)
    if found is None:
        return None
    sliced = [(i, axes.start) for i, axes in enumerate(found.inputs) if axes is not None]
    slices = {i: AxisSlice(axis, *found.operand_slice(cut.begin, cut.end, i)) for i, axis in sliced}
    if any(each.begin >= each.end for each in slices.values()):
        return None
    return slices, found.attrs(node.attrs, cut.begin, cut.end)


@dataclass(frozen=True, slots=True)
class RegionSplit:
    """A graph with a region in two halves.

    weight_slices  for each new weight the name of the original weight and the slice taken
    """

    what: str
    how: str
    graph: Graph
    weight_slices: dict[str, tuple[str, AxisSlice]]


def propose_splits(graph: Graph, name: str) -> Iterator[RegionSplit]:
    """Yield the splits with the lowest estimated peaks of a region around the node `name`.

    Among regions with the same estimate, the shortest is taken. At most PLANNED_SPLITS splits are yielded.
    """
    place = next((i for i, node in enumerate(graph.nodes) if node.name == name), None)
    if place is None or graph.nodes[place].subgraphs:
        return
    splits: dict[int, RegionSplit] = {}
    chain, middle = _chain_around(graph, place)
    spans = [(first, last) for first in range(middle + 1) for last in range(middle, len(chain))]
    for first, last in sorted(spans, key=lambda span: span[1] - span[0]):
        for axis in range(len(AXIS_NAMES)):
            split = split_region(graph, chain[first : last + 1], axis)
            if split is not None:
                splits.setdefault(estimated_peak(split.graph)[0], split)
    yield from (splits[estimate] for estimate in sorted(splits)[:PLANNED_SPLITS])


def _chain_around(graph: Graph, place: int) -> tuple[list[Node], int]:
    """Return a chain of nodes around a node, and the position of the node in the chain.

    Each node passes a single value to the next, read by no other node. The chain has at most MAX_REACH nodes before and
    after the node.
    """
    maker = producing_nodes(graph.nodes)
    counts = count_readers(graph)
    by_reader = {value: node for node in graph.nodes for value in node.uses}
    reach = MAX_REACH if len(graph.nodes) < LARGE_GRAPH_NODES else LARGE_GRAPH_REACH
    chain, middle = [graph.nodes[place]], 0
    while middle < reach:
        made = [value for value in chain[0].uses if value in maker and counts[value] == 1]
        before = [maker[value] for value in made if len(maker[value].defs) == 1 and not maker[value].subgraphs]
        if not before:
            break
        chain.insert(0, max(before, key=lambda node: node.defs[0].nbytes))
        middle += 1
    while len(chain) - middle <= reach:
        last = chain[-1]
        if len(last.defs) != 1 or counts[last.defs[0]] != 1 or last.defs[0] not in by_reader:
            break
        after = by_reader[last.defs[0]]
        if after.subgraphs:
            break
        chain.append(after)
    return chain, middle


def split_region(graph: Graph, stretch: list[Node], axis: int) -> RegionSplit | None:
    """Return the graph with a chain of nodes in two halves along `axis`; None if equal results are not known."""
    result = stretch[-1].outputs[0] if stretch[-1].outputs else None
    if result is None or not isinstance(result.spec, TensorSpec) or len(result.spec.shape) <= axis:
        return None
    extent = result.spec.shape[axis]
    if extent < 2 or any(node.scratch is not None or len(node.defs) != 1 for node in stretch):
        return None
    counts = count_readers(graph)
    if any(counts[node.defs[0]] != 1 for node in stretch[:-1]):
        return None
    writer = _HalfWriter(graph, NameGenerator(all_names(graph)))
    parts: list[Value] = []
    for half, cut in enumerate((AxisSlice(axis, 0, extent // 2), AxisSlice(axis, extent // 2, extent))):
        part = writer.write_half(stretch, cut, half)
        if part is None:
            return None
        parts.append(part)
    name = writer.names.fresh(f"{stretch[-1].name}.halves")
    writer.nodes.append(Node(name, "onnx.Concat", tuple(parts), (result,), {"axis": axis}))
    gone = {node.name for node in stretch}
    end = next(i for i, node in enumerate(graph.nodes) if node is stretch[-1])
    before = [node for node in graph.nodes[:end] if node.name not in gone]
    nodes = (*before, *writer.nodes, *graph.nodes[end + 1 :])
    read = {value for node in nodes for value in (reads_inside(node) if node.subgraphs else node.uses)}
    kept = tuple(weight for weight in graph.weights if weight in read or not writer.is_sliced(weight))
    changed = replace(graph, nodes=nodes, weights=(*kept, *writer.weights.values()))
    which = f"{stretch[0].name!r}" if len(stretch) == 1 else f"{stretch[0].name!r} to {stretch[-1].name!r}"
    what = f"{which} ({len(stretch)} node{'s' if len(stretch) > 1 else ''}) in two halves along {AXIS_NAMES[axis]}"
    how = f"split them along axis {axis} in the model, one half after the other, and concatenate"
    return RegionSplit(what, how, changed, writer.weight_slices)


@dataclass
class _HalfWriter:
    """Writer of the nodes of both halves, and of the weights they need."""

    graph: Graph
    names: NameGenerator
    nodes: list[Node] = field(default_factory=list)
    weights: dict[tuple[str, AxisSlice] | tuple[int, ...], Value] = field(default_factory=dict)
    weight_slices: dict[str, tuple[str, AxisSlice]] = field(default_factory=dict)

    def write_half(self, stretch: list[Node], cut: AxisSlice, half: int) -> Value | None:
        """Write a half and return its result; None if some node cannot be halved."""
        wanted: list[tuple[Node, AxisSlice, InputSlices]] = []
        for i, node in reversed(list(enumerate(stretch))):
            needed = propagate_slice(node, cut)
            if needed is None:
                return None
            wanted.insert(0, (node, cut, needed))
            if i:
                passed = [needed[0].get(k) for k, v in enumerate(node.inputs) if v == stretch[i - 1].outputs[0]]
                if not passed or passed[0] is None or any(each != passed[0] for each in passed):
                    return None
                if passed[0].axis != cut.axis:
                    return None
                cut = passed[0]
        written: dict[Value, Value] = {}
        for node, part, (slices, attrs) in wanted:
            inputs: list[Value | None] = []
            for k, value in enumerate(node.inputs):
                half_value = written.get(value) if value is not None else None
                cut_of = slices.get(k)
                inputs.append(
                    half_value or (value if value is None or cut_of is None else self.slice_value(value, cut_of, half))
                )
            if any(now is None and was is not None for now, was in zip(inputs, node.inputs, strict=True)):
                return None
            (output,) = node.defs
            assert isinstance(output.spec, TensorSpec)
            value = Value(self.names.fresh(f"{output.name}.{half}"), part.sliced_spec(output.spec))
            name = self.names.fresh(f"{node.name}.{half}")
            self.nodes.append(Node(name, node.op, tuple(inputs), (value,), attrs))
            written[output] = value
        return written[stretch[-1].defs[0]]

    def slice_value(self, value: Value, cut: AxisSlice, half: int) -> Value | None:
        """Return a slice of a weight as a new weight, or of another value by a Slice node; None if impossible."""
        assert isinstance(value.spec, TensorSpec)
        if cut.begin == 0 and cut.end == value.spec.shape[cut.axis]:
            return value
        if value.literal is not None or value in self.graph.updated_values:
            return None
        if value in self.graph.weights:
            made = self.weights.get((value.name, cut))
            if made is None:
                made = Value(self.names.fresh(f"{value.name}.{half}"), cut.sliced_spec(value.spec))
                self.weights[value.name, cut] = made
                self.weight_slices[made.name] = (value.name, cut)
            return made
        made = Value(self.names.fresh(f"{value.name}.part{half}"), cut.sliced_spec(value.spec))
        where = tuple(self.integer_weight(n) for n in (cut.begin, cut.end, cut.axis))
        self.nodes.append(Node(self.names.fresh(f"{value.name}.slice{half}"), "onnx.Slice", (value, *where), (made,)))
        return made

    def integer_weight(self, number: int) -> Value:
        """Return a list of a single integer as a weight."""
        if (number,) not in self.weights:
            name = self.names.fresh(f"at.{number}")
            self.weights[(number,)] = Value(name, TensorSpec(DType.I64, (1,)), (number,))
        return self.weights[(number,)]

    def is_sliced(self, weight: Value) -> bool:
        """True if the weight was cut."""
        return any(name == weight.name for name, _ in self.weight_slices.values())
