"""Reverse-mode differentiation as a graph pass: gradients are additional nodes of the same graph.

In SSA form every value has a single definition. When the backward walk reaches the definition, the gradient of the
value is complete, and summed only then. The walk visits only nodes between the differentiated values and the values of
`wrt`, in loops and branches too. The gradient of a loop is a loop, and the gradient of a branch a branch: the result
can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sublet.base.errors import GradientError
from sublet.base.tensor import TensorSpec
from sublet.ir.dataflow import required_values
from sublet.ir.graph import CaseOf, Graph, Node, Value, While
from sublet.ops import lookup
from sublet.ops.emitter import Emitter
from sublet.ops.nn.command import pick, spec_of
from sublet.ops.nn.conversion import STOP_GRADIENT
from sublet.ops.op import GradientByExpansion
from sublet.passes.autodiff.activity import active_values, is_differentiable, propagate_activity
from sublet.passes.autodiff.backward_level import (
    BackwardContext,
    BackwardLevel,
    Contribution,
    gradient_error,
    makers_of,
    nodes_needed_for,
    zero_gradient,
)
from sublet.passes.autodiff.branch_backward import branch_gradient
from sublet.passes.autodiff.checkpoint_schedules import (
    SQRT,
    Checkpoints,
    Chunk,
    check_checkpoints,
    checkpoint_of,
    chunks_of,
)
from sublet.passes.autodiff.loop_backward import LoopBackward, differentiate_loop, loop_gradient, tape_bytes
from sublet.passes.autodiff.strip_mining import ChunkSpan, can_strip_mine, concat_chunks, strip_mine
from sublet.passes.autodiff.trip_count import trip_count_of
from sublet.passes.gradient_sums import Box, Contributions, full_box_of
from sublet.passes.rewriting import is_pure

# The gradient of a loop with checkpoints: strip-mine the loop into chunks and differentiate each chunk.
#
# The chunks are nested loops (`strip_mining`). The backward walks over the chunks from the last to the first. All
# results equal the gradient of the original loop bit by bit: the commands and operands are the same, and sums continue
# in the order of iterations from chunk to chunk.


def checkpointed_loop_gradient(
    level: BackwardLevel, node: While, grads: Sequence[Value | None], contributions: Contributions
) -> list[Contribution]:
    """Return the gradients of initial values and sequences of a loop, stored by the requested checkpoint strategy."""
    chunks = _chunks_for(level, node, grads)
    if not any(chunk.has_recomputation for chunk in chunks):
        return loop_gradient(level, node, grads, contributions)
    if len(chunks) == 1 and len(chunks[0].extents) == 1:
        level.context.recompute_loops[node.name] = True
        return loop_gradient(level, node, grads, contributions)
    spans, begin = list[ChunkSpan](), 0
    for chunk in chunks:
        spans.append(ChunkSpan(chunk, begin))
        begin += chunk.iterations
    loops = _replace_with_chunks(level, node, spans)
    return _chunk_contributions(level, node, spans, loops, grads, contributions)


def _chunks_for(level: BackwardLevel, node: While, grads: Sequence[Value | None]) -> tuple[Chunk, ...]:
    """Return the chunks of a loop, or an empty tuple if the loop cannot be strip-mined or already is."""
    checkpoint, rounds = checkpoint_of(level.context.checkpoints, node.name), trip_count_of(node)
    if (
        node.name in level.context.recompute_loops
        or rounds is None
        or not can_strip_mine(node, rounds)
        or not is_pure(node)
    ):
        return ()
    begins, row = tape_bytes(level, node, grads) if checkpoint == SQRT else (0, 0)
    return chunks_of(checkpoint, rounds, begins, row)


def _replace_with_chunks(level: BackwardLevel, node: While, spans: Sequence[ChunkSpan]) -> list[While]:
    """Replace the forward loop by the loops of the spans, and return the loops."""
    emit, names = level.forward.for_subgraph(), level.forward.names
    emit.source, emit.scope = node.source, f"{node.name}."
    carried, loops = list(node.inits), list[While]()
    for span in spans:
        finals: list[Value | None] = list(node.finals)
        if span is not spans[-1]:
            finals = [Value(names.fresh(f"{value.name}.then"), value.spec) for value in node.parameters]
        loops.append(strip_mine(emit, node, span, carried, finals, level.context.recompute_loops))
        carried = [value for value in finals if value is not None] if span is not spans[-1] else carried
    for j, (whole, axis, backwards) in enumerate(
        zip(node.stacked_outputs, node.row_axes, node.row_reversed, strict=True)
    ):
        if whole is not None:
            each = [
                span.unfold_axis(emit, _stacked_output(loop, j), axis) for span, loop in zip(spans, loops, strict=True)
            ]
            concat_chunks(emit, each, axis, backwards)
            emit.nodes[-1] = replace(emit.nodes[-1], outputs=(whole,))
    propagate_activity(emit.nodes, level.context.active)
    level.replace_node(node, *emit.nodes)
    return loops


def _stacked_output(loop: While, j: int) -> Value:
    """Return stacked output j, required to be present."""
    contributions = loop.stacked_outputs[j]
    assert contributions is not None
    return contributions


def _chunk_contributions(
    level: BackwardLevel,
    node: While,
    spans: Sequence[ChunkSpan],
    loops: Sequence[While],
    grads: Sequence[Value | None],
    contributions: Contributions,
) -> list[Contribution]:
    """Return the contributions to initial values and sequences from the backwards of all spans, last span first."""
    emit, carried = level.emit, list(grads[: node.carried])
    stacked = list(zip(grads[node.carried :], node.row_axes, node.row_reversed, strict=True))
    backs = list[tuple[ChunkSpan, While, LoopBackward]]()
    for span, loop in list(zip(spans, loops, strict=True))[::-1]:
        rows = [None if g is None else span.fold_axis(emit, g, axis, backwards) for g, axis, backwards in stacked]
        again = level.context.recompute_loops[loop.name]
        back = differentiate_loop(level, loop, [*carried, *rows], contributions, again=again)
        carried = [back.init_grads.get(i) for i in range(node.carried)]
        backs.insert(0, (span, loop, back))
    flows: list[Contribution] = [(node.inits[i], grad, None) for i, grad in enumerate(carried) if grad is not None]
    for j, (axis, backwards) in enumerate(zip(node.slice_axes, node.slice_reversed, strict=True)):
        whole = node.sequences[j]
        step_grads = [
            {lane.whole: grad for lane, grad in back.step_grads}.get(loop.sequences[j]) for _, loop, back in backs
        ]
        if all(grad is None for grad in step_grads):
            continue
        parts = [
            span.unfold_axis(emit, grad or zero_gradient(emit, loop.sequences[j]), axis)
            for (span, loop, _), grad in zip(backs, step_grads, strict=True)
        ]
        box = ChunkSpan(Chunk((sum(span.chunk.iterations for span in spans),)), 0)
        shape = whole.spec.shape  # type: ignore[union-attr]
        flows.append((whole, concat_chunks(emit, parts, axis, backwards), box.box(shape, axis, backwards)))
    return flows


def gradients(
    graph: Graph,
    of: Sequence[Value],
    wrt: Sequence[Value],
    seeds: Sequence[Value] | None = None,
    checkpoint: Checkpoints = None,
) -> tuple[Graph, tuple[Value, ...]]:
    """Return the graph with the gradients of `of` by `wrt` as further nodes and outputs, and the gradients.

    `of` and `wrt` are floating-point values of the root graph: inputs, weights, or results of nodes. `seeds` are values
    of the graph, the gradients of `of`; the default is ones, to differentiate the sum of all elements of `of`. Values
    without influence on `of` have zeros. Each gradient has the spec of the differentiated value. `checkpoint` selects
    the loop iterations to store, see `sublet.gradients`.

    Raises GradientError for a value that is no floating-point number, is random, or is not of the root graph, and for
    an op without a gradient on the way; the message contains the source line of the node.
    """
    known = {*graph.inputs, *graph.weights, *(value for node in graph.nodes for value in node.defs)}
    for value in (*of, *wrt, *(seeds or ())):
        if value not in known:
            raise GradientError(
                f"%{value.name} is not a value of the graph @{graph.name} outside its loops and branches"
            )
    for value in of:
        if not is_differentiable(value) or not isinstance(value.spec, TensorSpec):
            raise GradientError(f"%{value.name} is {value.spec}: only floating-point tensors have a gradient")
    emit = Emitter.from_graph(graph)
    emit.scope = "grad/"
    seed_values = seeds if seeds is not None else [emit.full(1, spec_of(value)) for value in of]
    emit.scope = ""
    starts = _seed_gradients(emit, of, seed_values)
    found = backward(emit, graph.nodes, starts, wrt, checkpoint)
    emit.scope = "grad/"
    grads = tuple(with_zeros(emit, found, wrt))
    weights = (*graph.weights, *emit.literals.added)
    return replace(graph, nodes=tuple(emit.nodes), outputs=(*graph.outputs, *grads), weights=weights), grads


def _seed_gradients(emit: Emitter, of: Sequence[Value], seeds: Sequence[Value]) -> dict[Value, Value]:
    """Return the total seed of each value of `of`. Raises GradientError for a wrong number or spec of seeds."""
    if len(of) != len(seeds):
        raise GradientError(f"{len(seeds)} seeds for {len(of)} values: pass one seed for each value")
    contributions = Contributions()
    for value, seed in zip(of, seeds, strict=True):
        if seed.spec != value.spec:
            raise GradientError(f"the seed %{seed.name} of %{value.name} is {seed.spec}, expected {value.spec}")
        contributions.add(emit, value, seed)
    totals = ((value, contributions.total(emit, value)) for value in dict.fromkeys(of))
    return {value: total for value, total in totals if total is not None}


def backward(
    emit: Emitter,
    nodes: Sequence[Node],
    seeds: Mapping[Value, Value],
    wrt: Sequence[Value],
    checkpoint: Checkpoints = None,
) -> list[Value | None]:
    """Return the gradients of `wrt`, given the gradients `seeds` of some values computed by `nodes`; None for zero.

    `emit` holds `nodes`. The nodes computing the gradients are appended. A loop or branch in need of more outputs is
    replaced in `emit` by a node of the same name and values. Raises GradientError for a value without a gradient, or an
    op without a gradient rule on the way.
    """
    before = {node.name for node in emit.nodes}
    there = [value for node in emit.nodes for value in node.defs]
    makers = makers_of(nodes)
    for value in (*wrt, *seeds):
        _require_gradient(value, makers)
    trail = BackwardContext(active_values(nodes, wrt), makers, _walk_back, check_checkpoints(checkpoint))
    found = Contributions()
    scope, source = emit.scope, emit.source
    for value, grad in seeds.items():
        found.add(emit, value, grad)
    emit.scope = f"{scope}grad/"
    _walk_back(BackwardLevel(emit, emit, trail), nodes, found)
    emit.scope = f"{scope}grad/"
    results = [found.total(emit, value) for value in wrt]
    emit.nodes[:] = nodes_needed_for(emit.nodes, [*there, *(grad for grad in results if grad is not None)], before)
    emit.scope, emit.source = scope, source
    return results


def with_zeros(emit: Emitter, gradients: Sequence[Value | None], wrt: Sequence[Value]) -> list[Value]:
    """Return the gradients found by `backward` for values outside of loops, with separate zeros for each None."""
    return [emit.full(0, spec_of(value)) if grad is None else grad for value, grad in zip(wrt, gradients, strict=True)]


def _require_gradient(value: Value, makers: Mapping[Value, Node]) -> None:
    """Raise GradientError unless the value may have a gradient."""
    maker = makers.get(value)
    where = f" ({maker.source})" if maker is not None and maker.source else ""
    if not is_differentiable(value) or not isinstance(value.spec, TensorSpec):
        raise GradientError(f"%{value.name}{where} is {value.spec}: only floating-point values have a gradient")
    if maker is None or maker.subgraphs or not maker.uses or maker.op == STOP_GRADIENT:
        return
    if lookup(maker.op).gradient is None:
        raise GradientError(f"%{value.name}{where} is computed by {maker.op}, which has no gradient")


def _walk_back(level: BackwardLevel, nodes: Sequence[Node], contributions: Contributions) -> None:
    """Add the contributions of `nodes`, in reverse order, to `contributions` (initially those of the outputs)."""
    emit, active = level.emit, level.context.active
    scope, source = emit.scope, emit.source
    for node in reversed(nodes):
        flowing = any(value in active and value in contributions for value in node.defs)
        if not flowing or not any(value in active for value in required_values(node)):
            continue
        emit.scope, emit.source = f"grad/{node.name}/", node.source
        for value, grad, box in _contributions_of(level, node, contributions):
            contributions.add(emit, value, grad, box)
    emit.scope, emit.source = scope, source


def _contributions_of(level: BackwardLevel, node: Node, contributions: Contributions) -> list[Contribution]:
    """Return the contributions of a node to the gradients of the operands."""
    if isinstance(node, While | CaseOf):
        node = level.current_version(node)
    grads = [contributions.total(level.emit, value) for value in node.outputs]
    if isinstance(node, While):
        return checkpointed_loop_gradient(level, node, grads, contributions)
    if isinstance(node, CaseOf):
        return branch_gradient(level, node, grads)
    parts = _boxes_read(node)
    if parts is not None:
        flows: list[Contribution] = []
        for grad, box in zip(grads, parts, strict=True):
            if grad is not None:
                shape = tuple(end - begin for begin, end in box)
                grad = grad if spec_of(grad).shape == shape else level.emit("nn.reshape", grad, shape=shape)
                flows.append((node.uses[0], grad, box))
        return flows
    operands = zip(node.inputs, _input_grads(level, node, grads), strict=True)
    return [
        (operand, grad, None)
        for operand, grad in operands
        if operand is not None and grad is not None and operand in level.context.active
    ]


def _boxes_read(node: Node) -> list[Box] | None:
    """Return the box of input 0 read by each output, for a node that only takes parts; else None."""
    if node.op == "nn.slice" and all(step == 1 for step in pick(node.attrs, "steps")):
        return [tuple(zip(pick(node.attrs, "starts"), pick(node.attrs, "ends"), strict=True))]
    if node.op == "nn.split":
        whole = full_box_of(spec_of(node.uses[0]))
        axis, begin, boxes = pick(node.attrs, "axis") % len(whole), 0, list[Box]()
        for size in pick(node.attrs, "sizes"):
            boxes.append((*whole[:axis], (begin, begin + size), *whole[axis + 1 :]))
            begin += size
        return boxes
    if node.op == "nn.select" and node.uses[1].literal is not None:
        whole = full_box_of(spec_of(node.uses[0]))
        row = int(node.uses[1].literal[0])
        return [((row, row + 1), *whole[1:])] if 0 <= row < whole[0][1] else None
    return None


def _input_grads(level: BackwardLevel, node: Node, grads: Sequence[Value | None]) -> list[Value | None]:
    """Return the gradients of the inputs by the gradient rule of the op."""
    rule, emit = lookup(node.op).gradient, level.emit
    if rule is None:
        raise gradient_error(node, f"{node.op} has no gradient")
    if not isinstance(rule, GradientByExpansion):
        return list(rule(emit, node, tuple(grads)))
    begin = len(emit.nodes)
    outputs = rule.expand(emit, node)
    nodes = tuple(emit.nodes[begin:])
    propagate_activity(nodes, level.context.active)
    found = Contributions()
    for output, grad in zip(outputs, grads, strict=True):
        if grad is not None:
            found.add(emit, output, grad)
    _walk_back(BackwardLevel(emit, emit, level.context), nodes, found)
    seen: set[Value] = set()
    results: list[Value | None] = []
    for value in node.inputs:  # the gradient of a repeated input counts once
        results.append(None if value in seen else found.total(emit, value))
        seen.update({value} if value is not None else ())
    return results
