"""Patch-wise MobileNetV2: arena, kept bytes, multiplications and additions, outputs and time beside the whole network.

Two graphs: as in the file, with the smallest arena; and as `sublet run` rewrites and patches the file.

make bench-patches      (or: python -m benchmarks.patches [--image 224] [--patches auto])
"""

from __future__ import annotations

import argparse
from statistics import median
from time import process_time

import numpy as np

import sublet
from benchmarks.models.convolutional import mobilenet_v2
from sublet import Options
from sublet.api.sources import read_source
from sublet.ir.model import Model
from sublet.planning.budget.patches import choose_patches
from sublet.runtime.poison import run_poisoned

ROUNDS = 5


def seconds(executable: sublet.Executable, image: np.ndarray) -> float:
    """Seconds of the processor, of a run: the median."""
    found = []
    for _ in range(ROUNDS):
        began = process_time()
        executable.views({"image": image})
        found.append(process_time() - began)
    return median(found)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--image", type=int, default=224)
    asked.add_argument("--patches", default="auto")
    chosen = asked.parse_args()
    for optimize, for_run in (("none", False), ("onnxruntime", True)):
        print(f"optimize {optimize}:")
        compare(read_source(mobilenet_v2(chosen.image), optimize=optimize), chosen, for_run=for_run)


def compare(model: Model, chosen: argparse.Namespace, *, for_run: bool) -> None:
    """Print the figures of a graph, whole and in patches."""
    began = process_time()
    found = choose_patches(model, Options(), chosen.patches, for_run=for_run)
    print(
        f"{found.words} Chosen in {process_time() - began:.1f} s; "
        f"{found.bytes_before / found.bytes_after:.2f} times less."
    )
    whole, pieces = (sublet.compile(each, backend="onnxruntime", optimize="none") for each in (model, found.model))
    print(f"with the scratch memory of kernels: {whole.plan.arena_bytes:,} and {pieces.plan.arena_bytes:,} bytes")
    image = np.random.default_rng(0).standard_normal((1, 3, chosen.image, chosen.image)).astype(np.float32)
    expected, got = (each.measured({"image": image})["probabilities"] for each in (whole, pieces))
    kept = [each.memory.allocated.held_bytes for each in (whole, pieces)]
    print(f"bytes kept by ONNX Runtime: {kept[0]:,} and {kept[1]:,}")
    print(f"outputs: {np.abs(expected - got).max():.2e} apart, the largest is {expected.max():.2e}")
    poisoned = run_poisoned(pieces, {"image": image})["probabilities"]
    print(f"the same bits in poisoned memory: {np.array_equal(poisoned, got)}")
    print(f"seconds of a run: {seconds(whole, image):.4f} whole, {seconds(pieces, image):.4f} in patches")


if __name__ == "__main__":
    main()
