"""Random Python programs over a dynamic graph: branches and loops on values, gradients, updates, errors.

Tensors are kept from call to call, and dropped.

All numbers are small integers in f64, so that however a program is computed the result is the same in every bit.

    python -m tests.dynamic.programs --programs 10000 [--seed N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import sublet
from sublet import nn
from sublet.dynamic.jit_function import JitFunction

CALLS = 7
LIMIT = 6.0


class Stopped(Exception):
    """Raised by programs."""


class World:
    """One graph, and what a program leaves in it.

    log    what was looked at
    kept   tensors that outlive calls
    """

    def __init__(self, seed: int) -> None:
        self.graph = sublet.DynamicGraph(backend="reference" if seed % 4 else "auto", plans=4)
        self.log: list[Any] = []
        self.kept: list[Any] = []
        random = np.random.default_rng(seed)
        shapes = [(3,), (3,), (2, 3), (3, 2)]
        self.parameters = [
            self.graph.parameter(f"w{i}", dtype="f64", shape=shape, initial=random.integers(-3, 4, shape))
            for i, shape in enumerate(shapes[: 1 + seed % 4])
        ]

    def look(self, tensor: Any) -> Any:
        """Note what a tensor holds."""
        found = tensor.numpy()
        self.log.append(found)
        return found


class Program:
    """A step function, the same for the same seed: what it does depends on values and on the number of the call."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, world: World, x: Any, number: int) -> Any:
        random = Random(self.seed)
        here = [x, *world.parameters]
        self._block(random, world, here, number, 3 + random.randrange(10), 0)
        left = random.sample(here, min(len(here), random.randrange(3)))
        own = {id(one) for one in world.parameters}
        return [one for one in left if id(one) not in own]

    def _block(self, random: Random, world: World, here: list[Any], number: int, length: int, depth: int) -> None:
        kinds = [self._command] * 8 + [self._look, self._drop, self._keep, self._gradient, self._update, self._number]
        kinds += [self._rolled, self._case]
        if depth < 3:
            kinds += [self._branch, self._loop, self._failure, self._unrecorded]
        for _ in range(length):
            random.choice(kinds)(random, world, here, number, depth)

    @staticmethod
    def _pick(random: Random, here: list[Any]) -> Any:
        return here[random.randrange(len(here))]

    def _command(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        a, b = self._pick(random, here), self._pick(random, here)
        ways: list[Callable[[], Any]] = [
            lambda: nn.relu(a),
            lambda: -a,
            lambda: a.sum(),
            lambda: a * 2 + 1,
            lambda: a.reshape(-1)[1:] if a.size > 1 else a + 1,
            lambda: a[0] if a.ndim else a,
            lambda: nn.maximum(a, a.max()),
            lambda: a.detach() * a,
            lambda: nn.concat([a.reshape(-1), b.reshape(-1)], axis=0)[: 1 + random.randrange(4)],
        ]
        if a.shape == b.shape:
            ways += [lambda: a + b, lambda: a * b, lambda: a - b, lambda: nn.where(a > b, a, b)] * 2
        if a.ndim == 2 and b.ndim == 2 and a.shape[1] == b.shape[0]:
            ways += [lambda: a @ b] * 3
        made = random.choice(ways)()
        here.append(nn.clamp(made, low=-LIMIT, high=LIMIT))

    def _look(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        world.look(self._pick(random, here))

    def _drop(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        if len(here) > 2:
            del here[random.randrange(1, len(here))]

    def _keep(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        if world.kept and random.random() < 0.5:
            here.append(world.kept.pop(0))
        world.kept.append(self._pick(random, here))
        del world.kept[:-4]

    def _gradient(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        of = self._pick(random, here)
        wrt = [self._pick(random, here) for _ in range(1 + random.randrange(2))]
        try:
            found = sublet.gradients(of * of if random.random() < 0.3 else of, wrt)
        except sublet.base.errors.GradientError:
            return
        here += [nn.clamp(one, low=-LIMIT, high=LIMIT) for one in found]

    def _update(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        target = random.choice(world.parameters)
        fitting = [one for one in here if one.shape == target.shape]
        if fitting:
            world.graph.update(target, random.choice(fitting))

    def _number(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        a = self._pick(random, here)
        factor = random.choice([number, 2, number // 3, 0])
        held = world.graph.constant(float(factor), "f64") if random.random() < 0.3 else factor
        here.append(nn.clamp(a * held, low=-LIMIT, high=LIMIT))

    @staticmethod
    def _inside(random: Random, a: Any, outer: list[Any]) -> Any:
        """What a body or arm computes of one of its values and what is around it, of the same shape as `a`."""
        fitting = [one for one in outer if one.shape == a.shape] or [a]
        b = fitting[random.randrange(len(fitting))]
        ways: list[Callable[[], Any]] = [
            lambda: a + b,
            lambda: a * b - 1,
            lambda: nn.relu(a - b),
            lambda: nn.maximum(a, outer[0].sum()) * 2,
            lambda: nn.where(a > b, a, b + 1),
        ]
        return nn.clamp(random.choice(ways)(), low=-LIMIT, high=LIMIT)

    def _rolled(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        a, b = self._pick(random, here), self._pick(random, here)
        rounds, checked, swapped = random.randrange(4), random.random() < 0.3, random.random() < 0.3
        over = {"x": a} if a.ndim == 2 and random.random() < 0.5 and a.shape[0] < 4 else {}
        carried = {"h": b, "k": b * 1} if swapped else {"h": b}
        length, backwards = ({} if over else {"rounds": rounds}), random.random() < 0.5
        extent = a.shape[0] if over else rounds
        carried["n"] = world.graph.constant(0, "i64")
        with world.graph.while_(carried, over=over, backwards=backwards, **length) as loop:
            if checked:
                loop.check(loop["h"].sum() < random.randrange(1, 8))
            h = self._inside(random, loop["h"], [*here, *([loop["x"]] if over else [])])
            if random.random() < 0.3:
                with world.graph.case_of(h.sum() > 1) as case:
                    for _ in range(2):
                        with case.arm():
                            case.give(self._inside(random, h, here))
                h = case[0]
            loop.next(**({"h": loop["k"], "k": h} if swapped else {"h": h}), n=loop["n"] + 1)
            loop.stack(rows=h.sum())
        here.append(loop["h"])
        numbers = np.arange(extent)
        made = world.graph.tensor(numbers[::-1].copy() if backwards else numbers) < loop["n"]  # others hold anything
        here.append(nn.clamp(nn.where(made, loop["rows"], 0.0).sum(), low=-LIMIT, high=LIMIT))

    def _case(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        a, b = self._pick(random, here), self._pick(random, here)
        several = random.random() < 0.4
        index = nn.clamp(a.sum(), low=-1.0, high=1.0).astype("i64") if several else a.sum() > random.randrange(-3, 4)
        with world.graph.case_of(index, [b] if several else []) as case:
            for _ in range(2):
                with case.arm():
                    case.give(self._inside(random, b, here) if random.random() < 0.8 else b)
        here.append(case[0])

    def _branch(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        a, ways = self._pick(random, here), [random.randrange(1 << 30) for _ in range(2)]
        chosen = ways[float(a.sum()) > random.randrange(-3, 4)]
        self._block(Random(chosen), world, here, number, 1 + chosen % 4, depth + 1)

    def _loop(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        rounds = int(abs(float(self._pick(random, here).sum()))) % 3
        seed = random.randrange(1 << 30)
        for _ in range(rounds):
            self._block(Random(seed), world, here, number, 1 + seed % 3, depth + 1)

    def _failure(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        when, caught = random.randrange(CALLS), random.random() < 0.4
        try:
            self._block(random, world, here, number, 1, depth + 1)
            if number == when:
                raise Stopped
        except Stopped:
            if not caught:
                raise

    def _unrecorded(self, random: Random, world: World, here: list[Any], number: int, depth: int) -> None:
        with world.graph.no_grad():
            self._block(random, world, here, number, 1 + random.randrange(3), depth + 1)


def outcome(seed: int, mode: str) -> list[Any]:
    """All that can be seen of some calls of a program: "eager", "remembered", or "poisoned" before each call."""
    world, program = World(seed), Program(seed)

    def step(x: Any, number: int) -> Any:
        return program(world, x, number)

    remembered: JitFunction = world.graph.jit(step)
    call = remembered.eagerly if mode == "eager" else remembered
    random = np.random.default_rng(seed + 1)
    inputs = random.integers(-2, 3, (3, 2, 3))
    for number in range(CALLS):
        if mode == "poisoned":
            world.graph._plans.arena.raw[:] = 0xFF
        x = world.graph.tensor(inputs[random.integers(3)], "f64")
        try:
            for one in call(x, number):
                world.look(one)
        except Stopped:
            world.log.append("stopped")
        for one in (*world.kept, *world.parameters):
            world.look(one)
    world.log.append(None)
    return world.log


def disagreement(seed: int) -> str:
    """How the ways to run a program differ; "" when they agree."""
    expected = outcome(seed, "eager")
    for mode in ("remembered", "poisoned"):
        found = outcome(seed, mode)
        if len(found) != len(expected):
            return f"{seed}: {mode}: {len(found)} values were seen, not {len(expected)}"
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            same = a is b or a == b if a is None or isinstance(a, str) or isinstance(b, str) else np.array_equal(a, b)
            if not same:
                return f"{seed}: {mode}: value {i} is {a}, not {b}"
    return ""


def main() -> None:
    """Try programs, and stop at the first that is computed in two ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for seed in range(chosen.seed, chosen.seed + chosen.programs):
        try:
            wrong = disagreement(seed)
        except sublet.base.errors.SubletError as error:
            raise RuntimeError(f"program {seed}") from error
        if wrong:
            raise SystemExit(wrong)
        if (seed - chosen.seed) % 100 == 99:
            print(f"{seed - chosen.seed + 1} programs agree", flush=True)


if __name__ == "__main__":
    main()
