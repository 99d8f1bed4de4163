"""Networks by `torch.compile(backend="sublet")`: whether they are right, what they need, beside eager and inductor.

    python -m benchmarks.torch [NETWORK ...] [--inductor all|NETWORK,...] [--kinds step,inference] [--right]

Every peak comes from a process of its own; times are those of all sides in turn, in one process. inductor compiles a
network for minutes, so that it stands beside three of them unless asked for.
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
SMALL = ("ResNet-18", "U-Net", "T5-small")
"""Those that inductor stands beside unless asked otherwise."""
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


def table(names: Sequence[str], beside: Sequence[str], kind: str, preload: Path) -> None:
    """Peaks and times of a kind of call: ours over eager's, and over inductor's for the networks in `beside`."""
    print(f"{kind}: by side peak MB, seconds of the first call, CPU s; ours over eager's and over inductor's")
    ratios: dict[str, list[float]] = {}
    for name in names:
        sides = ["eager", "sublet", *(["inductor"] if name in beside else [])]
        found = {side: asked_of("peak", name, side, kind, preload=preload) for side in sides}
        there = [side for side in sides if "error" not in found[side]]
        paces = asked_of("pace", name, ",".join(there), kind)
        for side in there:
            found[side]["cpu"] = paces.get(side, {}).get("cpu", float("nan"))
        print(f"{name}: " + "; ".join(_words(side, each) for side, each in found.items()), flush=True)
        for other in (side for side in there if side != "sublet" and "sublet" in there):
            for what in ("peak", "first", "cpu"):
                ratio = found["sublet"][what] / found[other][what]
                ratios.setdefault(f"{what} over {other}", []).append(ratio)
                print(f"    {what} {ratio:.2f} of {other}'s", flush=True)
    for what, each in ratios.items():
        print(
            f"{kind}: {what}: {geometric(each):.3f} geometric mean of {len(each)}, {max(each):.3f} at most", flush=True
        )


def _words(side: str, each: dict[str, Any]) -> str:
    if "error" in each:
        return f"{side} {each['error']}"
    return f"{side} {each['peak'] / MEGABYTE:.1f} MB, first {each['first']:.1f} s, {each['cpu']:.3f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NAMES)
    parser.add_argument("--inductor", default=",".join(SMALL), help="beside which networks; all, or none")
    parser.add_argument("--kinds", default="step,inference")
    parser.add_argument("--right", action="store_true", help="compare with f64 too")
    asked = parser.parse_args()
    beside = {"all": NAMES, "none": ()}.get(asked.inductor, asked.inductor.split(","))
    if asked.right:
        right(asked.networks)
    with tempfile.TemporaryDirectory() as folder:
        preload = counter(Path(folder))
        for kind in asked.kinds.split(",") if asked.kinds else ():
            table(asked.networks, beside, kind, preload)


if __name__ == "__main__":
    main()
