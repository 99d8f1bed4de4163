"""Operators of several outputs of random ONNX models, some of which are left out, or read by nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.support.onnx.control_flow import functions
from tests.support.onnx.models import COUNT, F32, FLAG, Block, Known, Program, Step, Writer, program
from tests.support.onnx.operators import CONTROL, SIMPLE, kinds, reads, shape_of, with_axis


def _several(
    w: Writer, block: Block, op: str, inputs: Sequence[Known | None], outs: Sequence[tuple[Any, Any]], **attrs: Any
) -> Sequence[Known]:
    """A node whose outputs after the first are optional: some get no name, and some no reader."""
    made = list(w.add(block, op, inputs, *outs, **attrs))
    node = block.nodes[-1]
    for i in range(len(made) - 1, 0, -1):
        if w.chance(0.4):
            block.scope.remove(made[i])
            if w.chance(0.6):
                node.output[i] = ""
    while not node.output[-1]:
        del node.output[-1]
    return [value for value in made if value.name in node.output and value in block.scope]


def pooled(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "MaxPool", lambda value: value.rank == 3 and shape_of(value)[2] > 1 and value.size > 0)
    if value is None:
        return ()
    outer = (*shape_of(value)[:2], shape_of(value)[2] - 1)
    return _several(w, block, "MaxPool", [value], [(value.dtype, outer), (COUNT, outer)], kernel_shape=[2])


def dropped(w: Writer, block: Block) -> Sequence[Known]:
    value = reads(w, block, "Dropout")
    if value is None:
        return ()
    return _several(w, block, "Dropout", [value], [(value.dtype, value.shape), (FLAG, value.shape)])


def normalized(w: Writer, block: Block) -> Sequence[Known]:
    value = w.fitting(block, lambda value: value.dtype == F32 and value.rank > 0 and value.size > 0)
    if value is None or w.opset < 17:
        return ()
    width, few = shape_of(value)[-1:], (*shape_of(value)[:-1], 1)
    inputs = [value, w.exactly(block, F32, width)] + ([w.exactly(block, F32, width)] if w.chance(0.5) else [])
    return _several(w, block, "LayerNormalization", inputs, [(F32, value.shape), (F32, few), (F32, few)])


def trained(w: Writer, block: Block) -> Sequence[Known]:
    """Not in a body: ONNX Runtime then writes the new mean over the constant that it starts from."""
    value = w.fitting(block, lambda value: value.dtype == F32 and value.rank in (2, 3) and value.size > 0)
    if value is None or w.opset < 14 or block.depth:
        return ()
    channels = shape_of(value)[1:2]
    inputs = [value, *(w.constant(block, np.abs(w.array(F32, channels))) for _ in range(4))]
    made = w.add(block, "BatchNormalization", inputs, (F32, value.shape), *[(F32, channels)] * 2, training_mode=1)
    for value in made[1:]:
        if w.chance(0.5):
            block.scope.remove(value)
    return [value for value in made if value in block.scope]


def recurrent(w: Writer, block: Block) -> Sequence[Known]:
    """The first output can be left out as well."""
    op, gates, states = w.rng.choice((("RNN", 1, 1), ("GRU", 3, 1), ("LSTM", 4, 2)))
    value = w.fitting(block, lambda value: value.dtype == F32 and value.rank == 3 and value.size > 0)
    if value is None:
        return ()
    steps, batch, width = shape_of(value)
    weights = [w.constant(block, w.array(F32, (1, gates * 3, n))) for n in (width, 3)]
    outs = [(F32, (steps, 1, batch, 3)), *[(F32, (1, batch, 3))] * states]
    made = w.add(block, op, [value, *weights], *outs, hidden_size=3)
    node = block.nodes[-1]
    kept = w.rng.randrange(len(made))
    for i, value in enumerate(made):
        if i != kept and w.chance(0.5):
            node.output[i] = ""
            block.scope.remove(value)
    while not node.output[-1]:
        del node.output[-1]
    return [value for value in made if value in block.scope]


def quantized(w: Writer, block: Block) -> Sequence[Known]:
    value = w.fitting(block, lambda value: value.dtype == F32 and value.size > 0)
    if value is None:
        return ()
    outs = [(np.uint8, value.shape), (F32, ()), (np.uint8, ())]
    made = w.add(block, "DynamicQuantizeLinear", [value], *outs)
    return w.add(block, "DequantizeLinear", made, (F32, value.shape))


def largest(w: Writer, block: Block) -> Sequence[Known]:
    found = with_axis(w, block, "TopK")
    if found is None or not shape_of(found[0])[found[1]]:
        return ()
    value, axis = found
    count = w.rng.randint(0, shape_of(value)[axis])
    shape = (*shape_of(value)[:axis], count, *shape_of(value)[axis + 1 :])
    made = w.add(block, "TopK", [value, w.indices(block, count)], (value.dtype, shape), (COUNT, shape), axis=axis)
    if w.chance(0.5):
        block.scope.remove(made[w.rng.randrange(2)])
    return [value for value in made if value in block.scope]


def unlike(w: Writer, block: Block) -> Sequence[Known]:
    """Outputs whose extents depend on data."""
    if w.chance(0.5):
        value = w.fitting(block, lambda value: value.dtype in kinds("NonZero", w.opset))
        return w.add(block, "NonZero", [value], (COUNT, None)) if value else ()
    value = w.fitting(block, lambda value: value.dtype in (F32, COUNT) and value.rank == 1)
    if value is None:
        return ()
    return _several(w, block, "Unique", [value], [(value.dtype, None), *[(COUNT, None)] * 3])


SEVERAL: tuple[Step, ...] = (pooled, dropped, normalized, trained, recurrent, quantized, largest, unlike)


def onnx_program(seed: int) -> Program:
    """The random model of a seed."""
    return program(seed, (*SIMPLE, *SEVERAL, *CONTROL), functions)
