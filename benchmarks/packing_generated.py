"""Generated packing problems by Sublet, by strategies and by peers: bytes of the arenas above the lower bound.

    python -m benchmarks.packing_generated [--seconds 20]

Each problem is made from a seed, so a strategy cannot be tuned to published problems. The peers are OR-Tools' CP-SAT;
best fit with reuse, as MLIR's StaticMemoryPlanner documents the method; and MiniMalloc, where `minimalloc` is on the
PATH. Each packing is made in a process of its own, and checked.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.packing_scale import random_problem
from benchmarks.packing_table import STRATEGIES_SHOWN, Packer, by_command, by_strategy, cp_sat, rows_of
from benchmarks.results import BOUND, Row, round_rows
from sublet.packing import Buffer, Packing, Problem, write_csv

MINIMALLOC = "minimalloc --capacity={capacity} --input={in} --output={out}"
STATIC_PLANNER = "best fit with reuse"


def cut_rectangles(count: int, seed: int) -> Problem:
    """Return the pieces of a rectangle of time and bytes, cut at random: the optimum is the height of the rectangle."""
    rng = random.Random(f"{count} {seed}")
    pieces = [(0, 40 * count, 0, 1 << 20)]
    while len(pieces) < count:
        pieces.sort(key=lambda piece: (piece[1] - piece[0]) * (piece[3] - piece[2]))
        begin, end, low, high = pieces.pop()
        if rng.random() < 0.5 and end - begin > 1:
            middle = rng.randrange(begin + 1, end)
            pieces += [(begin, middle, low, high), (middle, end, low, high)]
        else:
            middle = low + 64 * rng.randrange(1, max(2, (high - low) // 64))
            pieces += [(begin, end, low, middle), (begin, end, middle, high)]
    pieces = [piece for piece in pieces if piece[3] > piece[2]]
    rng.shuffle(pieces)
    return Problem(tuple(Buffer(str(i), high - low, begin, end) for i, (begin, end, low, high) in enumerate(pieces)))


def layers(count: int, seed: int) -> Problem:
    """Return the live ranges of layers: most tensors end at the next layer, some live on to a later layer."""
    rng = random.Random(f"{count} {seed}")
    buffers = []
    for i in range(count):
        size = 1024 * rng.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 49, 64)) * rng.choice((1, 1, 7))
        life = rng.choice((1, 1, 1, 2, 3, rng.randrange(4, 12), rng.randrange(8, 60)))
        buffers.append(Buffer(str(i), size, i, i + 1 + life, alignment=64))
    return Problem(tuple(buffers))


KINDS: dict[str, Callable[[int], Problem]] = {
    "cut rectangles, 60": partial(cut_rectangles, 60),
    "cut rectangles, 250": partial(cut_rectangles, 250),
    "layers, 150": partial(layers, 150),
    "layers, 600": partial(layers, 600),
    "random, 300": partial(random_problem, 300),
}
"""Problems by name, with the number of buffers."""


def best_fit_with_reuse(problem: Problem, capacity: int = 0, seconds: float = 0.0) -> Packing:
    """Pack in order of first use: each buffer goes into the smallest free hole that is large enough; without such a
    hole, to the end, after a free hole there has grown. Bytes are free from the end of a live range on."""
    order = sorted(range(len(problem.buffers)), key=lambda i: (problem.buffers[i].lower, i))
    live: list[tuple[int, int, int]] = []  # offset, end, the time from which the bytes are free
    offsets, arena = [0] * len(order), 0
    for i in order:
        buffer = problem.buffers[i]
        live = [each for each in live if each[2] > buffer.lower]
        holes, top = [], 0
        for begin, end, _ in [*live, (arena, arena, 0)]:
            offset = -(-top // buffer.alignment) * buffer.alignment
            if begin - offset >= buffer.size:
                holes.append((begin - top, offset))
            top = max(top, end) if begin < arena else top
        offset = min(holes)[1] if holes else -(-top // buffer.alignment) * buffer.alignment
        offsets[i] = offset
        arena = max(arena, offset + buffer.size)
        if buffer.size:
            insort(live, (offset, offset + buffer.size, buffer.upper))
    return Packing(tuple(offsets), arena, STATIC_PLANNER)


def packers() -> dict[str, Packer]:
    """Return the packers beside Sublet, by name."""
    found: dict[str, Packer] = {name: partial(by_strategy, name) for name in STRATEGIES_SHOWN}
    found |= {STATIC_PLANNER: best_fit_with_reuse, "CP-SAT": cp_sat}
    return found | ({"MiniMalloc": partial(by_command, MINIMALLOC)} if shutil.which("minimalloc") else {})


def result_rows(
    seconds: float = 20.0, seeds: Sequence[int] = (0, 1, 2), kinds: Iterable[str] = tuple(KINDS)
) -> Iterator[Row]:
    """Yield the bytes of every packer over the lower bound, for each kind of problem, over all seeds."""
    for kind in kinds:
        ratios: dict[str, list[float]] = {BOUND: []}
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "problem.csv"
                write_csv(KINDS[kind](seed), None, path)
                found = rows_of(path, packers(), seconds)
            ratios[BOUND].append(1.0)
            for by, result in found.items():
                ratios.setdefault("Sublet" if by == "auto" else by, []).append(1 + result.gap)
        yield from round_rows(kind, ratios, "of the bound")


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    for row in result_rows(parser.parse_args().seconds):
        print(f"{row.case}: {row.series}: {row.value:.3f} ({row.low:.3f} to {row.high:.3f}) {row.unit}", flush=True)


if __name__ == "__main__":
    main()
