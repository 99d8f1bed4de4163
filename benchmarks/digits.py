"""Trains a small ResNet on scikit-learn's digits in exactly the planned arena, beside PyTorch with the same start.

make train-digits     (or: python -m benchmarks.digits [--epochs N] [--batch N])
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import sublet
from benchmarks.networks.vision import small_resnet
from benchmarks.train_steps import Step, eager_step_of
from sublet import nn
from sublet.ir.graph import Graph
from sublet.runtime.executable import Executable

RATE, MOMENTUM = 0.05, 0.9
Array = NDArray[Any]


@dataclass(frozen=True)
class Digits:
    """1,797 images of 8 x 8 pixels between -1 and 1, a fifth of them to test with."""

    images: Array
    labels: Array
    test_images: Array
    test_labels: Array

    def batches(self, size: int, epoch: int) -> Iterator[dict[str, Array]]:
        """The training images once, in an order of the epoch's own; what does not fill a batch is left out."""
        order = np.random.default_rng(epoch).permutation(len(self.labels))
        for begin in range(0, len(order) - size + 1, size):
            chosen = order[begin : begin + size]
            yield {"x": self.images[chosen], "labels": self.labels[chosen]}


def digits(dtype: Any = np.float32) -> Digits:
    """The data, split at random but always alike."""
    from sklearn.datasets import load_digits  # takes a second, which only who trains should wait for

    found = load_digits()
    images = (found.images[:, None] / 8 - 1).astype(dtype)
    labels = found.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = np.split(order, [len(labels) // 5])
    return Digits(images[train], labels[train], images[test], labels[test])


def training(batch: int, dtype: str = "f32") -> Step:
    """A step of stochastic gradient descent on `batch` images."""
    g = sublet.Graph("digits")
    logits = small_resnet(g.input("x", (batch, 1, 8, 8), dtype))
    loss = nn.softmax_cross_entropy(logits, g.input("labels", (batch,), "i64"))[0].mean()
    plain = g.model().graph
    forward = Graph(plain.name, plain.inputs, plain.nodes, (loss.value,), plain.weights)
    return Step(forward, sublet.train_step(loss, g.parameters, sublet.SGD(RATE, momentum=MOMENTUM)))


def accuracy(trained: Executable, data: Digits) -> float:
    """The share of test images that are recognised, with the running statistics of the normalisation."""
    g = sublet.Graph("recognise", training=False)
    x = g.input("x", data.test_images.shape, data.test_images.dtype.name)
    g.output("digit", nn.argmax(small_resnet(x), axis=1))
    model = g.model()
    weights = {value.name: trained.state(value.name) for value in model.graph.weights if value.literal is None}
    found = sublet.compile(model, weights=weights)(x=data.test_images)["digit"]
    return float((found == data.test_labels).mean())


def main() -> None:
    """Train, and print the loss of each epoch beside PyTorch's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--double", action="store_true", help="in f64, where rounding does not drive the two apart")
    chosen = parser.parse_args()
    console = Console(width=120)
    data = digits(np.float64 if chosen.double else np.float32)
    step = training(chosen.batch, "f64" if chosen.double else "f32")
    executable = sublet.compile(step.model)
    theirs = eager_step_of(step, RATE, MOMENTUM)
    arena = sublet.aligned_bytes(executable.arena_bytes, 64)
    executable.bind("arena", arena)
    console.print(f"arena {arena.nbytes:,} bytes, at best {executable.plan.lower_bound_bytes:,}")
    for epoch in range(chosen.epochs):
        ours, eager = [], []
        for batch in data.batches(chosen.batch, epoch):
            ours.append(executable(batch)["loss"].item())
            eager.append(theirs(batch))
        apart = max(abs(a - b) / max(b, 1e-3) for a, b in zip(ours, eager, strict=True))
        found = f"loss {np.mean(ours):.5f}, PyTorch's {np.mean(eager):.5f}, steps at most {apart:.1e} apart"
        console.print(f"epoch {epoch + 1:2}: {found}, test accuracy {accuracy(executable, data):.2%}")


if __name__ == "__main__":
    main()
