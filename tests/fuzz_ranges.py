"""Fuzzing of plans over ranges: generated programs with shape arithmetic, at random points, beside ONNX Runtime.

    python -m tests.fuzz_ranges --programs 2000 --first 10000

Every other program ranges from 0. Prints the programs and points that differ, and the share of programs not planned;
exits 1 if any differ.
"""

from __future__ import annotations

import argparse
import sys

from tests.runtime.test_ranged import FROM_ZERO, differing_points
from tests.support.onnx.ranged_programs import RANGES, ranged_program

POINTS = 5


def main() -> None:
    """Run the programs, and print the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=10_000)
    args = parser.parse_args()
    refused = wrong = 0
    for seed in range(args.first, args.first + args.programs):
        ranges = FROM_ZERO if seed % 2 else RANGES
        different = differing_points(ranged_program(seed, ranges=ranges), ranges, POINTS, seed)
        refused += different is None
        if different:
            wrong += 1
            print(f"seed {seed}: {different}", flush=True)
    print(f"{args.programs} programs, {POINTS} points each: {wrong} differ, {refused} not planned")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
