"""Networks by `torch.compile(backend="sublet")`: whether they are right, what they need, beside eager and inductor.

    python -m benchmarks.torch [NETWORK ...] [--inductor all|NETWORK,...] [--kinds step,inference] [--right]
        [--limit 900]

Every peak comes from a process of its own; times are those of all sides in turn, in one process. inductor compiles a
network for minutes, so that it stands beside three of them unless asked for, and is given up after `--limit` seconds.
What fails is told where it stands and once more at the end, and ends nothing; the exit status is then 1, unless it is
inductor alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.results import Row, exact_row, round_rows
from benchmarks.torch.blocks import counter

NAMES = (
    "ResNet-18", "ResNet-50", "MobileNetV3", "EfficientNet-B0", "ViT-B/16", "Swin-T", "ConvNeXt-T", "U-Net", "GPT-2",
    "BERT", "T5-small", "Llama-like", "Whisper-tiny",
)  # fmt: skip
SECOND = (
    "Gemma2", "T5-gated", "DistilBERT", "CLIP", "ViT-MAE", "UNet2D", "EfficientFormer", "ConvMixer", "Mamba", "GRU",
    "LSTM", "Transformer", "DETR", "wav2vec2",
)  # fmt: skip
"""Further networks, measured where asked for."""
SMALL = ("ResNet-18", "U-Net", "T5-small")
"""Those that inductor stands beside unless asked otherwise."""
MEGABYTE = 1e6
INDUCTOR = "inductor"
SIDES = {"eager": "PyTorch eager", "sublet": "Sublet"}
CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that names where inductor keeps what it compiled."""
ERROR = re.compile(r"(\w+\.)*\w*(Error|Exception)\b")
"""A line of a traceback that names an exception."""
LONGEST = 3600.0
"""Seconds after which eager or Sublet is given up."""


def asked_of(module: str, *args: str, limit: float = LONGEST, **env: str) -> dict[str, Any]:
    """The last line that a process prints, read as JSON; {"error": why} for one that fails or takes too long."""
    command = [sys.executable, "-m", f"benchmarks.torch.{module}", *args]
    process = subprocess.Popen(
        command,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, told = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that inductor compiles in
        process.communicate()
        return {"error": f"ended after {limit:.0f} s"}
    try:
        found = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        found = None
    if process.returncode or not isinstance(found, dict):
        lines = told.strip().splitlines() or [f"exit status {process.returncode}"]
        errors = [line for line in lines if ERROR.match(line)]  # PyTorch's advice follows the error
        return {"error": (errors or lines)[-1]}
    return found


def geometric(numbers: Sequence[float]) -> float:
    return exp(sum(map(log, numbers)) / len(numbers)) if numbers else float("nan")


def right(names: Sequence[str]) -> list[str]:
    """How exact outputs and gradients are, and what of a network is planned; those that fail or are wrong."""
    failed = []
    print("network, error over eager's (inference, step), planned share, graphs, breaks, left to eager, seconds")
    for name in names:
        found = asked_of("right", name)
        if "error" in found:
            print(f"{name}: {found['error']}", flush=True)
            failed.append(f"{name}: {found['error']}")
            continue
        if not found["right"]:
            failed.append(f"{name} is wrong")
        print(
            f"{name}: {'right' if found['right'] else 'WRONG'} {found['inference']:.2f} {found['step']:.2f} "
            f"({found['where']}), {found['share']:.1%}, {found['graphs']}, {found['breaks']}, "
            f"{found['left'] or 'nothing'}, {found['seconds']}",
            flush=True,
        )
        if found["copied"]:
            print("    " + ", ".join(f"{op} {nbytes:,}" for op, nbytes in found["copied"]))
    return failed


def table(names: Sequence[str], beside: Sequence[str], kind: str, preload: Path, limit: float) -> list[str]:
    """Peaks and times of a kind of call: ours over eager's, and over inductor's for the networks in `beside`, where
    that takes no more than `limit` seconds; what of eager and ours failed."""
    failed = []
    print(f"{kind}: by side peak MB, seconds of the first call, CPU s; ours over eager's and over inductor's")
    ratios: dict[str, list[float]] = {}
    for name in names:
        sides = ["eager", "sublet", *([INDUCTOR] if name in beside else [])]
        with tempfile.TemporaryDirectory() as cache:  # what inductor compiled for another run would make its first fast
            env = {"LD_PRELOAD": str(preload), CACHE: cache}
            found = {
                side: asked_of("peak", name, side, kind, limit=limit if side == INDUCTOR else LONGEST, **env)
                for side in sides
            }
            there = [side for side in sides if "error" not in found[side]]
            paces = _paced(name, there, kind, limit, cache)
        for side in there:
            found[side].update(paces.get(side, {}))
        failed += [f"{kind} of {name}, {side}: {each['error']}" for side, each in found.items() if "error" in each]
        failed += [f"times of a {kind} of {name}: {paces['error']}"] if "error" in paces else []
        print(f"{name}: " + "; ".join(_words(side, each) for side, each in found.items()), flush=True)
        if kind == "inference" and "eager" in there:
            least = asked_of("least", name)
            if "error" in least:
                failed.append(f"what {name} needs at least: {least['error']}")
            else:
                ratios.setdefault("least of whole operators over eager", []).append(_least(least, found["eager"]))
        if len(there) == len(sides) > 2:
            better = min(found[side]["peak"] for side in sides if side != "sublet")
            ratios.setdefault("peak over the better of the others", []).append(found["sublet"]["peak"] / better)
        for other in (side for side in there if side != "sublet" and "sublet" in there):
            for what in ("peak", "first", "cpu", "wall"):
                if what in found["sublet"] and what in found[other]:
                    ratio = found["sublet"][what] / found[other][what]
                    ratios.setdefault(f"{what} over {other}", []).append(ratio)
                    print(f"    {what} {ratio:.2f} of {other}'s", flush=True)
    for what, each in ratios.items():
        print(
            f"{kind}: {what}: {geometric(each):.3f} geometric mean of {len(each)}, {max(each):.3f} at most", flush=True
        )
    return failed


def result_rows(
    names: Sequence[str] = NAMES, kinds: Sequence[str] = ("step", "inference"), rounds: int = 15, limit: float = 600
) -> Iterator[Row]:
    """Yield the peaks of eager and of Sublet, and the seconds of the processor as shares of eager's, by rounds."""
    with tempfile.TemporaryDirectory() as folder:
        one, preload = {"OMP_NUM_THREADS": "1"}, str(counter(Path(folder)))
        for name, kind in product(names, kinds):
            case = f"{name}, {kind}"
            for side, title in SIDES.items():
                found = _answer(asked_of("peak", name, side, kind, limit=limit, LD_PRELOAD=preload, **one))
                yield exact_row(case, title, found["peak"])
            paces = _answer(asked_of("pace", name, ",".join(SIDES), kind, str(rounds), limit=limit, **one))
            shares = {title: paces[side]["shares"] for side, title in SIDES.items()}
            yield from round_rows(case, shares, "of eager's time")


def _answer(found: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        raise RuntimeError(found["error"])
    return found


def _least(least: dict[str, Any], eager: dict[str, Any]) -> float:
    """What whole operators need at least, with what libraries keep from call to call, over eager's peak; told."""
    ratio: float = (max(least["floor"], least["results"]) + eager["held"]) / eager["peak"]
    needs, results, kept = (nbytes / MEGABYTE for nbytes in (least["floor"], least["results"], eager["held"]))
    print(
        f"    all at once its operators need {needs:.1f} MB, its results {results:.1f}; with {kept:.1f} that "
        f"libraries keep from call to call: {ratio:.2f} of eager's at least",
        flush=True,
    )
    return ratio


def _paced(name: str, sides: Sequence[str], kind: str, limit: float, cache: str) -> dict[str, Any]:
    """Times of all sides in turn; without inductor where it takes too long."""
    if INDUCTOR in sides:
        found = asked_of("pace", name, ",".join(sides), kind, limit=limit, **{CACHE: cache})
        if "error" not in found:
            return found
    ours = [side for side in sides if side != INDUCTOR]
    return asked_of("pace", name, ",".join(ours), kind) if ours else {}


def _words(side: str, each: dict[str, Any]) -> str:
    if "error" in each:
        return f"{side} {each['error']}"
    time = f"{each['cpu']:.3f} s" if "cpu" in each else "not timed"
    return f"{side} {each['peak'] / MEGABYTE:.1f} MB, first {each['first']:.1f} s, {time}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NAMES)
    parser.add_argument("--inductor", default=",".join(SMALL), help="beside which networks; all, or none")
    parser.add_argument("--kinds", default="step,inference")
    parser.add_argument("--right", action="store_true", help="compare with f64 too")
    parser.add_argument("--limit", type=float, default=900, help="seconds that inductor may take for a network")
    asked = parser.parse_args()
    beside = {"all": NAMES, "none": ()}.get(asked.inductor, asked.inductor.split(","))
    unknown = [name for name in asked.networks if name not in NAMES + SECOND]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(NAMES + SECOND)}")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {_versions()}", flush=True
    )
    failed = right(asked.networks) if asked.right else []
    with tempfile.TemporaryDirectory() as folder:
        preload = counter(Path(folder))
        for kind in asked.kinds.split(",") if asked.kinds else ():
            failed += table(asked.networks, beside, kind, preload, asked.limit)
    for each in failed:
        print(f"failed: {each}")
    raise SystemExit(any(f", {INDUCTOR}:" not in each for each in failed))


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "transformers"))


if __name__ == "__main__":
    main()
