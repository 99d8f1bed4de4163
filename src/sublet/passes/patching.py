"""Patch-based inference: compute the front of a network one output patch after another (Lin et al., MCUNetV2, 2021).

Requires a legal graph and the last node of the front. The front has the nodes that compute areas of maps from areas of
maps. The front begins at the inputs, and at results of other nodes (a reshape, a transpose), computed whole. Only the
front may read the maps of the front. Ensures the same results, bit by bit if kernels compute a position alike wherever
the position lies. Each patch is computed from the receptive field of the patch, including the edges of neighbouring
patches (the halo), so edges are computed repeatedly. Padding stays at the borders of the maps.

    %a = onnx.Conv(%x, %w)              %x.0 = nn.slice(%x)  %a.0 = onnx.Conv(%x.0, %w)  %b.0 = onnx.Conv(%a.0, %v)
    %b = onnx.Conv(%a, %v)       ->     %x.1 = nn.slice(%x)  %a.1 = onnx.Conv(%x.1, %w)  %b.1 = onnx.Conv(%a.1, %v)
                                        %b = nn.concat(%b.0, %b.1)
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sublet.base.errors import PlanError
from sublet.base.names import NameGenerator
from sublet.base.ranges import split_evenly
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.registry import installed_integrations, resolve
from sublet.ir.dataflow import producer_positions, reads_inside, results
from sublet.ir.graph import Attr, Graph, Node, Value
from sublet.ir.model import Model
from sublet.ir.recipe import AS_IS, PATCHES_PREFIX
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

SLICE_OPERANDS_OPSET = 10
"""The first ONNX operator set in which Slice takes its bounds as operands, not as attributes."""


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
    def steps(self) -> Iterator[tuple[Node, AreaMaps]]:
        """The nodes with their slice maps."""
        return zip(self.nodes, self.along, strict=True)

    @property
    def extents(self) -> tuple[int, int]:
        """The spatial extents of the result."""
        return spatial_extents(self.result, self.axes)


@dataclass(frozen=True)
class MapForm:
    """The form of the maps of a model, by which patches cut and join the maps.

    opset   the version of ONNX's operator set, for fronts of ONNX operators
    blocks  by value, the channels of a block, for maps [N, C / block, H, W, block] in memory
    """

    opset: int = SLICE_OPERANDS_OPSET
    blocks: Mapping[Value, int] = field(default_factory=dict)


PLAIN_MAPS = MapForm()


def parse_patches(text: str) -> Patches:
    """Parse "ROWSxCOLUMNS@NODE", such as "4x4@Add_12". Raises PlanError for any other text."""
    match = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,4})@(.+)", text, re.DOTALL)
    if match is None or not 1 < int(match[1]) * int(match[2]) <= MAX_PATCHES:
        raise PlanError(f"patches {text[:80]!r}: write ROWSxCOLUMNS@NODE, such as 4x4@Add_12, or auto")
    return Patches(int(match[1]), int(match[2]), match[3])


def with_patched_front(graph: Graph, text: str, form: MapForm = PLAIN_MAPS) -> Graph:
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
    writer = _PatchWriter(graph, front, form)
    made = writer.write_patches([split_evenly(size[0], patches.rows), split_evenly(size[1], patches.columns)])
    nodes: list[Node] = []
    inside = {node.name for node in front.nodes}
    for node in graph.nodes:
        if node.name == patches.node:
            nodes += made
        elif node.name not in inside:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), weights=(*graph.weights, *writer.literals.added))


def with_patches(model: Model, text: str) -> Model:
    """Return the model with its front in the patches `text`, also recorded in the recipe."""
    done = ", ".join([*filter(None, [model.recipe.changed]), PATCHES_PREFIX + text])
    try:
        graph = with_patched_front(model.graph, text, map_form_of(model))
    except PlanError as error:
        if model.recipe.optimize == AS_IS:
            raise
        graph_words = f"The graph is {model.recipe.description}"
        raise PlanError(f"{error}. {graph_words}. Name a node of this graph, or pass optimize none") from error
    return replace(model, graph=graph, recipe=replace(model.recipe, changed=done))


def map_form_of(model: Model) -> MapForm:
    """Return the form of the maps of a model."""
    functions = [each.channel_blocks for each in installed_integrations() if each.channel_blocks]
    blocks = {value: block for function in functions for value, block in resolve(function)(model).items()}
    return MapForm(model.opsets.get("", SLICE_OPERANDS_OPSET), blocks)


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
        for position, value in enumerate(node.inputs):
            if value in made:
                wanted = input_area(along, areas[node.defs[0]], position)
                known = areas.get(value, wanted)
                areas[value] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, wanted, strict=True))
    return areas


def front_up_to(graph: Graph, name: str, known: dict[tuple[str, Axes], AreaMaps | str] | None = None) -> Front | str:
    """Return the front ending at a node, or the reason why no front ends there.

    `known` keeps the results of `area_maps` from front to front of a graph.
    """
    known = {} if known is None else known
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    if name not in position:
        return f"the graph has no node {name[:80]!r}"
    last = graph.nodes[position[name]]
    if len(last.defs) != 1:
        return f"node {name!r} has more than one output"
    varying = _input_dependent_values(graph)
    maker = producer_positions(graph.nodes)
    axes = _nearest_spatial_axes(graph, position[name], maker)
    inside: dict[int, AreaMaps] = {}
    todo = [position[name]]
    while todo:
        i = todo.pop()
        node = graph.nodes[i]
        if (node.name, axes) not in known:
            known[node.name, axes] = area_maps(node, axes, varying)
        by_area = known[node.name, axes]
        if not isinstance(by_area, str):
            inside[i] = by_area
            todo += {maker[v] for v in operands(node, by_area, in_areas=True) if v in maker} - inside.keys()
        elif node is last:
            return f"node {name!r} {by_area}"
    nodes = tuple(graph.nodes[i] for i in sorted(inside))
    front = Front(nodes, tuple(inside[i] for i in sorted(inside)), last.defs[0], axes)
    whole = {value for i, node in enumerate(graph.nodes) if i not in inside for value in reads_inside(node)}
    whole |= {value for node, along in front.steps for value in operands(node, along, in_areas=False)}
    shared = [v for node in nodes for v in node.defs if v != front.result and v in whole | {*results(graph)}]
    return f"{shared[0]} is also read outside the front" if shared else front


def _nearest_spatial_axes(graph: Graph, end: int, maker: Mapping[Value, int]) -> Axes:
    """Return the spatial axes of the nearest node with windows, breadth-first from the operands of the node at `end`.

    Without such a node, the axes are (2, 3).
    """
    seen, todo = {end}, deque([end])
    while todo:
        node = graph.nodes[todo.popleft()]
        if (axes := spatial_axes_of(node)) is not None:
            return axes
        fresh = {maker[value] for value in reads_inside(node) if value in maker} - seen
        seen |= fresh
        todo += sorted(fresh, reverse=True)
    return 2, 3


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


def spec_in_blocks(value: Value, block: int) -> TensorSpec:
    """Return the type of a map [N, C, H, W] in memory, if the channels lie in blocks."""
    assert isinstance(value.spec, TensorSpec)
    samples, channels, *spatial = value.spec.shape
    return TensorSpec(value.spec.dtype, (samples, channels // block, *spatial, block))


def spatial_axes_of(node: Node) -> Axes | None:
    """Return the spatial axes of a node with two-dimensional windows, None for any other node."""
    axes = [found.outputs[0] for found in slice_maps_of(node) if found.window is not None]
    return (axes[0].start, axes[1].start) if len(axes) == 2 and axes[0] and axes[1] else None


def area_maps(node: Node, axes: Axes, varying: frozenset[Value]) -> AreaMaps | str:
    """Return the slice maps of a node along the spatial axes, or the reason why areas cannot be computed alone.

    `varying` are the values that depend on an input: no other operand is split into areas.
    """
    if node.subgraphs or len(node.defs) != 1 or len(shape_of(node.defs[0])) != 4:
        return "must have one output with four axes"
    known = {found.outputs[0]: found for found in slice_maps_of(node) if found.exact}
    along = tuple(known[one_axis(axis)] for axis in axes if one_axis(axis) in known)
    if len(along) != 2 or node.outputs[0] is None:
        return "reads more than the area of its output, or has windows of an unsupported kind"
    for position, value in enumerate(node.inputs):
        sliced = [found.inputs[position] for found in along]
        if sliced != [None, None] and value not in varying:
            return "reads a constant map"
        if sliced not in ([None, None], [one_axis(axis) for axis in axes]):
            return "reads a map of other extents"
    ends = [found.operand_slice(i, i + 1) for found in along for i in (0, found.extent - 1)]
    return along if all(begin < end for begin, end in ends) else "has windows that hold only padding"


def reads_area(along: AreaMaps, position: int) -> bool:
    """True if a node of a front reads an area of the operand at `position`, False if the node reads the whole."""
    return along[0].inputs[position] is not None


def operands(node: Node, along: AreaMaps, *, in_areas: bool) -> list[Value]:
    """Return the operands of which a node of a front reads areas, or the operands that the node reads whole."""
    return [v for i, v in enumerate(node.inputs) if v is not None and reads_area(along, i) == in_areas]


def input_area(along: AreaMaps, area: Area, position: int) -> Area:
    """Return the area needed of the operand at `position`, for an area of the output."""
    return tuple(found.operand_slice(*side, position) for found, side in zip(along, area, strict=True))


def attributes_for_area(node: Node, along: AreaMaps, area: Area) -> Mapping[str, Attr]:
    """Return the attributes of the node computing an area of the output from the area of `input_area`."""
    attrs = node.attrs
    for found, (begin, end) in zip(along, area, strict=True):
        attrs = found.attrs(attrs, begin, end)
    return attrs


class _PatchWriter:
    """Writer of the patches of a front."""

    def __init__(self, graph: Graph, front: Front, form: MapForm) -> None:
        self.front = front
        self.form = form
        self.values = NameGenerator(value.name for value in graph.values())
        self.names = NameGenerator(node.name for node in graph.walk())
        self.literals = LiteralPool(self.values, graph.constants)
        self.in_onnx = all(node.op.startswith("onnx.") for node in front.nodes)
        self.made = {value for node in front.nodes for value in node.defs}

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
                nodes += self._join(pieces, row, 1)
                rows[-1] = row
        if len(rows) > 1:
            nodes += self._join(rows, result, 0)
        else:
            nodes[-1] = replace(nodes[-1], outputs=(result,))
        return nodes

    def _join(self, pieces: Sequence[Value], whole: Value, side: int) -> list[Node]:
        """Return the nodes concatenating the pieces along the spatial axis number `side`."""
        op = "onnx.Concat" if self.in_onnx else "nn.concat"
        attrs = {"axis": self.front.axes[side]}
        name = self.names.fresh(f"{whole.name}.joined")
        block = self.form.blocks.get(self.front.result)
        if block is None:
            return [Node(name, op, tuple(pieces), (whole,), attrs)]
        blocked = [Value(self.values.fresh(f"{piece.name}.blocks"), spec_in_blocks(piece, block)) for piece in pieces]
        nodes = [self._reshape_node(piece, out) for piece, out in zip(pieces, blocked, strict=True)]
        joined = Value(self.values.fresh(f"{whole.name}.blocks"), spec_in_blocks(whole, block))
        return [*nodes, Node(name, op, tuple(blocked), (joined,), attrs), self._reshape_node(joined, whole)]

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
                begins = [begin - first for (begin, _), (first, _) in zip(wanted, has, strict=True)]
                nodes.extend(self._slice(source, out, begins, self.form.blocks.get(value)))
                slices[value, wanted] = out
            return slices[value, wanted]

        for node, along in self.front.steps:
            (out,) = node.defs
            inputs = tuple(
                part(v, input_area(along, areas[out], i)) if v is not None and reads_area(along, i) else v
                for i, v in enumerate(node.inputs)
            )
            computed[out] = Value(self.values.fresh(f"{out.name}.{mark}"), spec_of_area(out, areas[out], axes))
            outputs = tuple(None if value is None else computed[out] for value in node.outputs)
            attrs = attributes_for_area(node, along, areas[out])
            name = self.names.fresh(f"{node.name}.{mark}")
            nodes.append(Node(name, node.op, inputs, outputs, attrs, node.source))
        return nodes, computed[self.front.result]

    def _slice(self, source: Value, out: Value, begins: Sequence[int], block: int | None) -> list[Node]:
        """Return the nodes slicing `out` from `source`, beginning at `begins`; maps in blocks are reshaped around."""
        if block is None:
            return [self._slice_node(source, out, begins)]
        whole, piece = (Value(self.values.fresh(f"{v.name}.blocks"), spec_in_blocks(v, block)) for v in (source, out))
        return [
            self._reshape_node(source, whole),
            self._slice_node(whole, piece, begins),
            self._reshape_node(piece, out),
        ]

    def _reshape_node(self, source: Value, out: Value) -> Node:
        """Return the ONNX node giving `out` as a view of `source`."""
        shape = shape_of(out)
        to = self.literals.constant_of(shape, TensorSpec(DType.I64, (len(shape),)))
        return Node(self.names.fresh(f"{out.name}.shaped"), "onnx.Reshape", (source, to), (out,))

    def _slice_node(self, source: Value, out: Value, begins: Sequence[int]) -> Node:
        """Return the node slicing `out` from `source`, beginning at `begins`."""
        name = self.names.fresh(f"{out.name}.taken")
        shape = shape_of(out)
        if self.in_onnx:
            to = tuple(begin + shape[axis] for begin, axis in zip(begins, self.front.axes, strict=True))
            bounds = {"starts": tuple(begins), "ends": to, "axes": self.front.axes}
            if self.form.opset < SLICE_OPERANDS_OPSET:
                return Node(name, "onnx.Slice", (source,), (out,), bounds)
            pairs = TensorSpec(DType.I64, (2,))
            operands = [self.literals.constant_of(numbers, pairs) for numbers in bounds.values()]
            return Node(name, "onnx.Slice", (source, *operands), (out,))
        starts = [0] * len(shape)
        for axis, begin in zip(self.front.axes, begins, strict=True):
            starts[axis] = begin
        ends = tuple(start + extent for start, extent in zip(starts, shape, strict=True))
        attrs = {"starts": tuple(starts), "ends": ends, "steps": (1,) * len(shape)}
        return Node(name, "nn.slice", (source,), (out,), attrs)
