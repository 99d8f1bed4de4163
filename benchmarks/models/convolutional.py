"""Convolutional networks at full size by default; smaller ones by parameters."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from benchmarks.models.builder import Builder


def resnet50(
    image: int = 224, width: int = 64, depths: Sequence[int] = (3, 4, 6, 3), classes: int = 1000
) -> onnx.ModelProto:
    """ResNet-50 (He et al. 2015, table 1), stride in the 3x3 convolution."""
    b = Builder("resnet50")
    x = b.input("image", (1, 3, image, image))
    x = b.pool("MaxPool", b.op("Relu", b.conv_norm(x, width, 7, 2)), 3, 2, 1)
    for stage, depth in enumerate(depths):
        inner = width << stage
        for block in range(depth):
            stride = 2 if stage and not block else 1
            short = x if block else b.conv_norm(x, 4 * inner, 1, stride)
            y = b.op("Relu", b.conv_norm(x, inner, 1))
            y = b.op("Relu", b.conv_norm(y, inner, 3, stride))
            x = b.op("Relu", b.op("Add", b.conv_norm(y, 4 * inner, 1), short))
    return b.model(probabilities=b.classifier(x, classes))


def densenet121(
    image: int = 224, growth: int = 32, blocks: Sequence[int] = (6, 12, 24, 16), classes: int = 1000
) -> onnx.ModelProto:
    """DenseNet-121 (Huang et al. 2016, table 1); every layer concatenates all before it."""
    b = Builder("densenet121")
    x = b.input("image", (1, 3, image, image))
    x = b.pool("MaxPool", b.op("Relu", b.conv_norm(x, 2 * growth, 7, 2)), 3, 2, 1)
    for i, layers in enumerate(blocks):
        for _ in range(layers):
            y = b.conv_norm(b.op("Relu", b.batch_norm(x)), 4 * growth, 1)
            x = b.concat([x, b.conv(b.op("Relu", y), growth, 3, bias=False)])
        if i < len(blocks) - 1:
            y = b.conv(b.op("Relu", b.batch_norm(x)), b.channels[x] // 2, 1, bias=False)
            x = b.pool("AveragePool", y, 2, 2)
    return b.model(probabilities=b.classifier(b.op("Relu", b.batch_norm(x)), classes))


MOBILENET_STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)
"""Expansion, channels, blocks, stride (Sandler et al. 2018, table 2)."""


def mobilenet_v2(
    image: int = 224,
    divisor: int = 1,
    stages: Sequence[tuple[int, int, int, int]] = MOBILENET_STAGES,
    classes: int = 1000,
) -> onnx.ModelProto:
    """MobileNetV2; channels divided by `divisor`."""
    b = Builder("mobilenet_v2")
    zero, six = b.filled(0.0), b.filled(6.0)

    def relu6(x: str) -> str:
        return b.op("Clip", x, zero, six)

    x = relu6(b.conv_norm(b.input("image", (1, 3, image, image)), 32 // divisor, 3, 2))
    for expansion, channels, depth, first_stride in stages:
        for block in range(depth):
            stride = 1 if block else first_stride
            inner = expansion * b.channels[x]
            y = x if expansion == 1 else relu6(b.conv_norm(x, inner, 1))
            y = relu6(b.conv_norm(y, inner, 3, stride, group=inner))
            y = b.conv_norm(y, channels // divisor, 1)
            x = b.op("Add", x, y) if block else y
    return b.model(probabilities=b.classifier(relu6(b.conv_norm(x, 1280 // divisor, 1)), classes))


INCEPTIONS = (
    *((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64)),
    *((160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64)),
    *((256, 160, 320, 32, 128, 128), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Channels of 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool projection (Szegedy et al. 2014, table 1)."""


def googlenet(image: int = 224, divisor: int = 1, classes: int = 1000) -> onnx.ModelProto:
    """GoogLeNet without its auxiliary classifiers; channels divided by `divisor`."""
    b = Builder("googlenet")

    def conv(x: str, channels: int, kernel: int, stride: int = 1) -> str:
        return b.op("Relu", b.conv(x, channels // divisor, kernel, stride))

    x = b.pool("MaxPool", conv(b.input("image", (1, 3, image, image)), 64, 7, 2), 3, 2, 1)
    x = b.op("LRN", x, size=5)
    x = b.op("LRN", conv(conv(x, 64, 1), 192, 3), size=5)
    x = b.pool("MaxPool", x, 3, 2, 1)
    for i, (one, reduce3, three, reduce5, five, project) in enumerate(INCEPTIONS):
        if i in (2, 7):
            x = b.pool("MaxPool", x, 3, 2, 1)
        branches = [conv(x, one, 1), conv(conv(x, reduce3, 1), three, 3), conv(conv(x, reduce5, 1), five, 5)]
        x = b.concat([*branches, conv(b.pool("MaxPool", x, 3, 1, 1), project, 1)])
    return b.model(probabilities=b.classifier(b.op("Dropout", x), classes))


def unet(image: int = 256, width: int = 64, depth: int = 4, classes: int = 2) -> onnx.ModelProto:
    """U-Net (Ronneberger et al. 2015) with padded convolutions: long skips that keep early maps alive."""
    b = Builder("unet")

    def twice(x: str, channels: int) -> str:
        for _ in range(2):
            x = b.op("Relu", b.conv_norm(x, channels, 3))
        return x

    x = twice(b.input("image", (1, 3, image, image)), width)
    skips: list[str] = []
    for level in range(1, depth + 1):
        skips.append(x)
        x = twice(b.pool("MaxPool", x, 2, 2), width << level)
    for level in reversed(range(depth)):
        channels = width << level
        kernel = b.random_weight(b.channels[x], channels, 2, 2)
        up = b.op("ConvTranspose", x, kernel, b.filled(0.01, channels), kernel_shape=[2, 2], strides=[2, 2])
        b.channels[up] = channels
        x = twice(b.concat([skips[level], up]), channels)
    return b.model(mask=b.op("Softmax", b.conv(x, classes, 1), axis=1))
