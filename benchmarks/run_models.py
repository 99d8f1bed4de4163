"""The networks of the run benchmark, as files with the dimensions and inputs they run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from benchmarks.models.convolutional import mobilenet_v2, resnet50
from benchmarks.models.transformers import bert
from benchmarks.models.wheels import bound, wheel_models

Feeds = dict[str, np.ndarray]
BUILT = {
    "ResNet-50": resnet50,
    "MobileNetV2": mobilenet_v2,
    "BERT-base": bert,
    "BERT-base, batch 8": lambda: bert(batch=8),
}
REAL = {
    "PP-OCRv4 detection": "ch_PP-OCRv4_det_infer",
    "PP-OCRv4 recognition": "ch_PP-OCRv4_rec_infer",
    "PP-OCRv2 direction": "ch_ppocr_mobile_v2.0_cls_infer",
    "silero_vad": "silero_vad",
}
SAMPLE_RATE = 16_000
CHAIN = 1000


@dataclass(frozen=True)
class RunModel:
    """A model file and its dimensions."""

    name: str
    path: Path
    dims: Mapping[str, int] = field(default_factory=dict)


def run_models(folder: Path) -> list[RunModel]:
    """All of them; those that are built are written to `folder`."""
    models: list[RunModel] = []
    for i, (name, build) in enumerate(BUILT.items()):
        path = folder / f"built{i}.onnx"
        onnx.save(build(), path)
        models.append(RunModel(name, path))
    found = {model.name: model for model in wheel_models()}
    for name, stem in REAL.items():
        path = folder / f"{stem}.onnx"
        onnx.save(bound(found[stem]), path)
        loadable = loads(path)
        models.append(RunModel(name, path if loadable else found[stem].path, {} if loadable else found[stem].dims))
    return models


def loads(path: Path) -> bool:
    """Whether ONNX Runtime takes the model with its dimensions bound: it is faster then."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), options)
    except Exception:
        return False
    return True


def chain(folder: Path) -> RunModel:
    """A line of tiny operators, to see what a step costs."""
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Neg" if i % 2 else "Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(CHAIN)]
    graph = helper.make_graph(nodes, "chain", [info("v0", 1, (4,))], [info(f"v{CHAIN}", 1, (4,))])
    path = folder / "chain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return RunModel(f"{CHAIN} tiny operators", path)


def feeds_for(inputs: Mapping[str, tuple[np.dtype, tuple[int, ...]]]) -> Feeds:
    """Random floats, ones for indices and masks, a sample rate."""
    rng = np.random.default_rng(0)
    feeds: Feeds = {}
    for name, (dtype, shape) in inputs.items():
        if name == "sr":
            feeds[name] = np.array(SAMPLE_RATE, dtype)
        elif dtype.kind == "f":
            feeds[name] = np.asarray(rng.standard_normal(shape), dtype)
        else:
            feeds[name] = np.ones(shape, dtype)
    return feeds
