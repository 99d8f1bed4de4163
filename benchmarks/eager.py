"""PyTorch computing a graph of the nn dialect the way its users do: eagerly, with its own functions and autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import getitem
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from sublet.base.ranges import split_evenly
from sublet.base.tensor import DType, TensorSpec
from sublet.ir.dataflow import reads_inside
from sublet.ir.graph import CaseOf, Graph, Node, Value, While

Tensor = torch.Tensor
Compute = Callable[..., Any]

TYPES = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.BOOL: torch.bool,
}


def _same_pads(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    pads = attrs["pads"]
    half = len(pads) // 2
    assert pads[:half] == pads[half:], "PyTorch pads both ends alike"
    return tuple(pads[:half])


def _conv(x: Tensor, w: Tensor, b: Tensor | None = None, **a: Any) -> Tensor:
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[x.ndim - 2]
    return function(x, w, b, a["strides"], _same_pads(a), a["dilations"], a["groups"])


def _batch_norm(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, **a: Any) -> tuple[Any, ...]:
    y = F.batch_norm(x, mean, var, scale, bias, True, a["momentum"], a["epsilon"])  # updates mean and var in place
    return y, mean, var, None, None


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, **a: Any) -> tuple[Any, ...]:
    q, k, v = (x.transpose(1, 2) if a["layout"] == "bthd" else x for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(a["causal"]), scale=a["scale"])
    return y.transpose(1, 2) if a["layout"] == "bthd" else y, None


def _lstm_cell(gates: Tensor, c: Tensor, **a: Any) -> tuple[Tensor, ...]:
    i, f, g, o = gates.chunk(4, -1)
    new = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(new), new


def _reduced(function: Compute) -> Compute:
    def reduce(x: Tensor, axes: tuple[int, ...], keepdims: int) -> Tensor:
        return function(x, axes or tuple(range(x.ndim)), bool(keepdims)) if x.ndim else x

    return reduce


FUNCTIONS: Mapping[str, Compute] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": F.silu,
    "gelu": lambda x, approximate: F.gelu(x, approximate="tanh" if approximate else "none"),
    "softmax": lambda x, axis: torch.softmax(x, axis),
    "matmul": lambda a, b, transpose_a, transpose_b: (a.mT if transpose_a else a) @ (b.mT if transpose_b else b),
    "linear": lambda x, w, b=None: F.linear(x, w, b),
    "conv": _conv,
    "max_pool": lambda x, **a: F.max_pool2d(
        x, a["kernel"], a["strides"], _same_pads(a) or 0, ceil_mode=bool(a["ceil"])
    ),
    "avg_pool": lambda x, **a: F.avg_pool2d(x, a["kernel"], a["strides"], _same_pads(a) or 0),
    "upsample": lambda x, **a: F.interpolate(x, a["size"], mode=a["mode"]),
    "batch_norm": _batch_norm,
    "layer_norm": lambda x, s=None, b=None, **a: (
        F.layer_norm(x, x.shape[-a["axes"] :], s, b, a["epsilon"]),
        None,
        None,
    ),
    "attention": _attention,
    "lstm_cell": _lstm_cell,
    "sum": _reduced(torch.sum),
    "mean": _reduced(torch.mean),
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, axes: x.permute(axes),
    "broadcast_to": lambda x, shape: x.expand(shape),
    "slice": lambda x, starts, ends, steps: x[tuple(map(slice, starts, ends, steps))],
    "concat": lambda *xs, axis: torch.cat(xs, axis),
    "embedding": lambda w, indices: F.embedding(indices, w),
    "softmax_cross_entropy": lambda x, labels: (F.cross_entropy(x, labels, reduction="none"), None),
    "less": torch.lt,
    "greater": torch.gt,
    "cast": lambda x, dtype: x.to(TYPES[DType.parse(dtype)]),
}


SEVERAL = ("batch_norm", "layer_norm", "attention", "lstm_cell", "softmax_cross_entropy")
"""Those that give a tuple."""


def run(graph: Graph, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a graph by the names of their values; `given` has its inputs and weights but the literals."""
    places = _given(graph, given)
    _run(graph.nodes, places, kept=frozenset(graph.outputs))
    return {value.name: places[value] for value in graph.outputs}


def checkpointed(graph: Graph, given: Mapping[str, Tensor], stretches: int) -> Tensor:
    """The one output of a graph, computed in stretches of as many nodes each; all but the last are computed again in
    the backward, from what was made before them and is read in them."""
    places = _given(graph, given)
    for begin, end in split_evenly(len(graph.nodes), stretches):
        nodes = graph.nodes[begin:end]
        wanted = {*graph.outputs}.union(*(reads_inside(node) for node in graph.nodes[end:]))
        read = [value for value in places if any(value in reads_inside(node) for node in nodes)]
        made = [value for node in nodes for value in node.defs if value in wanted]

        def stretch(
            *operands: Tensor, nodes: tuple[Node, ...] = nodes, read: list[Value] = read, made: list[Value] = made
        ) -> tuple[Tensor, ...]:
            inside = dict(zip(read, operands, strict=True))
            _run(nodes, inside, kept=frozenset(made))
            return tuple(inside[value] for value in made)

        operands = [places[value] for value in read]
        found = checkpoint(stretch, *operands, use_reentrant=False) if end < len(graph.nodes) else stretch(*operands)
        operands.clear()
        places = {value: place for value, place in places.items() if value in wanted}
        places.update(zip(made, found, strict=True))
        del found
    (output,) = graph.outputs
    return places[output]


def traced(graph: Graph) -> tuple[torch.fx.GraphModule, tuple[str, ...]]:
    """A graph without control flow as a module that gives its one output, and the names of its operands."""
    written = torch.fx.Graph()
    names = tuple(value.name for value in (*graph.inputs, *graph.weights) if value.literal is None)
    at = {
        value: written.placeholder(f"operand{i}")
        for i, value in enumerate((*graph.inputs, *graph.weights))
        if value.literal is None
    }
    module = torch.nn.Module()
    for i, (value, tensor) in enumerate(_literals(graph).items()):
        module.register_buffer(f"literal{i}", tensor)
        at[value] = written.get_attr(f"literal{i}")
    for node in graph.nodes:
        operands = [None if value is None else at[value] for value in node.inputs]
        while operands and operands[-1] is None:
            operands.pop()
        result = written.call_function(FUNCTIONS[node.op.removeprefix("nn.")], tuple(operands), dict(node.attrs))
        several = node.op.removeprefix("nn.") in SEVERAL
        for i, value in enumerate(node.outputs):
            if value is not None:
                at[value] = written.call_function(getitem, (result, i)) if several else result
    written.output(at[graph.outputs[0]])
    return torch.fx.GraphModule(module, written), names


def _given(graph: Graph, given: Mapping[str, Tensor]) -> dict[Value, Any]:
    """What is there before the first node."""
    named = {value: given[value.name] for value in (*graph.inputs, *graph.weights) if value.name in given}
    return {**named, **_literals(graph)}


def _literals(graph: Graph) -> dict[Value, Tensor]:
    return {
        value: torch.tensor(value.literal, dtype=TYPES[value.spec.dtype]).reshape(value.spec.shape)
        for value in graph.weights
        if value.literal is not None and isinstance(value.spec, TensorSpec)
    }


def _run(nodes: tuple[Node, ...], places: dict[Value, Any], kept: frozenset[Value] | None = None) -> None:
    """Compute nodes; when it is told what is to be kept, forget the rest once it is read, as Python does."""
    last = {value: i for i, node in enumerate(nodes) for value in reads_inside(node)} if kept is not None else {}
    for i, node in enumerate(nodes):
        if isinstance(node, While):
            _loop(node, places)
        elif isinstance(node, CaseOf):
            _branch(node, places)
        else:
            operands = [None if value is None else places[value] for value in node.inputs]
            while operands and operands[-1] is None:
                operands.pop()
            results = FUNCTIONS[node.op.removeprefix("nn.")](*operands, **node.attrs)
            for value, result in zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=False):
                if value is not None:
                    places[value] = result
            operands = results = result = None
        for value in [value for value in reads_inside(node) if last.get(value) == i and value not in (kept or ())]:
            places.pop(value, None)


def _loop(node: While, places: dict[Value, Any]) -> None:
    carried = [places[value] for value in node.inits]
    rows: list[list[Tensor]] = [[] for _ in node.rows]
    number = 0
    while True:
        inside = dict(places)
        inside[node.counter] = torch.tensor(number)
        inside.update(zip(node.parameters, carried, strict=True))
        _run(node.body.nodes[: node.check], inside)
        if not bool(inside[node.condition]):
            break
        for value, sequence, backwards in zip(node.slices, node.sequences, node.slice_reversed, strict=True):
            inside[value] = places[sequence][-1 - number if backwards else number]
        _run(node.body.nodes[node.check :], inside)
        carried = [inside[value] for value in node.updates]
        for found, value in zip(rows, node.rows, strict=True):
            found.append(inside[value])
        number += 1
    places.update({final: value for final, value in zip(node.finals, carried, strict=True) if final is not None})
    for stacked, found, backwards in zip(node.stacked_outputs, rows, node.row_reversed, strict=True):
        if stacked is not None:
            places[stacked] = torch.stack(found[::-1] if backwards else found)


def _branch(node: CaseOf, places: dict[Value, Any]) -> None:
    index = int(places[node.index])
    inside = dict(places)
    if index >= 0:
        _run(node.arms[index].nodes, inside)
    results = node.arms[index].outputs if index >= 0 else node.fallbacks
    places.update({to: inside[value] for to, value in zip(node.outputs, results, strict=True) if to is not None})


def tensors(contents: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays as tensors of their own."""
    return {name: torch.tensor(np.asarray(array)) for name, array in contents.items()}
