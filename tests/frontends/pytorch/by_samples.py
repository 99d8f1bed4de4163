"""Rules of what computes sample by sample, held against PyTorch: `make samples-torch`.

    python -m tests.frontends.pytorch.by_samples [--ops add,linalg] [--samples 4] [--programs 500] [--first 0]

What PyTorch tests its operators with (`op_db`) and random programs are traced. Every axis of every input is taken for
that of samples, alone and together with those of other inputs of the same extent; what is accepted is computed a sample
at a time, and put together it must be what is computed at once.
"""

from __future__ import annotations

import argparse
import itertools
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db

from sublet.errors import ModelError
from sublet.frontends.torch.fewer import with_fewer_samples
from sublet.frontends.torch.rows import Rows, State
from tests.frontends.pytorch import fuzz
from tests.frontends.pytorch.opinfo import samples as samples_of

MOST = 40
"""Choices of axes that are tried of one program."""


def choices(inputs: Sequence[Any], draw: random.Random) -> Iterator[tuple[int, list[State]]]:
    """Samples, and where they lie in each input."""
    for extent in sorted({n for each in inputs for n in each.shape if n > 1}):
        axes = [[None, *(Rows(i) for i, n in enumerate(each.shape) if n == extent)] for each in inputs]
        found = [list(each) for each in itertools.islice(itertools.product(*axes), 1, 2000)]
        yield from ((extent, each) for each in draw.sample(found, min(len(found), MOST)))


def in_turn(module: Any, states: Sequence[State], inputs: Sequence[Any], samples: int) -> list[Any]:
    """What a module gives when it is computed sample by sample. Raises ModelError where it is not."""
    fewer = with_fewer_samples(module, states, samples, 1)
    parts = []
    for number in range(samples):
        given = [
            each if at is None else each.narrow(at.axis, number, 1) for each, at in zip(inputs, states, strict=True)
        ]
        parts.append(fewer.module(*given))
    found = []
    for position, at in enumerate(fewer.results):
        each = [part[position] for part in parts]
        found.append(each[-1] if at is None else torch.cat(each, at.axis))
    return found


def same(found: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether results agree, but for the order of additions."""
    return all(
        not isinstance(each, torch.Tensor)
        or (one.shape == each.shape and torch.allclose(one, each, rtol=1e-4, atol=1e-4, equal_nan=True))
        for one, each in zip(found, right, strict=True)
    )


def judged(function: Any, inputs: Sequence[Any], draw: random.Random, label: str) -> Counter[str]:
    """How often samples were accepted, refused, and wrong."""
    counts: Counter[str] = Counter()
    with torch.no_grad():
        try:
            flat = lambda *args: torch.utils._pytree.tree_leaves(function(*args))  # noqa: E731
            module = make_fx(torch.func.functionalize(flat), tracing_mode="fake")(*inputs)
            right = module(*inputs)
        except Exception:  # whatever PyTorch does not trace
            return Counter(["not traced"])
        for samples, states in choices(inputs, draw):
            try:
                found = in_turn(module, states, inputs, samples)
            except ModelError:
                counts["refused"] += 1
                continue
            counts["equal" if same(found, right) else "wrong"] += 1
            if not same(found, right):
                print(f"{label}: {samples} samples, {states}", flush=True)
    return counts


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
    print(f"{len(operators)} operators accepted; {dict(counts)}")
    raise SystemExit(bool(counts["wrong"]) or not counts["equal"])


if __name__ == "__main__":
    main()
