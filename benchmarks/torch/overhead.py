"""What a bound call costs: a chain of operators on few elements, eagerly, planned, and by `.out` from Python.

python -m benchmarks.torch.overhead [--operators 1000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import sublet
from sublet.integrations.torch.compile.arena_pool import ArenaPool
from sublet.integrations.torch.compile.joint_graph import capture_program

ROUNDS = 60


def chain(count: int) -> Callable[[Any], list[Any]]:
    """Additions, products and sines, one after another."""

    def run(x: Any) -> list[Any]:
        y = x
        for number in range(count):
            y = y + x if number % 3 == 0 else y * x if number % 3 == 1 else torch.sin(y)
        return [y]

    return run


def outs(count: int, x: Any) -> Callable[[], None]:
    """The same operators by their `.out` overloads, written by hand."""
    y, aten = x.clone(), torch.ops.aten
    calls = (aten.add.out, aten.mul.out, aten.sin.out)

    def run() -> None:
        with torch.inference_mode():
            for number in range(count):
                if number % 3 < 2:
                    calls[number % 3](y, x, out=y)
                else:
                    calls[2](y, out=y)

    return run


def microseconds(calls: Sequence[Callable[[], Any]], count: int) -> list[float]:
    """CPU time of an operator by each of the calls, which take turns: the least of several rounds, each time of the
    second of two calls in a row, which finds in the caches what the first has read."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for which, call in enumerate(calls):
            call()
            begin = time.process_time()
            call()
            best[which] = min(best[which], time.process_time() - begin)
    return [each / count * 1e6 for each in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=1000)
    count = parser.parse_args().operators
    x = torch.full((64,), 0.5)
    function = chain(count)
    pool = ArenaPool(capture_program(make_fx(function)(x), None, (), {}), [x], sublet.Options())
    arena = pool.lease().arena
    with torch.no_grad():
        assert torch.equal(pool.run_pass(arena, 0, [x])[0], function(x)[0])
        sides = (lambda: function(x), lambda: pool.run_pass(arena, 0, [x]), outs(count, x))
        eager, ours, by_hand = microseconds(sides, count)
    print(f"{count} operators on {x.numel()} elements, microseconds each: eager {eager:.2f}, planned {ours:.2f} "
          f"({ours / eager:.2f} of eager), .out from Python {by_hand:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
