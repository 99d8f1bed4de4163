"""A recurrent network as an ONNX Loop: the state is carried from round to round."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.models.builder import Builder


def lstm_loop(steps: int = 100, batch: int = 1, inputs: int = 256, hidden: int = 512) -> onnx.ModelProto:
    """One LSTM layer over [steps, batch, inputs]; all hidden states come out, and the last state."""
    b = Builder("lstm_loop")
    sequence = b.input("sequence", (steps, batch, inputs))
    hidden_0 = b.input("hidden_0", (batch, hidden))
    cell_0 = b.input("cell_0", (batch, hidden))
    body = _body(b, sequence, batch, inputs, hidden)
    count = b.constant(np.array(steps, dtype=np.int64))
    start = b.constant(np.array(True))
    last, cell, states = b.ops("Loop", 3, count, start, hidden_0, cell_0, body=body)
    return b.model(states=states, hidden_n=last, cell_n=cell)


def _body(outer: Builder, sequence: str, batch: int, inputs: int, hidden: int) -> onnx.GraphProto:
    """One time step; the weights and the sequence are captured from the graph around."""
    w, r = outer.random_weight(inputs, 4 * hidden), outer.random_weight(hidden, 4 * hidden)
    bias = outer.filled(0.01, 4 * hidden)
    b = Builder("step")
    gates = b.op("Add", b.op("MatMul", b.op("Gather", sequence, "time"), w), b.op("MatMul", "hidden", r))
    i, o, f, c = b.ops("Split", 4, b.op("Add", gates, bias), axis=-1)
    kept = b.op("Mul", b.op("Sigmoid", f), "cell")
    new = b.op("Mul", b.op("Sigmoid", i), b.op("Tanh", c))
    cell = b.op("Add", kept, new)
    state = b.op("Mul", b.op("Sigmoid", o), b.op("Tanh", cell))
    results = {"goon_next": "goon", "hidden_next": state, "cell_next": cell, "state": state}
    for node in b.nodes:
        node.name = f"step_{node.name}"
    nodes = [*b.nodes, *(helper.make_node("Identity", [x], [name], name=f"step_{name}") for name, x in results.items())]
    shape = (batch, hidden)
    return helper.make_graph(
        nodes,
        "step",
        [
            helper.make_tensor_value_info("time", TensorProto.INT64, ()),
            helper.make_tensor_value_info("goon", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("hidden", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("cell", TensorProto.FLOAT, shape),
        ],
        [
            helper.make_tensor_value_info("goon_next", TensorProto.BOOL, ()),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in list(results)[1:]),
        ],
    )
