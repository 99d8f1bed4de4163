"""Strip mining: rewrite a loop as chunks of nested loops with the same iterations in the same order.

    %y = while(%i < 64; %x = %x0) { B(%i, %x) }

in chunks of 7 times 8 iterations and of 8 is

    %x1 = while(%s < 7; %u = %x0) { %b = nn.mul(%s, 8)
                                    %v = while(%j < 8; %x = %u) { %i = nn.add(%b, %j)  B(%i, %x) }
                                    next %v }
    %y = while(%j2 < 8; %x2 = %x1) { %i2 = nn.add(56, %j2)  B(%i2, %x2) }

Each chunk reads and writes a part of the sequences and stacks, reshaped to one axis a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sublet.base.tensor import TensorSpec
from sublet.ir.dataflow import reads_inside
from sublet.ir.graph import Graph, Value, While
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import spec_of
from sublet.passes.autodiff.backward_level import SCALAR, copy_graph
from sublet.passes.autodiff.checkpoint_schedules import Chunk
from sublet.passes.gradient_sums import Box, slice_box


@dataclass(frozen=True)
class ChunkSpan:
    """The iterations of a chunk, beginning with iteration `begin` of the original loop."""

    chunk: Chunk
    begin: int

    def box(self, shape: Sequence[int], axis: int, backwards: bool) -> Box:
        """Return the part of a sequence or stack accessed by the iterations of the chunk."""
        rounds = self.chunk.iterations
        first = shape[axis] - self.begin - rounds if backwards else self.begin
        return tuple((first, first + rounds) if i == axis else (0, extent) for i, extent in enumerate(shape))

    def fold_axis(self, emit: Emitter, whole: Value, axis: int, backwards: bool) -> Value:
        """Return the part of `whole` accessed by the chunk, reshaped to an axis for each loop."""
        shape = spec_of(whole).shape
        part = slice_box(emit, whole, self.box(shape, axis, backwards))
        return emit("nn.reshape", part, shape=(*shape[:axis], *self.chunk.extents, *shape[axis + 1 :]))

    def unfold_axis(self, emit: Emitter, part: Value, axis: int) -> Value:
        """Return `part` with the axes of the nested loops merged into a single axis."""
        shape, depth = spec_of(part).shape, len(self.chunk.extents)
        if depth == 1:
            return part
        return emit("nn.reshape", part, shape=(*shape[:axis], self.chunk.iterations, *shape[axis + depth :]))


def concat_chunks(emit: Emitter, parts: Sequence[Value], axis: int, backwards: bool) -> Value:
    """Return the concatenation of the parts of all chunks, given in the order of iterations."""
    parts = parts[::-1] if backwards else parts
    return parts[0] if len(parts) == 1 else emit("nn.concat", *parts, axis=axis)


@dataclass
class _LoopNest:
    """The common data of the loops of one nest.

    body     the body of the original loop
    again    by loop name, True if the backward recomputes the iterations
    """

    node: While
    body: Graph
    numbered: bool
    again: dict[str, bool]

    def build_loop(
        self,
        emit: Emitter,
        chunk: Chunk,
        base: Value,
        inputs: Sequence[Value],
        outputs: tuple[Value | None, ...],
    ) -> While:
        """Return the loop over the first extent of the chunk. Iteration 0 has number `base` in the original loop."""
        node, inside = self.node, emit.for_subgraph()
        counter = Value(emit.names.fresh(f"{node.name}.counter"), SCALAR)
        go = inside("nn.less", counter, inside.full(chunk.extents[0], SCALAR))
        if len(chunk.extents) == 1:
            taken, given = list(self.body.inputs[1:]), list(self.body.outputs)
            self._write_iteration(inside, counter, base)
        else:
            taken, given = self._write_inner_loop(inside, chunk, counter, base, inputs)
        name = emit.names.fresh(node.name)
        self.again[name] = chunk.again or len(chunk.extents) > 1
        body = Graph(emit.names.fresh(f"{name}.body"), (counter, *taken), tuple(inside.nodes), tuple(given))
        return replace(
            node, name=name, inputs=tuple(inputs), outputs=outputs, attrs={}, body=body, condition=go, check=1
        )

    def _write_iteration(self, inside: Emitter, counter: Value, base: Value) -> None:
        """Write the nodes of an iteration of the original loop, without the condition."""
        if self.numbered:
            made = inside("nn.add", base, counter)
            number = self.body.inputs[0]
            inside.nodes[-1] = replace(inside.nodes[-1], name=number.name, outputs=(number,))
            assert made.spec == number.spec
        inside.nodes.extend(self.body.nodes)

    def _write_inner_loop(
        self, inside: Emitter, chunk: Chunk, counter: Value, base: Value, inputs: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        """Write an iteration consisting of an inner loop; return its inputs, besides the counter, and its outputs."""
        node, fresh = self.node, inside.names.fresh
        below = replace(chunk, extents=chunk.extents[1:])
        taken = [Value(fresh(f"{value.name}.begin"), value.spec) for value in node.parameters]
        for value, axis in zip(inputs[node.carried :], node.slice_axes, strict=True):
            taken.append(Value(fresh(f"{value.name}.part"), _drop_axis(spec_of(value), axis)))
        if self.numbered:
            base = inside("nn.add", base, inside("nn.mul", counter, inside.full(below.iterations, SCALAR)))
        given = [Value(fresh(f"{value.name}.end"), value.spec) for value in node.updates]
        for row, axis in zip(node.rows, node.row_axes, strict=True):
            given.append(Value(fresh(f"{row.name}.rows"), _insert_axes(spec_of(row), axis, below.extents)))
        loop = self.build_loop(inside, below, base, taken, tuple(given))
        inside.nodes.append(loop)
        return taken, given


def strip_mine(
    emit: Emitter,
    node: While,
    span: ChunkSpan,
    inits: Sequence[Value],
    finals: Sequence[Value | None],
    again: dict[str, bool],
) -> While:
    """Write the iterations of a span as nested loops to `emit` and return the outermost loop.

    The stacked outputs have one axis for each loop. `again` receives the names of the loops.
    """
    details = zip(node.sequences, node.slice_axes, node.slice_reversed, strict=True)
    sequences = [span.fold_axis(emit, whole, axis, backwards) for whole, axis, backwards in details]
    extents = span.chunk.extents
    stacks = [
        Value(emit.names.fresh(f"{node.name}.stack"), _insert_axes(spec_of(row), axis, extents))
        for row, axis in zip(node.rows, node.row_axes, strict=True)
    ]
    body = _without_condition(node)
    numbered = node.counter in {value for inner in body.nodes for value in reads_inside(inner)} | {*body.outputs}
    body = body if span.begin == 0 else copy_graph(body, emit.names)
    made = _LoopNest(node, body, numbered, again)
    loop = made.build_loop(emit, span.chunk, emit.full(span.begin, SCALAR), [*inits, *sequences], (*finals, *stacks))
    emit.nodes.append(loop)
    return loop


def _without_condition(node: While) -> Graph:
    """Return the body without the condition, unless the condition has a further reader."""
    read = {value for inner in node.body.nodes for value in reads_inside(inner)} | {*node.body.outputs}
    nodes = [inner for inner in node.body.nodes if node.condition not in inner.defs or node.condition in read]
    return replace(node.body, nodes=tuple(nodes))


def _drop_axis(spec: TensorSpec, axis: int) -> TensorSpec:
    """Return the spec without an axis."""
    return TensorSpec(spec.dtype, (*spec.shape[:axis], *spec.shape[axis + 1 :]))


def _insert_axes(spec: TensorSpec, axis: int, extents: Sequence[int]) -> TensorSpec:
    """Return the spec with the axes `extents` inserted at `axis`."""
    return TensorSpec(spec.dtype, (*spec.shape[:axis], *extents, *spec.shape[axis:]))


def can_strip_mine(node: While, rounds: int) -> bool:
    """True if a loop with this number of iterations can be strip-mined.

    All values must be planned, and every stack must have exactly one row an iteration.
    """
    stacks = zip(node.rows, node.stacked_outputs, node.row_axes, strict=True)
    planned = all(value.plannable for value in (*node.uses, *node.body.values()))
    return planned and all(
        whole is None or (isinstance(whole.spec, TensorSpec) and whole.spec.shape[axis] == rounds)
        for _, whole, axis in stacks
    )
