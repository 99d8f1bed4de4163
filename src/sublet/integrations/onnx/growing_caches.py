"""Caches that grow in place: an append in a buffer with room for the most rows, in place of Concat.

    %present = onnx.Concat(%past, %new)              %present = cache.append_rows(%past, %new, %length)
    %t = onnx.Transpose(%present)              ->    %scores = cache.matmul(%query, %present)
    %scores = onnx.MatMul(%query, %t)

Requires a model over ranges. Ensures the same results. `%past` and `%present` become one buffer, an update in place of
`%past`: an append writes the new rows, and the products read the rows with strides. The shape of a cache becomes an
input with a literal, and the executable fills in the literal.

If any reader needs the rows without gaps, the cache stays a Concat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sublet.base.errors import SubletError
from sublet.base.extents import Extent, upper_bound
from sublet.base.names import unused_name
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.cache_ops import APPEND_ROWS, MATMUL
from sublet.integrations.onnx.dialect import PREFIX
from sublet.ir.graph import Attr, Graph, Node, Value
from sublet.ir.model import Model
from sublet.passes.redundant_nodes import without_dead_code
from sublet.passes.rewriting import count_readers

SAME_ORDER = tuple(f"{PREFIX}{name}" for name in ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
PRODUCTS = (f"{PREFIX}MatMul", f"{PREFIX}com.microsoft.FusedMatMul")
TYPES = (DType.F32, DType.F64)
"""The types of NumPy's matrix products without a copy of the operands."""

REPEAT = -1
"""The number of an axis that repeats the elements of a cache."""

Factor = tuple[int, Any]
"""An axis of a cache, or `REPEAT`, and its extent."""

Axes = tuple[tuple[Factor, ...], ...]
"""Each axis of a view of a cache as factors, the outer first. Factors of extent 1 are left out."""


class Refusal(SubletError):
    """The reason why a cache does not grow in place."""


def with_caches_in_place(model: Model, state: Mapping[str, str]) -> tuple[Model, dict[str, str]]:
    """Return the model with each cache of `state` that can grow in place, and the reasons for the others, by input.

    `state` maps inputs to outputs. The recipe names the pairs in place; the graph keeps no output for such a pair.
    """
    reasons: dict[str, str] = {}
    for name, result in state.items():
        if result not in model.outputs_by_name or list(state.values()).count(result) > 1:
            reasons[name] = f"{result} is the next content of another input too"
            continue
        try:
            model = _with_cache_in_place(model, name, result)
        except Refusal as refusal:
            reasons[name] = str(refusal)
    return (model if len(reasons) == len(state) else _without_unread(model)), reasons


def _with_cache_in_place(model: Model, name: str, result: str) -> Model:
    """Return the model with one cache in place. Raises Refusal."""
    graph, cache = model.graph, _Cache(model.graph, model.inputs_by_name[name], model.outputs_by_name[result])
    for node in graph.nodes:
        if node.subgraphs:
            raise Refusal(f"a cache grows in place only without loops and branches, and the model has {node.name}")
        cache.follow(node)
    length, inputs = cache.length, [cache.in_place.get(value, value) for value in graph.inputs]
    added = [value for value in (length, *cache.shapes) if value not in graph.inputs]
    kept = {name: value for name, value in model.outputs_by_name.items() if name != result}
    if any(value in cache.views or value in cache.shapes for value in kept.values()):
        raise Refusal(f"%{cache.past.name}, a view or a shape of the cache is an output too")
    changed = replace(
        graph,
        inputs=(*inputs, *added),
        nodes=tuple(cache.nodes),
        outputs=tuple(kept.values()),
        updates=(*graph.updates, (cache.in_place[cache.past], cache.in_place[cache.present])),
    )
    recipe = replace(model.recipe, state=(*model.recipe.state, (name, result)))
    names = (*model.inputs_by_name, *(value.name for value in added))
    return replace(model, graph=changed, inputs=names, outputs=tuple(kept), recipe=recipe)


def _without_unread(model: Model) -> Model:
    """Return the model without dead nodes, and without shapes of views that no node reads."""
    graph = without_dead_code(model.graph)
    readers = count_readers(graph)
    named = {n: v for n, v in zip(model.inputs, graph.inputs, strict=True) if v.literal is None or readers[v]}
    return replace(model, graph=replace(graph, inputs=tuple(named.values())), inputs=tuple(named))


@dataclass
class _Cache:
    """A cache of a graph, and the nodes of the graph with the cache in place, as far as followed.

    present   the result of Concat, of which the output may be an Identity
    views     the past, the present and their views, each as axes of the cache
    shapes    the shapes of views, as inputs
    in_place  the past and the present as values of the whole buffer
    """

    graph: Graph
    past: Value
    present: Value
    nodes: list[Node] = field(default_factory=list)
    shapes: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        past, present = f"%{self.past.name}", f"%{self.present.name}"
        writers = {value: node for node in self.graph.nodes for value in node.defs}
        while self.present in writers and writers[self.present].op == f"{PREFIX}Identity":
            (self.present,) = writers[self.present].uses
        self._concat = concat = writers.get(self.present)
        spec, before = self.present.spec, self.past.spec
        if concat is None or concat.op != f"{PREFIX}Concat" or concat.inputs[0] != self.past or len(concat.inputs) != 2:
            raise Refusal(f"{present} is no Concat of {past} and new rows")
        assert isinstance(spec, TensorSpec)
        assert isinstance(before, TensorSpec)
        if spec.dtype not in TYPES:
            raise Refusal(f"{present} is {spec.dtype}; kernels take strides in f32 and f64")
        axis: Any = concat.attrs["axis"]
        self.axis, self.rank = axis % len(spec.shape), len(spec.shape)
        self._rows = before.shape[self.axis]
        if not isinstance(self._rows, Extent):
            raise Refusal(f"{past} has a fixed number of rows")
        room = upper_bound(spec.shape[self.axis])
        buffer = TensorSpec(spec.dtype, (*spec.shape[: self.axis], room, *spec.shape[self.axis + 1 :]))
        self.in_place = {value: replace(value, spec=buffer) for value in (self.past, self.present)}
        self.views = {value: _axes_of(value) for value in (self.past, self.present)}
        self._is_appended = False

    @property
    def length(self) -> Value:
        """The number of rows of the past, an input of the graph."""
        spec, literal = TensorSpec(DType.I64, (1,)), (self._rows,)
        for value in self.graph.inputs:
            if (value.spec, value.literal) == (spec, literal):
                return value
        return Value(unused_name(f"rows.{self._rows}", {value.name for value in self.graph.values()}), spec, literal)

    def follow(self, node: Node) -> None:
        """Append the node to `nodes`, with the cache in place. Raises Refusal for a node that needs other memory."""
        read = [value for value in node.uses if value in self.views]
        if node is self._concat:
            self._append(node)
        elif not read:
            self.nodes.append(node)
        elif all(value.literal is not None for value in node.defs):
            self.shapes += node.defs
        elif len(read) == 1 and node.inputs[0] == read[0] and (axes := _view_of(node, self.views[read[0]])) is not None:
            self.views[node.defs[0]] = axes
        elif len(read) == 1 and node.op in PRODUCTS:
            self.nodes.append(self._product(node, read[0]))
        else:
            raise _needs_copy(node)

    def _append(self, node: Node) -> None:
        """Append the node that appends the new rows."""
        rows = node.inputs[1]
        if rows is None or rows in self.views:
            raise _needs_copy(node)
        for value in (self.past, rows):
            _require_equal(node, _without(self.axis, value), _without(self.axis, self.present))
        inputs, outputs = (self.in_place[self.past], rows, self.length), (self.in_place[self.present],)
        self.nodes.append(replace(node, op=APPEND_ROWS, inputs=inputs, outputs=outputs, attrs={"axis": self.axis}))
        self._is_appended = True

    def _product(self, node: Node, view: Value) -> Node:
        """Return a product with a view of the cache as a product with the buffer."""
        position = node.inputs.index(view)
        other = node.inputs[1 - position]
        axes, shapes = self.views[view], [_shape_of(view), _shape_of(other)]
        is_swapped = [bool(node.attrs.get(name, 0)) for name in ("transA", "transB")]
        matrices, order = _matrices_of(axes, self.views[self.present], self.axis)
        is_strange = bool(node.attrs.get("transBatchA", 0) or node.attrs.get("transBatchB", 0) or len(axes) < 2)
        if order is None or is_strange or len(shapes[1]) != len(axes) or shapes[0][:-2] != shapes[1][:-2]:
            raise _needs_copy(node)
        added_up = [-1 if (at == 0) != is_swapped[at] else -2 for at in (position, 1 - position)]
        _require_equal(node, *((shape[axis],) for shape, axis in zip(shapes, added_up, strict=True)))
        if not self._is_appended:
            raise Refusal(f"node {node.name}, {node.op}, reads %{self.past.name} before the new rows are there")
        alpha: Any = node.attrs.get("alpha", 1.0)
        attrs: dict[str, Attr] = {
            "cache": position,
            "axis": self.axis,
            "order": order[::-1] if is_swapped[position] else order,
            "repeats": matrices,
            "transposed": int(is_swapped[1 - position]),
            "alpha": float(alpha),
        }
        inputs = [other, other]
        inputs[position] = self.in_place[self.present]
        return replace(node, op=MATMUL, inputs=tuple(inputs), attrs=attrs)


def _needs_copy(node: Node) -> Refusal:
    """Return the refusal of a reader without a kernel that takes strides."""
    return Refusal(f"node {node.name}, {node.op.removeprefix(PREFIX)}, needs the rows without gaps")


def _require_equal(node: Node, one: Sequence[Any], other: Sequence[Any]) -> None:
    """Raise Refusal for extents that differ at some point: a kernel over addresses would read beyond an operand."""
    for extent, wanted in zip(one, other, strict=True):
        if extent != wanted:
            raise Refusal(
                f"node {node.name}, {node.op.removeprefix(PREFIX)}, has extents {extent} and {wanted}, which may differ"
            )


def _without(axis: int, value: Value) -> Sequence[Any]:
    """Return the extents of a value without one axis."""
    shape = _shape_of(value)
    return (*shape[:axis], *shape[axis + 1 :])


def _shape_of(value: Value | None) -> Sequence[Any]:
    """Return the extents of a value; none for an unknown shape."""
    return value.spec.shape if value is not None and isinstance(value.spec, TensorSpec) else ()


def _axes_of(value: Value) -> Axes:
    """Return the axes of a cache."""
    assert isinstance(value.spec, TensorSpec)
    return tuple(((axis, extent),) if extent != 1 else () for axis, extent in enumerate(value.spec.shape))


def _view_of(node: Node, axes: Axes) -> Axes | None:
    """Return the axes of the output of a node that moves no element; None for other nodes."""
    spec = node.outputs[0].spec if node.outputs[0] else None
    if not isinstance(spec, TensorSpec):
        return None
    if node.op in SAME_ORDER:
        return _regroup_factors([factor for axis in axes for factor in axis], spec.shape)
    if node.op == f"{PREFIX}Transpose":
        perm: Any = node.attrs.get("perm") or tuple(reversed(range(len(axes))))
        return tuple(axes[axis] for axis in perm)
    if node.op == f"{PREFIX}Expand" and len(spec.shape) == len(axes):
        source = node.uses[0].spec
        assert isinstance(source, TensorSpec)
        pairs = zip(axes, source.shape, spec.shape, strict=True)
        return tuple(axis if extent == wanted else ((REPEAT, wanted),) for axis, extent, wanted in pairs)
    return None


def _regroup_factors(factors: Sequence[Factor], shape: Sequence[Any]) -> Axes | None:
    """Return consecutive factors as axes of `shape`; None if an axis is no product of whole factors."""
    axes: list[tuple[Factor, ...]] = []
    left = list(factors)
    for extent in shape:
        product: Any = 1
        taken: list[Factor] = []
        while product != extent:
            if not left:
                return None
            taken.append(left.pop(0))
            product = product * taken[-1][1]
        axes.append(tuple(taken))
    return tuple(axes) if not left else None


def _matrices_of(view: Axes, cache: Axes, rows: int) -> tuple[int, tuple[int, int] | None]:
    """Return the repeats of each matrix, and the axes of the cache for rows and columns of the matrix.

    The axes are None if the matrices are no slices of the cache in order, or a product would have to copy them.
    """
    last = [factor for axis in view[-2:] for factor in axis]
    order = tuple(axis for axis, _ in last)
    batch = [factor for axis in view[:-2] for factor in axis]
    repeats = batch.pop()[1] if batch and batch[-1][0] == REPEAT else 1
    wanted = [axis for axis, factors in enumerate(cache) if factors and axis not in order]
    is_matrix = all(len(axis) == 1 for axis in view[-2:]) and {rows, len(cache) - 1} <= {*order} and REPEAT not in order
    if not is_matrix or [axis for axis, _ in batch] != wanted or not isinstance(repeats, int):
        return 1, None
    return repeats, (order[0], order[1])
