"""Random nodes of every operator with windows: random kernels, strides, pads, dilations, rounding and versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
OPERATORS = ("MaxPool", "AveragePool", "LpPool", "Conv", "ConvTranspose")
VERSIONS = (8, 10, 11, 12, 17, 18, 19, 21, 22)
DILATED_SINCE = {"MaxPool": 10, "AveragePool": 19, "LpPool": 18, "Conv": 1, "ConvTranspose": 1}
ROUNDED_SINCE = {"MaxPool": 10, "AveragePool": 10, "LpPool": 18}


def written(rng: Rng, op: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a model of one node with windows, whose output has no declared shape, and the inputs of a run."""
    version, rank = int(rng.choice(VERSIONS)), int(rng.integers(1, 3))
    spatial, kernel = rng.integers(1, 9, rank).tolist(), rng.integers(1, 4, rank).tolist()
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if rng.random() < 0.8:
        attributes["strides"] = rng.integers(1, 4, rank).tolist()
    if rng.random() < 0.3 and version >= DILATED_SINCE[op]:
        attributes["dilations"] = rng.integers(1, 3, rank).tolist()
    if rng.random() < 0.6 and version >= ROUNDED_SINCE.get(op, 1000):
        attributes["ceil_mode"] = 1
    if rng.random() < 0.3:
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"]))
    if rng.random() < 0.6 and attributes.get("auto_pad", "NOTSET") == "NOTSET":
        attributes["pads"] = [int(rng.integers(extent)) for extent in kernel * 2]
    feeds = {"x": rng.normal(size=(1, 2, *spatial)).astype(np.float32)}
    if op in ("Conv", "ConvTranspose"):
        feeds["w"] = rng.normal(size=(2, 2, *kernel)).astype(np.float32)
        if rng.random() < 0.3:
            del attributes["kernel_shape"]
    if op == "ConvTranspose":
        _add_transposed(rng, attributes, spatial)
    node = helper.make_node(op, list(feeds), ["y"], **attributes)
    inputs = [helper.make_tensor_value_info(name, 1, array.shape) for name, array in feeds.items()]
    graph = helper.make_graph([node], "windows", inputs, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8), feeds


def _add_transposed(rng: Rng, attributes: dict[str, Any], spatial: list[int]) -> None:
    """Add the attributes that only a transposed convolution has."""
    strides = attributes.get("strides", [1] * len(spatial))
    if rng.random() < 0.3:
        attributes["output_padding"] = [int(rng.integers(stride)) for stride in strides]
    if rng.random() < 0.3:
        attributes.pop("pads", None)
        attributes["output_shape"] = [
            extent * stride + int(rng.integers(2)) for extent, stride in zip(spatial, strides, strict=True)
        ]
