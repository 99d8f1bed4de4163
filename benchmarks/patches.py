"""Patch-wise MobileNetV2: arena, kept bytes, multiplications and additions, outputs and time beside the whole network.

Two graphs: as in the file, with the smallest arena; and as `sublet run` rewrites and patches the file.

make bench-patches      (or: python -m benchmarks.patches [--image 224] [--patches auto])
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import median
from time import process_time
from typing import Any

import numpy as np

import sublet
from benchmarks.models.convolutional import mobilenet_v2
from benchmarks.results import Row, exact_row, round_rows
from sublet import Options
from sublet.api.sources import read_source
from sublet.ir.model import Model
from sublet.planning.budget.patches import choose_patches
from sublet.runtime.poison import run_poisoned

ROUNDS = 5


def seconds(executables: Sequence[sublet.Executable], image: np.ndarray, rounds: int = ROUNDS) -> list[list[float]]:
    """Seconds of the processor, of runs by turns."""
    found: list[list[float]] = [[] for _ in executables]
    for _ in range(rounds):
        for executable, times in zip(executables, found, strict=True):
            began = process_time()
            executable.views({"image": image})
            times.append(process_time() - began)
    return found


def result_rows(image: int = 224, rounds: int = 15) -> Iterator[Row]:
    """Yield the arenas and the times of MobileNetV2, whole and in patches."""
    for optimize, for_run in (("none", False), ("onnxruntime", True)):
        case = "MobileNetV2, smallest arena" if optimize == "none" else "MobileNetV2, as sublet run patches"
        whole, pieces = executables(read_source(mobilenet_v2(image), optimize=optimize), "auto", for_run=for_run)[1:]
        given = np.random.default_rng(0).standard_normal((1, 3, image, image)).astype(np.float32)
        sides = {"whole": whole, "Sublet, in patches": pieces}
        for side, executable in sides.items():
            executable.measured({"image": given})  # kernels allocate in the first run
            yield exact_row(case, side, executable.plan.arena_bytes)
        times = zip(sides, seconds((whole, pieces), given, rounds), strict=True)
        yield from round_rows(case, {side: [1e3 * s for s in each] for side, each in times}, "ms")


def executables(model: Model, patches: str, *, for_run: bool) -> tuple[Any, sublet.Executable, sublet.Executable]:
    """The choice of patches, the whole network, and the network in patches."""
    found = choose_patches(model, Options(), patches, for_run=for_run)
    whole, pieces = (sublet.compile(each, backend="onnxruntime", optimize="none") for each in (model, found.model))
    return found, whole, pieces


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
    found, whole, pieces = executables(model, chosen.patches, for_run=for_run)
    print(
        f"{found.words} Chosen and compiled in {process_time() - began:.1f} s; "
        f"{found.bytes_before / found.bytes_after:.2f} times less."
    )
    print(f"with the scratch memory of kernels: {whole.plan.arena_bytes:,} and {pieces.plan.arena_bytes:,} bytes")
    image = np.random.default_rng(0).standard_normal((1, 3, chosen.image, chosen.image)).astype(np.float32)
    expected, got = (each.measured({"image": image})["probabilities"] for each in (whole, pieces))
    kept = [each.memory.allocated.held_bytes for each in (whole, pieces)]
    print(f"bytes kept by ONNX Runtime: {kept[0]:,} and {kept[1]:,}")
    print(f"outputs: {np.abs(expected - got).max():.2e} apart, the largest is {expected.max():.2e}")
    poisoned = run_poisoned(pieces, {"image": image})["probabilities"]
    print(f"the same bits in poisoned memory: {np.array_equal(poisoned, got)}")
    one, other = map(median, seconds((whole, pieces), image))
    print(f"seconds of a run: {one:.4f} whole, {other:.4f} in patches")


if __name__ == "__main__":
    main()
