"""Time of one training step, or of one inference, of several sides in turn, so that a busy machine slows all alike.

    python -m benchmarks.torch.pace NETWORK eager,sublet step|inference [ROUNDS]

Prints JSON: for each side the least seconds of several calls, of the processor and by the clock, the shares of the
first side's seconds of the processor in the same round, and their median.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.torch.peak import WARM, called

ROUNDS = 7


def paced(name: str, sides: Sequence[str], kind: str, rounds: int = ROUNDS) -> dict[str, dict[str, Any]]:
    """The least times by side, and the shares."""
    found = {side: {"cpu": float("inf"), "wall": float("inf")} for side in sides}
    shares: dict[str, list[float]] = {side: [] for side in sides}
    calls = {side: called(name, side, kind) for side in sides}
    first = 0.0
    for turn in range(WARM + rounds):
        for side, (call, _, between) in calls.items():
            between()
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            if turn >= WARM:
                found[side] = {clock: min(least, took[clock]) for clock, least in found[side].items()}
                first = took["cpu"] if side == sides[0] else first
                shares[side].append(took["cpu"] / first)
    return {side: {**found[side], "share": median(shares[side]), "shares": shares[side]} for side in sides}


def main() -> None:
    warnings.simplefilter("ignore")
    name, sides, kind, *rounds = sys.argv[1:]
    print(json.dumps(paced(name, sides.split(","), kind, *map(int, rounds))))


if __name__ == "__main__":
    main()
