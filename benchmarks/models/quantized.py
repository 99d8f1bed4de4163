"""Quantised networks in the form exporters write: each operator between DequantizeLinear and QuantizeLinear (QDQ).

The dequantised weights of the whole network stand before its first layer, as many tools write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from benchmarks.models.builder import Builder
from benchmarks.models.convolutional import MOBILENET_STAGES

ACTIVATION_SCALE = 0.04


class _Quantized:
    """Adds quantised layers; maps of features are u8 between the layers."""

    def __init__(self, name: str):
        self.b = Builder(name)
        self.constants: list[onnx.NodeProto] = []
        self.scale = self.b.constant(np.array(ACTIVATION_SCALE, np.float32))
        self.zero = self.b.constant(np.array(128, np.uint8))

    def stored(self, array: NDArray[np.generic], scale: float) -> str:
        """A weight stored in small integers, as the numbers it stands for."""
        name = f"dequantized_{len(self.constants)}"
        zero = np.array(0, array.dtype)
        inputs = [self.b.constant(array), self.b.constant(np.array(scale, np.float32)), self.b.constant(zero)]
        self.constants.append(helper.make_node("DequantizeLinear", inputs, [name], name=name))
        return name

    def layer(self, shape: Sequence[int], outputs: int) -> tuple[str, str]:
        """A weight and a bias; the bias has the scale of the products."""
        scale = 0.01 / sqrt(prod(shape) / outputs)
        weight = self.stored(self.b.random.integers(-127, 127, shape).astype(np.int8), scale)
        return weight, self.stored(np.zeros(outputs, np.int32), ACTIVATION_SCALE * scale)

    def quantized(self, x: str) -> str:
        """Through 8 bits and back."""
        small = self.b.op("QuantizeLinear", x, self.scale, self.zero)
        return self.b.op("DequantizeLinear", small, self.scale, self.zero)

    def conv(self, x: str, channels: int, kernel: int, stride: int = 1, *, group: int = 1) -> str:
        """A convolution; what is read and written is quantised."""
        shape = (channels, self.b.channels[x] // group, kernel, kernel)
        weight, bias = self.layer(shape, channels)
        pads = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        made = self.b.op("Conv", x, weight, bias, group=group, **pads)
        self.b.channels[made] = channels
        return self.quantized(made)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """x W + b."""
        weight, bias = self.layer((inputs, outputs), outputs)
        return self.quantized(self.b.op("Gemm", x, weight, bias))

    def model(self, **outputs: str) -> onnx.ModelProto:
        """The finished network, its constants first."""
        self.b.nodes[:0] = self.constants
        return self.b.model(**outputs)


def qdq_mobilenet_v2(
    image: int = 224,
    divisor: int = 1,
    classes: int = 1000,
    stages: Sequence[tuple[int, int, int, int]] = MOBILENET_STAGES,
) -> onnx.ModelProto:
    """MobileNetV2 [Sandler et al., 2018] in 8 bits; its clipping at 6 is part of the quantisation."""
    q = _Quantized("qdq_mobilenet_v2")
    x = q.quantized(q.b.input("image", (1, 3, image, image)))
    x = q.conv(x, 32 // divisor, 3, 2)
    for widening, channels, count, first in stages:
        for i in range(count):
            stride, width = (first if i == 0 else 1), q.b.channels[x] * widening
            inner = q.conv(x, width, 1) if widening > 1 else x
            inner = q.conv(inner, width, 3, stride, group=width)
            inner = q.conv(inner, channels // divisor, 1)
            same = stride == 1 and q.b.channels[x] == channels // divisor
            x = q.quantized(q.b.op("Add", inner, x)) if same else inner
    x = q.conv(x, 1280 // divisor, 1)
    flat = q.quantized(q.b.op("Flatten", q.quantized(q.b.op("GlobalAveragePool", x))))
    return q.model(scores=q.linear(flat, 1280 // divisor, classes))
