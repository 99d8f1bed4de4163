"""Networks by `torch.compile(backend="sublet")`: whether they are right, what they need, beside eager and inductor.

    python -m benchmarks.torch [NETWORK ...] [--sides eager,sublet,inductor] [--kinds step,inference] [--right]

Every figure comes from a process of its own. inductor compiles a network for minutes; leave it out with --sides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.torch.peak import counter

NAMES = (
    "ResNet-18", "ResNet-50", "MobileNetV3", "EfficientNet-B0", "ViT-B/16", "Swin-T", "ConvNeXt-T", "U-Net", "GPT-2",
    "BERT", "T5-small", "Llama-like", "Whisper-tiny",
)  # fmt: skip
MEGABYTE = 1e6


def asked_of(module: str, *args: str, preload: Path | None = None) -> dict[str, Any]:
    """The last line that a process prints, read as JSON."""
    env = {**os.environ, **({"LD_PRELOAD": str(preload)} if preload else {})}
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.torch.{module}", *args], env=env, capture_output=True, text=True
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": done.stderr.strip().splitlines()[-1:] or done.returncode}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def geometric(numbers: Sequence[float]) -> float:
    return exp(sum(map(log, numbers)) / len(numbers)) if numbers else float("nan")


def right(names: Sequence[str]) -> None:
    """How exact outputs and gradients are, and what of a network is planned."""
    print("network, error over eager's (inference, step), planned share, graphs, breaks, left to eager, seconds")
    for name in names:
        found = asked_of("right", name)
        if "error" in found:
            print(f"{name}: {found['error']}", flush=True)
            continue
        print(
            f"{name}: {'right' if found['right'] else 'WRONG'} {found['inference']:.2f} {found['step']:.2f} "
            f"({found['where']}), {found['share']:.1%}, {found['graphs']}, {found['breaks']}, "
            f"{found['left'] or 'nothing'}, {found['seconds']}",
            flush=True,
        )
        if found["copied"]:
            print("    " + ", ".join(f"{op} {nbytes:,}" for op, nbytes in found["copied"]))


def table(names: Sequence[str], sides: Sequence[str], kind: str, preload: Path) -> None:
    """Peaks and times of a kind of call, ours over eager's and over the better one's."""
    print(f"{kind}: peak MB, CPU s, s of the first call, by side; ours over the better of the others; time over eager")
    ratios, times = [], []
    for name in names:
        found = {side: asked_of("peak", name, side, kind, preload=preload) for side in sides}
        words = [
            f"{side} {each['error']}" if "error" in each else
            f"{side} {each['peak'] / MEGABYTE:.1f} {each['cpu']:.2f} {each['first']:.1f}"
            for side, each in found.items()
        ]  # fmt: skip
        peaks = {side: each["peak"] for side, each in found.items() if "peak" in each}
        if "sublet" in peaks and len(peaks) > 1:
            ratios.append(peaks["sublet"] / min(peak for side, peak in peaks.items() if side != "sublet"))
            words.append(f"ratio {ratios[-1]:.2f}")
        if "sublet" in peaks and "eager" in peaks:
            times.append(found["sublet"]["cpu"] / found["eager"]["cpu"])
            words.append(f"time {times[-1]:.2f}")
        print(f"{name}: " + "; ".join(words), flush=True)
    print(f"{kind}: ratio {geometric(ratios):.3f} geometric mean, {max(ratios, default=0):.3f} at most; "
          f"time {geometric(times):.3f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NAMES)
    parser.add_argument("--sides", default="eager,sublet,inductor")
    parser.add_argument("--kinds", default="step,inference")
    parser.add_argument("--right", action="store_true", help="compare with f64 too")
    asked = parser.parse_args()
    if asked.right:
        right(asked.networks)
    with tempfile.TemporaryDirectory() as folder:
        preload = counter(Path(folder))
        for kind in asked.kinds.split(",") if asked.kinds else ():
            table(asked.networks, asked.sides.split(","), kind, preload)


if __name__ == "__main__":
    main()
