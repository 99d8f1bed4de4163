"""Caches that grow in place: an append in a buffer with room for the most rows, in place of Concat.

    %present = onnx.Concat(%past, %new)              %present = cache.append_rows(%past, %new, %length)
    %t = onnx.Transpose(%present)              ->    %scores = cache.matmul(%query, %present)
    %scores = onnx.MatMul(%query, %t)

Requires a model over ranges. Ensures the same results. `%past` and `%present` become one buffer, an update in place of
`%past`: an append writes the new rows, and the products read the rows with strides. The shape of a cache becomes an
input with a literal, and the executable fills in the literal.

If any reader needs the rows without gaps, a cache between calls stays a Concat. In a loop, `cache.first_rows` gives the
rows without gaps: a view of the buffer if the rows are its first bytes, else a copy in every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sublet.base.errors import PlanError, SubletError
from sublet.base.extents import Extent, as_extent, is_ranged, substitute, upper_bound
from sublet.base.names import NameGenerator, unused_name
from sublet.base.tensor import DType, TensorSpec
from sublet.integrations.onnx.cache_ops import APPEND_ROWS, FIRST_ROWS, MATMUL, RESERVE
from sublet.integrations.onnx.dialect import PREFIX
from sublet.ir.dataflow import all_names, iteration_of, map_subgraphs, reads, rename_values
from sublet.ir.graph import Attr, Graph, Node, Value, While
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
    cache.require_kernels()
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

    def require_kernels(self) -> None:
        """Raise Refusal for a type without products that take strides."""
        spec = self.present.spec
        if isinstance(spec, TensorSpec) and spec.dtype not in TYPES:
            raise Refusal(f"%{self.present.name} is {spec.dtype}; kernels take strides in f32 and f64")

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


# Loops: a carried value that each iteration extends by the same rows becomes a buffer of a fixed size.


def with_buffers_in_loops(model: Model) -> Model:
    """Return the model with a buffer for each carried value that grows with the iterations of its loop.

    Raises PlanError for a value that grows otherwise than by Concat, and for a loop that returns unknown rows.
    """
    if not any(map(iteration_of, model.graph.walk())):
        return model
    writer = _LoopWriter(NameGenerator(all_names(model.graph)))
    graph = writer.rewrite(model.graph)
    added = tuple(writer.inputs.values())
    graph = replace(graph, inputs=(*graph.inputs, *added), weights=(*graph.weights, *writer.weights.values()))
    names = (*model.inputs_by_name, *(value.name for value in added))
    return _without_unread(replace(model, graph=graph, inputs=names))


@dataclass
class _LoopWriter:
    """Writes the buffers of loops.

    weights, inputs  constants, and inputs with a literal over ranges, by elements and type
    _computed        values computed from the counter, by loop, elements and type
    """

    names: NameGenerator
    weights: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    inputs: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    _computed: dict[tuple[Any, ...], Value] = field(default_factory=dict)

    def rewrite(self, graph: Graph) -> Graph:
        """Return the graph with buffers in all loops."""
        nodes: list[Node] = []
        for node in graph.nodes:
            inner = map_subgraphs(node, self.rewrite)
            nodes += self._loop(inner) if isinstance(inner, While) and iteration_of(inner) else [inner]
        return replace(graph, nodes=tuple(nodes))

    def _loop(self, loop: While) -> list[Node]:
        """Return the loop with buffers, between the nodes that fill the buffers and the nodes that read the results."""
        before: list[Node] = []
        after: list[Node] = []
        for i, (parameter, update) in enumerate(zip(loop.parameters, loop.updates, strict=True)):
            if parameter.plannable and parameter.spec == update.spec:
                continue
            try:
                cache = _LoopCache(loop.body, parameter, update, writer=self, loop=loop)
                loop = self._with_buffer(loop, i, cache, before, after)
            except Refusal as refusal:
                raise PlanError(f"loop {loop.name}: %{parameter.name} grows with the iterations; {refusal}") from None
        return [*before, loop, *after]

    def _with_buffer(self, loop: While, i: int, cache: _LoopCache, before: list[Node], after: list[Node]) -> While:
        """Return the loop with a buffer for carried value `i`. Raises Refusal."""
        checks, rest = loop.body.nodes[: loop.check], loop.body.nodes[loop.check :]
        if any(cache.past in reads(node) for node in checks):
            raise Refusal("the condition reads the value")
        start, past = cache.in_place[cache.past], cache.past
        cache.nodes.append(self.cache_node(FIRST_ROWS, (start,), past, cache.axis))
        for node in rest:
            cache.follow(node)
        filled = replace(start, name=self.names.fresh(f"{past.name}.start"))
        before.append(self.cache_node(RESERVE, (loop.inits[i],), filled, cache.axis))
        final = loop.finals[i]
        if final is not None:
            if not final.plannable:
                raise Refusal(f"the rows of %{final.name} depend on the trip count")
            whole = replace(start, name=self.names.fresh(f"{final.name}.buffer"))
            after.append(self.cache_node(FIRST_ROWS, (whole,), final, cache.axis))
            final = whole
        body = replace(
            loop.body,
            inputs=_with_item(loop.body.inputs, 1 + i, start),
            outputs=_with_item(loop.body.outputs, i, cache.in_place[cache.present]),
            nodes=(*checks, *cache.literals, *cache.nodes),
        )
        body = rename_values(body, cache.renamed, definitions=False)
        inputs, outputs = _with_item(loop.inputs, i, filled), _with_item(loop.outputs, i, final)
        return replace(loop, inputs=inputs, outputs=outputs, body=body)

    def cache_node(self, op: str, inputs: tuple[Value, ...], output: Value, axis: int) -> Node:
        """Return a node of the `cache` dialect, named after its output."""
        return Node(self.names.fresh(f"{output.name}.{op.partition('.')[2]}"), op, inputs, (output,), {"axis": axis})

    def literal_in(self, loop: While, like: Value) -> tuple[list[Node], Value] | None:
        """Return a value with the elements of the literal of `like`, and the nodes computing it from the counter.

        No nodes for elements that the loop has already. None unless the elements are linear in the iteration.
        """
        iteration = iteration_of(loop)
        if iteration is None or not isinstance(like.spec, TensorSpec) or like.spec.dtype is not DType.I64:
            return None
        elements: Any = like.literal
        if (key := (loop.name, elements, like.spec)) in self._computed:
            return [], self._computed[key]
        number = as_extent(iteration)
        bases: Any = tuple(substitute(each, {iteration: 0}) for each in elements)
        rates: Any = tuple(substitute(each - base, {iteration: 1}) for each, base in zip(elements, bases, strict=True))
        linear = tuple(base + rate * number for base, rate in zip(bases, rates, strict=True))
        if linear != elements:
            return None
        grown = replace(like, literal=tuple(rate * number for rate in rates), name=self.names.fresh(like.name))
        whole = self._computed[key] = replace(like, name=self.names.fresh(like.name))
        return [
            Node(self.names.fresh(grown.name), f"{PREFIX}Mul", (loop.counter, self._constant(rates, like)), (grown,)),
            Node(self.names.fresh(whole.name), f"{PREFIX}Add", (grown, self._constant(bases, like)), (whole,)),
        ], whole

    def _constant(self, elements: tuple[Any, ...], like: Value) -> Value:
        """Return a constant of the type of `like`; an input with a literal for elements that depend on ranges."""
        known = self.inputs if any(map(is_ranged, elements)) else self.weights
        key = (elements, like.spec)
        if key not in known:
            known[key] = Value(self.names.fresh("rows"), like.spec, elements)
        return known[key]


def _with_item(items: tuple[Any, ...], i: int, item: Any) -> tuple[Any, ...]:
    return (*items[:i], item, *items[i + 1 :])


@dataclass
class _LoopCache(_Cache):
    """A carried value of a loop that grows; readers without a kernel that takes strides read rows without gaps.

    literals  nodes at the begin of an iteration, computing numbers of rows and shapes from the counter
    renamed   shapes of the value and its views, with the computed values
    """

    writer: _LoopWriter = field(kw_only=True)
    loop: While = field(kw_only=True)
    literals: list[Node] = field(default_factory=list)
    renamed: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        fresh = self.writer.names.fresh
        self.in_place = {
            value: replace(buffer, name=fresh(f"{value.name}.buffer")) for value, buffer in self.in_place.items()
        }

    @property
    def length(self) -> Value:
        """The number of rows before an iteration, computed from the counter."""
        found = self._computed_literal(Value("rows", TensorSpec(DType.I64, (1,)), (self._rows,)))
        if found is None:
            raise Refusal("the number of rows is not linear in the iteration")
        return found

    def follow(self, node: Node) -> None:
        """Append the node to `nodes`, with the cache in place for products."""
        read = [value for value in node.uses if value in self.views]
        is_shape = bool(node.defs) and all(value.literal is not None for value in node.defs)
        if node is self._concat:
            self._append(node)
            whole, rows = self.in_place[self.present], self.present
            self.nodes.append(self.writer.cache_node(FIRST_ROWS, (whole,), rows, self.axis))
        elif len(read) == 1 and is_shape and (found := self._computed_literal(node.defs[0])):
            self.renamed[node.defs[0]] = found
        elif len(read) == 1 and node.op in PRODUCTS and (product := self._product_in_place(node, read[0])):
            self.nodes.append(product)
        else:
            if len(read) == 1 and node.inputs[0] == read[0]:
                axes = _view_of(node, self.views[read[0]])
                self.views.update({} if axes is None else {node.defs[0]: axes})
            self.nodes.append(node)

    def _computed_literal(self, like: Value) -> Value | None:
        """Return a value with the literal of `like`, computed from the counter; None if no nodes compute it."""
        found = self.writer.literal_in(self.loop, like)
        self.literals += found[0] if found else ()
        return found[1] if found else None

    def _product_in_place(self, node: Node, view: Value) -> Node | None:
        """Return a product with the buffer; None without a kernel that takes strides."""
        try:
            self.require_kernels()
            return self._product(node, view)
        except Refusal:
            return None
