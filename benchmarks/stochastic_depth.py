"""Stochastic depth with 16 paths: 10,000 calls, how many plans were made after all paths were seen, how memory grew.

python -m benchmarks.stochastic_depth [--calls N]
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any

import numpy as np

import sublet
from sublet import nn

PAGE = 4096


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def main() -> None:
    """Print what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000)
    calls = parser.parse_args().calls
    d = sublet.DynamicGraph()
    w = [d.parameter(f"w{i}", initial=np.eye(16) * 0.9) for i in range(4)]
    last = d.parameter("last", initial=np.eye(16))

    @d.jit
    def step(x: Any, taken: int) -> Any:
        for i in range(4):
            if taken >> i & 1:
                x = nn.tanh(x @ w[i])
        loss = nn.square(x @ last).mean()
        d.minimize(loss, sublet.SGD(0.01))
        return loss

    x = np.ones((8, 16), np.float32)
    for taken in [*range(16)] * 8:
        step(d.tensor(x), taken)
    planned, recorded = step.planned, step.recorded_calls
    gc.collect()
    before = resident()
    random = np.random.default_rng(0)
    for taken in random.integers(0, 16, calls):
        step(d.tensor(x), int(taken))
    gc.collect()
    print(f"{calls:,} calls: {step.planned - planned} plans made, {step.recorded_calls - recorded} calls recorded")
    print(f"resident memory grew by {resident() - before:,} bytes")


if __name__ == "__main__":
    main()
