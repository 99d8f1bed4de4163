"""Splitting of nodes: the splits as data, and the function applying the splits to a graph.

Requires a legal graph. Ensures the same results, except that sums over pieces are rounded in a different order. Each
entry (node, kind, pieces) splits a node by a rule of `split_rules.py`; nodes split alike run piece by piece together. A
whole with a reader is the concatenation of its pieces, computed in place; a whole read in pieces is split by views.
Gradients of weights accumulate in place.

    %y = nn.relu(%x)                  %x.1, %x.2 = nn.split(%x)
    %dw = gradient(%dy, %y)     ->    %y.1 = nn.relu(%x.1)
                                      %dw.1 = gradient(%dy.1, %y.1)
                                      %y.2 = nn.relu(%x.2)
                                      %dw = nn.add(%dw.1, gradient(%dy.2, %y.2))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from sublet.base.errors import PlanError
from sublet.ir.dataflow import producing_nodes, required_values, results
from sublet.ir.graph import Graph, Node, Value
from sublet.ir.model import Model
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.ops.nn.rules import operand, reshape_to
from sublet.ops.op import SUSPEND
from sublet.passes.rewriting import count_readers, is_pure
from sublet.passes.splitting.split_rules import EARLY, MOMENTUM, ONTO, Shape, SplitRule, split_rule_for
from sublet.passes.splitting.weight_updates import early_order, with_momentum_accumulation

# Split regions: the split nodes running piece by piece together, and the order of all nodes.
#
#     a = conv(x); b = relu(a); c = pool(b)      ->      a1, b1, c1, a2, b2, c2, ...
#
# Neither `a` nor `b` is ever whole. A region has nodes with the same number of pieces, and no node of a region reads a
# whole defined in the region. A region stands at the position of its last node; readers of the wholes follow.

Region = tuple[Node, ...]
"""Nodes running piece by piece together, or a single node that is not split."""

RegionKey = Callable[[Node], object]
"""Returns a key equal for nodes allowed in the same region; None for a node that is not split."""

Wholes = Callable[[Node], set[Value]]
"""Returns the operands a split node needs whole if an earlier node of the region defines pieces of the operand."""


def split_regions(
    nodes: Sequence[Node], alike: RegionKey, wholes: Wholes, pieces: Callable[[Node], set[Value]]
) -> list[Region]:
    """Return all nodes in a new order, as regions.

    `pieces` returns the results of a split node whose pieces are rows.
    """
    found: list[Region] = []
    todo = list(nodes)
    while todo:
        first = next((i for i, node in enumerate(todo) if alike(node) is not None), len(todo))
        found += [(node,) for node in todo[:first]]
        if first == len(todo):
            break
        before, region, after = _first_region(todo[first:], alike, wholes, pieces)
        found += [(node,) for node in before]
        found.append(tuple(region))
        todo = after
    return found


def _first_region(
    nodes: Sequence[Node], alike: RegionKey, wholes: Wholes, pieces: Callable[[Node], set[Value]]
) -> tuple[list[Node], list[Node], list[Node]]:
    """Return the region beginning with the first node, as (nodes before the region, region, nodes after the region).

    Impure nodes, such as random operators, keep their order. No node crosses a suspension.
    """
    region = [nodes[0]]
    kind = alike(nodes[0])
    made, rows = set(nodes[0].defs), pieces(nodes[0])
    late: set[Value] = set()
    states: list[tuple[Node, bool]] = []
    end = next((i for i, node in enumerate(nodes) if node.op == SUSPEND), len(nodes))
    impure_is_late = False
    for node in nodes[1:end]:
        read = set(required_values(node))
        joins = alike(node) == kind and not read & late and not wholes(node) & made and not (read & made) - rows
        if joins:
            region.append(node)
            made.update(node.defs)
            rows |= pieces(node)
            continue
        pure = is_pure(node)
        delayed = bool(read & (late | made)) or (impure_is_late and not pure)
        if delayed:
            late.update(node.defs)
            impure_is_late |= not pure
        states.append((node, delayed))
    position = {id(node): i for i, node in enumerate(nodes)}
    stands = position[id(region[-1])]
    before = [node for node, delayed in states if not delayed and position[id(node)] < stands]
    kept = set(map(id, (*before, *region)))
    return before, region, [node for node in nodes if id(node) not in kept]


Splits = tuple[tuple[str, str, int], ...]
"""Entries (node of the root level, kind of rows, pieces); nodes by name."""


PRODUCTS = ("nn.matmul", "nn.gemm")
"""Ops whose pieces, summed over rows, `nn.gemm` adds to the sum so far."""


@dataclass(frozen=True)
class SplitGraph:
    """A graph with split nodes.

    shares  by node of the graph, (original node, share of the work of the original node)
    """

    graph: Graph
    shares: Mapping[str, tuple[str, float]]


def split_nodes(graph: Graph, splits: Splits) -> SplitGraph:
    """Return the graph with the nodes of `splits` in pieces. The result is deterministic. Raises PlanError."""
    if not splits:
        return SplitGraph(graph, {})
    return _SplitWriter(graph, splits).write_graph()


def with_splits(model: Model, splits: Splits) -> Model:
    """Return the model with split nodes, and with the splits in the recipe."""
    recipe = replace(model.recipe, split=tuple(splits))
    return replace(model, graph=split_nodes(model.graph, splits).graph, recipe=recipe)


@dataclass
class _PiecedValue:
    """A value in pieces: the number of elements of each piece, and the pieces, in any shape."""

    counts: tuple[int, ...]
    values: list[Value] = field(default_factory=list)


class _SplitWriter:
    """Writer of a graph with split nodes."""

    def __init__(self, graph: Graph, splits: Splits) -> None:
        graph, self.taken_up = with_momentum_accumulation(graph, [name for name, kind, _ in splits if kind == MOMENTUM])
        self.graph, self.emit = graph, Emitter.from_graph(graph)
        self.by_name = {node.name: node for node in graph.nodes}
        self.named = {node.name for node in graph.walk()}
        self.maker = producing_nodes(graph.nodes)
        self.emit.nodes.clear()
        self.rules: dict[str, tuple[SplitRule, str, int]] = {}
        self.early: set[str] = set()
        self.added: dict[str, Node] = {}
        """By addition, the embedding gradient to be added in place to the remaining operand."""
        for entry in splits:
            self._add_split(*entry)
        self.cuts: dict[tuple[Value, tuple[int, ...], Shape], list[Value]] = {}
        self.pieces: dict[Value, _PiecedValue] = {}
        self.whole: set[Value] = set()
        self.wanted = set(results(graph))
        # A product accumulated in a momentum takes as long as the original product of the same name.
        self.shares = {node.name: (node.name, 1.0) for node in graph.nodes if node.op == "nn.gemm"}

    def _add_split(self, name: str, kind: str, count: int) -> None:
        """Check and record a split. Raises PlanError if the split is impossible or given twice."""
        node = self.by_name.get(name)
        if node is None or name in self.rules or name in self.added or name in self.early:
            raise PlanError(f"{name!r} cannot be split: the graph has no such node, or the node is listed twice")
        if kind == ONTO:
            looked_up = added_lookup_gradient(self.graph, node, count_readers(self.graph))
            if looked_up is None or count != 1:
                raise PlanError(f"{name!r} does not add a row gradient without other readers")
            self.added[name] = looked_up
            return
        if kind in (EARLY, MOMENTUM):
            if count != 1 or not set(node.defs) & {source for _, source in self.graph.updates}:
                raise PlanError(f"{name!r} is no update that can run earlier")
            self.early.add(name)
            return
        rule = split_rule_for(node, kind, count)
        if rule is None:
            raise PlanError(f"{name!r} cannot be split into {count} pieces by {kind}: {node.op} has no such rows here")
        self.rules[name] = rule, kind, count

    def write_graph(self) -> SplitGraph:
        """Return the graph with split nodes."""
        left_out = {node.name for node in self.added.values()}
        nodes = [node for node in early_order(self.graph, self.early | self.taken_up) if node.name not in left_out]
        nodes = [self._with_lookup_operands(node) for node in nodes]
        for region in split_regions(nodes, self._piece_count_of, self._operands_read_whole, self._row_results):
            if region[0].name in self.rules:
                self._write_region(region)
            else:
                self._write_unsplit(region[0])
        graph = replace(self.graph, nodes=tuple(self.emit.nodes))
        graph = replace(graph, weights=(*graph.weights, *self.emit.literals.added))
        return SplitGraph(graph, self.shares)

    def _with_lookup_operands(self, node: Node) -> Node:
        """Return an addition reading the operands of the embedding gradient instead of the gradient.

        The node is temporary: `_add_rows` writes the commands.
        """
        looked_up = self.added.get(node.name)
        if looked_up is None:
            return node
        (other,) = [value for value in node.uses if value not in looked_up.defs]
        return replace(node, inputs=(other, *looked_up.inputs))

    # Callbacks of `regions`.

    def _piece_count_of(self, node: Node) -> object:
        """Return the number of pieces of a node; None for a node that is not split."""
        return self.rules[node.name][2] if node.name in self.rules else None

    def _row_results(self, node: Node) -> set[Value]:
        """Return the results of a split node whose pieces are rows."""
        if node.name not in self.rules:
            return set()
        gives = self.rules[node.name][0].gives
        return {v for v, row in zip(node.outputs, gives, strict=False) if v is not None and row is not None}

    def _operands_read_whole(self, node: Node) -> set[Value]:
        """Return the operands read whole, or in pieces different from the pieces defined."""
        rule, _, count = self.rules[node.name]
        read: set[Value] = set()
        for value, row in zip(node.inputs, rule.reads, strict=False):
            if value is None:
                continue
            made = self._piece_sizes_of(value)
            if row is None or (made is not None and made != _piece_sizes(rule, row, count)):
                read.add(value)
        return read

    def _piece_sizes_of(self, value: Value) -> tuple[int, ...] | None:
        """Return the elements of each piece of a value defined in pieces, else None."""
        node = self.maker.get(value)
        if node is None or node.name not in self.rules:
            return None
        rule, _, count = self.rules[node.name]
        row = rule.gives[node.outputs.index(value)]
        return None if row is None else _piece_sizes(rule, row, count)

    # Writing of nodes.

    def _write_unsplit(self, node: Node) -> None:
        """Write a node that is not split."""
        for value in required_values(node):
            self._join_pieces(value)
        if node.name in self.added:
            self._add_rows(node)
        else:
            self.emit.nodes.append(node)

    def _add_rows(self, node: Node) -> None:
        """Write the addition of looked-up rows to a gradient, in place."""
        self.emit.scope, self.emit.source = f"{node.name}.", node.source
        other, dy, indices = (operand(node, i) for i in range(3))
        rows, width = prod(spec_of(indices).shape), spec_of(dy).shape[-1]
        column = reshape_to(self.emit, indices, (rows, 1))
        places = self.emit("nn.broadcast_to", column, shape=(rows, width))
        flat = reshape_to(self.emit, dy, (rows, width))
        self.emit("nn.scatter_add", other, places, flat, axis=0)
        self._rename_last_node(node.outputs[0], node.name)

    def _write_region(self, region: Region) -> None:
        """Write all nodes of a region, piece by piece."""
        sums: dict[Value, Value] = {}
        _, _, count = self.rules[region[0].name]
        for i in range(count):
            for node in region:
                self._write_piece(node, i, sums)
        for node in region:
            for value in node.defs:
                if value in sums:
                    self.whole.add(value)
                elif value in self.wanted:
                    self._join_pieces(value)

    def _write_piece(self, node: Node, i: int, sums: dict[Value, Value]) -> None:
        """Write piece `i` of a node. `sums` holds the sums so far of results accumulated over pieces."""
        rule, _, count = self.rules[node.name]
        begin, end = rule.bounds(count)[i]
        self.emit.scope, self.emit.source = f"{node.name}.{i + 1}of{count}/", node.source
        operands = [
            None if value is None else self._read_piece(value, row, rule, count, i)
            for value, row in zip(node.inputs, rule.reads, strict=False)
        ]
        last = i == count - 1
        (only, *_), several = node.outputs, len(node.outputs) > 1
        if not several and only in sums and node.op in PRODUCTS:
            made: tuple[Value, ...] = self._emit_product_onto(node, operands, sums[only], (end - begin) / rule.extent)
        else:
            made = self._emit_piece(node, rule, operands, begin, end)
        for value, row, piece in zip(node.outputs, rule.gives, made, strict=False):
            if value is None:
                continue
            if row is None:
                self._accumulate_piece(node, value, piece, sums, last)
            else:
                counts = _piece_sizes(rule, row, count)
                self.pieces.setdefault(value, _PiecedValue(counts)).values.append(piece)

    def _emit_piece(
        self, node: Node, rule: SplitRule, operands: Sequence[Value | None], begin: int, end: int
    ) -> tuple[Value, ...]:
        """Write the command for a piece; return a piece of each result, unread for results without readers."""
        if node.op == "nn.reshape":
            assert operands[0] is not None
            return (operands[0],)
        first = len(self.emit.nodes)
        if rule.write is not None:
            made = rule.write(self.emit, node, operands, begin, end)
        else:
            operands = rule.sliced_operands(self.emit, operands, begin, end)
            made = self.emit.all_outputs(node.op, *operands, **rule.slices.attrs(node.attrs, begin, end))
            outputs = tuple(
                piece if value is not None else None for value, piece in zip(node.outputs, made, strict=False)
            )
            self.emit.nodes[-1] = replace(self.emit.nodes[-1], outputs=outputs)
        for i, each in enumerate(self.emit.nodes[first:], first):
            if each.op == node.op:
                self.shares[each.name] = node.name, (end - begin) / rule.extent
                self.emit.nodes[i] = replace(each, again=node.again)
        return made

    def _emit_product_onto(
        self, node: Node, operands: Sequence[Value | None], total: Value, share: float
    ) -> tuple[Value, ...]:
        """Write a product of matrices added to the sum so far."""
        attrs = {key: content for key, content in node.attrs.items() if key != "beta"}
        made = self.emit.all_outputs("nn.gemm", *operands[:2], total, **attrs)
        self.emit.nodes[-1] = replace(self.emit.nodes[-1], again=node.again)
        self.shares[made[0].name] = node.name, share
        return made

    def _accumulate_piece(self, node: Node, value: Value, piece: Value, sums: dict[Value, Value], last: bool) -> None:
        """Add a piece to the sum so far."""
        if value in sums and node.op not in PRODUCTS:
            piece = self.emit("nn.add", sums[value], piece)
        sums[value] = piece
        if last:
            self._name_result(value)

    def _name_result(self, value: Value) -> None:
        """Let the last written node define `value`, named like the value unless a different node has the name."""
        free = value.name == self.maker[value].name or value.name not in self.named
        self._rename_last_node(value, value.name if free else self.emit.names.fresh(value.name))

    def _rename_last_node(self, value: Value | None, name: str) -> None:
        """Let the last written node define `value`, with `name` as the name of the node."""
        made = self.emit.nodes[-1]
        if made.name in self.shares:
            self.shares[name] = self.shares.pop(made.name)
        self.emit.nodes[-1] = replace(made, name=name, outputs=(value,))

    def _read_piece(self, value: Value, row: Shape | None, rule: SplitRule, count: int, i: int) -> Value:
        """Return piece `i` of an operand, or the whole operand if `row` is None."""
        if row is None:
            self._join_pieces(value)
            return value
        counts = _piece_sizes(rule, row, count)
        if value in self.pieces and self.pieces[value].counts == counts:
            piece = self.pieces[value].values[i]
        else:
            piece = self._split_views(value, counts, row)[i]
        return reshape_to(self.emit, piece, (counts[i] // max(1, prod(row)), *row))

    def _split_views(self, value: Value, counts: tuple[int, ...], row: Shape) -> list[Value]:
        """Return views of the pieces of a whole."""
        key = value, counts, row
        if key not in self.cuts:
            self._join_pieces(value)
            self.emit.scope = f"{value.name}.in{len(counts)}/"
            sizes = tuple(n // max(1, prod(row)) for n in counts)
            rows = reshape_to(self.emit, value, (sum(sizes), *row))
            self.cuts[key] = list(self.emit.all_outputs("nn.split", rows, axis=0, sizes=sizes))
        return self.cuts[key]

    def _join_pieces(self, value: Value) -> None:
        """Write the concatenation of the pieces of a value, unless the value is whole already."""
        if value not in self.pieces or value in self.whole:
            return
        self.whole.add(value)
        self.emit.scope, shape = f"{value.name}.whole/", spec_of(value).shape
        row = self._row_shape(value)
        pieces = [
            reshape_to(self.emit, piece, (n // max(1, prod(row)), *row))
            for piece, n in zip(self.pieces[value].values, self.pieces[value].counts, strict=True)
        ]
        made = self.emit("nn.concat", *pieces, axis=0)
        if spec_of(made).shape != shape:
            self.emit("nn.reshape", made, shape=shape)
        self._name_result(value)

    def _row_shape(self, value: Value) -> Shape:
        """Return the extents of a row of the concatenation of the pieces."""
        node = self.maker[value]
        row = self.rules[node.name][0].gives[node.outputs.index(value)]
        assert row is not None
        return row


def _piece_sizes(rule: SplitRule, row: Shape, pieces: int) -> tuple[int, ...]:
    """Return the number of elements of each piece."""
    return tuple((end - begin) * prod(row) for begin, end in rule.bounds(pieces))


def added_lookup_gradient(graph: Graph, node: Node, read: Mapping[Value, int]) -> Node | None:
    """Return the embedding gradient read only by this addition, if any, else None."""
    if node.op != "nn.add" or len(set(node.uses)) != 2:
        return None
    made = producing_nodes(graph.nodes)
    for value in node.uses:
        each = made.get(value)
        if each is not None and each.op == "nn.embedding_gradient" and read.get(value) == 1:
            return each
    return None
