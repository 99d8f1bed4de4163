"""Well-known architectures as ONNX models with random weights, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from benchmarks.models.convolutional import densenet121, googlenet, mobilenet_v2, resnet50, unet
from benchmarks.models.recurrent import lstm_loop
from benchmarks.models.transformers import bert, gpt2

ARCHITECTURES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": resnet50,
    "densenet121": densenet121,
    "mobilenet_v2": mobilenet_v2,
    "googlenet": googlenet,
    "unet": unet,
    "bert": bert,
    "gpt2": gpt2,
    "lstm_loop": lstm_loop,
}
"""Each function builds the network at its published size when it is called without arguments."""

SMALL: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": lambda: resnet50(64, 8, (1, 1, 1, 1), 10),
    "densenet121": lambda: densenet121(64, 4, (2, 2, 2, 2), 10),
    "mobilenet_v2": lambda: mobilenet_v2(64, 8, classes=10),
    "googlenet": lambda: googlenet(64, 8, 10),
    "unet": lambda: unet(32, 4, 2),
    "bert": lambda: bert(16, 2, 2, 32, 4, 100, 64),
    "gpt2": lambda: gpt2(16, 2, 2, 32, 4, 100, 64),
    "lstm_loop": lambda: lstm_loop(7, 2, 5, 6),
}
"""The same networks, small enough for tests."""

__all__ = [
    *("ARCHITECTURES", "SMALL", "bert", "densenet121", "googlenet", "gpt2", "lstm_loop", "mobilenet_v2"),
    *("resnet50", "unet"),
]
