"""Loops of T rounds, differentiated with every way to store them: arena and time against T, and what they grow as.

python -m benchmarks.loop_tapes --network lstm --rounds 64 256 1024 4096
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time
from typing import Any

import numpy as np

import sublet
from sublet import layers, nn
from sublet.analysis.options import Options
from sublet.ir.model import Model

BATCH, WIDTH = 8, 64
GROWTH: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "plain": ("T", lambda t: t),
    "sqrt": ("sqrt(T)", np.sqrt),
    "tree": ("log2(T)", np.log2),
}


def lstm(rounds: int, way: str) -> Model:
    """A step of an LSTM whose last h is compared with a target."""
    g = sublet.Graph("lstm")
    xs, target = g.input("xs", (rounds, BATCH, WIDTH)), g.input("target", (BATCH, WIDTH))
    w, u = (g.parameter(name, (4 * WIDTH, WIDTH), initial=layers.normal(0.05)) for name in ("w", "u"))
    zero = g.constant(np.zeros((BATCH, WIDTH)), "f32")
    with g.while_({"h": zero, "c": zero}, over={"x": xs}) as loop:
        gates = nn.linear(loop["x"], w) + nn.linear(loop["h"], u)
        h, c = nn.lstm_cell(gates, loop["c"])[:2]
        loop.next(h=h, c=c)
    return sublet.train_step(nn.mse(loop["h"], target).mean(), [w, u], sublet.SGD(0.1), checkpoint=way)


def residual(rounds: int, way: str) -> Model:
    """A step of a While: a residual block with shared weights, over and over, with what comes in at each round."""
    g = sublet.Graph("residual")
    xs, target = g.input("xs", (rounds, BATCH, WIDTH)), g.input("target", (BATCH, WIDTH))
    w, u = (g.parameter(name, (WIDTH, WIDTH), initial=layers.normal(0.05)) for name in ("w", "u"))
    with g.while_({"h": g.constant(np.zeros((BATCH, WIDTH)), "f32")}, over={"x": xs}) as loop:
        a = nn.gelu(loop["h"] @ w + loop["x"])
        loop.next(h=loop["h"] + nn.tanh(layers.dropout(a, 0.1, key=g.key() + loop.counter) @ u))
    return sublet.train_step(nn.mse(loop["h"], target).mean(), [w, u], sublet.SGD(0.1), checkpoint=way)


def measured(step: Model, rounds: int) -> tuple[int, float, bytes]:
    """The arena, seconds of the processor for a step, the least of three, and what it gives and leaves."""
    train = sublet.compile(step, options=Options(io="bound"))
    random = np.random.default_rng(0)
    feeds = {"xs": random.normal(size=(rounds, BATCH, WIDTH)), "target": random.normal(size=(BATCH, WIDTH))}
    given = {name: array.astype("float32") for name, array in feeds.items()}
    train(**given)
    seconds = []
    for _ in range(3):
        begin = process_time()
        loss = np.asarray(train(**given)["loss"]).tobytes()
        seconds.append(process_time() - begin)
    return train.arena_bytes, min(seconds), loss + b"".join(train.state(name).tobytes() for name in "wu")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--network", choices=("lstm", "residual"), default="lstm")
    asked.add_argument("--rounds", type=int, nargs="+", default=[64, 256, 1024, 4096])
    asked.add_argument("--ways", nargs="+", default=list(GROWTH))
    chosen = asked.parse_args()
    make = {"lstm": lstm, "residual": residual}[chosen.network]
    plain: dict[int, tuple[int, float, bytes]] = {}
    for way in chosen.ways:
        arenas = []
        for rounds in chosen.rounds:
            arena, seconds, bits = measured(make(rounds, way), rounds)
            first = plain.setdefault(rounds, (arena, seconds, bits))
            same = "the same bits" if bits == first[2] else "OTHER BITS"
            print(
                f"{chosen.network} {way:5} T={rounds:5}: {arena:12,} bytes, {arena / first[0]:7.2%}, "
                f"{seconds:7.3f} s, x{seconds / first[1]:.2f}, {same}",
                flush=True,
            )
            arenas.append(arena)
        if len(arenas) > 2:
            name, growth = GROWTH[way]
            slope, begin = np.polyfit(growth(np.array(chosen.rounds, float)), arenas, 1)
            fitted = begin + slope * growth(np.array(chosen.rounds, float))
            off = np.abs(fitted / arenas - 1).max()
            print(f"  {begin:,.0f} + {slope:,.0f} x {name}, at most {off:.1%} off", flush=True)


if __name__ == "__main__":
    main()
