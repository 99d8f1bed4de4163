"""Random networks with branches in branches, in whole numbers, so that every runtime computes them exactly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

SHAPES = ((4, 8), (8, 4), (32,))
MOST = 8.0

Block = tuple[list[tuple[Any, ...]], list[int]]
"""What is done, one line after another, and which of the values come out."""


def block(draw: random.Random, inputs: int, outs: int, depth: int) -> Block:
    """A random block: lines of ("one" | "two" | "view" | "cond", ...)."""
    lines: list[tuple[Any, ...]] = []
    count = inputs
    for _ in range(draw.randint(2, 6)):
        kind = draw.choices(("one", "two", "view", "cond"), (3, 4, 2, 3 if depth else 0))[0]
        pick = draw.choices(range(count), range(1, count + 1), k=3)
        if kind == "cond":
            made, taken = draw.randint(1, 2), sorted(set(pick))
            arms = [block(draw, len(taken), made, depth - 1) for _ in range(2)]
            lines.append((kind, pick[0], draw.randint(-9, 9), taken, *arms))
            count += made
        else:
            lines.append((kind, draw.randrange(4), *pick[:2]))
            count += 1
    return lines, draw.choices(range(inputs, count), k=outs)


def run(block: Block, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a block computes. What goes into a branch is no view of another operand, what comes out is new."""
    values, whose = list(inputs), list(range(len(inputs)))
    lines, outs = block
    for kind, *rest in lines:
        if kind == "cond":
            which, level, taken, true, false = rest
            values += torch.cond(
                values[which].sum() > level,
                lambda *given, true=true: run(true, given),
                lambda *given, false=false: run(false, given),
                tuple(
                    values[k].clone() if whose[k] in [whose[j] for j in taken if j < k] else values[k] for k in taken
                ),
            )
            whose += range(len(whose), len(values))
            continue
        op, a, b = rest
        one, other = values[a], values[b].reshape(values[a].shape)
        if kind == "one":
            values.append([one + 3, one * 2, torch.relu(one), one.neg()][op].clamp(-MOST, MOST))
        elif kind == "two":
            values.append([one + other, one - other, one * other, torch.maximum(one, other)][op].clamp(-MOST, MOST))
        else:
            values.append(one.reshape(SHAPES[op % len(SHAPES)]))
        whose.append(whose[a] if kind == "view" else len(whose))
    return tuple((values[k].reshape(SHAPES[0]) + number + 1) for number, k in enumerate(outs))


class RandomNetwork(nn.Module):
    """A network of two inputs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._block = block(random.Random(seed), 2, 2, 2)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return run(self._block, (x, y))


def random_network(seed: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network by its seed, with inputs."""
    draw = torch.Generator().manual_seed(seed)
    return RandomNetwork(seed), tuple(torch.randint(-4, 5, SHAPES[0], generator=draw).float() for _ in range(2))
