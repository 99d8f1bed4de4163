"""Channel slices and concatenations of a batch: copied, or in the whole row by row. Bytes copied, arena, CPU seconds.

    python -m benchmarks.rows            # both networks: a training step at batch 32, ONNX inference at batch 8

All executables run in turn. The ratio to the contiguous plan is the median over rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

import sublet
from benchmarks.models.architectures import ARCHITECTURES
from benchmarks.train_steps import training_step
from sublet.analysis.options import Options
from sublet.analysis.residual_copies import copied_parts

Case = tuple[str, Any, Mapping[str, Any]]

KINDS = {
    "contiguous": Options(in_rows=False),
    "in rows": Options(),
    "copies forbidden": Options(forbid_copies=True),
}


def cases(batch: int, onnx_batch: int) -> Iterator[Case]:
    for name in ("GoogLeNet", "DenseNet-121"):
        step = training_step(name, batch)
        yield f"{name}, step, {batch}", step.model, step.inputs()
    for name in ("googlenet", "densenet121"):
        model = ARCHITECTURES[name]()
        (image,) = model.graph.input
        shape = (onnx_batch, *(each.dim_value for each in image.type.tensor_type.shape.dim[1:]))
        image.type.tensor_type.shape.dim[0].dim_value = onnx_batch
        content = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        yield f"{name}, ONNX, {onnx_batch}", model, {image.name: content}


def measure(case: Case, runs: int) -> None:
    """Print a line for each kind of plan: bytes copied, arena, and CPU seconds as a share of those with copies."""
    name, model, inputs = case
    executables = {kind: sublet.compile(model, options=options) for kind, options in KINDS.items()}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(runs + 1):
        for kind, executable in executables.items():
            begin = time.process_time()
            executable(inputs)
            seconds[kind].append(time.process_time() - begin)
    for kind, each in executables.items():
        copied = sum(move.nbytes for move in copied_parts(each.graph, each.plan))
        ratio = np.median(np.divide(seconds[kind][1:], seconds["contiguous"][1:]))
        print(f"| {name} | {kind} | {copied:,} | {each.arena_bytes:,} | {ratio:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--onnx-batch", type=int, default=8)
    parser.add_argument("--runs", type=int, default=9)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| network, batch | plan | bytes copied | arena | CPU time |\n|---|---|---|---|---|")
    for case in cases(asked.batch, asked.onnx_batch):
        measure(case, asked.runs)


if __name__ == "__main__":
    main()
