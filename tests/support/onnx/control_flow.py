"""Branches, loops and local functions of random ONNX models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper

from tests.support.onnx.models import COUNT, DEEPEST, F32, FLAG, LOCAL, Block, Function, Known, Writer

CURVES = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Identity", "Softsign")


def branch(w: Writer, block: Block) -> Sequence[Known]:
    if block.depth >= DEEPEST:
        return ()
    condition = w.flag(block)
    first, second = block.inner(), block.inner()
    w.fill(first, 3)
    w.fill(second, 3)
    models = [w.fitting(first, lambda value: True) for _ in range(w.rng.randint(1, 3))]
    wanted = [value for value in models if value is not None]
    others = [w.exactly(second, value.dtype, value.shape or ()) for value in wanted]
    same = [value.shape for value in wanted]
    if w.chance(0.1) and wanted:
        other = w.fitting(second, lambda value: value.dtype == wanted[0].dtype)
        if other is not None:
            others[0] = other
            same[0] = wanted[0].shape if other.shape == wanted[0].shape else None
    arms = [
        w.graph(first, (), w.results(first, wanted)),
        w.graph(second, (), w.results(second, others)),
    ]
    outs = [(value.dtype, shape) for value, shape in zip(wanted, same, strict=True)]
    return w.add(block, "If", [condition], *outs, then_branch=arms[0], else_branch=arms[1]) if wanted else ()


def loop(w: Writer, block: Block) -> Sequence[Known]:
    """Rounds: a constant number, often none; as many as an input says; until a condition.

    The counter is not handed out as it is: ONNX Runtime then gives the number of the round that follows.
    """
    if block.depth >= DEEPEST:
        return ()
    rounds = w.rng.choice((0, 0, 1, 2, 3, 4))
    counts = w.fitting(block, lambda value: value.dtype == COUNT and value.shape == () and value.name == "count")
    from_data = w.chance(0.25) and counts is not None
    limit = counts if from_data else w.constant(block, np.array(rounds, COUNT))
    carried = [w.fitting(block, lambda value: True) for _ in range(w.rng.randint(0, 4))]
    inits = [value for value in carried if value is not None]
    body = block.inner()
    counter, going = Known(w.name("i"), COUNT, ()), Known(w.name("go"), FLAG, ())
    parameters = [Known(w.name("p"), value.dtype, value.shape) for value in inits]
    body.scope += [counter, going, *parameters]
    w.fill(body, 4)
    updates = [w.exactly(body, value.dtype, value.shape or ()) for value in parameters]
    rows = [w.fitting(body, lambda value: value.size < 64) for _ in range(w.rng.choice((0, 1, 1, 2)))]
    stacked = [row for row in rows if row is not None]
    stops = w.chance(0.3)
    condition = w.flag(body) if stops else going
    start = w.flag(block) if w.chance(0.3) else None
    given = [going.name, *(value.name for value in parameters)]
    condition, *results = w.results(body, [condition, *updates, *stacked], given)
    graph = w.graph(body, [counter, going, *parameters], [condition, *results])
    known = not (from_data or stops or start is not None)
    finals = [(value.dtype, value.shape) for value in inits]
    shapes = [(row.dtype, (rounds, *(row.shape or ())) if known else None) for row in stacked]
    if not finals and not shapes:
        return ()
    return w.add(block, "Loop", [limit, start, *inits], *finals, *shapes, body=graph)


def scan(w: Writer, block: Block) -> Sequence[Known]:
    """No state or slice is handed out as it is: ONNX Runtime then gives what happened to lie there.
    What has no elements is not sliced or stacked along later axes or backwards: there it divides by zero.
    """
    if block.depth >= DEEPEST:
        return ()
    first = w.fitting(block, lambda value: value.rank > 0 and value.shape is not None and value.shape[0] < 6)
    if first is None or first.shape is None:
        return ()
    length = first.shape[0]
    sequences, axes = [first], [0]
    if w.chance(0.5):
        other = w.fitting(block, lambda value: length in (value.shape or ()) and value.size > 0)
        if other is not None and other.shape is not None:
            sequences.append(other)
            axes.append(w.rng.choice([i for i, extent in enumerate(other.shape) if extent == length]))
    states = [w.fitting(block, lambda value: True) for _ in range(w.rng.randint(0, 2))]
    inits = [value for value in states if value is not None]
    body = block.inner()
    parameters = [Known(w.name("s"), value.dtype, value.shape) for value in inits]
    slices = [
        Known(w.name("e"), value.dtype, tuple(d for i, d in enumerate(value.shape or ()) if i != axis))
        for value, axis in zip(sequences, axes, strict=True)
    ]
    body.scope += [*parameters, *slices]
    w.fill(body, 4)
    updates = [w.exactly(body, value.dtype, value.shape or ()) for value in parameters]
    rows = [w.fitting(body, lambda value: value.size < 64) for _ in range(w.rng.randint(1, 2))]
    stacked = [row for row in rows if row is not None]
    results = w.results(body, [*updates, *stacked])
    graph = w.graph(body, [*parameters, *slices], results, told=True)
    out_axes = [w.rng.randint(0, row.rank) if row.size and w.chance(0.3) else 0 for row in stacked]
    finals = [(value.dtype, value.shape) for value in inits]
    wholes = []
    for row, axis in zip(stacked, out_axes, strict=True):
        shape = row.shape or ()
        wholes.append((row.dtype, (*shape[:axis], length, *shape[axis:])))
    return w.add(
        block, "Scan", [*inits, *sequences], *finals, *wholes, body=graph, num_scan_inputs=len(sequences),
        scan_input_axes=axes, scan_output_axes=out_axes,
        scan_input_directions=[int(w.chance(0.3) and value.size > 0) for value in sequences],
        scan_output_directions=[int(w.chance(0.3) and row.size > 0) for row in stacked],
    )  # fmt: skip


def call(w: Writer, block: Block) -> Sequence[Known]:
    """A call of a local function, in a body as well as outside."""
    if not w.functions:
        return ()
    function = w.rng.choice(w.functions)
    first = w.fitting(block, lambda value: value.dtype == F32)
    if first is None:
        return ()
    inputs = [first] + [w.exactly(block, F32, first.shape or ()) for _ in range(function.inputs - 1)]
    if function.branches:
        inputs.append(w.flag(block))
    outs = [(F32, first.shape)] * len(function.proto.output)
    attrs = {"slope": 0.25} if function.proto.attribute else {}
    return w.add(block, function.proto.name, inputs, *outs, domain=LOCAL, **attrs)


def functions(w: Writer) -> list[Function]:
    """None to two; the second may call the first."""
    found: list[Function] = []
    for _ in range(w.rng.choice((0, 0, 1, 1, 2))):
        found.append(_function(w, found))
    return found


def _function(w: Writer, earlier: Sequence[Function]) -> Function:
    inputs = [f"a{i}" for i in range(w.rng.randint(1, 2))]
    names, nodes, slope = list(inputs), [], w.chance(0.4)
    for i in range(w.rng.randint(1, 4)):
        read, to = w.rng.choice(names), f"t{i}"
        inner = w.rng.choice(earlier) if earlier and w.chance(0.3) else None
        if inner is not None and not inner.branches and not inner.proto.attribute:
            outs = [to, *(f"t{i}_{k}" for k in range(1, len(inner.proto.output)))]
            nodes.append(helper.make_node(inner.proto.name, [read] * inner.inputs, outs, domain=LOCAL))
        elif w.chance(0.4):
            nodes.append(helper.make_node(w.rng.choice(("Add", "Mul", "Sub")), [read, w.rng.choice(names)], [to]))
        else:
            nodes.append(helper.make_node(w.rng.choice(CURVES), [read], [to]))
        names.append(to)
    if slope:
        node = helper.make_node("LeakyRelu", [names[-1]], ["sloped"])
        node.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
        nodes.append(node)
        names.append("sloped")
    branches = w.chance(0.3)
    if branches:
        nodes.append(_branching(w, names))
        names.append("chosen")
        inputs.append("flag")
    outputs = [names[-1]] + ([names[-2]] if names[-2] not in inputs and w.chance(0.3) else [])
    proto = helper.make_function(
        LOCAL, w.name("f"), inputs, outputs, nodes,
        [helper.make_opsetid("", w.opset), helper.make_opsetid(LOCAL, 1)], ["slope"] if slope else [],
    )  # fmt: skip
    return Function(proto, len(inputs) - branches, branches)


def _branching(w: Writer, names: Sequence[str]) -> onnx.NodeProto:
    arms = []
    for key in ("then", "else"):
        out = f"{key}_out"
        node = helper.make_node(w.rng.choice(CURVES), [w.rng.choice(names)], [out])
        arms.append(helper.make_graph([node], key, [], [helper.make_empty_tensor_value_info(out)]))
    return helper.make_node("If", ["flag"], ["chosen"], then_branch=arms[0], else_branch=arms[1])
