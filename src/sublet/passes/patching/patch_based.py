"""Patch-based inference: compute the front of a network one output patch after another (Lin et al., MCUNetV2, 2021).

Requires a legal graph and the last node of the front. Every input-dependent node before the last node must compute
areas of maps from areas of maps, and only the front may read the maps. Ensures the same results, bit by bit if kernels
compute a position alike wherever the position lies. Each patch is computed from the receptive field of the patch,
including the edges of neighbouring patches (the halo), so edges are computed repeatedly. Padding stays at the borders
of the maps.

    %a = onnx.Conv(%x, %w)              %x.0 = nn.slice(%x)  %a.0 = onnx.Conv(%x.0, %w)  %b.0 = onnx.Conv(%a.0, %v)
    %b = onnx.Conv(%a, %v)       ->     %x.1 = nn.slice(%x)  %a.1 = onnx.Conv(%x.1, %w)  %b.1 = onnx.Conv(%a.1, %v)
                                        %b = nn.concat(%b.0, %b.1)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sublet.base.errors import PlanError
from sublet.base.names import NameGenerator
from sublet.base.ranges import split_evenly
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import producer_positions, reads_inside, results
from sublet.ir.graph import Attr, Graph, Node, Value
from sublet.ops import slice_maps_of
from sublet.ops.emitter import LiteralPool
from sublet.ops.slice_maps import SliceMap, one_axis, shape_of

Area = tuple[tuple[int, int], ...]
"""(begin, end) along each of the two spatial axes."""

Axes = tuple[int, int]
"""The two spatial axes: height and width."""

AreaMaps = tuple[SliceMap, ...]
"""The slice maps of a node along the two spatial axes."""

MAX_PATCHES = 1 << 12
"""Maximum number of patches."""


@dataclass(frozen=True)
class Patches:
    """A division of the output of `node`, the last node of the front, into rows and columns of patches."""

    rows: int
    columns: int
    node: str

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}@{self.node}"


@dataclass(frozen=True)
class Front:
    """The nodes to compute in patches, in order, the result of the last node, and the spatial axes of the maps.

    along  the slice maps of each node along the spatial axes
    """

    nodes: tuple[Node, ...]
    along: tuple[AreaMaps, ...]
    result: Value
    axes: Axes

    @property
    def extents(self) -> tuple[int, int]:
        """The spatial extents of the result."""
        return spatial_extents(self.result, self.axes)


def parse_patches(text: str) -> Patches:
    """Parse "ROWSxCOLUMNS@NODE", such as "4x4@Add_12". Raises PlanError for any other text."""
    match = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,4})@(.+)", text, re.DOTALL)
    if match is None or not 1 < int(match[1]) * int(match[2]) <= MAX_PATCHES:
        raise PlanError(f"patches {text[:80]!r}: write ROWSxCOLUMNS@NODE, such as 4x4@Add_12, or auto")
    return Patches(int(match[1]), int(match[2]), match[3])


def with_patched_front(graph: Graph, text: str) -> Graph:
    """Return the graph with the front in patches, as given by `text`. The result is deterministic.

    Raises PlanError if `text` is malformed, or names a node without a front or with too few rows or columns.
    """
    patches = parse_patches(text)
    front = front_up_to(graph, patches.node)
    if isinstance(front, str):
        raise PlanError(f"patches {text[:80]!r}: {front}")
    size = front.extents
    if patches.rows > size[0] or patches.columns > size[1]:
        raise PlanError(f"patches {text[:80]!r}: {front.result} has only {size} rows and columns")
    writer = _PatchWriter(graph, front)
    made = writer.write_patches([split_evenly(size[0], patches.rows), split_evenly(size[1], patches.columns)])
    nodes: list[Node] = []
    inside = {node.name for node in front.nodes}
    for node in graph.nodes:
        if node.name == patches.node:
            nodes += made
        elif node.name not in inside:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), weights=(*graph.weights, *writer.literals.added))


def recompute_factors(front: Front, rows: int, columns: int) -> dict[str, float]:
    """Return, by node name, the ratio of computed positions to positions of the map.

    The front is divided into `rows` x `columns` patches. A ratio above 1 is due to overlapping receptive fields.
    """
    size = front.extents
    down = [needed_areas(front, (cut, (0, size[1]))) for cut in split_evenly(size[0], rows)]
    across = [needed_areas(front, ((0, size[0]), cut)) for cut in split_evenly(size[1], columns)]
    factors = {}
    for node in front.nodes:
        (out,) = node.defs
        whole = spatial_extents(out, front.axes)
        lengths = [sum(areas[out][i][1] - areas[out][i][0] for areas in kind) for i, kind in enumerate((down, across))]
        factors[node.name] = lengths[0] * lengths[1] / max(1, whole[0] * whole[1])
    return factors


def needed_areas(front: Front, area: Area) -> dict[Value, Area]:
    """Return the needed area of each map of the front, for an area of the result."""
    areas = {front.result: area}
    made = {value for node in front.nodes for value in node.defs}
    for node, along in zip(reversed(front.nodes), reversed(front.along), strict=True):
        wanted = input_area(along, areas[node.defs[0]])
        for value in node.uses:
            if value in made:
                known = areas.get(value, wanted)
                areas[value] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, wanted, strict=True))
    return areas


def front_up_to(graph: Graph, name: str) -> Front | str:
    """Return the front ending at a node, or the reason why no front ends there."""
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    if name not in position:
        return f"the graph has no node {name[:80]!r}"
    last = graph.nodes[position[name]]
    if len(last.defs) != 1:
        return f"node {name!r} has more than one output"
    varying = _input_dependent_values(graph)
    maker = producer_positions(graph.nodes)
    inside, todo = set[int](), [position[name]]
    while todo:
        i = todo.pop()
        if i not in inside:
            inside.add(i)
            todo += [maker[v] for v in reads_inside(graph.nodes[i]) if v in maker and v in varying]
    nodes = tuple(graph.nodes[i] for i in sorted(inside))
    axes = next((found for node in nodes if (found := spatial_axes_of(node)) is not None), (2, 3))
    maps = frozenset({*graph.inputs} | {value for node in nodes for value in node.defs})
    along: list[AreaMaps] = []
    for node in nodes:
        by_area = area_maps(node, axes, maps & varying)
        if isinstance(by_area, str):
            return f"node {node.name!r} {by_area}"
        along.append(by_area)
    read = {value for i, node in enumerate(graph.nodes) if i not in inside for value in reads_inside(node)}
    shared = [v for node in nodes for v in node.defs if v != last.defs[0] and v in read | {*results(graph)}]
    return f"{shared[0]} is also read behind the front" if shared else Front(nodes, tuple(along), last.defs[0], axes)


def _input_dependent_values(graph: Graph) -> frozenset[Value]:
    """Return the values depending on an input or on an updated value."""
    varying = {*graph.inputs, *graph.updated_values}
    for node in graph.nodes:
        if not varying.isdisjoint(reads_inside(node)):
            varying.update(node.defs)
    return frozenset(varying)


# Receptive fields: the area of the operands needed for an area of the output, by slice maps along the spatial axes.


def spatial_extents(value: Value, axes: Axes) -> tuple[int, int]:
    """Return the spatial extents of a map with four axes."""
    return shape_of(value)[axes[0]], shape_of(value)[axes[1]]


def spec_of_area(value: Value, area: Area, axes: Axes) -> TensorSpec:
    """Return the type of an area of a map."""
    assert isinstance(value.spec, TensorSpec)
    shape = list(value.spec.shape)
    for axis, (begin, end) in zip(axes, area, strict=True):
        shape[axis] = end - begin
    return TensorSpec(value.spec.dtype, tuple(shape))


def spatial_axes_of(node: Node) -> Axes | None:
    """Return the spatial axes of a node with two-dimensional windows, None for any other node."""
    axes = [found.outputs[0] for found in slice_maps_of(node) if found.window is not None]
    return (axes[0].start, axes[1].start) if len(axes) == 2 and axes[0] and axes[1] else None


def area_maps(node: Node, axes: Axes, maps: frozenset[Value]) -> AreaMaps | str:
    """Return the slice maps of a node along the spatial axes, or the reason why areas cannot be computed alone.

    `maps` are the operands split into areas.
    """
    if node.subgraphs or len(node.defs) != 1 or len(shape_of(node.defs[0])) != 4:
        return "must have one output with four axes"
    known = {found.outputs[0]: found for found in slice_maps_of(node) if found.exact}
    along = tuple(known[one_axis(axis)] for axis in axes if one_axis(axis) in known)
    if len(along) != 2 or node.outputs[0] is None:
        return "reads more than the area of its output, or has windows of an unsupported kind"
    for position, value in enumerate(node.inputs):
        sliced = [found.inputs[position] for found in along]
        if value in maps and sliced != [one_axis(axis) for axis in axes]:
            return "reads a map of other extents"
        if value not in maps and sliced != [None, None]:
            return "reads a map outside the front"
    ends = [found.operand_slice(i, i + 1) for found in along for i in (0, found.extent - 1)]
    return along if all(begin < end for begin, end in ends) else "has windows that hold only padding"


def input_area(along: AreaMaps, area: Area) -> Area:
    """Return the area of the operand maps needed for an area of the output."""
    return tuple(found.operand_slice(*side) for found, side in zip(along, area, strict=True))


def attributes_for_area(node: Node, along: AreaMaps, area: Area) -> Mapping[str, Attr]:
    """Return the attributes of the node computing an area of the output from the area of `input_area`."""
    attrs = node.attrs
    for found, (begin, end) in zip(along, area, strict=True):
        attrs = found.attrs(attrs, begin, end)
    return attrs


class _PatchWriter:
    """Writer of the patches of a front."""

    def __init__(self, graph: Graph, front: Front) -> None:
        self.front = front
        self.values = NameGenerator(value.name for value in graph.values())
        self.names = NameGenerator(node.name for node in graph.walk())
        self.literals = LiteralPool(self.values, graph.constants)
        self.in_onnx = all(node.op.startswith("onnx.") for node in front.nodes)
        self.made = {value for node in front.nodes for value in node.defs}
        self.maps = self.made | ({*graph.inputs} & _input_dependent_values(graph))

    def write_patches(self, cuts: Sequence[Sequence[tuple[int, int]]]) -> list[Node]:
        """Return the nodes of all patches and the concatenations joining the patches.

        `cuts` are the ranges of rows and the ranges of columns.
        """
        nodes: list[Node] = []
        rows = []
        result, axes = self.front.result, self.front.axes
        for r, down in enumerate(cuts[0]):
            pieces = []
            for c, across in enumerate(cuts[1]):
                area = (down, across)
                written, piece = self._write_patch(area, f"{r}.{c}")
                nodes += written
                pieces.append(piece)
            width = self.front.extents[1]
            rows.append(pieces[0])
            if len(pieces) > 1:
                row = Value(self.values.fresh(f"{result.name}.{r}"), spec_of_area(result, (down, (0, width)), axes))
                nodes.append(self._concat_node(pieces, row, axes[1]))
                rows[-1] = row
        if len(rows) > 1:
            nodes.append(self._concat_node(rows, result, axes[0]))
        else:
            nodes[-1] = replace(nodes[-1], outputs=(result,))
        return nodes

    def _concat_node(self, pieces: Sequence[Value], whole: Value, axis: int) -> Node:
        """Return the concatenation of the pieces."""
        op = "onnx.Concat" if self.in_onnx else "nn.concat"
        return Node(self.names.fresh(f"{whole.name}.joined"), op, tuple(pieces), (whole,), {"axis": axis})

    def _write_patch(self, area: Area, mark: str) -> tuple[list[Node], Value]:
        """Return the nodes computing an area of the result, and the value of the area. `mark` is a suffix for names."""
        axes = self.front.axes
        areas = needed_areas(self.front, area)
        computed: dict[Value, Value] = {}
        slices: dict[tuple[Value, Area], Value] = {}
        nodes: list[Node] = []

        def part(value: Value, wanted: Area) -> Value:
            """Return an area of a map, cut from the area of the map in this patch."""
            has = areas[value] if value in self.made else tuple((0, extent) for extent in spatial_extents(value, axes))
            source = computed.get(value, value)
            if has == wanted:
                return source
            if (value, wanted) not in slices:
                out = Value(self.values.fresh(f"{value.name}.{mark}"), spec_of_area(value, wanted, axes))
                nodes.append(
                    self._slice_node(source, out, [(b - a) for (b, _), (a, _) in zip(wanted, has, strict=True)])
                )
                slices[value, wanted] = out
            return slices[value, wanted]

        for node, along in zip(self.front.nodes, self.front.along, strict=True):
            (out,) = node.defs
            wanted = input_area(along, areas[out])
            inputs = tuple(part(v, wanted) if v is not None and v in self.maps else v for v in node.inputs)
            computed[out] = Value(self.values.fresh(f"{out.name}.{mark}"), spec_of_area(out, areas[out], axes))
            outputs = tuple(None if value is None else computed[out] for value in node.outputs)
            attrs = attributes_for_area(node, along, areas[out])
            name = self.names.fresh(f"{node.name}.{mark}")
            nodes.append(Node(name, node.op, inputs, outputs, attrs, node.source))
        return nodes, computed[self.front.result]

    def _slice_node(self, source: Value, out: Value, begins: Sequence[int]) -> Node:
        """Return the node slicing `out` from `source`, beginning at `begins`."""
        name = self.names.fresh(f"{out.name}.taken")
        shape = out.spec.shape if isinstance(out.spec, TensorSpec) else ()
        if self.in_onnx:
            to = (begin + shape[axis] for begin, axis in zip(begins, self.front.axes, strict=True))
            pairs = TensorSpec(DType.I64, (2,))
            operands = [self.literals.constant_of(tuple(numbers), pairs) for numbers in (begins, to, self.front.axes)]
            return Node(name, "onnx.Slice", (source, *operands), (out,))
        starts = [0] * len(shape)
        for axis, begin in zip(self.front.axes, begins, strict=True):
            starts[axis] = begin
        ends = tuple(start + extent for start, extent in zip(starts, shape, strict=True))
        attrs = {"starts": tuple(starts), "ends": ends, "steps": (1,) * len(shape)}
        return Node(name, "nn.slice", (source,), (out,), attrs)
