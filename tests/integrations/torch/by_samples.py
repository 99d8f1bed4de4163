"""Rules of what computes sample by sample, held against PyTorch: `make samples-torch`.

    python -m tests.integrations.torch.by_samples [--ops add,linalg] [--samples 4] [--programs 500] [--first 0]

What PyTorch tests its operators with (`op_db`) and random programs are traced. Every axis of every input is taken for
that of samples, alone and together with those of other inputs of the same extent; what is accepted is computed a sample
at a time, and put together it must be what is computed at once.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import Counter

import torch
from torch.testing._internal.common_methods_invocations import op_db

from tests.integrations.torch import fuzz
from tests.integrations.torch.in_turn import TAKEN_FROM, judged, strided
from tests.integrations.torch.opinfo import samples as samples_of


def main() -> None:
    """Judge, and tell each that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    draw = random.Random(asked.first)
    counts: Counter[str] = Counter()
    operators = set()
    for op in op_db:
        if not op.name.startswith(tuple(asked.ops.split(","))) or torch.float32 not in op.dtypes:
            continue
        if op.name.startswith(("empty", "new_empty")):
            continue
        for _, function, inputs in samples_of(op, torch.float32, asked.samples):
            found = judged(function, inputs, draw, op.name)
            counts += found
            operators |= {op.name} if found["equal"] else set()
    for seed in range(asked.first, asked.first + asked.programs):
        counts += judged(fuzz.Program(seed, changes_inputs=False), fuzz.given(seed), draw, f"program {seed}")
        counts += judged(strided(draw), [torch.randn(TAKEN_FROM)], draw, f"strides {seed}")
    print(f"{len(operators)} operators accepted; {dict(counts)}")
    raise SystemExit(bool(counts["wrong"]) or not counts["equal"])


if __name__ == "__main__":
    main()
