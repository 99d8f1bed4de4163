"""The gradient of a loop with checkpoints: strip-mine the loop into chunks and differentiate each chunk.

The chunks are nested loops (`strip_mining`). The backward walks over the chunks from the last to the first. All results
equal the gradient of the original loop bit by bit: the commands and operands are the same, and sums continue in the
order of iterations from chunk to chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.ir.graph import Value, While
from sublet.passes.autodiff.activity import propagate_activity
from sublet.passes.autodiff.backward_level import BackwardLevel, Contribution, zero_gradient
from sublet.passes.autodiff.checkpoint_schedules import SQRT, Chunk, checkpoint_of, chunks_of
from sublet.passes.autodiff.loop_backward import LoopBackward, differentiate_loop, loop_gradient, tape_bytes
from sublet.passes.autodiff.strip_mining import ChunkSpan, can_strip_mine, concat_chunks, strip_mine
from sublet.passes.autodiff.trip_count import trip_count_of
from sublet.passes.gradient_sums import Contributions
from sublet.passes.rewriting import is_pure


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
