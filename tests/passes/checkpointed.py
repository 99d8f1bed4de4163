"""Generated loops, whose gradients are the same bits however their rounds are stored; and what they are run on.

Loops in loops, branches inside, random commands keyed by the round, shared weights, sequences from either end, stacked
rows, rows selected by the number of the round.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

import sublet
from sublet import layers, nn
from sublet.analysis.options import Options
from sublet.nn.control import Loop
from sublet.nn.tensor import Tensor
from sublet.runtime.differential import compare

UNPLANNED = Options(strategy="no_reuse", share=False)
SHAPE = (2, 3)


@dataclass
class Program:
    """A generator of one program, the same for the same seed."""

    rng: random.Random
    g: sublet.Graph
    w: list[Tensor]

    def step(self, x: Tensor, loop: Loop, depth: int) -> Tensor:
        """One thing done to a value in a round."""
        kind = self.rng.randrange(9)
        w = self.rng.choice(self.w)
        if kind < 3:
            return nn.tanh(x @ w)
        if kind == 3:
            return x * nn.sigmoid(x @ w + self.w[0][0])
        if kind == 4:
            return layers.dropout(x, 0.3, key=self.g.key() + loop.counter)
        if kind == 5:
            return nn.sin(x) + nn.random_normal(self.g.key() + loop.counter, shape=SHAPE, stream=3) * 0.1
        if kind == 6:
            return self.branch(x, loop, depth)
        if kind == 7 and depth:
            return self.loop(x, self.rng.randint(2, 5), depth - 1)
        return nn.relu(x) - loop.counter.astype("f32") * 0.01 * x

    def branch(self, x: Tensor, loop: Loop, depth: int) -> Tensor:
        taken = x.sum() > 0 if self.rng.random() < 0.5 else loop.counter > self.rng.randint(0, 5)
        with self.g.case_of(taken) as case:
            for _ in range(2):
                with case.arm():
                    case.give(self.step(x, loop, depth))
        return case[0]

    def loop(self, x: Tensor, rounds: int, depth: int) -> Tensor:
        """A loop over two carried values, and what becomes of what it stacked."""
        rng, g = self.rng, self.g
        rows = self.g.constant(np.linspace(-1, 1, rounds * 6).reshape(rounds, *SHAPE), "f32") * x
        with g.while_({"a": x, "b": x}, over={"s": rows}, backwards=rng.random() < 0.4) as loop:
            a, b = loop["a"], loop["b"]
            for _ in range(rng.randint(1, 3)):
                a = self.step(a, loop, depth)
            if rng.random() < 0.6:
                a = a + loop["s"] * 0.5
            if rng.random() < 0.3:
                a = a + rows[loop.counter]
            loop.next(a=a, b=rng.choice((loop["a"], b, nn.tanh(a * b), a)))
            loop.stack(h=a)
        found = loop["a"] + loop["b"]
        return found + loop["h"].mean(0) if rng.random() < 0.5 else found


def program(seed: int, checkpoint: Any, most: int, depth: int) -> tuple[sublet.Graph, dict[str, Any]]:
    """A loss with its gradients by all weights and an input: loops of at most so many rounds, one in another."""
    rng = random.Random(seed)
    g = sublet.Graph(f"loops{seed}")
    x = g.input("x", SHAPE)
    w = [g.parameter(f"w{i}", (3, 3), initial=layers.normal(0.6)) for i in range(2)]
    made = Program(rng, g, w)
    y = x
    for _ in range(rng.randint(1, 2)):
        y = made.loop(y, rng.randint(2, most), rng.randint(0, depth))
    loss = nn.square(y @ w[0]).mean()
    g.output("loss", loss)
    for i, grad in enumerate(sublet.gradients(loss, [*w, x], checkpoint=checkpoint)):
        g.output(f"gradient{i}", grad)
    return g, {"x": np.random.default_rng(seed).normal(size=SHAPE).astype("float32")}


def schedule(seed: int) -> Any:
    """How the loops of a seed are stored."""
    return random.Random(-seed - 1).choice(("sqrt", "tree", 1, 2, 3, 4, 7))


def check_seed(seed: int, most: int = 20, depth: int = 2, options: Options | None = None) -> bool:
    """Hold the gradients to those of the plain tape, bit for bit, planned and in poison. Whether anything was cut."""
    way = schedule(seed)
    plain, feeds = program(seed, None, most, depth)
    stored, _ = program(seed, way, most, depth)
    unplanned = sublet.compile(plain, backend="reference", options=UNPLANNED)
    planned = sublet.compile(stored, backend="reference", options=options)
    found = compare(unplanned, planned, feeds)
    assert found.equal, f"seed {seed}, {way}: {found.differences}"
    return len(stored.model().graph.nodes) != len(plain.model().graph.nodes)
