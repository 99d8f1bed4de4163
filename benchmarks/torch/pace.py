"""Time of one training step, or of one inference, of several sides in turn, so that a busy machine slows all alike.

    python -m benchmarks.torch.pace NETWORK eager,sublet step|inference

Prints JSON: for each side the least seconds of several calls, of the processor and by the clock.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Sequence

from benchmarks.torch.peak import WARM, called

ROUNDS = 7


def paced(name: str, sides: Sequence[str], kind: str) -> dict[str, dict[str, float]]:
    """The least times by side."""
    found = {side: {"cpu": float("inf"), "wall": float("inf")} for side in sides}
    calls = {side: called(name, side, kind) for side in sides}
    for turn in range(WARM + ROUNDS):
        for side, (call, _, between) in calls.items():
            between()
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            took = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            if turn >= WARM:
                found[side] = {clock: min(least, took[clock]) for clock, least in found[side].items()}
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    name, sides, kind = sys.argv[1:4]
    print(json.dumps(paced(name, sides.split(","), kind)))


if __name__ == "__main__":
    main()
