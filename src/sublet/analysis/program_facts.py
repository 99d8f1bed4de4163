"""Program facts: properties of the whole program, computed once for all control flow graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from sublet.base.tensor import TensorSpec
from sublet.ir.dataflow import assignments, reads, results
from sublet.ir.graph import Graph, Node, Value, While
from sublet.ops import Share, lookup
from sublet.ops.op import no_shares, row_form, strided_operands
from sublet.plan import MAX_ROWS, Stride


@dataclass(frozen=True, slots=True)
class SharingFacts:
    """The values an op may share, by position of inputs and outputs.

    The facts of a node hold for all versions of the node, whatever versions of its inputs they read.
    """

    views: tuple[Share, ...]
    parts: tuple[Share, ...]
    inplace: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class RowFacts:
    """The values that an op may share row by row, for operands of which only each row is contiguous.

    Offsets of shares are bytes of a row. The op takes strides in the inputs and outputs at the given positions.
    `call_bytes` are the bytes of the operands with rows if each row is computed by a call of its own; else 0.
    """

    rows: int
    views: tuple[Share, ...]
    parts: tuple[Share, ...]
    strided_inputs: frozenset[int]
    strided_outputs: frozenset[int]
    call_bytes: int = 0


class ProgramFacts:
    """Facts of a program: the order of definitions, the assignments of loops and branches, the sharing facts of ops.

    position        of each value in the order of definition; the values of a loop body are consecutive
    read_values     the values read by a node or by the caller
    nodes_in_loops  the names of all nodes inside the bodies of loops
    obstacle        the reason why nothing moves from iteration to iteration: no value is renamed, and slices and rows
                    are copied; "" for a program of single extents
    """

    obstacle = ""

    def __init__(self, graph: Graph) -> None:
        self.position = {value: i for i, value in enumerate(graph.values())}
        self.read_values = {*results(graph), *(value for node in graph.walk() for value in reads(node))}
        loops = (node for node in graph.walk() if isinstance(node, While))
        self.nodes_in_loops = {inner.name for loop in loops for inner in loop.body.walk()}
        self._sources: dict[Value, tuple[Value, ...]] = {}
        self._body_ends: dict[str, int] = {}  # by loop, the position after the last value of the body
        self._facts: dict[str, SharingFacts] = {}
        self._graph = graph
        for node in graph.walk():
            self._sources.update(assignments(node))
            if isinstance(node, While):
                *_, last = node.body.values()
                self._body_ends[node.name] = self.position[last] + 1

    def sharing_facts_of(self, node: Node) -> SharingFacts:
        """Return the sharing facts of a program node."""
        facts = self._facts.get(node.name)
        if facts is None:
            op = lookup(node.op)
            facts = self._facts[node.name] = SharingFacts(op.views(node), op.parts(node), op.inplace(node))
        return facts

    @cached_property
    def row_facts(self) -> Mapping[str, RowFacts]:
        """The row facts of all nodes at the root level; empty if no node shares rows but no contiguous bytes."""
        plain = [node for node in self._graph.nodes if not node.subgraphs]
        moving = [node for node in plain if (op := lookup(node.op)).views != no_shares or op.parts != no_shares]
        whole = {node.name: self.sharing_facts_of(node) for node in moving}
        known = {n.name: _row_facts_of(n) for n in moving if not (whole[n.name].views or whole[n.name].parts)}
        if not any(facts.views or facts.parts for facts in known.values()):
            return {}
        return {node.name: known.get(node.name) or _row_facts_of(node) for node in plain}

    def why_not_loop_view(self, part: Value, whole: Value, axis: int, alignment: int, smallest: int) -> str:
        """Return the reason why a slice or row of an iteration is copied, "" if a view of `whole` is possible."""
        return self.obstacle or why_not_view(part, whole, axis, alignment, smallest)

    def carried_values(self, node: While, positions: Iterable[int], pointers: frozenset[Value]) -> frozenset[Value]:
        """Return the values of a loop body with bytes that the renamed parameters at `positions` may be bound to."""
        begin, end = self.position[node.counter], self._body_ends[node.name]
        todo = [node.updates[i] for i in positions]
        seen: set[Value] = set(node.parameters)
        carried: set[Value] = set()
        while todo:
            value = todo.pop()
            if value in seen or not begin <= self.position[value] < end:
                continue
            seen.add(value)
            if value in pointers:
                todo += self._sources[value]
            else:
                carried.add(value)
        return frozenset(carried)


def _row_facts_of(node: Node) -> RowFacts:
    """Return the row facts of a node without sub-graphs."""
    form, op = row_form(node), lookup(node.op)
    inputs, outputs = strided_operands(node, form)
    if form is None or form.count > MAX_ROWS:
        return RowFacts(1, (), (), inputs, outputs)
    views, parts = (
        tuple(share for share in shares if share.input in form.inputs)
        for shares in (op.views(form.node), op.parts(form.node))
    )
    is_call = op.row_calls and not views and not parts
    rows = (*(node.inputs[i] for i in form.inputs), *node.outputs)
    call_bytes = sum(value.nbytes for value in rows if value is not None) if is_call else 0
    return RowFacts(form.count, views, parts, inputs, outputs, call_bytes)


# Loop views: slices and rows as strided views of the whole, at a different offset in every iteration.
#
# A slice along the leading axis is a contiguous run of bytes of the sequence, and a row a contiguous run of bytes of
# the stacked output. A *loop view* owns no bytes: iteration k finds the view at base + k * stride, or from the far end
# if reversed. Values sharing bytes with the view within an iteration (a view of the slice, an operand the row is
# written over) lie at the same place.
#
# A row stays in place after the iteration. A loop parameter may therefore be renamed and bound to the row of the
# previous iteration, and the output of the loop to the row of the last iteration [an LSTM's h].


@dataclass(frozen=True)
class LoopView:
    """A slice or row as a strided view of the whole, in all body versions with the slice or row.

    kind    "slice" or "row"
    value   the version of the slice or row
    whole   the version of the sequence or of the stacked output
    spans   slot ranges, an iteration each: members of the view must live after the first and up to the second slot
    """

    kind: str
    loop: While
    value: Value
    whole: Value
    axis: int
    backwards: bool
    spans: tuple[tuple[int, int], ...]

    @property
    def is_read_only(self) -> bool:
        """True if the whole still needs the bytes, as for a slice."""
        return self.kind == "slice"

    @property
    def start_offset(self) -> int:
        """The offset of iteration 0 in the whole, in bytes."""
        return self.whole.nbytes - self.value.nbytes if self.backwards else 0

    @property
    def stride(self) -> Stride:
        """The distance from iteration to iteration."""
        return Stride(self.loop.name, self.value.nbytes, self.backwards)

    def contains_ranges(self, pieces: tuple[tuple[int, int], ...]) -> bool:
        """True if every range of `pieces`, in slots, lies within a single iteration."""
        return all(any(first < begin and end <= last for first, last in self.spans) for begin, end in pieces)


def why_not_view(part: Value, whole: Value, axis: int, alignment: int, smallest: int) -> str:
    """Return the reason why a slice or row must or should be copied, or "" if a view of `whole` is possible.

    A view must be contiguous, a multiple of `alignment` bytes long, and at least `smallest` bytes long.
    """
    if not isinstance(whole.spec, TensorSpec):
        return f"%{whole.name} has no place in the plan"
    if not isinstance(part.spec, TensorSpec):
        return f"%{part.name} has no place in the plan"
    extent = whole.spec.shape[axis]
    if any(other != 1 for other in whole.spec.shape[:axis]) or whole.nbytes != extent * part.nbytes:
        return f"its bytes along axis {axis} are not contiguous"
    if part.nbytes % alignment:
        return f"its size of {part.nbytes:,} bytes is no multiple of the alignment, {alignment}"
    if part.nbytes < smallest:
        return f"it has fewer than {smallest:,} bytes, and a copy costs less"
    return ""
