"""A small builder of ONNX models with random weights from a fixed seed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8


class Builder:
    """Collects nodes and weights; every method that adds nodes gives the name of the result.

    `channels` remembers the channels of feature maps, so that a convolution needs to be told only
    how many it makes.
    """

    def __init__(self, name: str, seed: int = 0):
        self.name = name
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.channels: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> str:
        """A network input; a text is the name of an open dimension."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        if len(shape) == 4 and isinstance(shape[1], int):
            self.channels[name] = shape[1]
        return name

    def constant(self, array: NDArray[np.generic]) -> str:
        """A weight with the given content."""
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *numbers: int) -> str:
        """A list of integers, for shapes and axes."""
        return self.constant(np.array(numbers, dtype=np.int64))

    def scalar(self, number: int) -> str:
        """A single integer, for indices and lengths."""
        return self.constant(np.array(number, dtype=np.int64))

    def random_weight(self, *shape: int) -> str:
        """Uniform numbers of variance 1 / fan-in: activations keep their size through the layers."""
        fan_in = prod(shape[1:]) if len(shape) != 2 else shape[0]
        numbers = self.random.random(shape, dtype=np.float32) - np.float32(0.5)
        return self.constant(numbers * np.float32(sqrt(12 / max(1, fan_in))))

    def filled(self, number: float, *shape: int) -> str:
        """A weight of one repeated number."""
        return self.constant(np.full(shape, number, dtype=np.float32))

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        """A node with one output."""
        return self.ops(op, 1, *inputs, **attrs)[0]

    def ops(self, op: str, outputs: int, *inputs: str, **attrs: Any) -> list[str]:
        """A node with several outputs."""
        index = len(self.nodes)
        names = [f"{op}_{index}_out" + (f"_{i}" if outputs > 1 else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, name=f"{op}_{index}", **attrs))
        if inputs and inputs[0] in self.channels:
            self.channels.update(dict.fromkeys(names, self.channels[inputs[0]]))
        return names

    def conv(self, x: str, channels: int, kernel: int, stride: int = 1, *, group: int = 1, bias: bool = True) -> str:
        """A square convolution that keeps the size, divided by `stride`."""
        weights = [self.random_weight(channels, self.channels[x] // group, kernel, kernel)]
        if bias:
            weights.append(self.filled(0.01, channels))
        shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        out = self.op("Conv", x, *weights, group=group, **shape)
        self.channels[out] = channels
        return out

    def batch_norm(self, x: str) -> str:
        """Inference over running statistics."""
        count = self.channels[x]
        moments = [self.filled(number, count) for number in (1.0, 0.0, 0.1, 0.9)]
        return self.op("BatchNormalization", x, *moments)

    def conv_norm(self, x: str, channels: int, kernel: int, stride: int = 1, *, group: int = 1) -> str:
        """Convolution without bias, then normalisation."""
        return self.batch_norm(self.conv(x, channels, kernel, stride, group=group, bias=False))

    def pool(self, op: str, x: str, kernel: int, stride: int, pad: int = 0) -> str:
        """A square MaxPool or AveragePool."""
        return self.op(op, x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def concat(self, maps: Sequence[str]) -> str:
        """Feature maps side by side, along the channels."""
        out = self.op("Concat", *maps, axis=1)
        self.channels[out] = sum(self.channels[x] for x in maps)
        return out

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """x W + b over the last axis."""
        return self.op("Add", self.op("MatMul", x, self.random_weight(inputs, outputs)), self.filled(0.01, outputs))

    def classifier(self, x: str, classes: int) -> str:
        """Global average, a linear layer, probabilities."""
        features = self.channels[x]
        flat = self.op("Flatten", self.op("GlobalAveragePool", x))
        return self.op("Softmax", self.linear(flat, features, classes))

    def model(self, **outputs: str) -> onnx.ModelProto:
        """The finished model; `outputs` gives results the names of network outputs."""
        for name, result in outputs.items():
            self.nodes.append(helper.make_node("Identity", [result], [name], name=f"output_{name}"))
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, infos, self.weights)
        others = sorted({node.domain for node in self.nodes if node.domain})
        imports = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in others)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="sublet")
