"""Training steps with Inductor's kernels: Inductor's own division of the graph beside Sublet's.

    python -m benchmarks.torch_inductor [NETWORK ...] [--share 0.5] [--limit 1800] [--rounds 15]

Three sides: `backend="inductor"`; `backend="sublet", options={"kernels": "inductor"}`; and the same with a budget of a
share of Inductor's peak. Each peak comes from a process of its own, which counts every block of 16 KiB or more, without
weights, gradients and the optimizer's state. Times are those of all sides in turn, in one process: the least seconds of
the processor, and the median of the ratios of a round. All processes of a network share one cache of compiled kernels.
A budget that Sublet refuses has no row.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

from benchmarks.torch.__main__ import CACHE, INDUCTOR, MEGABYTE, asked_of, geometric
from benchmarks.torch.blocks import counter

NAMES = ("MLP", "ResNet-18", "GPT-2 blocks", "U-Net")
OURS = "sublet+inductor"


def row(name: str, preload: Path, share: float, limit: float, rounds: int) -> dict[str, tuple[float, float, float]]:
    """Peaks in bytes beyond the bytes held between steps, seconds of the processor, and their ratio, by side."""
    with tempfile.TemporaryDirectory() as cache:
        one = {CACHE: cache, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        env = {"LD_PRELOAD": str(preload), **one}
        peaks: dict[str, float] = {}
        sides = [INDUCTOR, OURS]
        for turn in range(3):
            side = sides[turn]
            found = asked_of("peak", name, side, "step", limit=limit, **env)
            if "error" in found:
                print(f"{name}, {side}: {found['error']}", flush=True)
                sides = sides[:turn]
                break
            peaks[side] = found["peak"] - found["held"]
            print(f"    {name}, {side}: {peaks[side] / MEGABYTE:.1f} MB, first step {found['first']:.0f} s", flush=True)
            if turn == 1:
                sides.append(f"{OURS}:{int(share * peaks[INDUCTOR])}")
        found = asked_of("pace", name, ",".join(sides), "step", str(rounds), limit=limit, **one)
        if "error" in found:
            print(f"{name}, times: {found['error']}", flush=True)
        times = {side: found.get(side, {"cpu": float("nan"), "share": float("nan")}) for side in sides}
        return {side: (peaks[side], times[side]["cpu"], times[side]["share"]) for side in sides}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--share", type=float, default=0.5, help="budget as a share of Inductor's peak")
    parser.add_argument("--limit", type=float, default=1800, help="seconds a process may take")
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each side")
    asked = parser.parse_args()
    print(f"PyTorch {version('torch')}, {platform.machine()}, one thread")
    ratios: dict[str, list[tuple[float, float]]] = {OURS: [], "budget": []}
    with tempfile.TemporaryDirectory() as folder:
        preload = counter(Path(folder))
        for name in asked.names:
            found = row(name, preload, asked.share, asked.limit, asked.rounds)
            words = []
            for side, (peak, seconds, time) in found.items():
                words.append(f"{side} {peak / MEGABYTE:.1f} MB {1e3 * seconds:.1f} ms")
                if side != INDUCTOR:
                    base = found[INDUCTOR]
                    ratios[OURS if side == OURS else "budget"].append((peak / base[0], time))
                    words[-1] += f" ({peak / base[0]:.2f}, {time:.2f})"
            print(f"{name}: {'; '.join(words)}", flush=True)
    for side, pairs in ratios.items():
        peaks, times = ([each[i] for each in pairs] for i in range(2))
        print(f"{side}: geometric mean of peaks {geometric(peaks):.2f}, of times {geometric(times):.2f}")


if __name__ == "__main__":
    main()
