"""What it costs to let an executable read and write other memory: `python -m benchmarks.rebinding`."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, thread_time

import numpy as np

import sublet
from sublet import Executable, Graph, Options, nn

NODES = 500
WIDTH = 64
ROUNDS = 400


def chain(nodes: int = NODES) -> Executable:
    """A chain of so many commands from x to y, of which none is fused."""
    g = Graph("chain")
    value = nn.relu(g.input("x", (8, WIDTH)))
    weights = [g.parameter(f"w{i}", (WIDTH, WIDTH)) for i in range(4)]
    for i in range(nodes - 1):
        value = nn.matmul(value, weights[i % 4]) if i % 2 else nn.tanh(value)
    g.output("y", value)
    drawn = {
        weight.name: np.random.default_rng(1).normal(0, 0.1, weight.shape).astype(np.float32) for weight in weights
    }
    return sublet.compile(g.model(), weights=drawn, options=Options(io="bound"))


def seconds(executable: Executable, name: str, memory: Callable[[int], object], *, runs: bool) -> float:
    """Of the processor for one binding: the median of many, with a run before each if `runs`, whose data then fills the
    caches."""
    taken = []
    for i in range(ROUNDS):
        given = memory(i)
        if runs:
            executable.views()
        begin = thread_time()
        executable.bind(name, given)
        taken.append(thread_time() - begin)
    return float(np.median(taken))


def main() -> None:
    """Print the time of a run, of binding an input and an output anew, and of binding everything."""
    executable = chain()
    nodes = len(executable.graph.nodes)
    arrays = [np.ones((8, WIDTH), np.float32) for _ in range(16)]
    executable.bind("x", arrays[0])
    begin = perf_counter()
    executable.prepare()
    whole = perf_counter() - begin
    for name in ("x", "y"):
        offset = 8 * (name == "y")
        apart, after = (
            seconds(executable, name, lambda i, offset=offset: arrays[offset + i % 8], runs=runs)  # type: ignore[misc]
            for runs in (False, True)
        )
        times = f"{apart * 1e6:.1f} us, right after a run {after * 1e6:.1f} us"
        print(f"{nodes} nodes: {name!r} is bound to other memory in {times}")
    print(f"{nodes} nodes: binding all of them took {whole * 1e3:.1f} ms")
    begin = perf_counter()
    for _ in range(ROUNDS):
        executable.views()
    print(f"{nodes} nodes: a run takes {(perf_counter() - begin) / ROUNDS * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
