"""A graph computed sample by sample, wherever samples may lie in its inputs, held against the same graph at once."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from sublet.base.errors import ModelError
from sublet.integrations.torch.compile.micro_batched_inference import with_smaller_batch
from sublet.integrations.torch.reader.batch_axis import BatchAxis, OptionalBatchAxis

MOST = 40
"""Choices of axes that are tried of one program."""


def choices(inputs: Sequence[Any], draw: random.Random) -> Iterator[tuple[int, list[OptionalBatchAxis]]]:
    """Samples, and where they lie in each input."""
    for extent in sorted({n for each in inputs for n in each.shape if n > 1}):
        axes = [[None, *(BatchAxis(i) for i, n in enumerate(each.shape) if n == extent)] for each in inputs]
        found = [list(each) for each in itertools.islice(itertools.product(*axes), 1, 2000)]
        yield from ((extent, each) for each in draw.sample(found, min(len(found), MOST)))


def in_turn(module: Any, states: Sequence[OptionalBatchAxis], inputs: Sequence[Any], samples: int) -> list[Any]:
    """What a module gives when it is computed sample by sample. Raises ModelError where it is not."""
    fewer = with_smaller_batch(module, states, samples, 1)
    parts = []
    for number in range(samples):
        given = [
            each if at is None else each.narrow(at.axis, number, 1) for each, at in zip(inputs, states, strict=True)
        ]
        parts.append(fewer.module(*given))
    found = []
    for position, at in enumerate(fewer.result_axes):
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


def strided(draw: random.Random) -> Any:
    """A function that takes elements of what it computes by strides, whatever these mean."""
    order = draw.sample(range(3), 3)
    size = [draw.choice((1, 2, 3, 4, 4, 6)) for _ in range(draw.randint(1, 3))]
    stride = [draw.choice((1, 1, 2, 3, 4, 6, 6, 8, 12)) for _ in size]
    offset = draw.choice((None, None, 0, 1, 6))
    return lambda x: (x.permute(order) + 1).as_strided(size, stride, offset)


TAKEN_FROM = (4, 3, 2)
"""Extents of what it takes."""
