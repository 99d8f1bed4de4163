"""The gradient of a loop with checkpoints: strip-mine the loop into chunks and differentiate each chunk.

The chunks are nested loops (`strip_mining`). The backward walks over the chunks from the last to the first. All results
equal the gradient of the original loop bit by bit: the commands and operands are the same, and sums continue in the
order of iterations from chunk to chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sublet.ir.graph import Value, While
from sublet.passes.accumulate import Contributions
from sublet.passes.autodiff.level import Flow, Level, zeros
from sublet.passes.autodiff.loops import Back, differentiated, loop_gradient, tape_bytes
from sublet.passes.autodiff.nests import Span, foldable, joined, nest
from sublet.passes.autodiff.paths import spread
from sublet.passes.autodiff.rounds import rounds_of
from sublet.passes.autodiff.schedules import SQRT, Chunk, asked_for, chunks_of
from sublet.passes.rewriting import is_pure


def cut_gradient(level: Level, node: While, grads: Sequence[Value | None], found: Contributions) -> list[Flow]:
    """Return the gradients of initial values and sequences of a loop, stored by the requested checkpoint strategy."""
    chunks = _chunks(level, node, grads)
    if not any(chunk.cut for chunk in chunks):
        return loop_gradient(level, node, grads, found)
    if len(chunks) == 1 and len(chunks[0].extents) == 1:
        level.trail.cut[node.name] = True
        return loop_gradient(level, node, grads, found)
    spans, begin = list[Span](), 0
    for chunk in chunks:
        spans.append(Span(chunk, begin))
        begin += chunk.rounds
    loops = _cut(level, node, spans)
    return _flows(level, node, spans, loops, grads, found)


def _chunks(level: Level, node: While, grads: Sequence[Value | None]) -> tuple[Chunk, ...]:
    """Return the chunks of a loop, or an empty tuple if the loop cannot be strip-mined or already is."""
    checkpoint, rounds = asked_for(level.trail.asked, node.name), rounds_of(node)
    if node.name in level.trail.cut or rounds is None or not foldable(node, rounds) or not is_pure(node):
        return ()
    begins, row = tape_bytes(level, node, grads) if checkpoint == SQRT else (0, 0)
    return chunks_of(checkpoint, rounds, begins, row)


def _cut(level: Level, node: While, spans: Sequence[Span]) -> list[While]:
    """Replace the forward loop by the loops of the spans, and return the loops."""
    emit, names = level.forward.inside(), level.forward.names
    emit.source, emit.scope = node.source, f"{node.name}."
    carried, loops = list(node.inits), list[While]()
    for span in spans:
        finals: list[Value | None] = list(node.finals)
        if span is not spans[-1]:
            finals = [Value(names.fresh(f"{value.name}.then"), value.spec) for value in node.parameters]
        loops.append(nest(emit, node, span, carried, finals, level.trail.cut))
        carried = [value for value in finals if value is not None] if span is not spans[-1] else carried
    for j, (whole, axis, backwards) in enumerate(zip(node.stacked, node.row_axes, node.row_reversed, strict=True)):
        if whole is not None:
            each = [span.unfolded(emit, _stack(loop, j), axis) for span, loop in zip(spans, loops, strict=True)]
            joined(emit, each, axis, backwards)
            emit.nodes[-1] = replace(emit.nodes[-1], outputs=(whole,))
    spread(emit.nodes, level.trail.active)
    level.replace(node, *emit.nodes)
    return loops


def _stack(loop: While, j: int) -> Value:
    """Return stacked output j, required to be present."""
    found = loop.stacked[j]
    assert found is not None
    return found


def _flows(
    level: Level,
    node: While,
    spans: Sequence[Span],
    loops: Sequence[While],
    grads: Sequence[Value | None],
    found: Contributions,
) -> list[Flow]:
    """Return the contributions to initial values and sequences from the backwards of all spans, last span first."""
    emit, carried = level.emit, list(grads[: node.carried])
    stacked = list(zip(grads[node.carried :], node.row_axes, node.row_reversed, strict=True))
    backs = list[tuple[Span, While, Back]]()
    for span, loop in list(zip(spans, loops, strict=True))[::-1]:
        rows = [None if g is None else span.folded(emit, g, axis, backwards) for g, axis, backwards in stacked]
        back = differentiated(level, loop, [*carried, *rows], found, again=level.trail.cut[loop.name])
        carried = [back.inits.get(i) for i in range(node.carried)]
        backs.insert(0, (span, loop, back))
    flows: list[Flow] = [(node.inits[i], grad, None) for i, grad in enumerate(carried) if grad is not None]
    for j, (axis, backwards) in enumerate(zip(node.slice_axes, node.slice_reversed, strict=True)):
        whole = node.sequences[j]
        step_grads = [{lane.whole: grad for lane, grad in back.steps}.get(loop.sequences[j]) for _, loop, back in backs]
        if all(grad is None for grad in step_grads):
            continue
        parts = [
            span.unfolded(emit, grad or zeros(emit, loop.sequences[j]), axis)
            for (span, loop, _), grad in zip(backs, step_grads, strict=True)
        ]
        box = Span(Chunk((sum(span.chunk.rounds for span in spans),)), 0)
        shape = whole.spec.shape  # type: ignore[union-attr]
        flows.append((whole, joined(emit, parts, axis, backwards), box.box(shape, axis, backwards)))
    return flows
