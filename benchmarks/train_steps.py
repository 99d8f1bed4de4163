"""Training steps of well-known networks: as one plan of Sublet's, and as PyTorch takes them eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import sublet
from benchmarks import eager
from benchmarks.networks import text, vision
from sublet import layers, nn
from sublet.base.tensor import TensorSpec
from sublet.ir.graph import Graph
from sublet.ir.model import Model
from sublet.nn.tensor import Tensor

RATE, MOMENTUM = 1e-4, 0.9
Write = Callable[[sublet.Graph, int], Tensor]
"""(graph, batch) -> the loss."""


def classifier(network: Callable[[Tensor], Tensor], size: int = 224) -> Write:
    """Images, labels, and the mean cross entropy."""

    def write(g: sublet.Graph, batch: int) -> Tensor:
        logits = network(g.input("x", (batch, 3, size, size)))
        return nn.softmax_cross_entropy(logits, g.input("labels", (batch,), "i64"))[0].mean()

    return write


def segmentation(g: sublet.Graph, batch: int) -> Tensor:
    """U-Net as published, 64 channels and four levels, on images of 224: each pixel is one of ten classes."""
    logits = vision.unet(g.input("x", (batch, 3, 224, 224)), 10, width=64, depth=4)
    labels = g.input("labels", (batch * 224 * 224,), "i64")
    return nn.softmax_cross_entropy(logits.transpose(0, 2, 3, 1).reshape(-1, 10), labels)[0].mean()


def translation(g: sublet.Graph, batch: int) -> Tensor:
    """The Transformer on 64 words and 64 words, each predicted."""
    source, target = (g.input(name, (batch, 64), "i64") for name in ("source", "target"))
    logits = text.transformer(source, target).reshape(batch * 64, -1)
    return nn.softmax_cross_entropy(logits, g.input("labels", (batch * 64,), "i64"))[0].mean()


def language(g: sublet.Graph, batch: int) -> Tensor:
    """GPT-2 small on 128 tokens, each predicted."""
    logits = text.gpt2(g.input("tokens", (batch, 128), "i64")).reshape(batch * 128, -1)
    return nn.softmax_cross_entropy(logits, g.input("labels", (batch * 128,), "i64"))[0].mean()


def recurrent_language(g: sublet.Graph, batch: int) -> Tensor:
    """A language model of an LSTM, a loop over 35 words, each predicted."""
    logits = text.lstm_language(g.input("tokens", (35, batch), "i64")).reshape(35 * batch, -1)
    return nn.softmax_cross_entropy(logits, g.input("labels", (35 * batch,), "i64"))[0].mean()


def recurrent(steps: int) -> Write:
    """An LSTM of 512 units over `steps` vectors of 256, unrolled."""

    def write(g: sublet.Graph, batch: int) -> Tensor:
        return text.lstm_unrolled(g.input("xs", (steps, batch, 256))).mean()

    return write


def recurrent_loop(g: sublet.Graph, batch: int) -> Tensor:
    """The same as a loop over 32 vectors."""
    return layers.lstm(g.input("xs", (32, batch, 256)), 512)[1].mean()


NETWORKS: Mapping[str, Write] = {
    "ResNet-50": classifier(vision.resnet50),
    "ResNet-50 v1d": classifier(vision.resnet50_v1d),
    "ResNet-101 v1d": classifier(vision.resnet101_v1d),
    "VGG-13": classifier(vision.vgg13),
    "VGG-16": classifier(vision.vgg16),
    "DenseNet-121": classifier(vision.densenet121),
    "GoogLeNet": classifier(vision.googlenet),
    "EfficientNet-B0": classifier(vision.efficientnet_b0),
    "U-Net": segmentation,
    "Transformer": translation,
    "LSTM, 32 steps": recurrent(32),
    "LSTM, 128 steps": recurrent(128),
    "LSTM, 256 steps": recurrent(256),
    "LSTM, loop": recurrent_loop,
    "GPT-2 small": language,
    "LSTM language model": recurrent_language,
}


@dataclass(frozen=True)
class Step:
    """A training step, and the forward graph that it was made of."""

    forward: Graph
    model: Model

    @property
    def optimiser_bytes(self) -> int:
        """Bytes of what the optimiser remembers."""
        return sum(
            _rounded(value.nbytes) for value in self.model.graph.updated_values if value.name.startswith("step/")
        )

    def inputs(self) -> dict[str, Any]:
        """Inputs at random, of 10 classes."""
        random = np.random.default_rng(0)
        specs = {value.name: value.spec for value in self.model.graph.inputs if isinstance(value.spec, TensorSpec)}
        return {
            name: random.integers(0, 10, spec.shape) if spec.dtype.text == "i64" else _normal(random, spec)
            for name, spec in specs.items()
        }


def _normal(random: np.random.Generator, spec: TensorSpec) -> Any:
    return random.normal(size=spec.shape).astype(np.float32)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def training_step(name: str, batch: int) -> Step:
    """One step with stochastic gradient descent and momentum."""
    g = sublet.Graph(name)
    loss = NETWORKS[name](g, batch)
    forward = g.model().graph
    forward = Graph(forward.name, forward.inputs, forward.nodes, (loss.value,), forward.weights)
    return Step(forward, sublet.train_step(loss, g.parameters, sublet.SGD(RATE, momentum=MOMENTUM)))


def eager_training(
    step: Step, rate: float = RATE, momentum: float = MOMENTUM
) -> tuple[dict[str, torch.Tensor], torch.optim.Optimizer]:
    """The weights of PyTorch's by name, which start as Sublet's do, and the optimiser of those that are trained."""
    contents = {v.name: step.model.weights[v.name].array() for v in step.forward.weights if v.literal is None}
    weights = eager.tensors(contents)
    updated = {target.name for target in step.model.graph.updated_values}
    trained = [
        tensor.requires_grad_()
        for name, tensor in weights.items()
        if name in updated and not name.endswith(("/mean", "/variance"))
    ]
    return weights, torch.optim.SGD(trained, rate, momentum)


def stepped(optimiser: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor]) -> float:
    """A step of PyTorch's: forward, backward, update; its loss."""
    optimiser.zero_grad(set_to_none=True)
    loss = loss_of()
    loss.backward()
    optimiser.step()
    return loss.item()


def eager_step_of(step: Step, rate: float = RATE, momentum: float = MOMENTUM) -> Callable[[Mapping[str, Any]], float]:
    """The same step as PyTorch takes it: forward, backward, torch.optim.SGD. Weights start as Sublet's do."""
    weights, optimiser = eager_training(step, rate, momentum)
    (loss_name,) = [value.name for value in step.forward.outputs]

    def run(inputs: Mapping[str, Any]) -> float:
        given = {**weights, **eager.tensors(inputs)}
        return stepped(optimiser, lambda: eager.run(step.forward, given)[loss_name])

    return run


def eager_step(step: Step, inputs: Mapping[str, Any]) -> Callable[[], float]:
    """`eager_step_of`, of the same inputs each time."""
    run = eager_step_of(step)
    return lambda: run(inputs)
