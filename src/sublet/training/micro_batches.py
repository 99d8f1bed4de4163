"""Gradient accumulation over micro-batches: a loop over parts of the batch; the parts are views of the inputs.

Nodes computing sample by sample move into the loop and are differentiated inside; each iteration adds its gradients to
loop-carried sums. The loss may depend in any way on means and sums over the batch, as long as the gradient of the loss
with respect to the means and sums does not depend on their values. Then loss and gradients equal those of the whole
batch, except for rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from sublet.base.errors import GradientError, SpecError
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import required_values, results
from sublet.ir.graph import Attr, Graph, Node, Value, While
from sublet.nn.graph import Graph as WrittenGraph
from sublet.nn.source_location import at_line
from sublet.nn.tensor import Tensor
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff import active_values, backward, is_differentiable, with_zeros
from sublet.passes.splitting.smaller_batch import (
    BATCH_NORM,
    MEAN,
    attrs_of_part,
    common_row_count,
    outputs_with_rows,
    row_reduction,
    shape_of,
)

KEY_DISTANCE = 1 << 24
"""Distance of random keys between micro-batches: iterations of inner loops use the keys between."""

MAX_PARTS = 256
"""Maximum number of micro-batches; a larger number is an error."""

SCALAR = TensorSpec(DType.I64)


@dataclass
class BatchPartition:
    """A program in three parts: before the batch dependence, the per-sample body, and the part after reductions.

    sliced_values  the values sliced along the first axis: inputs, and further values with one row a sample
    before         the nodes independent of the batch
    body           the nodes of an iteration, with their attributes
    after          the nodes depending on reductions
    row_values     the values with one row a sample
    reductions     the values reduced over all rows, with the kind: "mean" or "sum"
    statistics     for running statistics of batch normalisation, the last value by the first
    """

    parts: int
    sliced_values: dict[Value, None] = field(default_factory=dict)
    before: list[Node] = field(default_factory=list)
    body: list[tuple[Node, dict[str, Attr]]] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)
    row_values: set[Value] = field(default_factory=set)
    reductions: dict[Value, str] = field(default_factory=dict)
    statistics: dict[Value, Value] = field(default_factory=dict)


def partition_program(
    nodes: Sequence[Node], inputs: Sequence[Value], parts: int, *, smaller_statistics: bool
) -> BatchPartition:
    """Return the program in three parts. Raises GradientError, naming the node, for a node mixing samples."""
    cut = BatchPartition(parts, dict.fromkeys(inputs), row_values=set(inputs))
    late_values: set[Value] = set()
    moved_statistics: dict[Value, Value] = {}
    for node in nodes:
        read = required_values(node)
        row_operands = {i for i, value in enumerate(node.inputs) if value in cut.row_values}
        if not any(value in cut.row_values for value in read):
            depends = any(value in late_values for value in read)
            (cut.after if depends else cut.before).append(node)
            late_values.update(node.defs if depends else ())
            continue
        if any(value in late_values and value not in moved_statistics for value in read):
            raise _refusal(node, "it reads a value computed from the whole batch")
        kind = row_reduction(node)
        attrs = node.attrs if kind else _part_attributes(cut, node, row_operands)
        if attrs is None:
            raise _refusal(node, f"{node.op} may mix samples: no rule splits it along the first axis")
        cut.body.append((node, dict(attrs)))
        if kind:
            cut.reductions[node.defs[0]] = kind
            late_values.update(node.defs)
            continue
        cut.row_values.update(outputs_with_rows(node))
        if node.op == BATCH_NORM:
            if not smaller_statistics:
                raise _refusal(
                    node, "batch normalisation would see smaller batches: pass smaller_statistics=True to allow that"
                )
            for before, after in zip(node.uses[3:5], node.outputs[1:3], strict=True):
                first = moved_statistics.get(before, before)
                if after is not None:
                    cut.statistics[first], moved_statistics[after] = after, first
            late_values.update(node.defs[1:])
    return cut


def _part_attributes(cut: BatchPartition, node: Node, along: set[int]) -> dict[str, Attr] | None:
    """Return the attributes of a node for one micro-batch; None for a node not computing sample by sample.

    If necessary, whole operands with equally many rows are sliced too.
    """
    attrs = attrs_of_part(node, along, Fraction(1, cut.parts), exact=False)
    if attrs is None and not node.subgraphs:
        extents = {(shape_of(node.inputs[i]) or (0,))[0] for i in along}
        further = {
            i for i, value in enumerate(node.inputs) if (shape_of(value) or (0,))[0] in extents and i not in along
        }
        attrs = attrs_of_part(node, along | further, Fraction(1, cut.parts), exact=False) if further else None
        if attrs is not None:
            cut.sliced_values.update((value, None) for i in further if (value := node.inputs[i]) is not None)
            cut.row_values.update(value for i in further if (value := node.inputs[i]) is not None)
    return None if attrs is None else dict(attrs)


def _refusal(node: Node, why: str) -> GradientError:
    """Return the error for a node unsuitable for micro-batches."""
    return GradientError(f"micro_batches: node {node.label}: {why}")


def accumulated_gradients(
    graph: WrittenGraph, loss: Tensor, parameters: Sequence[Tensor], parts: int, *, smaller_statistics: bool
) -> list[Tensor]:
    """Return the gradients of a loss, accumulated over micro-batches; the loop computes the loss and the outputs too.

    Raises SpecError for a batch not divisible into `parts`, and GradientError for a network mixing samples.
    """
    program, emit = graph.model().graph, graph.emit
    values = [graph.value_of(parameter) for parameter in parameters]
    inputs = _batch_inputs(program, parts)
    try:
        cut = partition_program(tuple(emit.nodes), inputs, parts, smaller_statistics=smaller_statistics)
        gradients = _MicroBatchWriter(emit, cut, set(results(program))).write_gradients(graph.value_of(loss), values)
    except GradientError as error:
        raise GradientError(at_line(str(error))) from None
    return [graph.tensor_of(value) for value in gradients]


def _batch_inputs(program: Graph, parts: int) -> list[Value]:
    """Return the inputs to slice along the first axis: all read inputs with at least one axis.

    Raises SpecError for inputs with different first extents, and for a bad number of parts.
    """
    read = {value for node in program.nodes for value in required_values(node)} - set(program.updated_values)
    inputs = [value for value in program.inputs if value in read and spec_of(value).shape]
    batch = common_row_count(inputs, at_line("micro_batches needs inputs with equal first extents"))
    if not 2 <= parts <= MAX_PARTS or batch % parts:
        raise SpecError(at_line(f"micro_batches={parts} must be from 2 to {MAX_PARTS} and divide the batch of {batch}"))
    return inputs


@dataclass
class _MicroBatchLoop:
    """The loop over micro-batches under construction.

    carried    (parameter, initial value, update) of each loop-carried value
    sequences  (slice, whole) of each value read in parts
    stacked    (row, whole) of each stacked output
    finals     the final values of the loop-carried values
    """

    outer: Emitter
    inner: Emitter
    parts: int
    counter: Value
    carried: list[tuple[Value, Value, Value]] = field(default_factory=list)
    sequences: list[tuple[Value, Value]] = field(default_factory=list)
    stacked: list[tuple[Value, Value]] = field(default_factory=list)
    finals: list[Value] = field(default_factory=list)

    def new_value(self, hint: str, spec: TensorSpec) -> Value:
        """Return a new value."""
        return Value(self.outer.names.fresh(f"micro/{hint}"), spec)

    def add_slice(self, whole: Value) -> Value:
        """Return the slice of a whole value for one iteration."""
        spec = spec_of(whole)
        part = self.new_value(whole.name, TensorSpec(spec.dtype, (spec.shape[0] // self.parts, *spec.shape[1:])))
        folded = self.outer("nn.reshape", whole, shape=(self.parts, *spec_of(part).shape))
        self.sequences.append((part, folded))
        return part

    def add_carry(self, parameter: Value, init: Value, update: Value, final: Value | None = None) -> Value:
        """Carry `parameter`, from `init` to `update` in each iteration, and return the final value."""
        self.carried.append((parameter, init, update))
        self.finals.append(final or self.new_value(f"{parameter.name}.last", spec_of(parameter)))
        return self.finals[-1]

    def add_sum(self, hint: str, init: Value, term: Value) -> Value:
        """Return the sum of `init` and of `term` over all iterations."""
        total = self.new_value(f"{hint}.sum", spec_of(init))
        return self.add_carry(total, init, self.inner("nn.add", total, term))

    def add_rows(self, row: Value) -> Value:
        """Return the rows of all iterations, stacked along a new first axis."""
        whole = self.new_value(f"{row.name}.rows", TensorSpec(spec_of(row).dtype, (self.parts, *spec_of(row).shape)))
        self.stacked.append((row, whole))
        return whole

    def append_loop(self, go: Value) -> None:
        """Append the loop with the condition `go`."""
        name = self.outer.names.fresh("micro")
        parameters, parts = [each[0] for each in self.carried], [part for part, _ in self.sequences]
        results = (*(update for _, _, update in self.carried), *(row for row, _ in self.stacked))
        nodes = tuple(self.inner.nodes)
        body = Graph(self.outer.names.fresh("micro.body"), (self.counter, *parameters, *parts), nodes, results)
        operands = (*(init for _, init, _ in self.carried), *(folded for _, folded in self.sequences))
        outputs = (*self.finals, *(whole for _, whole in self.stacked))
        loop = While(
            name,
            "while",
            operands,
            outputs,
            body=body,
            condition=go,
            check=1,
            carried=len(parameters),
            slice_axes=(0,) * len(parts),
            slice_reversed=(False,) * len(parts),
            row_axes=(0,) * len(self.stacked),
            row_reversed=(False,) * len(self.stacked),
        )
        self.outer.nodes.append(loop)


@dataclass
class _MicroBatchWriter:
    """Writer of the loop and the nodes around the loop. `wanted` holds the results of the program."""

    emit: Emitter
    cut: BatchPartition
    wanted: set[Value]
    in_body: dict[Value, Value] = field(default_factory=dict)

    def write_gradients(self, loss: Value, parameters: Sequence[Value]) -> list[Value]:
        """Return the gradients of the loss with respect to `parameters`; write the loop and the outer nodes."""
        emit, cut = self.emit, self.cut
        active = active_values(cut.before, parameters)
        inside = _values_read(node for node, _ in cut.body)
        captured = [v for v in inside if v in active and v not in cut.row_values and is_differentiable(v)]
        edges = list(dict.fromkeys([*captured, *(v for v in _values_read(cut.after) if v in active)]))
        if loss not in cut.reductions and loss not in {value for node in cut.after for value in node.defs}:
            raise GradientError("micro_batches: the loss does not depend on means or sums over the batch")
        taken = [value for value in cut.reductions if is_differentiable(value)]
        outer = dict(zip([*taken, *edges], self._outer_gradients(loss, [*taken, *edges]), strict=True))
        seeds = {value: grad for value in taken if (grad := outer[value]) is not None}
        totals = self._write_loop(seeds, {v: outer[v] for v in captured}, [v for v in cut.sliced_values if v in active])
        totals |= {v: grad for v in edges if v not in totals and (grad := outer[v]) is not None}
        emit.nodes.extend(cut.after)
        return with_zeros(emit, backward(emit, tuple(cut.before), totals, parameters), parameters)

    def _outer_gradients(self, loss: Value, wrt: Sequence[Value]) -> list[Value | None]:
        """Return the gradients of the loss with respect to reductions and outer values, written before the loop.

        Raises GradientError if a gradient depends on a reduction.
        """
        emit, cut = self.emit, self.cut
        emit.nodes[:] = [*cut.before, *cut.after]
        earlier = {node.name for node in emit.nodes}
        gradients = backward(emit, tuple(cut.after), {loss: emit.full(1, spec_of(loss))}, wrt)
        new = [node for node in emit.nodes if node.name not in earlier]
        after_loop = {*cut.reductions, *(value for node in cut.after for value in node.defs)}
        if any(value in after_loop for node in new for value in required_values(node)):
            raise GradientError("micro_batches: the loss must be a linear combination of means and sums over the batch")
        emit.nodes[:] = [*cut.before, *new]
        return gradients

    def _write_loop(
        self, seeds: dict[Value, Value], begins: dict[Value, Value | None], sequences: Sequence[Value]
    ) -> dict[Value, Value]:
        """Write the loop and return the gradients with respect to captured values and sequences.

        `begins` maps each captured value to the initial value of its gradient sum.
        """
        emit, cut, now = self.emit, self.cut, self.in_body
        inner = emit.for_subgraph()
        inner.scope = "micro/"
        loop = _MicroBatchLoop(emit, inner, cut.parts, Value(emit.names.fresh("micro/counter"), SCALAR))
        go = inner("nn.less", loop.counter, inner.full(cut.parts, SCALAR))
        now.update((whole, loop.add_slice(whole)) for whole in cut.sliced_values)
        now.update((first, loop.new_value(first.name, spec_of(first))) for first in cut.statistics)
        self._write_iteration(inner, loop.counter)
        shares = {now[v]: self._mean_share(v, grad) for v, grad in seeds.items()}
        gradients = backward(inner, tuple(inner.nodes), shares, [*begins, *(now[v] for v in sequences)])
        totals: dict[Value, Value] = {}
        for (value, begin), grad in zip(begins.items(), gradients, strict=False):
            if grad is not None:
                totals[value] = loop.add_sum(value.name, begin or emit.full(0, spec_of(value)), grad)
            elif begin is not None:
                totals[value] = begin
        sums = {v: loop.add_sum(v.name, emit.full(0, spec_of(v)), now[v]) for v in cut.reductions}
        for first, last in cut.statistics.items():
            loop.add_carry(now[first], first, now[last], last)
        rows = {
            v: loop.add_rows(now[v])
            for v in now
            if v in self.wanted and v in cut.row_values and v not in cut.sliced_values
        }
        stacked_gradients = zip(sequences, gradients[len(begins) :], strict=True)
        steps = {v: loop.add_rows(grad) for v, grad in stacked_gradients if grad is not None}
        loop.append_loop(go)
        for value, total in sums.items():
            self._define_value(value, self._mean_share(value, total))
        for value, whole in rows.items():
            self._define_value(value, emit("nn.reshape", whole, shape=spec_of(value).shape))
        return totals | {v: emit("nn.reshape", whole, shape=spec_of(v).shape) for v, whole in steps.items()}

    def _mean_share(self, taken: Value, of: Value) -> Value:
        """Return the share of one micro-batch in a gradient or total: divided by the number of parts for a mean."""
        if self.cut.reductions[taken] == MEAN:
            return self.emit("nn.mul", of, self.emit.constant(1 / self.cut.parts, of))
        return self.emit("nn.copy", of)

    def _write_iteration(self, inner: Emitter, counter: Value) -> None:
        """Write the nodes of an iteration, applied to slices."""
        now = self.in_body
        for node, attrs in self.cut.body:
            inner.source = node.source
            operands = [None if value is None else now.get(value, value) for value in node.inputs]
            if node.op == "nn.dropout":
                assert operands[1] is not None
                operands[1] = self._part_key(inner, counter, operands[1])
            results = inner.all_outputs(node.op, *operands, **attrs)
            now.update((old, new) for old, new in zip(node.outputs, results, strict=False) if old is not None)

    def _part_key(self, inner: Emitter, counter: Value, key: Value) -> Value:
        """Return the random key of one micro-batch."""
        apart = inner("nn.mul", counter, inner.full(KEY_DISTANCE, SCALAR))
        return inner("nn.add", key, apart if key.spec == SCALAR else inner("nn.cast", apart, dtype="i32"))

    def _define_value(self, value: Value, by: Value) -> None:
        """Rename the output `by` of the last node to a value of the program."""
        last = self.emit.nodes[-1]
        assert last.defs == (by,)
        self.emit.nodes[-1] = replace(last, name=value.name, outputs=(value,))


def _values_read(nodes: Iterable[Node]) -> list[Value]:
    """Return the values read by the nodes, each value once."""
    return list(dict.fromkeys(value for node in nodes for value in required_values(node)))
